"""Agreement of raters against published worked examples, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau

from coeval.analysis.statistics import (
    icc,
    kappa,
    kappa_label,
    kendall,
    krippendorff,
    mid_ranks,
    pearson,
    spearman,
)

# Krippendorff, "Computing Krippendorff's alpha-reliability" (2011), example C: four observers, twelve units.
NAN = np.nan
OBSERVERS = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
).T
# Shrout and Fleiss (1979), table 2: six targets, four judges.
TARGETS = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=float)
LEVELS = st.sampled_from([0.0, 0.5, 1.0])


def test_alpha_of_the_published_example() -> None:
    assert krippendorff(OBSERVERS) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff(OBSERVERS, ordinal=True) == pytest.approx(0.815, abs=5e-4)


def test_icc_of_the_published_example() -> None:
    single, average = icc(TARGETS)
    assert single == pytest.approx(0.29, abs=5e-3)
    assert average == pytest.approx(0.62, abs=5e-3)


def test_kappa_by_hand() -> None:
    table = [[20, 5, 0], [10, 15, 0], [0, 0, 0]]  # p_o 0.7, p_e 0.5
    assert kappa(table) == pytest.approx(0.4)
    assert kappa(table, quadratic=True) == pytest.approx(0.4)  # two levels only: no distance but one
    steps = [[1, 0, 1], [0, 0, 0], [0, 0, 2]]  # margins 2 0 2 and 1 0 3
    assert kappa(steps, quadratic=True) == pytest.approx(1 - (4 * 1 / 4) / (4 * (2 * 3 + 2 * 1) / 16))


def test_kappa_of_one_level_alone_is_undefined() -> None:
    assert kappa([[0, 0, 0], [0, 7, 0], [0, 0, 0]]) is None
    assert kappa(np.zeros((3, 3))) is None


@pytest.mark.parametrize(
    ("value", "label"),
    [(-0.1, "less than chance"), (0.2, "slight"), (0.21, "fair"), (0.6, "moderate"), (0.8, "substantial")],
)
def test_labels_of_kappa(value: float, label: str) -> None:
    assert kappa_label(value) == label
    assert kappa_label(None) == ""
    assert kappa_label(0.81) == "almost perfect"


@given(arrays(np.int64, (3, 3), elements=st.integers(0, 20)))
def test_kappa_lies_between_its_bounds(table: np.ndarray) -> None:
    for quadratic in (False, True):
        value = kappa(table, quadratic=quadratic)
        assert value is None or -1.0 - 1e-9 <= value <= 1.0 + 1e-9


@given(st.lists(LEVELS, min_size=2, max_size=20), st.integers(2, 4))
def test_alpha_is_one_where_all_agree(values: list[float], judges: int) -> None:
    scores = np.repeat(np.array(values)[:, None], judges, axis=1)
    expected = None if len(set(values)) == 1 else 1.0
    for ordinal in (False, True):
        assert krippendorff(scores, ordinal=ordinal) == (expected and pytest.approx(expected))


@given(arrays(np.float64, st.tuples(st.integers(2, 12), st.integers(2, 4)), elements=LEVELS))
def test_alpha_asks_nothing_of_the_order(scores: np.ndarray) -> None:
    forward, backward = krippendorff(scores), krippendorff(scores[::-1, ::-1])
    assert forward == (backward and pytest.approx(backward)) or forward == pytest.approx(backward)


def test_alpha_by_the_definition() -> None:
    scores = np.array([[0.0, 0.5, NAN], [1.0, 1.0, 0.5], [NAN, NAN, 1.0]])
    units = [[0.0, 0.5], [1.0, 1.0, 0.5]]
    n = 5
    within = sum(sum((a - b) ** 2 for a in unit for b in unit) / (len(unit) - 1) for unit in units) / n
    values = [value for unit in units for value in unit]
    between = sum((a - b) ** 2 for a in values for b in values) / (n * (n - 1))
    assert krippendorff(scores) == pytest.approx(1 - within / between)


@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=2, max_size=30))
def test_kendall_is_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    one, other = np.array(pairs).T
    found = kendall(one, other)
    if found is None:
        assert np.ptp(one) == 0 or np.ptp(other) == 0
    else:
        assert found == pytest.approx(kendalltau(one, other).statistic, abs=1e-9)


def test_ranks_and_correlations() -> None:
    assert mid_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])) == pytest.approx(1.0)
    assert pearson(np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0, 2.0])) is None
