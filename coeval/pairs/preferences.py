"""Preferences from scores: who scored higher with the same judge on the same item, without another call.

With s the mean of an answer's scores in [0, 1], weighted by factor: the better wins where |s_a - s_b| > margin;
otherwise it is a tie, and `tie (bothbad)` where both are at most `bad`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from coeval.analysis.bias import FlipRow, flip_rows
from coeval.analysis.judge_tests import judge_scales
from coeval.analysis.records import Skipped
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.students import student_rows
from coeval.analysis.units import ArrayTable, LoadedRun, codes_of, column, factor_weights, load_run, places_within
from coeval.analysis.verdicts import WINNERS, Preference, majority, seconds
from coeval.errors import RunInputError
from coeval.phases.pairwise import sides
from coeval.storage.run import Run
from p2l.common.cli import nearest

MARGIN, BAD = 0.1, 0.25
ROUNDING = 1e-9  # of sums of scores


@dataclass(frozen=True)
class Rule:
    """How scores become preferences."""

    margin: float = MARGIN  # by how much the better has to be ahead
    bad: float = BAD  # two that tie with no more than this are both bad
    weights: Mapping[str, float] = field(default_factory=dict)  # factor -> weight; others have that of the rubric
    kind: str = "model"  # of the judges that count: models, `metric` or `label` judges
    seed: int = 0  # of the sides


def outcome(score_a: npt.ArrayLike, score_b: npt.ArrayLike, rule: Rule) -> Codes:
    """Return the winners, as positions in WINNERS, by scores in [0, 1]."""
    ahead = np.subtract(score_a, score_b)
    tie = np.where(np.maximum(score_a, score_b) <= rule.bad + ROUNDING, 3, 2)
    return np.where(np.abs(ahead) <= rule.margin + ROUNDING, tie, np.where(ahead > 0, 0, 1))


# Shapes: N comparisons; G groups of scores by one judge on one item, A answers in a group at most, F factors.


@dataclass(frozen=True)
class _Comparisons(ArrayTable):
    """Two answers to one item that one judge scored, (N,)."""

    a: Codes  # a unit of the first answer, which has its student, item and judge
    b: Codes
    score_a: Floats
    score_b: Floats


def _comparisons(loaded: LoadedRun, rule: Rule, without: Codes) -> _Comparisons:
    """Return every two answers by different students, but those of the tasks `without`."""
    units, judges = loaded.units, max(len(loaded.judges), 1)
    rows = np.flatnonzero(_counts(loaded, rule) & ~np.isin(units.task, without))
    units = units.where(rows)
    keys, first, answer = np.unique(units.response * judges + units.judge, return_index=True, return_inverse=True)
    scores = np.full((len(keys), len(loaded.factors)), np.nan)
    scores[answer, units.factor] = units.norm
    groups, group = np.unique(units.datapoint[first] * judges + units.judge[first], return_inverse=True)
    place = places_within(group)
    answers = np.full((len(groups), int(place.max(initial=-1)) + 1), -1)
    answers[group, place] = np.arange(len(keys))
    a, b = (answers[:, places].ravel() for places in np.triu_indices(answers.shape[1], 1))
    student = units.student[first]
    differ = (b >= 0) & (student[a] != student[b])  # a group is filled from its first place on, so `a` is there too
    a, b = a[differ], b[differ]
    weights = factor_weights(loaded).copy()  # by task and factor; those of the rule stand in for the rubric's
    for factor in rule.weights.keys() & {*loaded.factors}:
        weights[:, loaded.factors.index(factor)] = rule.weights[factor]
    shared = ~np.isnan(scores[a] + scores[b]) * weights[units.task[first[a]]]
    total = shared.sum(axis=1)
    sums = (np.where(shared > 0, scores[side] * shared, 0.0).sum(axis=1) for side in (a, b))
    counts = total > 0
    score_a, score_b = (part[counts] / total[counts] for part in sums)
    return _Comparisons(rows[first[a[counts]]], rows[first[b[counts]]], score_a, score_b)


def _counts(loaded: LoadedRun, rule: Rule) -> npt.NDArray[np.bool_]:
    """Return whether each unit counts by the kind of its judge, (U,)."""
    return np.array([kind == rule.kind for kind in loaded.kinds], dtype=bool)[loaded.units.judge]


def derived(loaded: LoadedRun, rule: Rule, without: Iterable[str] = ()) -> list[Preference]:
    """Derive preferences from a run's scores, one for each judge, item and pair of students, but for tasks `without`.

    Raise RunInputError if a weight is of a factor that nobody scored.
    """
    units, names = loaded.units, loaded.students
    factors = [loaded.factors[code] for code in np.unique(units.factor[_counts(loaded, rule)])]
    for factor in rule.weights:
        if factors and factor not in factors:
            hint = nearest(factor, factors) or f"; there are {', '.join(factors)}"
            raise RunInputError(f"--factor-weight: nobody scored the factor {factor!r}{hint}")
    pairs = _comparisons(loaded, rule, np.flatnonzero(np.isin(loaded.tasks, [*without])))
    # The sides of a pair are drawn for its item, as for verdicts: a model is not always shown as the first.
    orders = [
        sides(names[first], names[second], loaded.datapoints[point], rule.seed)[0] == names[first]
        for first, second, point in zip(
            units.student[pairs.a], units.student[pairs.b], units.datapoint[pairs.a], strict=True
        )
    ]
    a, b = np.where(orders, (pairs.a, pairs.b), (pairs.b, pairs.a))
    score_a, score_b = np.where(orders, (pairs.score_a, pairs.score_b), (pairs.score_b, pairs.score_a))
    at = np.array([seconds(time) for time in loaded.evaluations.at])[units.evaluation]
    columns = (a, b, outcome(score_a, score_b, rule), score_a - score_b, np.maximum(at[a], at[b]))
    return [
        Preference(
            datapoint=loaded.datapoints[units.datapoint[first]],
            task=loaded.tasks[units.task[first]],
            teacher=loaded.teachers[units.teacher[first]],
            model_a=names[units.student[first]],
            model_b=names[units.student[second]],
            response_a=loaded.responses[units.response[first]],
            response_b=loaded.responses[units.response[second]],
            winner=WINNERS[winner],
            judge=loaded.judges[units.judge[first]],
            source="derived",
            margin=round(margin, 4),
            order_consistent=None,
            at=time,
        )
        for first, second, winner, margin, time in zip(*(values.tolist() for values in columns), strict=True)
    ]


# Preferences as a user selects them: from verdicts or scores, of each judge or of all together.

Source = Literal["auto", "native", "derived"]


# How far each judge's votes count, so that votes say what the report on students says. Votes derived from scores carry
# the weights of its fit, and those of judges with a bias or fault are left out. Verdicts on pairs, which the fit does
# not read, count alike.

_LEAST_WEIGHT = 1e-3  # of the panel, below which a judge's votes say nothing


@dataclass(frozen=True)
class JudgeTrust:
    """What is made of the judges of a run's scores."""

    # Judge -> weight of its votes, 1 on average over those that count; judges that the fit does not know are missing.
    weights: Mapping[str, float]
    left_out: Mapping[str, str]  # judge -> why its votes are left out
    note: str = ""  # where all are flagged, and so none is left out
    first: str = ""  # student that the report ranks first; empty without a fit

    def weight(self, judge: str) -> float:
        """Return the weight of a judge's votes; 1 where nothing is known of it."""
        return self.weights.get(judge, 1.0)


