"""Statistics of scores: agreement of raters, means of groups, intervals and tests that hold with few prompts.

* Cohen's kappa over three levels, (p_o - p_e) / (1 - p_e); quadratic: disagreement weighed by the squared distance.
* Krippendorff's alpha, 1 - D_o / D_e.
* ICC(2,1) and ICC(2,k): two-way random effects, absolute agreement (Shrout and Fleiss 1979).
* Spearman's rho is Pearson's r of mid-ranks; Kendall's tau-b is counted in a table of the values.

None is what has no value: no data, or raters that never vary. Shapes: N units, J raters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int64]
_MAX_TABLE_CELLS = 1_000_000
_LABELS = ((0.2, "slight"), (0.4, "fair"), (0.6, "moderate"), (0.8, "substantial"))


def kappa(table: npt.ArrayLike, *, quadratic: bool = False) -> float | None:
    """Return kappa of a table (3, 3) of counts of two raters' levels; None where chance explains all."""
    counts = np.asarray(table, dtype=np.float64)
    total = counts.sum()
    if not total:
        return None
    steps = np.subtract.outer(np.arange(len(counts)), np.arange(len(counts)))
    weights = steps**2 if quadratic else (steps != 0)
    observed = (weights * counts).sum() / total
    expected = (weights * np.outer(counts.sum(axis=1), counts.sum(axis=0))).sum() / total**2
    return float(1.0 - observed / expected) if expected > 1e-12 else None


def kappa_label(value: float | None) -> str:
    """Return Landis and Koch's word for a kappa; empty for None."""
    if value is None:
        return ""
    if value < 0:
        return "less than chance"
    return next((word for bound, word in _LABELS if value <= bound), "almost perfect")


def krippendorff(scores: Floats, *, ordinal: bool = False) -> float | None:
    """Return Krippendorff's alpha of scores (N, J), NaN where missing; None where the values never vary."""
    value = float(alpha_of_sums(alpha_columns(scores, ordinal=ordinal).sum(axis=0)[None])[0])
    return value if math.isfinite(value) else None


def alpha_columns(scores: Floats, *, ordinal: bool = False) -> Floats:
    """Return each unit's disagreement, values, sum and sum of squares, (N, 4); zeros with fewer than two values."""
    paired = ~np.isnan(scores)
    paired &= (paired.sum(axis=1) > 1)[:, None]
    values = scores.astype(np.float64)
    if ordinal:  # the ordinal distance of two values is the difference of their mid-ranks
        values = np.full(scores.shape, np.nan)
        values[paired] = mid_ranks(scores[paired])
    if paired.any():
        values = values - values[paired].mean()  # sums of squares of small numbers lose fewer digits
    values = np.where(paired, values, 0.0)
    # Squared differences need only sums: within a unit of m values those over ordered pairs add up to
    # 2 (m sum x^2 - (sum x)^2).
    m, total, squares = paired.sum(axis=1), values.sum(axis=1), (values**2).sum(axis=1)
    return np.stack([2.0 * (m * squares - total**2) / np.maximum(m - 1, 1), m, total, squares], axis=1)


def alpha_of_sums(sums: Floats) -> Floats:
    """Return alpha (R,) of sums (R, 4) of `alpha_columns`; NaN where it has none."""
    observed, n, total, squares = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = 2.0 * (n * squares - total**2) / (n - 1.0)
        alpha: Floats = np.where(expected > 1e-9 * np.maximum(n, 1.0), 1.0 - observed / expected, np.nan)
    return alpha


def icc(scores: Floats) -> tuple[float | None, float | None]:
    """Return ICC(2,1) and ICC(2,k) of complete scores (N, J); None with fewer than two of either or no variance."""
    n, k = scores.shape
    if n < 2 or k < 2:
        return None, None
    mean = scores.mean()
    rows = k * ((scores.mean(axis=1) - mean) ** 2).sum() / (n - 1)
    columns = n * ((scores.mean(axis=0) - mean) ** 2).sum() / (k - 1)
    residual = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + mean
    error = (residual**2).sum() / ((n - 1) * (k - 1))
    single = rows + (k - 1) * error + k * (columns - error) / n
    average = rows + (columns - error) / n
    single_icc, average_icc = (
        float((rows - error) / below) if abs(below) > 1e-12 else None for below in (single, average)
    )
    return single_icc, average_icc


