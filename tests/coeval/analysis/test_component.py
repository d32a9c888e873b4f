"""Variances known with few degrees of freedom, in intervals and tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from coeval.analysis.statistics import Component, Variance, widened, with_component

KNOWN = Variance(np.array([0.0]), np.array([1e-12]), np.array([1e6]))
EXPOSURE = np.array([1.0])


@pytest.mark.parametrize("freedom", [1.0, 2.0, 5.0, 30.0])
def test_a_variance_that_chance_has_no_part_in_gives_students_t(freedom: float) -> None:
    whole = with_component(KNOWN, EXPOSURE, Component(square=2.0, chance=0.0, freedom=freedom))
    for tail in (0.025, 0.005):
        limit = -t.ppf(tail, whole.freedom[0]) * np.sqrt(whole.variance[0])
        assert limit == pytest.approx(-t.ppf(tail, freedom) * np.sqrt(2.0), rel=0.04)


def test_an_estimate_of_zero_from_few_judges_is_not_taken_for_none() -> None:
    items = Variance(np.array([0.0]), np.array([1.0]), np.array([60.0]))
    few, many = (
        with_component(items, EXPOSURE, Component(square=1.0, chance=1.2, freedom=freedom)) for freedom in (3.0, 300.0)
    )
    assert many.variance[0] == pytest.approx(1.0, rel=0.1)
    assert few.variance[0] > 1.1 * many.variance[0]
    assert few.freedom[0] < many.freedom[0]


@pytest.mark.parametrize("ratio", [1.0, 4.0, 30.0])
def test_two_judges_of_three_students_have_limits_that_hold(ratio: float) -> None:
    """With two degrees of freedom; `ratio` of judges' differences to chance, 1 without tastes."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(300):
        means = np.sqrt(ratio) * rng.normal(size=(2, 3))
        rest = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
        answers = means.mean(axis=0) + 0.5 * rng.normal(size=3)
        items = Variance(np.zeros(1), np.array([2 * (0.5 + 0.25)]), np.array([79.0]))
        taste = Component(square=float((rest**2).sum()) / 2.0, chance=1.0, freedom=2.0)
        whole = with_component(items, EXPOSURE, taste)
        reach = -t.ppf(0.025, whole.freedom[0]) * np.sqrt(whole.variance[0])
        held += [abs(answers[a] - answers[b]) <= reach for a, b in ((0, 1), (0, 2), (1, 2))]
    assert 0.92 <= np.mean(held) <= 0.985


def test_nothing_known_changes_nothing() -> None:
    assert with_component(KNOWN, EXPOSURE, Component(0.0, 0.0, 0.0)) is KNOWN


def test_limits_keep_their_lopsidedness_when_they_are_widened() -> None:
    narrow = Variance(np.array([0.9]), np.array([1e-4]), np.array([50.0]))
    wide = narrow._replace(variance=np.array([4e-4]))
    lower, upper = widened(0.9, (0.87, 0.91), narrow, wide)
    assert (lower[0], upper[0]) == pytest.approx((0.84, 0.92))
