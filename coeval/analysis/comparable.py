"""What two runs can be compared on: scores of the tasks, factors and judges that both have, and verdicts likewise.

A task that one run alone has, or a judge who is harsher than the others, moves a student's mean though its answers are
the same. So both are left out, and named. Of verdicts a student's figure on an item is its share of wins (a tie is half
of one) over opponents that both runs have; what a judge said of itself does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coeval.analysis.students import by_datapoint
from coeval.analysis.units import Codes, Floats, Loaded

__all__ = ["LeftOut", "Sheet", "changed_judges", "sheets"]

_SCORES, _VERDICTS = "scores", "verdicts"
_Part = tuple[str, str, str]
"""Task, judge, factor; of verdicts the factor is empty."""
_WINS = {"model_a": 1.0, "model_b": 0.0}


@dataclass(frozen=True)
class LeftOut:
    """What one run alone has."""

    run: str
    """before or after."""
    basis: str
    """scores or verdicts."""
    kind: str
    """task, judge or factor: why it is left out."""
    name: str
    count: int
    """Scores, or verdicts."""


@dataclass(frozen=True)
class Sheet:
    """One kind of figure of both runs."""

    basis: str
    tasks: tuple[str, ...]
    """Those with something to compare."""
    before: Floats
    """(datapoints, students) of the earlier run, NaN where it has none."""
    after: Floats


def sheets(before: Loaded, after: Loaded) -> tuple[list[Sheet], list[LeftOut]]:
    """Scores and verdicts of what both runs have, and what only one has."""
    made, left_out = [], []
    for basis, parts, figures in ((_SCORES, _scored, _scores), (_VERDICTS, _judged, _shares)):
        counts = (parts(before), parts(after))
        shared = set(counts[0]) & set(counts[1])
        left_out += [*_left(basis, "before", *counts), *_left(basis, "after", counts[1], counts[0])]
        if shared:
            students = set(before.students) & set(after.students)
            values = [figures(loaded, shared, students) for loaded in (before, after)]
            made.append(Sheet(basis, tuple(sorted({task for task, _, _ in shared})), *values))
    return made, left_out


def changed_judges(before: Loaded, after: Loaded) -> tuple[str, ...]:
    """Judges of one name that another model plays in the later run, as `name: model -> model`."""
    models = [
        (name, before.about.model_id(name, "judge"), after.about.model_id(name, "judge"))
        for name in sorted(set(before.judges) & set(after.judges))
        if name in before.about.interfaces and name in after.about.interfaces  # else their models are not known
    ]
    return tuple(f"{name}: {one} -> {other}" for name, one, other in models if one != other)


def _scored(loaded: Loaded) -> Counter[_Part]:
    keys, counts = np.unique(_keys(loaded), return_counts=True)
    return Counter({_part(loaded, key): count for key, count in zip(keys.tolist(), counts.tolist(), strict=True)})


def _keys(loaded: Loaded) -> Codes:
    units = loaded.units
    return (units.task * max(len(loaded.judges), 1) + units.judge) * max(len(loaded.factors), 1) + units.factor


def _part(loaded: Loaded, key: int) -> _Part:
    rest, factor = divmod(key, max(len(loaded.factors), 1))
    task, judge = divmod(rest, max(len(loaded.judges), 1))
    return loaded.tasks[task], loaded.judges[judge], loaded.factors[factor]


def _judged(loaded: Loaded) -> Counter[_Part]:
    return Counter((one.task, one.judge, "") for one in loaded.verdicts if not one.is_self_judged)


def _left(basis: str, run: str, mine: Counter[_Part], theirs: Counter[_Part]) -> Iterator[LeftOut]:
    """What the other run lacks, by the widest of task, judge and factor that it lacks."""
    tasks, judges = {task for task, _, _ in theirs}, {judge for _, judge, _ in theirs}
    factors = {(task, factor) for task, _, factor in theirs}
    counts: Counter[tuple[str, str]] = Counter()
    for part, count in mine.items():
        task, judge, factor = part
        if part in theirs:
            continue
        if task not in tasks:
            counts["task", task] += count
        elif judge not in judges:
            counts["judge", judge] += count
        elif (task, factor) not in factors:
            counts["factor", f"{task}/{factor}"] += count
        else:
            counts["judge", f"{judge} on {task}/{factor}".rstrip("/")] += count
    for (kind, name), count in sorted(counts.items()):
        yield LeftOut(run, basis, kind, name, count)


def _scores(loaded: Loaded, shared: set[_Part], _: set[str]) -> Floats:
    keys, place = np.unique(_keys(loaded), return_inverse=True)
    kept = np.array([_part(loaded, key) in shared for key in keys.tolist()], dtype=bool)[place]
    return by_datapoint(loaded.with_units(loaded.units.where(kept)))


def _shares(loaded: Loaded, shared: set[_Part], students: set[str]) -> Floats:
    """Share of wins of each student on each datapoint, (D, S)."""
    points = {name: number for number, name in enumerate(loaded.datapoints)}
    places = {name: number for number, name in enumerate(loaded.students)}
    wins, n = (np.zeros((len(points), len(places))) for _ in range(2))
    for one in loaded.verdicts:
        counts = (one.task, one.judge, "") in shared and {one.model_a, one.model_b} <= students
        if not counts or one.is_self_judged:
            continue
        won, point = _WINS.get(one.winner, 0.5), points[one.datapoint]
        for model, share in ((one.model_a, won), (one.model_b, 1.0 - won)):
            wins[point, places[model]] += share
            n[point, places[model]] += 1
    shares: Floats = np.where(n > 0, wins / np.maximum(n, 1), np.nan)
    return shares
