"""Intervals hold what they should, however few the prompts, and whichever prompts were drawn for training."""

from __future__ import annotations

import numpy as np
import pytest

from p2l.metrics import Interval
from route.evaluation.sampling import Samples, departures, halves, interval
from route.evaluation.table import Floats


def mean_of(values: Floats, *, seed: int = 0, draws: int = 400) -> Interval:
    """Return the interval of the mean of differences (Q,) between -1 and 1."""
    samples = Samples.of(tuple(map(str, range(len(values)))), draws=draws, seed=seed)
    means = samples.weights @ values / samples.weights.sum(axis=1)
    return interval(samples.with_unseen(np.concatenate([[values.mean()], means]), low=-1.0, high=1.0))


@pytest.mark.parametrize("questions", [20, 60])
@pytest.mark.parametrize("chances", [(0.1, 0.5, 0.4), (0.05, 0.9, 0.05), (0.0, 0.5, 0.5), (0.02, 0.9, 0.08)])
def test_intervals_hold_the_mean_as_often_as_they_say(questions: int, chances: tuple[float, ...]) -> None:
    rng, differences = np.random.default_rng(0), np.array([-1.0, 0.0, 1.0])
    truth, hits, above = float(differences @ chances), 0, 0
    for trial in range(200):
        one = mean_of(rng.choice(differences, questions, p=chances), seed=trial)
        hits += one.lower <= truth <= one.upper
        above += one.lower > truth
    assert hits >= 180
    assert above <= 10


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_prompts_that_all_agree_do_not_make_an_interval_without_width(value: float) -> None:
    few, many = (mean_of(np.full(count, value)) for count in (5, 500))
    assert few.estimate == many.estimate == value
    assert few.upper - few.lower > 0.2
    assert 0.001 < many.upper - many.lower < 0.02


def test_equal_prompts_are_drawn_together() -> None:
    samples = Samples.of(("a", "b", "a", "c"), draws=50)
    assert (samples.weights[:, 0] == samples.weights[:, 2]).all()
    assert (samples.weights[:, 0] != samples.weights[:, 1]).any()


def test_halves_are_of_prompts_and_the_same_in_every_fold() -> None:
    prompts = tuple(f"prompt {number // 2}" for number in range(200))
    for rows in halves(prompts, 3, seed=7):
        assert len(rows) == pytest.approx(100, abs=2)
        assert {row ^ 1 for row in rows.tolist()} == set(rows.tolist())  # both questions of a prompt
    assert not np.array_equal(*halves(prompts, 2))
    whole, part = halves(prompts, 1)[0], halves(prompts[:150], 1)[0]
    assert len(set(part.tolist()) ^ {row for row in whole.tolist() if row < 150}) <= 20
    assert halves(("same",), 2)[0].tolist() == [0]


def test_trainings_that_differ_widen_the_interval_by_how_much_they_differ() -> None:
    rng = np.random.default_rng(0)
    levels = rng.standard_normal(8)
    apart = departures([np.full(4001, level) for level in levels])
    assert apart[0] == 0.0
    assert apart.mean() == pytest.approx(0.0, abs=1e-3)
    assert apart[1:].std() == pytest.approx(levels.std(ddof=1), rel=1e-3)
    assert not departures([np.ones(11)]).any()  # one training tells nothing of how far others are
