"""Preferences from scores: who scored higher with the same judge on the same item, without another call.

With s the mean of an answer's scores in [0, 1], weighted by factor: the better wins where |s_a - s_b| > margin;
otherwise it is a tie, and `tie (bothbad)` where both are at most `bad`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from coeval.analysis.bias import FlipRow, flip_rows
from coeval.analysis.records import Skipped
from coeval.analysis.statistics import Floats
from coeval.analysis.units import LoadedRun, coded
from coeval.analysis.verdicts import MAJORITY, WINNERS, Preference, majority, seconds
from coeval.analysis.votes import (
    Rule,
    as_fitted,
    away_weights,
    comparisons,
    counted_units,
    fitted_scores,
    fitted_verdicts,
    judge_trust,
    outcome,
)
from coeval.errors import RunInputError
from coeval.phases.pairwise import sides
from p2l.common.cli import nearest


def derived(loaded: LoadedRun, rule: Rule, without: Iterable[str] = ()) -> list[Preference]:
    """Derive preferences from a run's scores, one for each judge, item and pair of students, but for tasks `without`.

    Raise RunInputError if a weight is of a factor that nobody scored.
    """
    units, names = loaded.units, loaded.students
    factors = [loaded.factors[code] for code in np.unique(units.factor[counted_units(loaded, rule)])]
    for factor in rule.weights:
        if factors and factor not in factors:
            hint = nearest(factor, factors) or f"; there are {', '.join(factors)}"
            raise RunInputError(f"--factor-weight: nobody scored the factor {factor!r}{hint}")
    pairs = comparisons(loaded, rule, np.flatnonzero(np.isin(loaded.tasks, [*without])))
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
    notes: tuple[str, ...] = ()  # what else is to be known of the judges
    first: str = ""  # student who is first by these scores; empty where the votes are not all of scores
    skipped: tuple[Skipped, ...] = ()  # records of the run that are unusable
    flips: tuple[FlipRow, ...] = ()  # of these judges
    # Item -> target attribute -> value.
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    # Item -> code of its prompt; near duplicates share one.
    clusters: Mapping[str, int] = field(default_factory=dict, repr=False)


def gather(loaded: LoadedRun, selection: PreferenceFilter, scores: Floats | None = None) -> PreferenceSet:
    """Return the preferences of a run. Raise RunInputError if it has no such judge, or no preferences.

    Those from scores say what the students' `scores` (S,) do, by default those of the run's fit.
    """
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
        raise RunInputError(f"{loaded.run.folder}: {why_none(selection, len(preferences), loaded.skipped)}")
    self_judged = len(preferences) - len(counted)
    rows, flagged, notes = _trusted(loaded, counted, keep_flagged=selection.keep_flagged)
    rows = majority(rows) if selection.rows == "majority" else rows
    rows.sort(key=lambda row: (row.task, row.key, row.judge))
    rows, first = _following(loaded, rows, selection, fitted_scores(loaded) if scores is None else scores)
    flips = flip_rows(
        verdict for verdict in loaded.verdicts if not selection.judges or verdict.judge in selection.judges
    )
    attributes = dict(zip(loaded.datapoints, loaded.attributes, strict=True))
    clusters = dict(zip(loaded.datapoints, loaded.clusters.tolist(), strict=True))
    return PreferenceSet(
        preferences=rows,
        self_judged=self_judged,
        flagged=flagged,
        notes=tuple(notes),
        first=first,
        skipped=loaded.skipped,
        flips=flips,
        attributes=attributes,
        clusters=clusters,
    )


def _trusted(
    loaded: LoadedRun, counted: list[Preference], *, keep_flagged: bool
) -> tuple[list[Preference], dict[str, str], list[str]]:
    """Return preferences with their judges' weights, without flagged judges; which these are, and what else to say."""
    rows: list[Preference] = []
    flagged: dict[str, str] = {}
    notes: list[str] = []
    for native in (True, False):
        of_kind = [row for row in counted if (row.source == "native") == native]
        if not of_kind:
            continue
        trust = judge_trust(loaded, native=native, keep_flagged=keep_flagged)
        kept = [replace(row, weight=trust.weight(row.judge)) for row in of_kind if row.judge not in trust.left_out]
        if kept:
            voted = {name for row in kept for name in (row.model_a, row.model_b)}
            alone = [
                replace(row, weight=weight)
                for row in of_kind
                if row.judge in trust.left_out
                and not {row.model_a, row.model_b} <= voted
                and (weight := trust.weight_where_alone(row.judge)) > 0
            ]
            kept += alone
            if alone:
                names = sorted({name for row in alone for name in (row.model_a, row.model_b)} - voted)
                notes.append(f"votes on {', '.join(names)} are kept all the same: no other judge compared these")
            judging = {row.judge for row in of_kind}
            flagged |= {judge: why for judge, why in trust.left_out.items() if judge in judging}
            notes += [trust.note] if trust.note else []
        else:
            notes.append("all votes are of judges who are flagged: none is left out; ask others before you trust them")
        rows += kept or of_kind
    return rows, flagged, notes


def _following(
    loaded: LoadedRun, rows: list[Preference], selection: PreferenceFilter, scores: Floats | None
) -> tuple[list[Preference], str]:
    """Return preferences, those from scores weighed to say what students' scores (S,) say, and who is first by these.

    Verdicts are weighed to be without what students gain at items of their own, as their fit is. Judges or factors that
    a user chose say what they say.
    """
    rule = selection.rule
    if selection.judges or rule.kind != "model" or rule.weights:
        return rows, ""
    rows, judges = rows.copy(), [*loaded.judges, MAJORITY]
    native = [row.source == "native" for row in rows]
    for kind, wanted in ((True, fitted_verdicts(loaded)), (False, scores)):
        places = [place for place, is_native in enumerate(native) if is_native == kind]
        votes = coded((rows[place] for place in places), loaded.tasks, loaded.datapoints, judges, loaded.students)
        if kind:
            votes = replace(votes, weight=votes.weight * away_weights(loaded, votes))
        weights = as_fitted(votes, loaded.students, wanted)
        for place, weight in zip(places, (votes.weight if weights is None else weights).tolist(), strict=True):
            rows[place] = replace(rows[place], weight=weight)
    if scores is None or any(native) or not np.isfinite(scores).any():
        return rows, ""
    return rows, loaded.students[int(np.nanargmax(scores))]


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
