"""Two runs beside each other: which students became better or worse, and whether that is more than chance.

A regression is a drop of more than the threshold whose 95 % interval does not hold 0. Only what both runs have is
compared: scores, and where there are verdicts on pairs, shares of wins, which are relative: what one student wins
another loses. Each datapoint counts once, and tests are over prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.analysis.records import Skipped
from coeval.analysis.statistics import Codes, Floats, t_limits, two_sided
from coeval.analysis.students import SIGNIFICANT, by_datapoint, mean_difference
from coeval.analysis.units import LoadedRun, codes_of

# What two runs share.
#
# A task of one run alone, or a judge who is harsher than the others, moves a student's mean though its answers are the
# same, so both are left out and listed. With verdicts a student's figure on an item is its share of wins (a tie is half
# a win) over opponents that both runs have; verdicts of a judge on its own answers do not count.

_SCORES, _VERDICTS = "scores", "verdicts"
_Part = tuple[str, str, str]  # task, judge, factor; of verdicts the factor is empty
_Point: TypeAlias = tuple[str, bytes]  # a datapoint, by id and hash of the prompt
_Side: TypeAlias = dict[_Point, float]  # a student's mean on each datapoint of one run
# Share of its scores that both runs must hold for a student to be compared datapoint by datapoint.
_MIN_SHARED_SHARE = 0.5
_WINS = {"model_a": 1.0, "model_b": 0.0}


@dataclass(frozen=True)
class _LeftOut:
    """Scores or verdicts of a kind that one run alone has."""

    run: str  # before or after
    basis: str  # scores or verdicts
    kind: str  # task, judge or factor: why it is left out; student: scores of one that the other run lacks
    name: str
    count: int  # scores, or verdicts


@dataclass(frozen=True)
class _SharedScores:
    """One kind of figure of both runs."""

    basis: str
    tasks: tuple[str, ...]  # those with something to compare
    before: Floats  # (datapoints, students) of the earlier run, NaN where it has none
    after: Floats
    shared_before: Floats  # the same of scores that both runs have
    shared_after: Floats


def _shared_scores(before: LoadedRun, after: LoadedRun) -> tuple[list[_SharedScores], list[_LeftOut]]:
    """Return scores and verdicts of what both runs have, and list what only one has."""
    tables, left_out = list[_SharedScores](), list[_LeftOut]()
    students = set(before.students) & set(after.students)
    for basis in (_SCORES, _VERDICTS):
        counts, later_counts = _counts(before, basis), _counts(after, basis)
        shared = set(counts) & set(later_counts)
        left_out += _left(basis, "before", counts, later_counts)
        left_out += _left(basis, "after", later_counts, counts)
        if not shared:
            continue
        if basis == _SCORES:
            values = [
                by_datapoint(loaded.with_units(loaded.units.where(_is_shared(loaded, shared))))
                for loaded in (before, after)
            ]
            common, missing = _in_both(before, after, shared)
            left_out += missing
        else:
            values = common = [_shares(loaded, shared, students) for loaded in (before, after)]
        tables.append(
            _SharedScores(
                basis=basis,
                tasks=tuple(sorted({task for task, _, _ in shared})),
                before=values[0],
                after=values[1],
                shared_before=common[0],
                shared_after=common[1],
            )
        )
    return tables, left_out


def changed_judges(before: LoadedRun, after: LoadedRun) -> tuple[str, ...]:
    """Return the judges that are another model in the later run, as `name: model -> model`."""
    models = [
        (name, before.info.model_id(name, "judge"), after.info.model_id(name, "judge"))
        for name in sorted(set(before.judges) & set(after.judges))
        if name in before.info.interfaces and name in after.info.interfaces  # else their models are not known
    ]
    return tuple(f"{name}: {old} -> {new}" for name, old, new in models if old != new)


def _parts(loaded: LoadedRun) -> tuple[list[_Part], Codes]:
    """Return the parts with scores, and which of them each unit belongs to."""
    units, kinds = loaded.units, ("task", "judge", "factor")
    shape = tuple(max(len(loaded.names(kind)), 1) for kind in kinds)  # of an empty run too
    keys, place = np.unique(np.ravel_multi_index((units.task, units.judge, units.factor), shape), return_inverse=True)
    task, judge, factor = (
        [loaded.names(kind)[code] for code in codes.tolist()]
        for kind, codes in zip(kinds, np.unravel_index(keys, shape), strict=True)
    )
    return list(zip(task, judge, factor, strict=True)), place


def _counts(loaded: LoadedRun, basis: str) -> Counter[_Part]:
    """Return how many scores, or verdicts, a run has of each part."""
    if basis == _VERDICTS:
        return Counter((verdict.task, verdict.judge, "") for verdict in loaded.verdicts if not verdict.is_self_judged)
    parts, place = _parts(loaded)
    return Counter(dict(zip(parts, np.bincount(place).tolist(), strict=True)))


def _left(basis: str, run: str, mine: Counter[_Part], theirs: Counter[_Part]) -> Iterator[_LeftOut]:
    """Yield the parts that the other run lacks, by the widest of task, judge and factor that it lacks."""
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
        yield _LeftOut(run, basis, kind, name, count)


def _is_shared(loaded: LoadedRun, shared: set[_Part]) -> npt.NDArray[np.bool_]:
    """Return which units are of parts that both runs have, (U,)."""
    parts, place = _parts(loaded)
    return np.array([part in shared for part in parts], dtype=bool)[place]


def _in_both(before: LoadedRun, after: LoadedRun, shared: set[_Part]) -> tuple[list[Floats], list[_LeftOut]]:
    """Return each student's mean on each datapoint over the scores that both runs have, and count the others."""
    runs = (before, after)
    keys = [_score_keys(loaded, shared) for loaded in runs]
    tables, left_out = [], []
    for name, loaded, mine, theirs in zip(("before", "after"), runs, keys, (keys[1], keys[0]), strict=True):
        codes = np.fromiter((key in theirs for key in mine), dtype=bool, count=len(mine))
        rows = np.fromiter(mine.values(), dtype=np.int64, count=len(mine))
        tables.append(by_datapoint(loaded.with_units(loaded.units.where(rows[codes]))))
        points = {key[0] for key in theirs}
        lacking = Counter(
            key[1] for key, is_shared in zip(mine, codes.tolist(), strict=True) if not is_shared and key[0] in points
        )
        left_out += [_LeftOut(name, _SCORES, "student", student, count) for student, count in sorted(lacking.items())]
    return tables, left_out


