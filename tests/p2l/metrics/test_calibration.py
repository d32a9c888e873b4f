"""Points of reliability diagrams: enough votes each, intervals that hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from p2l.metrics import ABOUT, LEADERBOARD_METRICS, METRICS, about, joined_points

BINARY = ("win", "loss")


def drawn(votes: int, seed: int, *, per_prompt: int = 1):
    """Chances (N, 2) and what happened; the votes of a prompt all end alike."""
    rng = np.random.default_rng(seed)
    prompts = votes // per_prompt
    win = rng.uniform(0.05, 0.95, prompts)
    won = rng.random(prompts) < win
    rows = np.repeat(np.arange(prompts), per_prompt)
    probs, truth = (np.stack([column, 1.0 - column], axis=1)[rows] for column in (win, won.astype(np.float64)))
    return probs, truth, rows


def test_points_hold_all_votes_and_have_enough_of_them() -> None:
    probs, truth, _ = drawn(400, 0)
    probs[:5] = [0.001, 0.999]  # a bin with too few
    (points,) = joined_points(probs, truth, BINARY)
    assert sum(point.votes for point in points) == pytest.approx(800, abs=60)  # each from both sides
    assert min(point.votes for point in points) >= 30
    assert [point.predicted for point in points] == sorted(point.predicted for point in points)
    assert all(0.0 <= point.lower <= point.observed <= point.upper <= 1.0 for point in points)


def test_few_votes_are_one_point() -> None:
    probs, truth, _ = drawn(12, 0)
    (points,) = joined_points(probs, truth, BINARY)
    assert [point.votes for point in points] == [12]
    # Each vote counts from both sides.
    assert (points[0].predicted, points[0].observed) == pytest.approx((0.5, 0.5))
    assert joined_points(probs[:0], truth[:0], BINARY) == ((),)


@pytest.mark.parametrize("per_prompt", [1, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(per_prompt: int) -> None:
    """Also where the votes on a prompt all end alike: whoever takes them for independent has intervals half as wide."""
    held = total = 0
    for seed in range(60):
        probs, truth, prompts = drawn(1500, seed, per_prompt=per_prompt)
        (points,) = joined_points(probs, truth, BINARY, clusters=prompts)
        held += sum(point.lower <= point.predicted <= point.upper for point in points)
        total += len(points)
    assert total > 500
    assert held / total == pytest.approx(0.95, abs=0.03)


def test_each_outcome_has_its_points_and_votes_that_do_not_count_have_none() -> None:
    rng = np.random.default_rng(1)
    probs = rng.dirichlet([2.0, 2.0, 1.0], 300)
    truth = np.eye(3)[rng.integers(0, 3, 300)]
    truth[:100] = 0.0
    win, tie = joined_points(probs, truth, ("win", "loss", "tie"))
    assert sum(point.votes for point in tie) == 200
    assert 300 < sum(point.votes for point in win) <= 400


def test_every_metric_is_explained() -> None:
    assert {*METRICS, *LEADERBOARD_METRICS} <= ABOUT.keys()
    for name, entry in ABOUT.items():
        assert entry.meaning.endswith("."), name
        assert entry.unit in {"nats", "share", "points", ""}
    assert about("Accuracy").text(0.4811) == "48.1%"
    assert about("Loss").text(1.1) == "1.1000"
    assert about("Std-BT").text(1.0) == "174 points"
    assert about("a metric of later").text(0.5) == "0.5000"
