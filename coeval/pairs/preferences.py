"""Preferences from scores: who scored higher with the same judge on the same item, without another call.

With s the mean of an answer's scores in [0, 1], weighted by factor: the better wins where |s_a - s_b| > margin;
otherwise it is a tie, and `tie (bothbad)` where both are at most `bad`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt

from coeval.analysis.bias import FlipRow, flip_rows
from coeval.analysis.records import Judgement, Records, RunInfo, Skipped, read_run, read_run_info
from coeval.analysis.units import ArrayTable, Codes, Floats, LoadedRun, Units, codes_of, places_within
from coeval.analysis.verdicts import WINNERS, Preference, majority, seconds
from coeval.errors import RunInputError
from coeval.phases.pair_schedule import sides
from coeval.storage.run import Run
from p2l.common.cli import nearest

MARGIN, BAD = 0.1, 0.25
ROUNDING = 1e-9
"""What sums of scores may be off by."""


@dataclass(frozen=True)
class Rule:
    """How scores become preferences."""

    margin: float = MARGIN  # by how much the better has to be ahead
    bad: float = BAD  # two that tie with no more than this are both bad
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factor -> weight; others have that of the rubric, 1 by default."""
    kind: str = "model"  # whose scores: those of judges that are models, of `metric` or of `label` judges
    seed: int = 0  # of the sides


def outcome(score_a: float, score_b: float, rule: Rule) -> str:
    """Return the winner by two scores in [0, 1]."""
    ahead = score_a - score_b
    if abs(ahead) > rule.margin + ROUNDING:
        return "model_a" if ahead > 0 else "model_b"
    return "tie (bothbad)" if max(score_a, score_b) <= rule.bad + ROUNDING else "tie"


def derived(records: Records, rule: Rule) -> list[Preference]:
    """Derive preferences from the scores of a run, one for each judge, item and pair of students.

    Raises:
        RunInputError: a weight is of a factor that nobody scored.
    """
    kind_of = records.info.kind
    judgements = [
        one for one in records.judgements if not one.code and kind_of(one.judge, one.task, one.scores) == rule.kind
    ]
    factors = sorted({factor for one in judgements for factor in one.scores})
    for factor in rule.weights:
        if factors and factor not in factors:
            hint = nearest(factor, factors) or f"; there are {', '.join(factors)}"
            raise RunInputError(f"--factor-weight: nobody scored the factor {factor!r}{hint}")
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in judgements:
        groups.setdefault((one.datapoint, one.judge), []).append(one)
    return [preference for group in groups.values() for preference in _pairs(group, rule, records.info)]


def _pairs(group: list[Judgement], rule: Rule, info: RunInfo) -> Iterator[Preference]:
    """Yield preferences between all answers to one item that one judge scored."""
    task = info.tasks.get(group[0].task)
    weights = {**(task.weights if task is not None else {}), **rule.weights}
    for one, other in combinations(sorted(group, key=lambda judgement: judgement.student), 2):
        names = sides(one.student, other.student, one.datapoint, rule.seed)
        a, b = (one, other) if names[0] == one.student else (other, one)
        shared = {factor: weights.get(factor, 1.0) for factor in a.scores if factor in b.scores}
        if one.student != other.student and sum(shared.values()) > 0:
            sums = (sum(side.scores[factor] * weight for factor, weight in shared.items()) for side in (a, b))
            score_a, score_b = (total / sum(shared.values()) for total in sums)
            yield Preference(
                *(a.datapoint, a.task, a.teacher, a.student, b.student, a.response, b.response),
                winner=outcome(score_a, score_b, rule),
                judge=a.judge,
                source="derived",
                margin=round(score_a - score_b, 4),
                order_consistent=None,
                at=max(seconds(a.at), seconds(b.at)),
            )


# Preferences as a user selects them: from verdicts or scores, of each judge or of all together.

Source = Literal["auto", "native", "derived"]


@dataclass(frozen=True)
class PreferenceFilter:
    """Which preferences."""

    source: Source = "auto"  # `auto`: verdicts on pairs for tasks that have them, scores for the others
    rows: Literal["judge", "majority"] = "judge"
    judges: Collection[str] = ()  # empty: all
    keep_self_judged: bool = False
    rule: Rule = field(default_factory=Rule)