def _score_keys(loaded: LoadedRun, shared: set[_Part]) -> dict[tuple[_Point, str, str, str], int]:
    """Return (datapoint, student, judge, factor) -> unit of the scores that the runs share by kind."""
    is_shared = _is_shared(loaded, shared)
    points = list(zip(loaded.datapoints, loaded.prompt_keys, strict=True))
    units = loaded.units
    columns = (units.datapoint, units.student, units.judge, units.factor)
    return {
        (points[point], loaded.students[student], loaded.judges[judge], loaded.factors[factor]): row
        for row, point, student, judge, factor in zip(
            np.flatnonzero(is_shared).tolist(), *(column[is_shared].tolist() for column in columns), strict=True
        )
    }


def _shares(loaded: LoadedRun, shared: set[_Part], students: set[str]) -> Floats:
    """Return each student's share of wins on each datapoint, (D, S)."""
    points, places = codes_of(loaded.datapoints), codes_of(loaded.students)
    wins, n = (np.zeros((len(points), len(places))) for _ in range(2))
    for verdict in loaded.verdicts:
        counts = (verdict.task, verdict.judge, "") in shared and {verdict.model_a, verdict.model_b} <= students
        if not counts or verdict.is_self_judged:
            continue
        won, point = _WINS.get(verdict.winner, 0.5), points[verdict.datapoint]
        for model, share in ((verdict.model_a, won), (verdict.model_b, 1.0 - won)):
            wins[point, places[model]] += share
            n[point, places[model]] += 1
    return np.where(n > 0, wins / np.maximum(n, 1), np.nan)


@dataclass(frozen=True)
class Change:
    """How a student's scores, or shares of wins, changed from one run to the other."""

    student: str
    task: str  # empty: all tasks that both runs have
    before: float
    after: float
    difference: float  # after - before
    lower: float
    upper: float
    p_value: float
    paired: bool  # whether the difference is taken datapoint by datapoint
    datapoints_before: int
    datapoints_after: int
    datapoints_shared: int  # those that the difference is taken over, where it is paired
    verdict: str  # regression, improvement, or same
    basis: str  # scores, or verdicts: before and after are shares of wins then


