"""Leaderboards of groups that votes are only likely to be of."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from p2l.leaderboard import fit_labels
from p2l.leaderboard.likely_groups import LikelyBoards, fit_likely_groups
from p2l.likelihood import get

COEFS = np.array([0.6, 0.2, 0.0, -0.8])
FALL = np.array([0.0, -1.2, 0.0, 0.0])


def votes(count: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N, 3), without ties, and whether each vote is of the group, in which the second model falls."""
    pairs = np.argsort(rng.random((count, 4)), axis=1)[:, :2]
    inside = rng.random(count) < share
    coefs = COEFS + inside[:, None] * FALL
    rows = np.arange(count)
    first_wins = rng.random(count) < 1 / (1 + np.exp(coefs[rows, pairs[:, 1]] - coefs[rows, pairs[:, 0]]))
    ordered = np.where(first_wins[:, None], pairs, pairs[:, ::-1])
    return np.column_stack([ordered, np.zeros(count, dtype=np.int64)]), inside


def fitted(labels: np.ndarray, memberships: np.ndarray, clusters: np.ndarray | None = None) -> LikelyBoards:
    clusters = np.arange(len(labels)) if clusters is None else clusters
    return fit_likely_groups(labels, np.ones(len(labels)), memberships, clusters, 4, get("bt"))


def fall_of(boards: LikelyBoards) -> tuple[float, float]:
    """Return how far the second model falls between the groups, and the standard error."""
    centred = boards.coefs - boards.coefs.mean(axis=1, keepdims=True)
    moved = boards.influences - boards.influences.mean(axis=2, keepdims=True)
    return float(centred[0, 1] - centred[1, 1]), float(np.sqrt(((moved[:, 0, 1] - moved[:, 1, 1]) ** 2).sum()))


def test_groups_that_are_known_have_the_boards_of_their_votes() -> None:
    labels, inside = votes(3000, 0.4, np.random.default_rng(0))
    boards = fitted(labels, np.column_stack([inside, ~inside]).astype(float))
    for row, members in enumerate((inside, ~inside)):
        alone = fit_labels(labels[members], models=list("abcd"), likelihood="bt", intervals=None)
        centred = boards.coefs[row] - boards.coefs[row].mean()
        assert_allclose(centred, alone.coefs - alone.coefs.mean(), atol=0.05)


@pytest.mark.parametrize("sure", [0.95, 0.7])
def test_a_fall_is_found_in_full_though_only_likely_votes_are_known(sure: float) -> None:
    """Each vote's membership is right with the probability that is stated; uncertainty widens and does not shrink."""
    rng, falls, errors = np.random.default_rng(1), [], []
    for _ in range(12):
        labels, inside = votes(3000, 0.5, rng)
        right = rng.random(len(labels)) < sure
        likely = np.where(inside == right, sure, 1 - sure)
        fall, error = fall_of(fitted(labels, np.column_stack([likely, 1 - likely])))
        falls.append(fall)
        errors.append(error)
    expected = 0.75 * FALL[1]
    assert abs(np.mean(falls) - expected) < 3 * np.std(falls) / np.sqrt(len(falls))
    assert 0.6 < np.mean(errors) / np.std(falls) < 1.7


def test_repeated_votes_of_a_cluster_say_no_more() -> None:
    labels, inside = votes(800, 0.5, np.random.default_rng(2))
    memberships, clusters = np.column_stack([inside, ~inside]).astype(float), np.arange(800)
    once = fall_of(fitted(labels, memberships))
    often = fall_of(fitted(np.repeat(labels, 3, 0), np.repeat(memberships, 3, 0), np.repeat(clusters, 3)))
    assert_allclose(often, once, rtol=0.05)


def test_a_model_without_votes_has_the_deviation_of_the_prior() -> None:
    labels, _ = votes(400, 0.5, np.random.default_rng(3))
    labels = labels[(labels[:, :2] != 3).all(axis=1)]
    boards = fitted(labels, np.ones((len(labels), 1)))
    assert np.sqrt((boards.influences[:, 0, 3] ** 2).sum()) == pytest.approx(5.0, rel=0.01)