def with_limits(name: str, figures: Iterable[float]) -> dict[str, Any]:
    """Return an estimate and its limits as the fields NAME, NAME_lower and NAME_upper; None where it has no value."""
    fields = (name, f"{name}_lower", f"{name}_upper")
    return {
        field: float(figure) if math.isfinite(figure) else None for field, figure in zip(fields, figures, strict=True)
    }


def mid_ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[codes]


def pearson(x: Floats, y: Floats) -> float | None:
    """Return the correlation; None where either never varies."""
    if len(x) < 2:
        return None
    a, b = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
    return float(np.clip((a * b).sum() / scale, -1.0, 1.0)) if scale > 1e-12 else None


def spearman(x: Floats, y: Floats) -> float | None:
    """Return the rank correlation; None where either never varies."""
    return pearson(mid_ranks(x), mid_ranks(y)) if len(x) else None


def kendall(x: Floats, y: Floats) -> float | None:
    """Return tau-b; None where either never varies."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    a, a_codes = np.unique(x, return_inverse=True)
    b, b_codes = np.unique(y, return_inverse=True)
    if len(a) * len(b) > _MAX_TABLE_CELLS:  # of few values a table takes a fraction of the time
        from scipy.stats import kendalltau

        return float(kendalltau(x, y).statistic)
    table = np.bincount(a_codes * len(b) + b_codes, minlength=len(a) * len(b)).reshape(len(a), -1).astype(np.float64)
    after = np.cumsum(np.cumsum(table[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    before = np.cumsum(np.cumsum(table[::-1], axis=0), axis=1)[::-1]
    concordant = (table[:-1, :-1] * after[1:, 1:]).sum()
    discordant = (table[:-1, 1:] * before[1:, :-1]).sum()
    pairs = len(x) * (len(x) - 1) / 2
    ties = [pairs - (counts * (counts - 1) / 2).sum() for counts in (table.sum(axis=1), table.sum(axis=0))]
    return float((concordant - discordant) / math.sqrt(ties[0] * ties[1]))


# Means of groups, with intervals over clusters of items, since scores on one prompt are not independent.
#
# Every figure here is a function of sums over clusters: a table (D, C) of sums of all groups costs clusters times
# groups, not units. Shapes: N rows, D clusters, C groups.

_GROUPS_AT_ONCE = 256  # bounds memory at D * 256 numbers


class Summaries:
    """Of each group (C,): rows, mean, standard deviation (n - 1; 0 for one row), and where asked for the limits."""

    def __init__(self, codes: npt.NDArray[Any], values: Floats, groups: int) -> None:
        self.n = np.bincount(codes, minlength=groups)
        count = np.maximum(self.n, 1)
        self.mean = np.bincount(codes, values, minlength=groups) / count
        squares = np.bincount(codes, (values - self.mean[codes]) ** 2, minlength=groups)
        self.sd = np.sqrt(squares / np.maximum(self.n - 1, 1))
        self.lower = self.mean
        self.upper = self.mean

    def estimate(self, group: int) -> tuple[float, float, float]:
        """Return a group's mean and its limits."""
        return float(self.mean[group]), float(self.lower[group]), float(self.upper[group])


def group_means(
    codes: npt.NDArray[Any],
    values: Floats,
    clusters: Codes,
    groups: int,
    weights: Floats | None = None,
    *,
    bounded: bool = True,
) -> Summaries:
    """Summarise groups, with limits of their means over clusters (N,); `weights` (N,) are above 0.

    `bounded`: whether the values are scores, from 0 to 1.
    """
    summaries = Summaries(codes, values, groups)
    if weights is not None:
        total = np.bincount(codes, weights, minlength=groups)
        summaries.mean = np.bincount(codes, values * weights, minlength=groups) / np.where(total > 0, total, 1.0)
        values = values * weights
    summaries.lower, summaries.upper = summaries.mean.copy(), summaries.mean.copy()
    dense = np.unique(clusters, return_inverse=True)[1]
    size = int(dense.max(initial=-1)) + 1
    filled = np.flatnonzero(summaries.n)
    for start in range(0, len(filled), _GROUPS_AT_ONCE):
        chosen = filled[start : start + _GROUPS_AT_ONCE]
        place = np.full(groups, -1)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[codes] >= 0)
        cells = dense[rows] * len(chosen) + place[codes[rows]]
        above: Floats = (
            np.bincount(cells, values[rows], minlength=size * len(chosen)).reshape(size, -1).astype(np.float64)
        )
        counted = None if weights is None else weights[rows]
        below: Floats = np.bincount(cells, counted, minlength=size * len(chosen)).reshape(size, -1).astype(np.float64)
        spread = cluster_variance(above, below)
        ends = score_limits(spread) if bounded else t_limits(spread.mean, spread.variance, spread.freedom)
        summaries.lower[chosen], summaries.upper[chosen] = ends
    return summaries


