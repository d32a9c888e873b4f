"""What a loss matrix says of a run in one number each: how good it ended, how it went, what it forgot.

With L[c, s] the loss of checkpoint c on slice s (for metrics where more is better, read all differences the other way
round, so that positive always means better):

    final       mean over slices of the last checkpoint
    newest      the last checkpoint on the newest slice
    so_far      mean over checkpoints of the mean over the slices so far: the area under the time-aligned curve
    next        mean over checkpoints of the first slice that is later
    backward    backward transfer: what the last checkpoint gained on a slice over the first checkpoint that had its
                time behind it, mean over slices but the newest; negative: it has forgotten
    forward     forward transfer: what the last checkpoint before a slice gained on it over the first checkpoint

Measures whose cells are missing are None (`next` and `forward` need `--all-slices`).

Against an oracle run (shuffled data), over the slices that both final checkpoints were asked about:

    gap         mean of what the run is worse by; gap_absolute: mean of the absolute differences
    closed      1 - gap / gap of a naive run, over the slices of all three; closed_absolute: of the absolute ones

Shapes: C checkpoints, S slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.chrono.matrix import Matrix

__all__ = ["MEASURES", "compare_runs", "gap_closed", "gap_to", "measure_run", "more_is_better"]

Floats: TypeAlias = NDArray[np.float64]
Measure: TypeAlias = Callable[[Matrix], float]
MEASURES: dict[str, Measure] = {}


def _register(function: Measure) -> Measure:
    MEASURES[function.__name__.strip("_")] = function
    return function


def more_is_better(metric: str) -> bool:
    """Whether a larger value is a better one."""
    return metric.endswith("Accuracy")


def measure_run(matrix: Matrix) -> dict[str, float | None]:
    """Every measure of one run; None where its cells are missing."""
    return {name: _plain(measure(matrix)) for name, measure in MEASURES.items()}


def compare_runs(
    matrices: Sequence[Matrix], *, oracle: str | None = None, naive: str | None = None
) -> dict[str, dict[str, float | None]]:
    """Measures of each run by its name, with gaps to the run `oracle` and what they close of that of `naive`."""
    by_name = {matrix.run: matrix for matrix in matrices}
    table = {name: measure_run(matrix) for name, matrix in by_name.items()}
    if oracle is None:
        return table
    for name, matrix in by_name.items():
        for way in ("", "_absolute"):
            absolute = bool(way)
            table[name][f"gap{way}"] = _plain(gap_to(by_name[oracle], matrix, absolute=absolute))
            if naive is not None:
                ends = by_name[oracle], matrix, by_name[naive]
                whole = gap_to(ends[0], ends[2], ends[1], absolute=absolute)
                table[name][f"closed{way}"] = _plain(gap_closed(gap_to(*ends, absolute=absolute), whole))
    return table


def gap_to(oracle: Matrix, run: Matrix, *others: Matrix, absolute: bool = False) -> float:
    """Mean of what the run's last checkpoint is worse by than the oracle's, over the slices that they and those of
    `others` were asked about; NaN without any.
    """
    of_oracle, of_run, *rest = (_last(one) for one in (oracle, run, *others))
    common = [number for number in of_run if all(number in one for one in (of_oracle, *rest))]
    ends = [np.array([one[number] for number in common]) for one in (of_oracle, of_run)]
    worse = _gain(oracle.metric, ends[1], ends[0])
    return _mean(np.abs(worse) if absolute else worse)


def _last(matrix: Matrix) -> dict[int, float]:
    """What is known of the last checkpoint, by slice."""
    return {number: value for number, value in zip(matrix.slices, matrix.values[-1], strict=True) if value == value}


def gap_closed(gap: float, whole: float) -> float:
    """The share of the naive run's gap that is gone; NaN where there was none."""
    return 1.0 - gap / whole if whole else np.nan


def _gain(metric: str, before: Floats, after: Floats) -> Floats:
    return after - before if more_is_better(metric) else before - after


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


@_register
def _final(matrix: Matrix) -> float:
    return _mean(matrix.values[-1])


@_register
def _newest(matrix: Matrix) -> float:
    return float(matrix.values[-1, -1])


@_register
def _so_far(matrix: Matrix) -> float:
    behind = np.where(matrix.later, np.nan, matrix.values)
    return _mean(np.array([_mean(row) for row in behind]))


@_register
def _next(matrix: Matrix) -> float:
    ahead = np.where(matrix.later, matrix.values, np.nan)
    return _mean(np.array([_first(row) for row in ahead]))


@_register
def _backward(matrix: Matrix) -> float:
    behind = np.where(matrix.later, np.nan, matrix.values)[:, :-1]
    first = np.array([_first(column) for column in behind.T])
    asked_again = (~np.isnan(behind)).sum(axis=0) > 1
    return _mean(_gain(matrix.metric, first, behind[-1])[asked_again])


@_register
def _forward(matrix: Matrix) -> float:
    ahead = np.where(matrix.later, matrix.values, np.nan)
    last = np.array([_first(column[::-1]) for column in ahead.T])
    asked_again = (~np.isnan(ahead)).sum(axis=0) > 1
    return _mean(_gain(matrix.metric, ahead[0], last)[asked_again])


def _first(values: Floats) -> float:
    """The first value that is there; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known[0]) if len(known) else np.nan
