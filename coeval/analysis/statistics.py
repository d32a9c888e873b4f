"""Agreement of two raters or more, from their scores alone.

* Cohen's kappa over three levels, (p_o - p_e) / (1 - p_e); quadratic: disagreement weighed by the squared distance.
* Krippendorff's alpha, 1 - D_o / D_e. With the squared difference it needs only sums: within a unit of m values,
  sum of squared differences over ordered pairs = 2 (m sum x^2 - (sum x)^2). The ordinal form is the same on mid-ranks,
  since the ordinal distance of two values is the difference of their mid-ranks.
* ICC(2,1) and ICC(2,k): two-way random effects, absolute agreement (Shrout and Fleiss 1979).
* Spearman's rho is Pearson's r of mid-ranks; Kendall's tau-b is counted in a
  table of the values.

None is what has no value: no data, or raters that never vary. Shapes: N units, J raters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.intervals import cluster_variance, mean_limits, t_limits
from coeval.analysis.units import Codes, Floats

_MOST_CELLS = 1_000_000
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
    if ordinal:
        values = np.full(scores.shape, np.nan)
        values[paired] = mid_ranks(scores[paired])
    if paired.any():
        values = values - values[paired].mean()  # sums of squares of small numbers lose fewer digits
    values = np.where(paired, values, 0.0)
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
    return _ratio(rows - error, single), _ratio(rows - error, average)


def _ratio(above: float, below: float) -> float | None:
    return float(above / below) if abs(below) > 1e-12 else None


def mid_ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[codes]


def pearson(one: Floats, other: Floats) -> float | None:
    """Return the correlation; None where either never varies."""
    if len(one) < 2:
        return None
    a, b = one - one.mean(), other - other.mean()
    scale = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
    return float(np.clip((a * b).sum() / scale, -1.0, 1.0)) if scale > 1e-12 else None


def spearman(one: Floats, other: Floats) -> float | None:
    """Return the rank correlation; None where either never varies."""
    return pearson(mid_ranks(one), mid_ranks(other)) if len(one) else None


def kendall(one: Floats, other: Floats) -> float | None:
    """Return tau-b; None where either never varies."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    a, a_codes = np.unique(one, return_inverse=True)
    b, b_codes = np.unique(other, return_inverse=True)
    if len(a) * len(b) > _MOST_CELLS:
        from scipy.stats import kendalltau

        return float(kendalltau(one, other).statistic)
    table = np.bincount(a_codes * len(b) + b_codes, minlength=len(a) * len(b)).reshape(len(a), -1).astype(np.float64)
    after = np.cumsum(np.cumsum(table[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    before = np.cumsum(np.cumsum(table[::-1], axis=0), axis=1)[::-1]
    concordant = (table[:-1, :-1] * after[1:, 1:]).sum()
    discordant = (table[:-1, 1:] * before[1:, :-1]).sum()
    pairs = len(one) * (len(one) - 1) / 2
    ties = [pairs - (counts * (counts - 1) / 2).sum() for counts in (table.sum(axis=1), table.sum(axis=0))]
    return float((concordant - discordant) / math.sqrt(ties[0] * ties[1]))


# Means of groups, with intervals over clusters of items, since scores on one prompt are not independent.
#
# Every figure here is a function of sums over clusters: a table (D, C) of sums of all groups costs clusters times
# groups, not units. Shapes: N rows, D clusters, C groups.

_AT_ONCE = 256  # groups: bounds memory at D * 256 numbers


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
    for start in range(0, len(filled), _AT_ONCE):
        chosen = filled[start : start + _AT_ONCE]
        place = np.full(groups, -1)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[codes] >= 0)
        cells = dense[rows] * len(chosen) + place[codes[rows]]
        above: Floats = (
            np.bincount(cells, values[rows], minlength=size * len(chosen)).reshape(size, -1).astype(np.float64)
        )
        counted = None if weights is None else weights[rows]
        below: Floats = np.bincount(cells, counted, minlength=size * len(chosen)).reshape(size, -1).astype(np.float64)
        ends = mean_limits(above, below) if bounded else _any_limits(above, below)
        summaries.lower[chosen], summaries.upper[chosen] = ends
    return summaries


def _any_limits(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    spread = cluster_variance(sums, counts)
    lower, upper = t_limits(*spread)
    return lower, upper