# Intervals and tests that hold with few prompts: sums over clusters of items, Student's t, and a cluster's leverage.
#
# Scores on one prompt are not independent, and items with the same prompt, or nearly, are one prompt: all that is drawn
# from a run is drawn by cluster of items (`coeval.duplicates`). Of a mean with shares p_c of the clusters
#
#     V = k sum_c p_c^2 (mean_c - mean)^2 / (1 - p_c)
#
# is the variance that Bell and McCaffrey (2002) call CR2 (k makes it unbiased where clusters vary alike), and its
# degrees of freedom are Satterthwaite's, so five prompts of unequal size count for fewer than five. A mean of scores in
# [0, 1] near an end has a lopsided distribution: its limits are quantiles of the beta distribution of the sample of
# zeros and ones that is as sure (after Korn and Graubard 1998), and never leave [0, 1]. Other figures of sums are
# jackknifed by cluster. The percentile bootstrap, used before, covers 83 % at five items where 95 % are meant.
#
# Shapes: N rows, C clusters, G groups, K columns of sums, F figures.

_TAIL = 0.025
_MAX_JACKKNIFE_GROUPS = 512  # of a jackknife: more clusters are dealt into this many groups
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
    return influence_variance(mean, influence, shares)


def influence_variance(estimate: Floats, influence: Floats, shares: Floats) -> Variance:
    """Return estimates (G,) with their variance and degrees of freedom, by what each cluster adds to them, (C, G).

    `shares` (C, G) are the clusters' shares of what each estimate rests on; they add up to 1.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.where(shares < 1.0 - 1e-12, 1.0 / (1.0 - shares), np.inf)
        raw = np.where(influence == 0.0, 0.0, influence**2 * weight).sum(axis=0)
        d = shares**2 * weight
        # The traces of B and B^2 for B = (I - 1 p')' diag(d) (I - 1 p'), which is the quadratic form of V.
        p = shares
        total, dp, pp, dd = d.sum(axis=0), (d * p).sum(axis=0), (p * p).sum(axis=0), (d * d).sum(axis=0)
        trace = total - 2.0 * dp + total * pp
        mixed = -2.0 * (d * d * p).sum(axis=0) + total * (d * p * p).sum(axis=0)
        rank_two = 2.0 * dp**2 + 2.0 * pp * dd - 4.0 * total * pp * dp + (total * pp) ** 2
        squared = dd + 2.0 * mixed + rank_two
        scale = (shares**2).sum(axis=0) / trace
        freedom = np.maximum(trace**2 / squared, 1.0)
    alone = ~np.isfinite(d).all(axis=0) | ~np.isfinite(scale)
    return Variance(mean=estimate, variance=np.where(alone, np.inf, raw * scale), freedom=np.where(alone, 1.0, freedom))


@dataclass(frozen=True)
class Component:
    """The variance of random effects, such as judges' tastes for students, by a mean square that holds chance too."""

    square: float  # mean square
    chance: float  # what chance adds to its expectation
    freedom: float  # degrees of freedom of the mean square; 0 where nothing is known

    @property
    def variance(self) -> float:
        """Estimate of the variance."""
        return max(0.0, self.square - self.chance)

    @property
    def is_like_chance(self) -> bool:
        """Return whether the mean square is below half of those that chance alone makes."""
        from scipy.special import gammaincinv

        return self.square <= self.chance * 2.0 * float(gammaincinv(self.freedom / 2.0, 0.5)) / self.freedom

    def draws(self) -> tuple[Floats, Floats]:
        """Return variances that the data allow (N,), with their weights (N,), which add up to 1.

        A mean square of f degrees of freedom is its expectation times chi^2_f / f: so the expectation, chance and
        variance, is f square / chi^2_f, given that the variance is not below 0. That few effects say little of their
        variance is in it, where an estimate that happens to be 0 would say that there are none.
        """
        from scipy.special import gammainc, gammaincinv

        half = self.freedom / 2.0
        place = (np.arange(_COMPONENT_DRAWS) + 0.5) / _COMPONENT_DRAWS
        weights = place ** (_COMPONENT_TAIL - 1.0)
        total = half * self.square
        share = float(gammainc(half, total / self.chance)) if self.chance > 0 else 1.0
        expected = total / np.maximum(gammaincinv(half, share * place**_COMPONENT_TAIL), 1e-300)
        return np.maximum(expected - self.chance, 0.0), weights / weights.sum()


