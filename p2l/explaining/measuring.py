"""How each model does in each cluster against how it does overall, with intervals over prompts.

A model's strength on a prompt is its coefficient less the mean of the M models; its change in a cluster is the mean of
that over the cluster's prompts less the mean over all. The bootstrap draws prompts again, for the cluster and for the
whole together; beyond 2,048 prompts these are dealt into as many groups, which are drawn in their place.

Shapes: N prompts, M models, K clusters, G groups of prompts, R replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import stdtr

from p2l.drift_cells import adjusted
from p2l.explaining.result import Strength
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.leaderboard.field import win_rates
from p2l.likelihood import Likelihood

__all__ = ["Rules", "Said", "measure"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_GROUPS = 2048
_REPLICATES = 400
_AT_ONCE = 50  # replicates whose ranks are in memory together


@dataclass(frozen=True)
class Said:
    """What a model says of N prompts: coefs (N, M), eta and gamma (N,) or None."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None

    def of(self, rows: Ints) -> Said:
        """Some of the prompts."""
        eta, gamma = (None if values is None else values[rows] for values in (self.eta, self.gamma))
        return Said(self.coefs[rows], eta, gamma)

    def means(self, cluster: Ints, clusters: int) -> tuple[Floats, Floats | None, Floats | None]:
        """Mean coefs (K, M), eta and gamma (K,) of each cluster."""
        number = np.maximum(np.bincount(cluster, minlength=clusters), 1)
        sums = _members(cluster, clusters) @ self.coefs
        sides = (
            None if values is None else np.bincount(cluster, values, minlength=clusters) / number
            for values in (self.eta, self.gamma)
        )
        return (np.asarray(sums / number[:, None]), *sides)  # type: ignore[return-value]


@dataclass(frozen=True)
class Rules:
    """When a change counts: coverage of intervals, false discovery rate, least change in points, fewest prompts."""

    level: float = 0.95
    fdr: float = 0.05
    least_change: float = 20.0
    least_prompts: int = 20


def measure(
    said: Said,
    cluster: Ints,
    names: Sequence[str],
    models: Sequence[str],
    likelihood: Likelihood,
    rules: Rules,
    rng: np.random.Generator,
) -> list[Strength]:
    """A cell for each model and each cluster with enough prompts; clusters (N,) refer to `names`."""
    strength = said.coefs - said.coefs.mean(axis=1, keepdims=True)
    sizes = np.bincount(cluster, minlength=len(names))
    used = [int(one) for one in np.argsort(-sizes, kind="stable") if sizes[one] >= rules.least_prompts]
    if not used:
        return []
    draws = _Draws(strength, cluster, len(names), rng)
    overall, inside = strength.mean(axis=0), centred(said.means(cluster, len(names))[0])
    lower, upper, error = draws.changes(rules.level)
    rank_lower, rank_upper = draws.ranks(rules.level)
    change = inside - overall
    p = _chances(change[used], error[used], sizes[used], rules.least_change)
    q = adjusted(p.ravel()).reshape(p.shape)
    rates, overall_rates = _rates(said, cluster, len(names), likelihood)
    ranks, overall_ranks = _ranks(inside), _ranks(overall[None])[0]
    points = POINTS_PER_LOGIT * np.stack([change, lower, upper])
    return [
        Strength(
            cluster=names[k],
            model=model,
            prompts=int(sizes[k]),
            change=float(points[0, k, m]),
            lower=float(points[1, k, m]),
            upper=float(points[2, k, m]),
            rank=int(ranks[k, m]),
            rank_lower=int(rank_lower[k, m]),
            rank_upper=int(rank_upper[k, m]),
            overall_rank=int(overall_ranks[m]),
            win_rate=float(rates[k, m]),
            overall_win_rate=float(overall_rates[m]),
            p=float(p[row, m]),
            q=float(q[row, m]),
            verdict="" if q[row, m] > rules.fdr else "better" if change[k, m] > 0 else "worse",
        )
        for row, k in enumerate(used)
        for m, model in enumerate(models)
    ]


def centred(coefs: Floats) -> Floats:
    """Coefficients (..., M) less their mean."""
    return np.asarray(coefs - coefs.mean(axis=-1, keepdims=True))


def _members(cluster: Ints, clusters: int) -> csr_array:
    """Sparse (K, N), 1 where a prompt is in a cluster."""
    return csr_array((np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(clusters, len(cluster)))


def _rates(said: Said, cluster: Ints, clusters: int, likelihood: Likelihood) -> tuple[Floats, Floats]:
    """Win rates (K, M) in each cluster and (M,) overall, at the mean coefficients."""
    everything = said.means(np.zeros(len(cluster), dtype=np.int64), 1)
    inside = said.means(cluster, clusters)
    return win_rates(inside[0], likelihood, *inside[1:]), win_rates(everything[0], likelihood, *everything[1:])[0]


def _ranks(strength: Floats) -> Ints:
    """Places (..., M) from 1, the greatest first."""
    return np.argsort(np.argsort(-strength, axis=-1, kind="stable"), axis=-1, kind="stable") + 1


def _chances(change: Floats, error: Floats, sizes: Ints, least: float) -> Floats:
    """p-values (K, M) of changes beyond the least that counts, by the t distribution."""
    beyond = np.maximum(np.abs(change) - least / POINTS_PER_LOGIT, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(beyond == 0, 0.0, beyond / error)
    return np.asarray(np.minimum(1.0, 2 * stdtr(sizes[:, None] - 1.0, -ratio)))


class _Draws:
    """Means of each cluster and of everything over prompts drawn again, R times."""

    def __init__(self, strength: Floats, cluster: Ints, clusters: int, rng: np.random.Generator) -> None:
        number, self.models = strength.shape
        self.clusters = clusters
        groups = min(number, _GROUPS)
        group = rng.permutation(number) % groups
        cells = _members(group * clusters + cluster, groups * clusters)
        sums = np.asarray(cells @ strength).reshape(groups, clusters * self.models)
        sizes = np.asarray(cells.sum(axis=1)).reshape(groups, clusters)
        times = rng.multinomial(groups, np.full(groups, 1 / groups), size=_REPLICATES).astype(np.float64)
        drawn = (times @ sums).reshape(_REPLICATES, clusters, self.models)
        counts = times @ sizes
        self.overall = drawn.sum(axis=1) / counts.sum(axis=1)[:, None]
        with np.errstate(invalid="ignore"):
            self.inside = drawn / counts[:, :, None]  # NaN where none of a small cluster was drawn

    def changes(self, level: float) -> tuple[Floats, Floats, Floats]:
        """Ends of the intervals and standard errors (K, M) of the changes."""
        change = self.inside - self.overall[:, None]
        empty = np.isnan(change).all(axis=0)
        change[:, empty] = 0.0
        tail = (1 - level) / 2
        lower, upper = np.nanquantile(change, [tail, 1 - tail], axis=0)
        return lower, upper, np.nanstd(change, axis=0, ddof=1)

    def ranks(self, level: float) -> tuple[Ints, Ints]:
        """Ends of the intervals (K, M) of the places in each cluster."""
        ranks = np.empty(self.inside.shape, dtype=np.int16)
        for start in range(0, len(ranks), _AT_ONCE):
            ranks[start : start + _AT_ONCE] = _ranks(np.nan_to_num(self.inside[start : start + _AT_ONCE]))
        tail = (1 - level) / 2
        lower, upper = np.quantile(ranks, [tail, 1 - tail], axis=0, method="nearest")
        return lower.astype(np.int64), upper.astype(np.int64)