def judge_trust(loaded: LoadedRun, *, keep_flagged: bool = False) -> JudgeTrust:
    """Return how far the votes of each judge count; with `keep_flagged` none is left out for a bias."""
    scales = judge_scales(loaded)
    faults = {row.judge: row.flags for row in scales if row.flags}
    blind = {row.judge: "no weight in the fit" for row in scales if row.weight < _LEAST_WEIGHT and not row.flags}
    left_out = {} if keep_flagged else {**blind, **faults}
    note = ""
    if scales and len(left_out) == len(scales):
        left_out = {}
        note = "every judge is flagged, so that none is left out; ask others before you trust these votes"
    kept = [row for row in scales if row.judge not in left_out]
    total = sum(row.weight for row in kept)
    weights = {row.judge: row.weight * len(kept) / total if total > 0 else 1.0 for row in kept}
    students = student_rows(loaded) if scales else ()
    return JudgeTrust(weights, left_out, note, students[0].student if students else "")


@dataclass(frozen=True)
class PreferenceFilter:
    """The preferences that a user selects."""

    source: Source = "auto"  # `auto`: verdicts on pairs for tasks that have them, scores for the others
    rows: Literal["judge", "majority"] = "judge"
    judges: Collection[str] = ()  # empty: all
    keep_self_judged: bool = False
    keep_flagged: bool = False  # judges with a bias or fault, of votes derived from scores
    rule: Rule = field(default_factory=Rule)


@dataclass(frozen=True)
class PreferenceSet:
    """The preferences, ordered by task, item, pair and judge, and what was left out."""

    preferences: list[Preference]
    self_judged: int = 0  # left out because the judge is one of the two
    flagged: Mapping[str, str] = field(default_factory=dict)  # judge whose votes are left out -> why
    note: str = ""  # what else is to be known of the judges
    first: str = ""  # student that the report ranks first; empty without a fit of scores
    skipped: tuple[Skipped, ...] = ()  # records of the run that are unusable
    flips: tuple[FlipRow, ...] = ()  # of these judges
    # Item -> target attribute -> value.
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    # Item -> code of its prompt; near duplicates share one.
    clusters: Mapping[str, int] = field(default_factory=dict, repr=False)