@dataclass(frozen=True)
class RunComparison:
    """How two runs differ."""

    before: str
    after: str
    threshold: float
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]  # students that the later run lacks
    only_after: tuple[str, ...]
    left_out: tuple[_LeftOut, ...]  # tasks, judges and factors of one run alone
    # Judges that are another model now, as `name: model -> model`: their scores are compared all the same.
    changed_judges: tuple[str, ...]
    skipped_before: tuple[Skipped, ...]
    skipped_after: tuple[Skipped, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The students that became worse."""
        return tuple(change for change in self.changes if change.verdict == "regression")


def compare_runs(before: LoadedRun, after: LoadedRun, threshold: float = 0.02) -> RunComparison:
    """Compare every student that both runs judged, overall and by task."""
    tables, left_out = _shared_scores(before, after)
    judged = [{loaded.students[code] for code in loaded.units.student.tolist()} for loaded in (before, after)]
    for students, loaded in zip(judged, (before, after), strict=True):
        students.update(model for verdict in loaded.verdicts for model in (verdict.model_a, verdict.model_b))
    return RunComparison(
        before=before.info.experiment_id,
        after=after.info.experiment_id,
        threshold=threshold,
        changes=tuple(change for scores in tables for change in _changes(before, after, scores, threshold)),
        only_before=tuple(sorted(judged[0] - judged[1])),
        only_after=tuple(sorted(judged[1] - judged[0])),
        left_out=tuple(left_out),
        changed_judges=changed_judges(before, after),
        skipped_before=before.skipped,
        skipped_after=after.skipped,
    )


def _changes(before: LoadedRun, after: LoadedRun, scores: _SharedScores, threshold: float) -> Iterator[Change]:
    """Yield the changes over all tasks, then those of each."""
    for task in ("", *scores.tasks):
        for student in sorted(set(before.students) & set(after.students)):
            sides = _side(before, scores.before, student, task), _side(after, scores.after, student, task)
            common = (
                _side(before, scores.shared_before, student, task),
                _side(after, scores.shared_after, student, task),
            )
            clusters = [_clusters(before, sides[0]), _clusters(after, sides[1])]
            yield from _change((student, task, scores.basis), sides, common, clusters, threshold)


def _side(loaded: LoadedRun, scores: Floats, student: str, task: str) -> _Side:
    mine = scores[:, loaded.students.index(student)]
    rows = ~np.isnan(mine)
    if task:
        rows &= loaded.datapoint_task == loaded.tasks.index(task)
    return {(loaded.datapoints[row], loaded.prompt_keys[row]): float(mine[row]) for row in np.flatnonzero(rows)}


def _clusters(loaded: LoadedRun, side: _Side) -> dict[_Point, int]:
    """Return the cluster of prompts that each datapoint is in."""
    if not side:
        return {}
    rows = zip(loaded.datapoints, loaded.prompt_keys, loaded.clusters.tolist(), strict=True)
    return {(identity, key): cluster for identity, key, cluster in rows if (identity, key) in side}


def _change(
    about: tuple[str, str, str],
    sides: tuple[_Side, _Side],
    common: tuple[_Side, _Side],
    clusters: list[dict[_Point, int]],
    threshold: float,
) -> Iterator[Change]:
    """Yield the change of (student, task, basis), or none where either run has no score."""
    if not sides[0] or not sides[1]:
        return
    student, task, basis = about
    shared = sorted(common[0].keys() & common[1].keys())
    # Over the scores that both runs have: one that is missing in one run is left out of the other. With fewer than half
    # in common the runs are two independent samples of datapoints.
    paired = len(shared) >= _MIN_SHARED_SHARE * max(map(len, sides))
    if paired:
        scores = [np.array([side[key] for key in shared]) for side in common]
        test = mean_difference(scores[1] - scores[0], np.array([clusters[0][key] for key in shared]))
        difference, variance, freedom = test.difference, test.variance, test.freedom
    else:
        scores = [np.array(list(side.values())) for side in sides]
        tests = [
            mean_difference(score, np.array([places[key] for key in side]))
            for score, side, places in zip(scores, sides, clusters, strict=True)
        ]
        difference = tests[1].difference - tests[0].difference
        variance = sum(test.variance for test in tests)
        # Welch's degrees of freedom.
        parts = sum(test.variance**2 / test.freedom for test in tests)
        freedom = variance**2 / parts if 0 < parts < np.inf else min(test.freedom for test in tests)
    p_value = float(two_sided(difference, variance, freedom))
    lower, upper = (float(limit) for limit in t_limits(difference, variance, freedom))
    yield Change(
        student=student,
        task=task,
        before=float(scores[0].mean()),
        after=float(scores[1].mean()),
        difference=difference,
        lower=lower,
        upper=upper,
        p_value=p_value,
        paired=paired,
        datapoints_before=len(sides[0]),
        datapoints_after=len(sides[1]),
        datapoints_shared=len(shared),
        verdict=changed(difference, p_value, threshold),
        basis=basis,
    )


def changed(difference: float, p_value: float, threshold: float) -> str:
    """Return whether a difference is a `regression`, an `improvement` or, by chance or within the threshold, `same`."""
    if abs(difference) <= threshold or p_value >= SIGNIFICANT:
        return "same"
    return "regression" if difference < 0 else "improvement"
