"""Two runs beside each other: which students became better or worse, and whether that is more than chance.

Where both runs asked a student the same prompts (same id, same prompt), differences are taken datapoint by datapoint;
otherwise the runs are two independent samples of datapoints. Each datapoint counts once. A regression is a drop of more
than the threshold whose 95 % interval does not hold 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from coeval.analysis.resampling import REPLICATES
from coeval.analysis.results import Skipped
from coeval.analysis.students import SIGNIFICANT, by_datapoint, two_sided
from coeval.analysis.units import Floats, Loaded
from p2l.metrics import bootstrap_mean

__all__ = ["Change", "RunComparison", "changed", "compare_runs"]


@dataclass(frozen=True)
class Change:
    """What became of a student."""

    student: str
    task: str
    """Empty: all tasks."""
    before: float
    after: float
    difference: float
    """after - before."""
    lower: float
    upper: float
    p_value: float
    paired: bool
    """Whether the difference is taken datapoint by datapoint."""
    datapoints_before: int
    datapoints_after: int
    verdict: str
    """regression, improvement, or same."""


@dataclass(frozen=True)
class RunComparison:
    """Two runs."""

    before: str
    after: str
    threshold: float
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    """Students that the later run lacks."""
    only_after: tuple[str, ...]
    skipped_before: tuple[Skipped, ...]
    skipped_after: tuple[Skipped, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Students that became worse."""
        return tuple(change for change in self.changes if change.verdict == "regression")


@dataclass(frozen=True)
class _Side:
    """A student's scores in one run: mean of each datapoint, and what the datapoint is."""

    keys: list[tuple[str, bytes]]
    scores: Floats


def compare_runs(before: Loaded, after: Loaded, threshold: float = 0.02) -> RunComparison:
    """Compare every student that both runs scored, overall and by task."""
    names = [_scored(loaded) for loaded in (before, after)]
    common = sorted(names[0] & names[1])
    sheets = (by_datapoint(before), by_datapoint(after))
    tasks = ("", *sorted({*before.tasks} & {*after.tasks}))
    changes = [
        change
        for task in tasks
        for student in common
        for change in _change(
            student, task, _side(before, sheets[0], student, task), _side(after, sheets[1], student, task), threshold
        )
    ]
    return RunComparison(
        before.about.experiment_id,
        after.about.experiment_id,
        threshold,
        tuple(changes),
        only_before=tuple(sorted(names[0] - names[1])),
        only_after=tuple(sorted(names[1] - names[0])),
        skipped_before=before.skipped,
        skipped_after=after.skipped,
    )


def _scored(loaded: Loaded) -> set[str]:
    return {loaded.students[code] for code in set(loaded.units.student.tolist())}


def _side(loaded: Loaded, scores: Floats, student: str, task: str) -> _Side:
    mine = scores[:, loaded.students.index(student)]
    rows = ~np.isnan(mine)
    if task:
        rows &= loaded.datapoint_task == loaded.tasks.index(task)
    chosen = np.flatnonzero(rows)
    return _Side([(loaded.datapoints[row], loaded.prompt_keys[row]) for row in chosen], mine[chosen])


def _change(student: str, task: str, before: _Side, after: _Side, threshold: float) -> Iterator[Change]:
    """One change, or none where either run has nothing."""
    if not before.keys or not after.keys:
        return
    places = {key: number for number, key in enumerate(after.keys)}
    shared = [(number, places[key]) for number, key in enumerate(before.keys) if key in places]
    paired = len(shared) == len(before.keys) == len(after.keys)
    means = (float(before.scores.mean()), float(after.scores.mean()))
    difference = means[1] - means[0]
    error = _paired_error(before, after, shared) if paired else math.hypot(_error(before), _error(after))
    lower, upper = difference - 1.959964 * error, difference + 1.959964 * error
    yield Change(
        student,
        task,
        *means,
        difference,
        lower,
        upper,
        p_value=two_sided(difference, error),
        paired=paired,
        datapoints_before=len(before.keys),
        datapoints_after=len(after.keys),
        verdict=changed(difference, two_sided(difference, error), threshold),
    )


def changed(difference: float, p_value: float, threshold: float) -> str:
    """The verdict on a difference."""
    if abs(difference) <= threshold or p_value >= SIGNIFICANT:
        return "same"
    return "regression" if difference < 0 else "improvement"


def _paired_error(before: _Side, after: _Side, shared: list[tuple[int, int]]) -> float:
    rows = np.array(shared)
    return _standard_error(after.scores[rows[:, 1]] - before.scores[rows[:, 0]])


def _error(side: _Side) -> float:
    return _standard_error(side.scores)


def _standard_error(values: Any) -> float:
    """Of the mean over datapoints; one datapoint tells nothing."""
    if len(values) < 2:
        return math.inf
    return float(bootstrap_mean(values, replicates=REPLICATES).standard_error)
