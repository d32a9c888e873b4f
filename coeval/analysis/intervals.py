"""Intervals and tests that hold with few prompts: sums over clusters of items, Student's t, and a cluster's leverage.

Scores on one prompt are not independent, and items with the same prompt, or nearly, are one prompt: all that is drawn
from a run is drawn by cluster of items (`coeval.duplicates`). Of a mean with shares p_c of the clusters

    V = k sum_c p_c^2 (mean_c - mean)^2 / (1 - p_c)

is the variance that Bell and McCaffrey (2002) call CR2 (k makes it unbiased where clusters vary alike), and its degrees
of freedom are Satterthwaite's, so five prompts of unequal size count for fewer than five. A mean of scores in [0, 1]
near an end has a lopsided distribution: its limits are quantiles of the beta distribution of the sample of zeros and
ones that is as sure (after Korn and Graubard 1998), and never leave [0, 1]. Other figures of sums are
jackknifed by cluster. The percentile bootstrap, used before, covers 83 % at five items where 95 % are meant.

Shapes: N rows, C clusters, G groups, K columns of sums, F figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int64]
TAIL = 0.025
_MOST_CLUSTERS = 512  # of a jackknife: more clusters are dealt into this many groups
_PRIOR_PHI = 0.6  # of scores with three levels or means of some judges; it covers best over means of 0.6 to 0.9


class Variance(NamedTuple):
    """Of means of clusters, each (G,)."""

    mean: Floats
    variance: Floats  # infinite with one cluster
    freedom: Floats  # degrees of freedom


def cluster_variance(sums: Floats, counts: Floats) -> Variance:
    """Return the means sum(sums) / sum(counts) of clusters (C, G) with their variance and degrees of freedom."""
    total = counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(axis=0) / total
        shares = counts / total
        influence = (sums - mean * counts) / total
    return Variance(mean, *influence_variance(influence, shares))


def influence_variance(influence: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return variance and degrees of freedom (G,) of estimates that are sums of what each cluster adds, (C, G).

    `shares` (C, G) are the clusters' shares of what each estimate rests on; they add up to 1.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.where(shares < 1.0 - 1e-12, 1.0 / (1.0 - shares), np.inf)
        raw = np.where(influence == 0.0, 0.0, influence**2 * weight).sum(axis=0)
        d = shares**2 * weight
        trace, squared = _traces(d, shares)
        scale = (shares**2).sum(axis=0) / trace
        freedom = np.maximum(trace**2 / squared, 1.0)
    alone = ~np.isfinite(d).all(axis=0) | ~np.isfinite(scale)
    return np.where(alone, np.inf, raw * scale), np.where(alone, 1.0, freedom)


def _traces(d: Floats, p: Floats) -> tuple[Floats, Floats]:
    """Return the traces of B and B^2 for B = (I - 1 p')' diag(d) (I - 1 p'), which is the quadratic form of V."""
    total, dp, pp, dd = d.sum(axis=0), (d * p).sum(axis=0), (p * p).sum(axis=0), (d * d).sum(axis=0)
    trace = total - 2.0 * dp + total * pp
    mixed = -2.0 * (d * d * p).sum(axis=0) + total * (d * p * p).sum(axis=0)
    rank_two = 2.0 * dp**2 + 2.0 * pp * dd - 4.0 * total * pp * dp + (total * pp) ** 2
    return trace, dd + 2.0 * mixed + rank_two


def t_quantile(freedom: Any) -> Any:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return stdtrit(freedom, 1.0 - TAIL)


def t_limits(estimate: Any, variance: Any, freedom: Any) -> tuple[Any, Any]:
    """Return 95 % limits of estimates by Student's t."""
    reach = t_quantile(freedom) * np.sqrt(variance)
    return estimate - reach, estimate + reach


def two_sided(estimate: Any, variance: Any, freedom: Any) -> Any:
    """Return the two-sided p-value of estimates by Student's t; without variance 1 for an estimate of 0, else 0."""
    from scipy.special import stdtr

    estimate, variance = np.asarray(estimate, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        p_value = 2.0 * stdtr(freedom, -np.abs(estimate) / np.sqrt(variance))
    certain = np.where(np.abs(estimate) < 1e-12, 1.0, 0.0)
    return np.where(variance < 1e-24, certain, p_value)


def holm(chances: list[float]) -> Floats:
    """Correct p-values for their number by Holm's step-down method."""
    order = np.argsort(chances)
    scaled = np.array(chances)[order] * np.arange(len(chances), 0, -1)
    corrected = np.empty(len(chances))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


def score_limits(spread: Variance) -> tuple[Floats, Floats]:
    """Return 95 % limits of mean scores in [0, 1].

    phi is the variance as a share of that of zeros and ones with this mean, whose sample would have to have n / phi
    clusters to be as sure; the limits are those of that sample, with a uniform prior. Near an end few clusters lie off
    it, and tell little of phi: it is known with at most 4 n m (1 - m) degrees of freedom, besides a prior of one.
    """
    from scipy.special import betaincinv

    mean, clusters = np.clip(spread.mean, 0.0, 1.0), spread.freedom + 1.0  # as many of equal size
    inner = np.clip(mean, 0.5 / (clusters + 1.0), 1.0 - 0.5 / (clusters + 1.0))
    with np.errstate(invalid="ignore"):
        phi = clusters * spread.variance / (inner * (1.0 - inner))
    known = np.minimum(spread.freedom, 4.0 * clusters * mean * (1.0 - mean))
    phi = (known * np.where(known > 0, phi, 0.0) + _PRIOR_PHI) / (known + 1.0)
    good, bad = mean * clusters / phi + 1.0, (1.0 - mean) * clusters / phi + 1.0
    lower = np.where(mean < 1e-12, 0.0, np.minimum(betaincinv(good, bad, TAIL), mean))
    upper = np.where(mean > 1.0 - 1e-12, 1.0, np.maximum(betaincinv(good, bad, 1.0 - TAIL), mean))
    alone = ~np.isfinite(spread.variance)  # one cluster says nothing of others
    return np.where(alone, 0.0, lower), np.where(alone, 1.0, upper)


def mean_limits(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return 95 % limits (G,) of the mean scores sum(sums) / sum(counts) of clusters (C, G)."""
    return score_limits(cluster_variance(sums, counts))


def difference_limits(difference: float, variance: float, freedom: float, spread: Variance) -> tuple[float, float]:
    """Return 95 % limits of the difference of two mean scores in [0, 1], first less second.

    `variance` is that of the difference, `spread` of both means (2,). Limits of the means are combined by their
    correlation (Newcombe 1998, method 10; Zou and Donner 2008), so that they are lopsided where those are: limits of
    Student's t hold 0.88 of differences near the end of the scale at five items. The correlation is of the clusters
    there are and of one more that has none.
    """
    lower, upper = score_limits(spread)
    product = float(np.sqrt(spread.variance[0] * spread.variance[1]))
    if not np.isfinite([product, variance]).all():
        return -1.0, 1.0
    shared = (float(spread.variance.sum()) - variance) / (2.0 * product) if product > 0 else 0.0
    correlation = min(max(shared, -1.0), 1.0) * freedom / (freedom + 1.0)
    (down, other_down), (up, other_up) = spread.mean - lower, upper - spread.mean
    reaches = [
        np.sqrt(max(0.0, one**2 + other**2 - 2.0 * correlation * one * other))
        for one, other in ((down, other_up), (up, other_down))
    ]
    return max(difference - float(reaches[0]), -1.0), min(difference + float(reaches[1]), 1.0)


def share_limits(clusters: npt.NDArray[Any], hits: Floats) -> tuple[float, float]:
    """Return 95 % limits of the mean of hits (N,) in [0, 1], for whole clusters (N,)."""
    codes = np.unique(clusters, return_inverse=True)[1]
    lower, upper = mean_limits(_column(np.bincount(codes, hits)), _column(np.bincount(codes)))
    return float(lower[0]), float(upper[0])


def _column(values: npt.NDArray[Any]) -> Floats:
    return values.astype(np.float64)[:, None]


class Jackknifed(NamedTuple):
    """Figures with their uncertainty, each (F,)."""

    estimate: Floats
    variance: Floats
    freedom: Floats
    lower: Floats
    upper: Floats


def jackknife(clusters: npt.NDArray[Any], columns: Floats, figure: Callable[[Floats], Floats]) -> Jackknifed:
    """Return figures, sums (R, K) -> (R, F) or (R,), of columns (N, K), leaving out each cluster (N,) in turn."""
    codes = np.unique(clusters, return_inverse=True)[1]
    return jackknife_sums(np.stack([np.bincount(codes, column) for column in columns.T], axis=1), figure)


def jackknife_sums(sums: Floats, figure: Callable[[Floats], Floats]) -> Jackknifed:
    """Return the same of sums over clusters (C, K)."""
    sums = grouped(sums)
    total = sums.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = np.atleast_1d(np.asarray(figure(total[None]), dtype=np.float64)[0])
        left = np.asarray(figure(total - sums), dtype=np.float64).reshape(len(sums), -1)
    return jackknifed(estimate, left)


def jackknifed(estimate: Floats, left: Floats) -> Jackknifed:
    """Return the uncertainty of figures (F,) by those without each cluster in turn, (C, F)."""
    valid = np.isfinite(left)
    number = valid.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.where(valid, left, 0.0).sum(axis=0) / number
        squares = np.where(valid, (left - centre) ** 2, 0.0)
        variance = (number - 1.0) / number * squares.sum(axis=0)
    # Clusters that a figure does not rest on do not count as degrees of freedom.
    moved = squares > 1e-24
    freedom = np.maximum(moved.sum(axis=0) - 1.0, 1.0)
    variance = np.where(number > 1, variance, np.inf)
    return Jackknifed(estimate, variance, freedom, *t_limits(estimate, variance, freedom))


def grouped(sums: Floats) -> Floats:
    """Return sums over clusters (C, ...), dealt at random into 512 groups where there are more."""
    if len(sums) <= _MOST_CLUSTERS:
        return sums
    order = np.random.default_rng(0).permutation(len(sums)) % _MOST_CLUSTERS
    dealt = np.zeros((_MOST_CLUSTERS, *sums.shape[1:]))
    np.add.at(dealt, order, sums)
    return dealt