def gather(run: Run, selection: PreferenceFilter) -> PreferenceSet:
    """Read the preferences of a run. Raise RunInputError if it is none, or has no such judge or no preferences."""
    loaded = load_run(run.folder)
    preferences = list(loaded.verdicts) if selection.source != "derived" else []
    if selection.source != "native":
        preferences += derived(loaded, selection.rule, {verdict.task for verdict in preferences})
    judging = sorted({preference.judge for preference in preferences})
    for judge in selection.judges:
        if judging and judge not in judging:
            hint = nearest(judge, judging) or "; " + ", ".join(judging)
            raise RunInputError(f"--judges: {judge!r} judged nothing{hint}")
    preferences = [chosen for chosen in preferences if not selection.judges or chosen.judge in selection.judges]
    counted = [fair for fair in preferences if selection.keep_self_judged or not fair.is_self_judged]
    if not counted:
        raise RunInputError(f"{run.folder}: {why_none(selection, len(preferences), loaded.skipped)}")
    self_judged = len(preferences) - len(counted)
    trust = judge_trust(loaded, keep_flagged=selection.keep_flagged)
    trusted = [
        row if row.source == "native" else replace(row, weight=trust.weight(row.judge))
        for row in counted
        if row.source == "native" or row.judge not in trust.left_out
    ]
    note = trust.note
    if trusted:
        counted = trusted
    else:
        note = "all votes are of judges who are flagged, so that none is left out; ask others before you trust them"
    dropped = {row.judge for row in preferences if row.source != "native"} if trusted else set()
    rows = majority(counted) if selection.rows == "majority" else counted
    rows.sort(key=lambda row: (row.task, row.key, row.judge))
    flips = flip_rows(
        verdict for verdict in loaded.verdicts if not selection.judges or verdict.judge in selection.judges
    )
    attributes = dict(zip(loaded.datapoints, loaded.attributes, strict=True))
    clusters = dict(zip(loaded.datapoints, loaded.clusters.tolist(), strict=True))
    return PreferenceSet(
        preferences=rows,
        self_judged=self_judged,
        flagged={judge: why for judge, why in trust.left_out.items() if judge in dropped},
        note=note,
        first=trust.first if any(row.source != "native" for row in counted) else "",
        skipped=loaded.skipped,
        flips=flips,
        attributes=attributes,
        clusters=clusters,
    )


def why_none(selection: PreferenceFilter, self_judged: int, skipped: Iterable[Skipped]) -> str:
    """Return why a run has no preferences, where `self_judged` were left out."""
    if self_judged:
        return (
            f"all {self_judged} preferences are self-judged; use --keep-self-judged, or a judge that is not a student"
        )
    lost = ", ".join(f"{row.count} {row.code}" for row in skipped)
    lost = f" (skipped: {lost})" if lost else ""
    if selection.source == "native":
        return f"no verdicts on pairs{lost}; use --source derived, or a task with `evaluation_mode: pairwise`"
    instead = "; use --source native for verdicts on pairs" if selection.source == "derived" else ""
    return f"no preferences: phase 5 has scored no two answers to the same item yet{lost}{instead}"


# The same preferences as columns, for reports: a run of twenty models has 300,000, which take a tenth of a second here.


@dataclass(frozen=True)
class Votes(ArrayTable):
    """Preferences, all (N,), as codes of names."""

    task: Codes
    datapoint: Codes
    judge: Codes
    model_a: Codes
    model_b: Codes
    winner: Codes  # position in WINNERS
    weight: Floats


def coded(preferences: Iterable[Preference], *names: Iterable[str]) -> Votes:
    """Return preferences as codes of these names: tasks, datapoints, judges and models."""
    tasks, datapoints, judges, models = map(codes_of, names)
    preferences = list(preferences)
    return Votes(
        task=column(tasks[vote.task] for vote in preferences),
        datapoint=column(datapoints[vote.datapoint] for vote in preferences),
        judge=column(judges[vote.judge] for vote in preferences),
        model_a=column(models[vote.model_a] for vote in preferences),
        model_b=column(models[vote.model_b] for vote in preferences),
        winner=column(WINNERS.index(vote.winner) for vote in preferences),
        weight=np.array([vote.weight for vote in preferences], dtype=np.float64),
    )


def votes_of(loaded: LoadedRun, rule: Rule) -> tuple[Votes, npt.NDArray[np.bool_]]:
    """Return verdicts on pairs and, for tasks without them, preferences derived from scores; and which are verdicts.

    Those of judges that are left out have a weight of 0.
    """
    native = coded(loaded.verdicts, loaded.tasks, loaded.datapoints, loaded.judges, loaded.students)
    pairs = _comparisons(loaded, rule, native.task)
    scored = loaded.units.where(pairs.a)
    trust = judge_trust(loaded)
    weights = np.array([0.0 if name in trust.left_out else trust.weight(name) for name in loaded.judges])
    votes = Votes(
        task=np.concatenate([native.task, scored.task]),
        datapoint=np.concatenate([native.datapoint, scored.datapoint]),
        judge=np.concatenate([native.judge, scored.judge]),
        model_a=np.concatenate([native.model_a, scored.student]),
        model_b=np.concatenate([native.model_b, loaded.units.student[pairs.b]]),
        winner=np.concatenate([native.winner, outcome(pairs.score_a, pairs.score_b, rule)]),
        weight=np.concatenate([native.weight, weights[scored.judge]]),
    )
    return votes, np.arange(len(votes)) < len(native)
