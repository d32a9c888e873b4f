"""The preferences of a run that is read already, as columns: what `gather` finds, without an object for each.

A run of twenty models has 300,000 preferences from 128,000 scores; here they take a tenth of a second.

Shapes: N preferences; G groups of scores by one judge on one item, A answers in a group at most, F factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.units import Codes, Floats, Loaded, Units
from coeval.pairs.derive import ROUNDING, Rule
from coeval.pairs.preference import WINNERS

__all__ = ["Votes", "votes_of"]


@dataclass(frozen=True)
class Votes:
    """Preferences, all (N,), as codes of the run's names."""

    task: Codes
    datapoint: Codes
    judge: Codes
    model_a: Codes
    model_b: Codes
    winner: Codes
    """Position in WINNERS."""

    def __len__(self) -> int:
        return len(self.task)

    def where(self, rows: npt.NDArray[Any]) -> Votes:
        """Those that a mask or indices choose."""
        return Votes(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})


def votes_of(loaded: Loaded, rule: Rule) -> tuple[Votes, npt.NDArray[np.bool_]]:
    """Verdicts on pairs and, for tasks without them, what the scores of judges of `rule.kind` come to; and which of
    them are verdicts, (N,)."""
    native = _native(loaded)
    with_verdicts = np.unique(native.task)
    parts = [_derived(loaded, task, rule) for task in range(len(loaded.tasks)) if task not in with_verdicts]
    joined = [np.concatenate([getattr(part, column.name) for part in (native, *parts)]) for column in fields(Votes)]
    return Votes(*joined), np.arange(len(joined[0])) < len(native)


def _native(loaded: Loaded) -> Votes:
    place = {
        kind: {name: code for code, name in enumerate(loaded.names(kind))} for kind in ("task", "student", "judge")
    }
    items = {name: code for code, name in enumerate(loaded.datapoints)}
    rows = [
        (
            place["task"][one.task],
            items[one.datapoint],
            place["judge"][one.judge],
            place["student"][one.model_a],
            place["student"][one.model_b],
            WINNERS.index(one.winner),
        )
        for one in loaded.verdicts
    ]
    return Votes(*np.array(rows, dtype=np.int64).reshape(-1, len(fields(Votes))).T)


def _derived(loaded: Loaded, task: int, rule: Rule) -> Votes:
    units = loaded.units
    of_kind = np.array([kind == rule.kind for kind in loaded.kinds], dtype=bool)
    groups, students, scores = _groups(loaded, units.where((units.task == task) & of_kind[units.judge]))
    about = loaded.about.tasks.get(loaded.tasks[task])
    chosen = {**(about.weights if about is not None else {}), **rule.weights}
    weights = np.array([chosen.get(name, 1.0) for name in loaded.factors])
    none = (np.zeros(0, dtype=np.int64),) * 4
    a, b, rows, won = map(np.concatenate, zip(none, *_compared(students, scores, weights, rule), strict=True))
    item, judge = np.divmod(groups[rows], max(len(loaded.judges), 1))
    return Votes(np.full(len(rows), task), item, judge, a, b, won)


def _groups(loaded: Loaded, units: Units) -> tuple[Codes, Codes, Floats]:
    """Keys of groups (G,), of their answers the students (G, A), -1 where there are fewer, and scores (G, A, F)."""
    judges = max(len(loaded.judges), 1)
    keys, answers = np.unique(units.response * judges + units.judge, return_inverse=True)
    response, judge = np.divmod(keys, judges)
    groups, group = np.unique(loaded.response_datapoint[response] * judges + judge, return_inverse=True)
    n = np.bincount(group, minlength=len(groups))
    order = np.argsort(group, kind="stable")
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(n) - n, n)
    students = np.full((len(groups), int(n.max(initial=0))), -1)
    students[group, place] = loaded.response_student[response]
    scores = np.full((*students.shape, len(loaded.factors)), np.nan)
    scores[group[answers], place[answers], units.factor] = units.norm
    return groups, students, scores


def _compared(
    students: Codes, scores: Floats, weights: Floats, rule: Rule
) -> Iterator[tuple[Codes, Codes, Codes, Codes]]:
    """Of every two places of answers: students of both, groups that have both, and winners."""
    known = ~np.isnan(scores)
    for one, other in combinations(range(students.shape[1]), 2):
        shared = (known[:, one] & known[:, other]) * weights
        total = shared.sum(axis=1)
        rows = np.flatnonzero((total > 0) & (students[:, one] != students[:, other]))
        sums = (np.where(shared > 0, scores[:, place] * shared, 0.0).sum(axis=1) for place in (one, other))
        a, b = (part[rows] / total[rows] for part in sums)
        tie = np.where(np.maximum(a, b) <= rule.bad + ROUNDING, 3, 2)
        won = np.where(np.abs(a - b) <= rule.margin + ROUNDING, tie, np.where(a > b, 0, 1))
        yield students[rows, one], students[rows, other], rows, won