@dataclass(frozen=True)
class PreferenceSet:
    """The preferences, ordered by task, item, pair and judge, and what was left out."""

    preferences: list[Preference]
    self_judged: int = 0  # left out because the judge is one of the two
    skipped: tuple[Skipped, ...] = ()  # records of the run that are of no use
    flips: tuple[FlipRow, ...] = ()  # of these judges
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Item -> target attribute -> value."""


def gather(run: Run, selection: PreferenceFilter) -> PreferenceSet:
    """Read the preferences of a run.

    Raises:
        RunInputError: the folder holds no run, there is no such judge, or there are no preferences.
    """
    records = read_run(run, read_run_info(run))
    preferences = _select(records, selection)
    judging = sorted({one.judge for one in preferences})
    for judge in selection.judges:
        if judging and judge not in judging:
            hint = nearest(judge, judging) or "; " + ", ".join(judging)
            raise RunInputError(f"--judges: {judge!r} judged nothing{hint}")
    preferences = [one for one in preferences if not selection.judges or one.judge in selection.judges]
    counted = [one for one in preferences if selection.keep_self_judged or not one.is_self_judged]
    if not counted:
        raise RunInputError(f"{run.folder}: {why_none(selection, len(preferences), records.skips.rows())}")
    rows = majority(counted) if selection.rows == "majority" else counted
    rows.sort(key=lambda one: (one.task, one.key, one.judge))
    flips = flip_rows(one for one in records.verdicts if not selection.judges or one.judge in selection.judges)
    attributes = {name: item.attributes for name, item in records.items.items()}
    return PreferenceSet(rows, len(preferences) - len(counted), records.skips.rows(), flips, attributes)


def _select(records: Records, selection: PreferenceFilter) -> list[Preference]:
    verdicts = list(records.verdicts) if selection.source != "derived" else []
    if selection.source == "native":
        return verdicts
    with_verdicts = {one.task for one in verdicts}
    return verdicts + [one for one in derived(records, selection.rule) if one.task not in with_verdicts]


def why_none(selection: PreferenceFilter, self_judged: int, skipped: Iterable[Skipped]) -> str:
    """Return why a run has no preferences, where `self_judged` were left out."""
    if self_judged:
        return (
            f"all {self_judged} preferences are self-judged; use --keep-self-judged, or a judge that is not a student"
        )
    lost = ", ".join(f"{one.count} {one.code}" for one in skipped)
    lost = f" (skipped: {lost})" if lost else ""
    if selection.source == "native":
        return f"no verdicts on pairs{lost}; use --source derived, or a task with `evaluation_mode: pairwise`"
    instead = "; use --source native for verdicts on pairs" if selection.source == "derived" else ""
    return f"no preferences: phase 5 has scored no two answers to the same item yet{lost}{instead}"


# The same preferences as columns, for reports: a run of twenty models has 300,000, which take a tenth of a second here.
#
# Shapes: N preferences; G groups of scores by one judge on one item, A answers in a group at most, F factors.


@dataclass(frozen=True)
class Votes(ArrayTable):
    """Preferences, all (N,), as codes of the run's names."""

    task: Codes
    datapoint: Codes
    judge: Codes
    model_a: Codes
    model_b: Codes
    winner: Codes  # position in WINNERS


def votes_of(loaded: LoadedRun, rule: Rule) -> tuple[Votes, npt.NDArray[np.bool_]]:
    """Return verdicts on pairs and, for tasks without them, preferences derived from scores; and which are verdicts."""
    native = _native(loaded)
    with_verdicts = np.unique(native.task)
    parts = [_derived(loaded, task, rule) for task in range(len(loaded.tasks)) if task not in with_verdicts]
    joined = [np.concatenate([getattr(part, column.name) for part in (native, *parts)]) for column in fields(Votes)]
    return Votes(*joined), np.arange(len(joined[0])) < len(native)


def _native(loaded: LoadedRun) -> Votes:
    names = (loaded.tasks, loaded.datapoints, loaded.judges, loaded.students, loaded.students, WINNERS)
    codes = [codes_of(one) for one in names]
    rows = [
        [code[name] for code, name in zip(codes, row, strict=True)]
        for row in (
            (one.task, one.datapoint, one.judge, one.model_a, one.model_b, one.winner) for one in loaded.verdicts
        )
    ]
    return Votes(*np.array(rows, dtype=np.int64).reshape(-1, len(fields(Votes))).T)


def _derived(loaded: LoadedRun, task: int, rule: Rule) -> Votes:
    units = loaded.units
    of_kind = np.array([kind == rule.kind for kind in loaded.kinds], dtype=bool)
    groups, students, scores = _groups(loaded, units.where((units.task == task) & of_kind[units.judge]))
    info = loaded.info.tasks.get(loaded.tasks[task])
    chosen = {**(info.weights if info is not None else {}), **rule.weights}
    weights = np.array([chosen.get(name, 1.0) for name in loaded.factors])
    none = (np.zeros(0, dtype=np.int64),) * 4
    a, b, rows, won = map(np.concatenate, zip(none, *_compared(students, scores, weights, rule), strict=True))
    item, judge = np.divmod(groups[rows], max(len(loaded.judges), 1))
    return Votes(np.full(len(rows), task), item, judge, a, b, won)


def _groups(loaded: LoadedRun, units: Units) -> tuple[Codes, Codes, Floats]:
    """Return keys of groups (G,), their students (G, A), -1 where there are fewer, and scores (G, A, F)."""
    judges = max(len(loaded.judges), 1)
    keys, answers = np.unique(units.response * judges + units.judge, return_inverse=True)
    response, judge = np.divmod(keys, judges)
    groups, group = np.unique(loaded.response_datapoint[response] * judges + judge, return_inverse=True)
    place = places_within(group)
    students = np.full((len(groups), int(place.max(initial=-1)) + 1), -1)
    students[group, place] = loaded.response_student[response]
    scores = np.full((*students.shape, len(loaded.factors)), np.nan)
    scores[group[answers], place[answers], units.factor] = units.norm
    return groups, students, scores


def _compared(
    students: Codes, scores: Floats, weights: Floats, rule: Rule
) -> Iterator[tuple[Codes, Codes, Codes, Codes]]:
    """Yield for every two places of answers: students of both, groups that have both, and winners."""
    scored = ~np.isnan(scores)
    for one, other in combinations(range(students.shape[1]), 2):
        shared = (scored[:, one] & scored[:, other]) * weights
        total = shared.sum(axis=1)
        rows = np.flatnonzero((total > 0) & (students[:, one] != students[:, other]))
        sums = (np.where(shared > 0, scores[:, place] * shared, 0.0).sum(axis=1) for place in (one, other))
        a, b = (part[rows] / total[rows] for part in sums)
        tie = np.where(np.maximum(a, b) <= rule.bad + ROUNDING, 3, 2)
        won = np.where(np.abs(a - b) <= rule.margin + ROUNDING, tie, np.where(a > b, 0, 1))
        yield students[rows, one], students[rows, other], rows, won
