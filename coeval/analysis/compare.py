"""Two runs beside each other: which students became better or worse, and whether that is more than chance.

Where both runs asked a student the same prompts (same id, same prompt), differences are taken datapoint by datapoint;
otherwise the runs are two independent samples of datapoints. Each datapoint counts once. A regression is a drop of more
than the threshold whose 95 % interval does not hold 0. Only what both runs have is compared (`comparable`): scores, and
where there are verdicts on pairs, shares of wins, which are relative: what one student wins another loses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from coeval.analysis.comparable import LeftOut, Sheet, changed_judges, sheets
from coeval.analysis.resampling import REPLICATES
from coeval.analysis.results import Skipped
from coeval.analysis.students import SIGNIFICANT, two_sided
from coeval.analysis.units import Floats, Loaded
from p2l.metrics import bootstrap_mean

__all__ = ["Change", "RunComparison", "changed", "compare_runs"]


@dataclass(frozen=True)
class Change:
    """What became of a student."""

    student: str
    task: str
    """Empty: all tasks that both runs have."""
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
    basis: str
    """scores, or verdicts: before and after are shares of wins then."""


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
    left_out: tuple[LeftOut, ...]
    """Tasks, judges and factors of one run alone."""
    changed_judges: tuple[str, ...]
    """Judges whose model is another, as `name: model -> model`: their scores are compared all the same."""
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
    """Compare every student that both runs judged, overall and by task."""
    made, left_out = sheets(before, after)
    names = [_judged(loaded) for loaded in (before, after)]
    return RunComparison(
        before.about.experiment_id,
        after.about.experiment_id,
        threshold,
        tuple(change for sheet in made for change in _changes(before, after, sheet, threshold)),
        only_before=tuple(sorted(names[0] - names[1])),
        only_after=tuple(sorted(names[1] - names[0])),
        left_out=tuple(left_out),
        changed_judges=changed_judges(before, after),
        skipped_before=before.skipped,
        skipped_after=after.skipped,
    )


def _judged(loaded: Loaded) -> set[str]:
    scored = {loaded.students[code] for code in set(loaded.units.student.tolist())}
    return scored | {model for one in loaded.verdicts for model in (one.model_a, one.model_b)}


def _changes(before: Loaded, after: Loaded, sheet: Sheet, threshold: float) -> Iterator[Change]:
    """All tasks first."""
    for task in ("", *sheet.tasks):
        for student in sorted(set(before.students) & set(after.students)):
            sides = _side(before, sheet.before, student, task), _side(after, sheet.after, student, task)
            yield from _change(student, task, *sides, threshold, sheet.basis)


def _side(loaded: Loaded, scores: Floats, student: str, task: str) -> _Side:
    mine = scores[:, loaded.students.index(student)]
    rows = ~np.isnan(mine)
    if task:
        rows &= loaded.datapoint_task == loaded.tasks.index(task)
    chosen = np.flatnonzero(rows)
    return _Side([(loaded.datapoints[row], loaded.prompt_keys[row]) for row in chosen], mine[chosen])


def _change(student: str, task: str, before: _Side, after: _Side, threshold: float, basis: str) -> Iterator[Change]:
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
        basis=basis,
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