_COMPONENT_DRAWS = 40
_COMPONENT_TAIL = 2.0  # power by which draws are denser where the variance is large
_TAILS = np.array([0.025, 0.0025])  # of the limits by which a t is matched
_BISECTIONS = 30
_MOST_FREEDOM = 1e6


@cache
def _freedom_of_ratio() -> tuple[Floats, Floats]:
    """Return ratios of the 99.5 % and the 95 % limits of Student's t, rising, with its degrees of freedom."""
    from scipy.special import stdtrit

    freedom = np.geomspace(_MOST_FREEDOM, 1.0, 400)
    return np.asarray(stdtrit(freedom, _TAILS[1]) / stdtrit(freedom, _TAILS[0])), freedom


def with_component(spread: Variance, exposure: Floats, component: Component) -> Variance:
    """Return the variance over clusters and random effects, as that of the Student's t which has the same limits.

    `exposure` (G,) is the variance that effects of variance 1 add to each estimate. How large it is is averaged over
    (`Component.draws`), and the t is that with the 95 % and the 99.5 % limits of the average. Where the mean square is
    what chance alone makes in one run of two, or less, effects are taken for none: with few degrees of freedom limits
    that never do so hold 99.9 % where there are none, and these 97 %.
    """
    from scipy.special import stdtr, stdtrit

    is_finite = np.isfinite(spread.variance)
    if not component.freedom or not is_finite.any() or component.is_like_chance:
        return spread
    variances, weights = component.draws()
    total = spread.variance[:, None] + exposure[:, None] * variances  # (G, N)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = np.minimum(spread.freedom[:, None] * (total / spread.variance[:, None]) ** 2, _MOST_FREEDOM)
    freedom = np.where(np.isfinite(freedom), freedom, _MOST_FREEDOM)
    sd = np.sqrt(np.maximum(np.where(np.isfinite(total), total, 1.0), 1e-300))
    low = np.repeat(sd.min(axis=1, keepdims=True), len(_TAILS), axis=1)
    high = np.repeat((sd * -stdtrit(freedom, _TAILS[-1])).max(axis=1, keepdims=True), len(_TAILS), axis=1)
    for _ in range(_BISECTIONS):
        middle = np.sqrt(low * high)
        beyond = (stdtr(freedom[:, None], -middle[..., None] / sd[:, None]) * weights).sum(axis=-1)  # (G, 2)
        low, high = np.where(beyond > _TAILS, middle, low), np.where(beyond > _TAILS, high, middle)
    limits = np.sqrt(low * high)
    matched = np.interp(limits[:, 1] / limits[:, 0], *_freedom_of_ratio())
    variance = (limits[:, 0] / -stdtrit(matched, _TAILS[0])) ** 2
    return spread._replace(
        variance=np.where(is_finite, variance, spread.variance), freedom=np.where(is_finite, matched, spread.freedom)
    )


def widened(estimate: Any, limits: Any, narrow: Variance, wide: Variance) -> tuple[Any, Any]:
    """Return limits (lower, upper) that hold over clusters, as far from an estimate as those of a wider variance.

    They keep their lopsidedness: both grow as limits of Student's t do.
    """
    lower, upper = limits
    reaches = [t_limits(0.0, spread.variance, spread.freedom)[1] for spread in (narrow, wide)]
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.where(np.isfinite(reaches[0]) & (reaches[0] > 0), reaches[1] / reaches[0], 1.0)
    # Without variance over clusters there is nothing to widen.
    least = np.where(reaches[0] > 0, 0.0, reaches[1])
    return (
        np.minimum(estimate - factor * (estimate - lower), estimate - least),
        np.maximum(estimate + factor * (upper - estimate), estimate + least),
    )


