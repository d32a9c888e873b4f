"""Intervals for the parameters of a leaderboard: sandwich and bootstrap.

Shapes: M models, P pairs, K outcomes, D parameters, Q parameters of one pair, N votes, R replicates.

Sandwich: V = H^-1 J H^-1 with H the Hessian at the optimum and J the summed outer products of the scores of independent
units (votes, or clusters of votes). It stays right when the likelihood is only an approximation. The mean of the prior
counts as one more observation, so that a model known only through the prior has the prior's interval.
Bootstrap: the units are drawn again with replacement, the means of the prior again from the prior, and the fit is
repeated from the optimum. Where only differences count, both are intervals of the distance to the component's mean.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.bootstrap import check_draws
from p2l.common.errors import ConfigError
from p2l.leaderboard.newton import Expansion, Objective, minimise, one_blas_thread, winner_targets
from p2l.leaderboard.pair_tables import Ints, PairTable, table_cells

Floats = npt.NDArray[np.float64]
_REFIT_TOLERANCE = 1e-4  # a last Newton step of this size leaves an error of the order of 1e-8


@dataclasses.dataclass(frozen=True)
class Units:
    """N votes that were not cast independently: those of one cluster (a user, a prompt) are drawn together."""

    pair: Ints  # row of each vote in the table of pairs
    winner: Ints  # its column there
    weights: Floats
    cluster: Ints  # from 0


def units_of(
    table: PairTable, model_a: npt.ArrayLike, model_b: npt.ArrayLike, winner: npt.ArrayLike, weights: Any, clusters: Any
) -> Units:
    """Return votes (N,) as units of a table; `weights` may be None, `clusters` holds any values."""
    return units_at(*table_cells(table, model_a, model_b, winner), weights, clusters)


def units_at(pair: Ints, column: Ints, weights: Any, clusters: Any) -> Units:
    """Return votes (N,) as units whose rows and columns in the table are known."""
    weight = np.ones(len(pair)) if weights is None else np.asarray(weights, dtype=np.float64)
    return Units(pair, column, weight, np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1))


class Bounds(NamedTuple):
    """Ends of the intervals of D parameters, NaN without any, and their covariance (D, D), or None."""

    lower: Floats
    upper: Floats
    covariance: Floats | None


def check_intervals(intervals: str | None, level: float, replicates: int) -> None:
    """Refuse settings that no interval can be made with."""
    if intervals not in ("sandwich", "bootstrap", None):
        raise ConfigError(f"unknown intervals {intervals!r}; use 'sandwich', 'bootstrap' or None")
    check_draws(level, replicates)


def bounds(
    objective: Objective,
    point: Expansion,
    intervals: str | None,
    level: float,
    scores: Callable[[], Floats],
    draws: Callable[[], Iterator[Floats]],
    rng: np.random.Generator,
) -> Bounds:
    """Return the intervals of the parameters of a fit.

    For the sandwich `scores` gives the summed outer products (D, D) of the scores; for the bootstrap (percentile
    method) `draws` gives redrawn targets (P, K), and `rng` draws the means of the prior.
    """
    theta = point.theta
    if intervals is None:
        return Bounds(np.full(len(theta), np.nan), np.full(len(theta), np.nan), None)
    if intervals == "sandwich":
        covariance = sandwich_covariance(objective, point, scores())
        width = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
        lower, upper = theta - width, theta + width
    else:
        derived = None if objective.roles is not None else objective.derivatives(theta)
        fits = np.stack([_refit(objective, point, derived, targets, rng) for targets in draws()])
        tail = (1.0 - level) / 2
        lower, upper = np.quantile(fits, [tail, 1.0 - tail], axis=0)
        covariance = np.atleast_2d(np.cov(fits.T))
    if objective.gauge is not None:
        # A model that nothing joins to another has a score of zero by convention, and no interval.
        alone = np.flatnonzero(np.bincount(objective.gauge)[objective.gauge] == 1)
        lower[alone] = upper[alone] = np.nan
    return Bounds(lower, upper, covariance)


@one_blas_thread()
def sandwich_covariance(objective: Objective, point: Expansion, scores: Floats) -> Floats:
    """Return the covariance (D, D) from the scores' summed outer products (D, D), in units of target mass."""
    prior = np.diag(objective.precision)
    prior[: objective.num_models, : objective.num_models] -= objective.coupling
    if objective.gauge is not None:
        # The mean of a component is held, so the prior says nothing of it.
        project = np.eye(objective.size)
        same = objective.gauge[:, None] == objective.gauge[None, :]
        project[: objective.num_models, : objective.num_models] -= same / same.sum(axis=1, keepdims=True)
        prior = project @ prior @ project
    meat = (scores + prior) / objective.total**2
    bread = np.linalg.inv(point.hessian)
    return np.asarray(bread @ meat @ bread)


