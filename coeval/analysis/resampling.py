"""Means of groups, and their intervals by a bootstrap that draws whole datapoints.

Scores on one datapoint are not independent, so all of them are drawn together. Every figure here is a function of sums
over datapoints: a table (D, C) of sums is drawn once for all C groups, which costs datapoints times groups, not units.

Shapes: N rows, D datapoints, C groups, R replicates, G datapoints or, beyond 2,048, random groups of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.units import Codes, Floats
from p2l.metrics import bootstrap_ratio
from p2l.metrics.bootstrap import MOST_GROUPS

__all__ = ["Summaries", "group_means", "limits", "resample"]

REPLICATES = 1000
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


def group_means(
    codes: npt.NDArray[Any], values: Floats, datapoints: Codes, groups: int, weights: Floats | None = None
) -> Summaries:
    """Summaries of groups, with limits of their means by datapoint; `weights` (N,) are above 0."""
    summaries = Summaries(codes, values, groups)
    if weights is not None:
        total = np.bincount(codes, weights, minlength=groups)
        summaries.mean = np.bincount(codes, values * weights, minlength=groups) / np.where(total > 0, total, 1.0)
        values = values * weights
    summaries.lower, summaries.upper = summaries.mean.copy(), summaries.mean.copy()
    dense = np.unique(datapoints, return_inverse=True)[1]
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
        interval = bootstrap_ratio(above, below, replicates=REPLICATES)
        summaries.lower[chosen], summaries.upper[chosen] = interval.lower, interval.upper
    return summaries


def resample(
    clusters: npt.NDArray[Any], columns: Floats, figure: Callable[[Floats], Floats], *, seed: int = 0
) -> Floats:
    """A figure of sums, for each of R draws of whole clusters.

    Args:
        clusters: (N,) the cluster of each row.
        columns: (N, C) what is summed.
        figure: takes sums (R, C), gives (R,) or (R, K).
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    codes = np.unique(clusters, return_inverse=True)[1]
    size = int(codes.max(initial=-1)) + 1
    if size > MOST_GROUPS:
        codes, size = (rng.permutation(size) % MOST_GROUPS)[codes], MOST_GROUPS
    sums = np.stack([np.bincount(codes, column, minlength=size) for column in columns.T], axis=1)
    drawn = rng.integers(0, size, size=(REPLICATES, size)) + size * np.arange(REPLICATES)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=REPLICATES * size).reshape(REPLICATES, size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return figure(counts.astype(np.float64) @ sums)


def limits(draws: Floats) -> tuple[Floats, Floats]:
    """95 % limits over replicates (R, ...), leaving out draws that have no value; NaN where none has."""
    draws = np.where(np.isfinite(draws), draws, np.nan)
    empty = np.isnan(draws).all(axis=0)
    filled = np.where(empty, 0.0, draws)
    lower, upper = np.nanquantile(filled, [0.025, 0.975], axis=0)
    return np.where(empty, np.nan, lower), np.where(empty, np.nan, upper)