_EFFECT_WIDTH = 3.0  # of the normal distribution, in standard errors
_LOSSES = 0.1  # of effects that are there: they are gains
_EFFECT_SHARES = (np.arange(20) + 0.5) / 20  # of those that are there, all as likely


def rare_gains(errors: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of effects given their estimates (F,), all in standard errors.

    An effect is not there, or drawn from half of a normal distribution; how many are there is told by all of them.
    """
    from scipy.special import log_ndtr

    shrunk = _EFFECT_WIDTH**2 / (1.0 + _EFFECT_WIDTH**2)
    odds, means, squares = [], [], []  # against no effect, and moments where there is one, by its sign: (2, A)
    for sign, chance in ((1.0, 1.0 - _LOSSES), (-1.0, _LOSSES)):
        z = sign * np.sqrt(shrunk) * errors
        odds.append(np.log(2.0 * chance * np.sqrt(1.0 - shrunk)) + shrunk * errors**2 / 2.0 + log_ndtr(z))
        cut = np.exp(-(z**2) / 2.0 - log_ndtr(z)) / np.sqrt(2.0 * np.pi)
        means.append(sign * np.sqrt(shrunk) * (z + cut))
        squares.append(shrunk * (1.0 + z**2 + z * cut))
    either = np.logaddexp(*odds)
    by_share = np.log(_EFFECT_SHARES / (1.0 - _EFFECT_SHARES))[:, None] + either
    likelihood = (np.log(1.0 - _EFFECT_SHARES)[:, None] + np.logaddexp(0.0, by_share)).sum(axis=1)
    weights = np.exp(likelihood - likelihood.max())
    is_there = weights @ np.exp(by_share - np.logaddexp(0.0, by_share)) / weights.sum()
    chances = np.exp(np.array(odds) - either) * is_there
    mean, square = ((chances * np.array(values)).sum(axis=0) for values in (means, squares))
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def t_limits(estimate: Any, variance: Any, freedom: Any) -> tuple[Any, Any]:
    """Return 95 % limits of estimates by Student's t."""
    from scipy.special import stdtrit

    reach = stdtrit(freedom, 1.0 - _TAIL) * np.sqrt(variance)
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
    lower = np.where(mean < 1e-12, 0.0, np.minimum(betaincinv(good, bad, _TAIL), mean))
    upper = np.where(mean > 1.0 - 1e-12, 1.0, np.maximum(betaincinv(good, bad, 1.0 - _TAIL), mean))
    alone = ~np.isfinite(spread.variance)  # one cluster says nothing of others
    return np.where(alone, 0.0, lower), np.where(alone, 1.0, upper)


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
        np.sqrt(max(0.0, first**2 + second**2 - 2.0 * correlation * first * second))
        for first, second in ((down, other_up), (up, other_down))
    ]
    return max(difference - float(reaches[0]), -1.0), min(difference + float(reaches[1]), 1.0)


def share_limits(clusters: npt.NDArray[Any], hits: Floats) -> tuple[float, float]:
    """Return 95 % limits of the mean of hits (N,) in [0, 1], for whole clusters (N,)."""
    codes = np.unique(clusters, return_inverse=True)[1]
    sums, counts = (column.astype(np.float64)[:, None] for column in (np.bincount(codes, hits), np.bincount(codes)))
    lower, upper = score_limits(cluster_variance(sums, counts))
    return float(lower[0]), float(upper[0])


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
    lower, upper = t_limits(estimate, variance, freedom)
    return Jackknifed(estimate=estimate, variance=variance, freedom=freedom, lower=lower, upper=upper)


def grouped(sums: Floats) -> Floats:
    """Return sums over clusters (C, ...), dealt at random into 512 groups where there are more."""
    if len(sums) <= _MAX_JACKKNIFE_GROUPS:
        return sums
    order = np.random.default_rng(0).permutation(len(sums)) % _MAX_JACKKNIFE_GROUPS
    dealt = np.zeros((_MAX_JACKKNIFE_GROUPS, *sums.shape[1:]))
    np.add.at(dealt, order, sums)
    return dealt