def vote_scores(objective: Objective, point: Expansion, table: PairTable) -> Floats:
    """Return the summed outer products (D, D) of the scores of independent votes."""
    scores = winner_scores(objective, point)
    weighted = scores * table.squares.T[:, None]
    # One product after the other takes a fifth of the time of one einsum over all of them.
    size = scores.shape[1]
    products = np.empty((size, size, scores.shape[2]))
    for row, column in itertools.combinations_with_replacement(range(size), 2):
        product = np.einsum("wp,wp->p", weighted[:, row], scores[:, column])
        products[row, column] = products[column, row] = product
    return objective.scatter_square(np.moveaxis(products, -1, 0))


def winner_scores(objective: Objective, point: Expansion) -> Floats:
    """Return the score (4, Q, P) of a vote of weight one, for each winner."""
    gradient = np.moveaxis(objective.gradients(point.theta), 0, -1)
    return np.asarray(np.tensordot(winner_targets(objective.likelihood), gradient, axes=1))


def cluster_scores(objective: Objective, point: Expansion, units: Units) -> Floats:
    """Return the summed outer products (D, D) of the scores of clusters."""
    from scipy.sparse import coo_array

    values = winner_scores(objective, point)[units.winner, :, units.pair] * units.weights[:, None]
    columns = [objective.first[units.pair], objective.second[units.pair]]
    if values.shape[1] > 2:
        columns.append(np.full(len(units.pair), objective.num_models))
    if objective.covariates is not None and objective.roles is not None:
        effects = len(objective.roles)
        of_effects = objective.covariates[units.pair] * (values @ objective.roles[:, : values.shape[1]].T)
        values = np.concatenate([values, of_effects], axis=1)
        columns += [np.full(len(units.pair), objective.size - effects + place) for place in range(effects)]
    rows = np.tile(units.cluster, len(columns))
    shape = (int(units.cluster.max()) + 1, objective.size)
    scores = coo_array((values.T.ravel(), (rows, np.concatenate(columns))), shape=shape).tocsr()
    products: Floats = np.asarray((scores.T @ scores).toarray(), dtype=np.float64)
    return products


def _refit(
    objective: Objective,
    point: Expansion,
    derived: tuple[Floats, Floats, Floats] | None,
    targets: Floats,
    rng: np.random.Generator,
) -> Floats:
    spread = np.where(objective.precision > 0, 1.0 / np.sqrt(np.maximum(objective.precision, 1e-300)), 0.0)
    shift = spread * rng.standard_normal(objective.size)
    if objective.gauge is not None:
        coefs = shift[: objective.num_models]
        coefs -= (np.bincount(objective.gauge, coefs) / np.bincount(objective.gauge))[objective.gauge]
    elif objective.coupling:
        # The prior lets the level move much further than the models around it.
        coefs = shift[: objective.num_models]
        coefs -= coefs.mean()
        sharpness = float(objective.precision[0]) - objective.num_models * objective.coupling
        coefs += rng.standard_normal() / math.sqrt(objective.num_models * sharpness)
    redrawn = dataclasses.replace(objective, targets=targets, mean=objective.mean + shift)
    start = point.theta if derived is None else redrawn.combine(point.theta, derived)
    return minimise(redrawn, start, tolerance=_REFIT_TOLERANCE).theta


def redrawn_votes(
    objective: Objective, table: PairTable, replicates: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield targets (P, K) of R samples of independent votes.

    Votes of weight one are drawn as a multinomial over the cells of the table: exact, whatever the number of votes.
    With other weights a cell's sum is a gamma variable with the mean and the variance that drawing its votes gives.
    """
    to_outcomes = winner_targets(objective.likelihood)
    cells, weights, squares = (cells.ravel() for cells in (table.votes, table.weights, table.squares))
    weighted, used, number = not np.array_equal(weights, cells), weights > 0, round(float(cells.sum()))
    scale = squares[used] / weights[used]
    for _ in range(replicates):
        if weighted:
            out = np.zeros(len(cells))
            out[used] = rng.gamma(weights[used] / scale, scale)
        else:
            out = rng.multinomial(number, cells / cells.sum()).astype(np.float64)
        yield out.reshape(-1, 4) @ to_outcomes


def redrawn_clusters(objective: Objective, units: Units, replicates: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield targets (P, K) of R samples of whole clusters."""
    to_outcomes = winner_targets(objective.likelihood)
    number, cell = int(units.cluster.max()) + 1, units.pair * 4 + units.winner
    for _ in range(replicates):
        times = np.bincount(rng.integers(number, size=number), minlength=number)[units.cluster]
        sums = np.bincount(cell, units.weights * times, minlength=4 * len(objective.first))
        yield sums.reshape(-1, 4) @ to_outcomes
