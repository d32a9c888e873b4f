"""Leaderboards of groups of votes whose group is only likely: of prompts that look like those of a category, say.

Vote n is of group g with the probability w_ng, and its expected coefficients are sum over g of w_ng coefs_g. All groups
are fitted together, so that a vote that may be of either says little of both, and no group's board is diluted by votes
that only resemble its own. Intervals are the sandwich over clusters of votes (those on one prompt).

Shapes: N votes, G groups, M models, D = M + the likelihood's parameters, C clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConvergenceError
from p2l.leaderboard.newton import Expansion, derivatives, minimise
from p2l.likelihood import Likelihood, targets

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PRIOR_SD = 5.0
"""Of a coefficient, in logits: keeps models that never lost finite, and is too weak to be seen."""


@dataclass(frozen=True)
class LikelyBoards:
    """The leaderboards of G groups."""

    coefs: Floats
    """(G, M)"""
    scalars: Floats
    """(G, S) eta and gamma, as far as the likelihood has them."""
    influences: Floats
    """(C + G D, G, M) by how much each cluster of votes, and then the prior of each parameter, moves each coefficient.

    Their squares sum to its variance.
    """


def fit_likely_groups(
    labels: Ints,
    weights: Floats,
    memberships: Floats,
    clusters: Ints,
    num_models: int,
    likelihood: Likelihood,
    shift: Floats | None = None,
) -> LikelyBoards:
    """Fit the groups to votes: labels (N, 3) `[winner, loser, tie]`, weights (N,), memberships (N, G), clusters (N,).

    `shift` (N, 3) is what covariates are known to add to winner, loser and eta of each vote: the boards leave it out.
    Raise ConvergenceError where there is no optimum, or no vote that counts.
    """
    winner, loser, tie = labels.T
    count, known = len(likelihood.parameters), _beside_parameters(shift, len(labels), likelihood)
    outcomes = np.asarray(targets(likelihood, tie), dtype=np.float64) * weights[:, None]
    total, groups, size = float(outcomes.sum()), memberships.shape[1], num_models + count
    if not total > 0:
        raise ConvergenceError(f"no vote counts under {likelihood.name}")
    # Where the parameters of each vote stand: both coefficients and the likelihood's own.
    places = np.column_stack([winner, loser, *(np.full(len(tie), num_models + n) for n in range(count))])
    pairs = (places[:, :, None] * size + places[:, None, :]).reshape(-1)
    precision = np.full(groups * size, _PRIOR_SD**-2 / total)

    def slopes(theta: Floats) -> tuple[float, Floats, Floats]:
        values = np.einsum("ng,gnp->pn", memberships, theta.reshape(groups, size)[:, places])
        logs, first, second = derivatives(likelihood, *_named(values + known, likelihood))
        value = -float((outcomes * logs).sum()) / total
        gradient = -np.einsum("nk,nkp->np", outcomes, first) / total
        return value, gradient, -np.einsum("nk,nkpq->npq", outcomes, second) / total

    def scattered(gradient: Floats) -> Floats:
        return np.stack(
            [
                np.bincount(places.reshape(-1), (gradient * share[:, None]).reshape(-1), minlength=size)
                for share in memberships.T
            ]
        )

    def evaluate(theta: Floats) -> Expansion:
        value, gradient, curvature = slopes(theta)
        hessian = np.empty((groups, size, groups, size))
        for row in range(groups):
            for column in range(row + 1):
                share = (memberships[:, row] * memberships[:, column])[:, None, None]
                block = np.bincount(pairs, (curvature * share).reshape(-1), minlength=size * size)
                hessian[row, :, column] = block.reshape(size, size)
                hessian[column, :, row] = hessian[row, :, column].T
        return Expansion(
            theta,
            value + 0.5 * float(precision @ theta**2),
            scattered(gradient).reshape(-1) + precision * theta,
            hessian.reshape(groups * size, -1) + np.diag(precision),
        )

    point = minimise(evaluate, np.zeros(groups * size), tolerance=1e-5)
    theta = point.theta.reshape(groups, size)
    influences = _influences(point, slopes(point.theta)[1], memberships, places, clusters, size, precision / total)
    return LikelyBoards(theta[:, :num_models], theta[:, num_models:], influences[:, :, :num_models])


def _beside_parameters(shift: Floats | None, number: int, likelihood: Likelihood) -> Floats:
    """Return what is known to be added to the parameters (P, N) of each vote."""
    known = np.zeros((2 + len(likelihood.parameters), number))
    if shift is not None:
        known[:2] = shift[:, :2].T
        if "eta" in likelihood.parameters:
            known[2 + likelihood.parameters.index("eta")] = shift[:, 2]
    return known


def _named(values: Floats, likelihood: Likelihood) -> tuple[Floats | None, ...]:
    """Return coef_a, coef_b, eta and gamma of values (P, N); None for what the likelihood does not have."""
    scalars = dict(zip(likelihood.parameters, values[2:], strict=True))
    return values[0], values[1], scalars.get("eta"), scalars.get("gamma")


def _influences(
    point: Expansion,
    gradient: Floats,
    memberships: Floats,
    places: Ints,
    clusters: Ints,
    size: int,
    prior_squares: Floats,
) -> Floats:
    """Return by how much clusters and the prior move each parameter: their scores times the inverse of the Hessian."""
    from scipy.sparse import coo_array

    groups = memberships.shape[1]
    values = gradient[:, None, :] * memberships[:, :, None]
    columns = places[:, None, :] + size * np.arange(groups)[:, None]
    rows = np.broadcast_to(clusters[:, None, None], values.shape)
    shape = (int(clusters.max(initial=-1)) + 1, groups * size)
    scores = coo_array((values.ravel(), (rows.ravel(), columns.ravel())), shape=shape).tocsr()
    inverse = np.linalg.inv(point.hessian)
    # The mean of the prior counts as one more observation: what is known through it alone has its deviation.
    moved = np.concatenate([-(scores @ inverse), np.sqrt(prior_squares)[:, None] * inverse])
    return np.asarray(moved).reshape(-1, groups, size)
