"""Which two models to show next: the pairs whose votes would teach most of a leaderboard.

A vote on the pair (a, b) adds its Fisher information F (2 x 2, of both coefficients) to that of the leaderboard, whose
covariance S (the prior's and the votes' information, inverted) shrinks to

    S' = S - S E (F^-1 + E' S E)^-1 E' S,      E the columns a and b of the identity,

and with it the variance that is still open: the sum, over the models that the user names, of the variance of their
coefficients less the mean of all. Votes are planned one after the other, each on the pair that takes most off it, so
that a plan of n votes spreads over pairs as their covariances shrink. Their shares, mixed with a share of pairs drawn
at random, are the propensities with which pairs are drawn.

Shapes: M models, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.newton import BROAD, derivatives
from p2l.likelihood import get

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PairPlan:
    """How likely each pair of models is to be shown next."""

    pairs: Ints
    """(P, 2) positions in the leaderboard."""
    votes: Ints
    """(P,) planned votes."""
    propensities: Floats
    """(P,) they sum to one."""
    variance_before: float
    """Mean variance of the coefficients of the named models, less the mean of all models."""
    variance_after: float
    """What the planned votes are expected to leave of it."""
    variance_random: float
    """What as many votes on pairs drawn uniformly are expected to leave of it."""


def plan_pairs(
    board: Leaderboard,
    pairs: npt.ArrayLike,
    count: int,
    *,
    named: Ints | None = None,
    random_share: float = 0.1,
) -> PairPlan:
    """Plan `count` votes that say most about the models `named` (positions; None: all).

    `board` was fitted to votes on `pairs` (N, 2), positions in it. InputError for fewer than two models.
    """
    size = len(board.models)
    if size < 2:
        raise InputError("pairs are planned from a leaderboard of at least two models")
    first, second = np.triu_indices(size, 1)
    information = _pair_information(board, first, second)
    chosen = np.arange(size) if named is None else np.asarray(named, dtype=np.int64)
    contrast = np.zeros((len(chosen), size))
    contrast[np.arange(len(chosen)), chosen] = 1.0
    contrast -= 1.0 / size
    low, high = np.sort(np.asarray(pairs, dtype=np.int64), axis=1).T
    cast = np.bincount(low * size + high, minlength=size**2).reshape(size, size)[first, second]
    spread = BROAD if board.prior_sd is None or not np.isfinite(board.prior_sd) else board.prior_sd
    before = _after(np.eye(size) * spread**2, first, second, information, cast.astype(np.float64))
    covariance = before.copy()
    votes = np.zeros(len(first), dtype=np.int64)
    for _ in range(count):
        gain, update = _gains(covariance, contrast, first, second, information)
        best = int(gain.argmax())
        votes[best] += 1
        columns = covariance[:, [first[best], second[best]]]
        covariance -= columns @ update[best] @ columns.T
    planned = votes / count if count else np.full(len(votes), 1.0 / len(votes))
    propensities = (1.0 - random_share) * planned + random_share / len(votes)
    uniform = np.full(len(votes), count / len(votes))
    return PairPlan(
        pairs=np.stack([first, second], axis=1),
        votes=votes,
        propensities=propensities,
        variance_before=_open(before, contrast),
        variance_after=_open(covariance, contrast),
        variance_random=_open(_after(before, first, second, information, uniform), contrast),
    )


def _pair_information(board: Leaderboard, first: Ints, second: Ints) -> Floats:
    """Return the Fisher information (P, 2, 2) of one vote on each pair in the two coefficients."""
    likelihood = get(board.likelihood)
    a, b = board.coefs[first], board.coefs[second]
    eta = None if board.eta is None else np.full(len(a), board.eta)
    gamma = None if board.gamma is None else np.full(len(a), board.gamma)
    logs, slopes, _ = derivatives(likelihood, a, b, eta, gamma)
    weight = np.exp(logs)[..., None, None]
    return np.asarray((weight * slopes[..., :2, None] * slopes[..., None, :2]).sum(axis=1))


def _gains(
    covariance: Floats, contrast: Floats, first: Ints, second: Ints, information: Floats
) -> tuple[Floats, Floats]:
    """Return what a vote on each pair takes off the open variance (P,), and (P, 2, 2) to update the covariance with."""
    inner = np.empty((len(first), 2, 2))
    inner[:, 0, 0], inner[:, 1, 1] = covariance[first, first], covariance[second, second]
    inner[:, 0, 1] = inner[:, 1, 0] = covariance[first, second]
    # F (1 + S F)^-1 is (F^-1 + S)^-1, and stays finite where F is singular: where only differences count.
    update = information @ np.linalg.inv(np.eye(2) + inner @ information)
    moved = contrast @ covariance
    gram = moved.T @ moved
    overlap = np.empty_like(inner)
    overlap[:, 0, 0], overlap[:, 1, 1] = gram[first, first], gram[second, second]
    overlap[:, 0, 1] = overlap[:, 1, 0] = gram[first, second]
    return np.einsum("pij,pji->p", update, overlap), update


def _after(covariance: Floats, first: Ints, second: Ints, information: Floats, votes: Floats) -> Floats:
    """Return the covariance after votes (P,), not whole ones perhaps, on the pairs."""
    added = np.zeros_like(covariance)
    for row, row_models in enumerate((first, second)):
        for column, column_models in enumerate((first, second)):
            np.add.at(added, (row_models, column_models), votes * information[:, row, column])
    return np.asarray(covariance @ np.linalg.inv(np.eye(len(covariance)) + added @ covariance))


def _open(covariance: Floats, contrast: Floats) -> float:
    return float(np.trace(contrast @ covariance @ contrast.T)) / len(contrast)
