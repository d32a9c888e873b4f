"""The votes of a run: verdicts on pairs, and what scores say of two answers, weighed as the fit weighs them.

A judge's votes count by its weight in the fit of students, judges and items (`coeval.analysis.fit`), or, where they are
verdicts on pairs, in the same fit of these. Judges with a bias or fault are left out.

Votes derived from scores are weighed besides so that a leaderboard of them is that of the fit: a vote that b lost to a
counts exp((t_a - t_b) / 2) times as much, with a number t for each student that is moved until the coefficients differ
from each other as the fitted scores do (in the proportion in which they did before). This makes good what votes lose:
by how much an answer is better, and whose answers a judge could not vote on, being one of the two. Verdicts on items
that one of the two students wrote itself are weighed so that they say what they would without what it gains there, and
where any gains then all verdicts so that their leaderboard is that of their fit.

Shapes: N votes or comparisons; M students; G groups of scores by one judge on one item, A answers in a group at most,
F factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.fit import fit_run, fit_verdicts
from coeval.analysis.judge_tests import judge_scales, verdict_scales
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.units import ArrayTable, LoadedRun, Votes, factor_weights, once, places_within, verdict_votes
from coeval.analysis.verdicts import WINNERS
from p2l.common.errors import InputError
from p2l.leaderboard import Leaderboard, fit

MARGIN, BAD = 0.1, 0.25
ROUNDING = 1e-9  # of sums of scores
_LEAST_CHANCE = 0.02  # of a win, since what is expected of verdicts by a sum may pass their ends


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


@dataclass(frozen=True)
class Comparisons(ArrayTable):
    """Two answers to one item that one judge scored, (N,)."""

    a: Codes  # a unit of the first answer, which has its student, item and judge
    b: Codes
    score_a: Floats
    score_b: Floats


def comparisons(loaded: LoadedRun, rule: Rule, without: Codes) -> Comparisons:
    """Return every two answers by different students, but those of the tasks `without`."""
    units, judges = loaded.units, max(len(loaded.judges), 1)
    rows = np.flatnonzero(counted_units(loaded, rule) & ~np.isin(units.task, without))
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
    return Comparisons(rows[first[a[counts]]], rows[first[b[counts]]], score_a, score_b)


def counted_units(loaded: LoadedRun, rule: Rule) -> npt.NDArray[np.bool_]:
    """Return whether each unit counts by the kind of its judge, (U,)."""
    return np.array([kind == rule.kind for kind in loaded.kinds], dtype=bool)[loaded.units.judge]


# How far each judge's votes count.

_LEAST_WEIGHT = 1e-3  # of the panel, below which a judge's votes say nothing


@dataclass(frozen=True)
class JudgeTrust:
    """What is made of the judges of a run."""

    # Judge -> weight of its votes, 1 on average over those that count, and of those left out what theirs would have;
    # judges that the fit does not know are missing.
    weights: Mapping[str, float]
    left_out: Mapping[str, str]  # judge -> why its votes are left out
    note: str = ""  # where all are flagged, and so none is left out

    def weight(self, judge: str) -> float:
        """Return the weight of a judge's votes; 1 where nothing is known of it, 0 where they are left out."""
        return 0.0 if judge in self.left_out else self.weights.get(judge, 1.0)

    def weight_where_alone(self, judge: str) -> float:
        """Return the weight of a judge's votes on students on whom no judge that counts has voted; 0 of a blind one."""
        weight = self.weights.get(judge, 1.0)
        return weight if weight >= _LEAST_WEIGHT else 0.0


def judge_trust(loaded: LoadedRun, *, native: bool = False, keep_flagged: bool = False) -> JudgeTrust:
    """Return how far the votes of each judge count, from its scores or (`native`) its verdicts on pairs.

    With `keep_flagged` none is left out for a bias.
    """
    scales = verdict_scales(loaded) if native else judge_scales(loaded)
    faults = {row.judge: row.flags for row in scales if row.flags}
    blind = {row.judge: "no weight in the fit" for row in scales if row.weight < _LEAST_WEIGHT and not row.flags}
    if native and blind:  # few verdicts, or verdicts that never vary, tell nothing of judges
        scales, blind = tuple(replace(row, weight=1.0) for row in scales), {}
    left_out = {} if keep_flagged else {**blind, **faults}
    note = ""
    if scales and len(left_out) == len(scales):
        left_out = {}
        note = "every judge is flagged, so that none is left out; ask others before you trust these votes"
    kept = [row for row in scales if row.judge not in left_out]
    total = sum(row.weight for row in kept)
    weights = {row.judge: row.weight * len(kept) / total if total > 0 else 1.0 for row in scales}
    return JudgeTrust(weights, left_out, note)


def on_others(model_a: Codes, model_b: Codes, counts: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which votes (N,) are on a model on which no vote that counts (N,) is."""
    voted = np.concatenate([model_a[counts], model_b[counts]])
    is_voted: npt.NDArray[np.bool_] = np.isin(model_a, voted) & np.isin(model_b, voted)
    return ~is_voted


def votes_of(loaded: LoadedRun, rule: Rule) -> tuple[Votes, npt.NDArray[np.bool_]]:
    """Return verdicts on pairs and, for tasks without them, preferences derived from scores; and which are verdicts.

    Those of judges that are left out have a weight of 0.
    """
    native = verdict_votes(loaded)
    pairs = comparisons(loaded, rule, native.task)
    scored = loaded.units.where(pairs.a)
    by_scores, by_verdicts = judge_trust(loaded), judge_trust(loaded, native=True)
    native = replace(native, weight=native.weight * away_weights(loaded, native))
    weights = [np.array([trust.weight(name) for name in loaded.judges]) for trust in (by_scores, by_verdicts)]
    votes = Votes(
        task=np.concatenate([native.task, scored.task]),
        datapoint=np.concatenate([native.datapoint, scored.datapoint]),
        judge=np.concatenate([native.judge, scored.judge]),
        model_a=np.concatenate([native.model_a, scored.student]),
        model_b=np.concatenate([native.model_b, loaded.units.student[pairs.b]]),
        winner=np.concatenate([native.winner, outcome(pairs.score_a, pairs.score_b, rule)]),
        weight=np.concatenate([native.weight * weights[1][native.judge], weights[0][scored.judge]]),
    )
    return votes, np.arange(len(votes)) < len(native)


def away_weights(loaded: LoadedRun, votes: Votes) -> Floats:
    """Return weights (N,) by which verdicts on items that one of the two wrote say what they would without its gain.

    Where the fit expects that it wins with odds of o, and of o' at items of others, a verdict for it counts
    sqrt(o' / o), and one against it sqrt(o / o'). Judges beyond those of the run are as sharp as all together.
    """
    weights = np.ones(len(votes))
    fitted = fit_verdicts(loaded)
    if fitted is None or not len(votes):
        return weights
    writer = loaded.student_codes("teacher")[loaded.datapoint_teacher[votes.datapoint]]
    gains = np.append(fitted.gains, 0.0)[writer]  # nothing of those who are no students
    is_first = writer == votes.model_a
    is_own = (is_first | (writer == votes.model_b)) & (gains != 0.0)
    sharpness = np.append(fitted.judges.sharpness, fitted.scale)[votes.judge]
    quality = np.nan_to_num(fitted.solution.theta)
    lead = np.where(is_first, 1.0, -1.0) * (quality[votes.model_a] - quality[votes.model_b])
    # Two scores of a verdict differ by 1 where it wins and by -1 where it loses.
    away, home = (
        np.clip((1.0 + sharpness * ahead) / 2.0, _LEAST_CHANCE, 1.0 - _LEAST_CHANCE) for ahead in (lead, lead + gains)
    )
    shift = np.log(home / (1.0 - home)) - np.log(away / (1.0 - away))
    wins = np.where(is_first, 1.0, -1.0) * np.array([1.0, -1.0, 0.0, 0.0])[votes.winner]
    weights[is_own] = np.exp(-0.5 * wins * shift)[is_own]
    return weights


# Leaderboards of votes, and votes that say what the fit does.

_MAX_ROUNDS = 40
_LEAST_GAP = 1e-4  # logits, a fiftieth of a point of an arena's score
_MAX_TILT = 6.0  # logits


def leaderboard_of(votes: Votes, models: Sequence[str], **options: Any) -> Leaderboard:
    """Fit a leaderboard to the votes of positive weight as `p2l leaderboard --weighted` does; `options` are of `fit`.

    Raise InputError where no vote counts, or there are fewer than two models.
    """
    compared, places = np.unique(np.stack([votes.model_a, votes.model_b]), return_inverse=True)
    model_a, model_b = places.reshape(2, -1)
    names = [models[code] for code in compared.tolist()]
    return fit(model_a, model_b, votes.winner, models=names, weights=votes.weight, **options)


def fitted_scores(loaded: LoadedRun) -> Floats | None:
    """Return the students' scores (M,) by the fit of scores; None without a fit."""
    fitted = fit_run(loaded)
    return None if fitted is None else fitted.score


def fitted_verdicts(loaded: LoadedRun) -> Floats | None:
    """Return the same by the fit of verdicts on pairs; None where it takes no gain at items of their own from any."""
    fitted = fit_verdicts(loaded)
    return None if fitted is None or not fitted.gains.any() else fitted.score


def as_fitted(votes: Votes, students: Sequence[str], scores: Floats | None) -> Floats | None:
    """Return weights (N,) by which votes have a leaderboard that differs as `scores` (M,) do.

    None without scores, or where no weights do that, as where a student who is not to be first has lost no vote.
    """
    if scores is None or not len(votes):
        return None
    models = len(students)
    # What happened between whom, counted: the weights of these cells are moved, not those of single votes.
    cell = (votes.model_a * models + votes.model_b) * len(WINNERS) + votes.winner
    cells, place = np.unique(cell, return_inverse=True)
    weight = np.bincount(place, votes.weight).astype(np.float64)
    pair, winner = np.divmod(cells, len(WINNERS))
    a, b = np.divmod(pair, models)
    met = np.unique(np.concatenate([a, b]))
    wanted = scores[met] - scores[met].mean()
    if not np.isfinite(wanted).all():
        return None
    sign = np.array([0.5, -0.5, 0.0, 0.0])[winner]
    none = np.zeros(len(cells), dtype=np.int64)
    tilt = np.zeros(models)
    tilted: Floats = weight
    slope = 0.0
    for _ in range(_MAX_ROUNDS):
        counted = Votes(none, none, none, a, b, winner, tilted)
        try:
            coefs = leaderboard_of(counted, students, intervals=None).coefs
        except InputError:
            return None
        coefs = coefs - coefs.mean()
        if not slope:
            slope = float(wanted @ coefs) / max(float(wanted @ wanted), 1e-300)
            if slope <= 0:  # the votes contradict the scores: their scale is that of votes all the same
                slope = float(coefs.std()) / max(float(wanted.std()), 1e-300)
        gap = slope * wanted - coefs
        if np.abs(gap).max() < _LEAST_GAP:
            return np.asarray(votes.weight * (tilted / weight)[place])
        tilt[met] = np.clip(tilt[met] + gap, -_MAX_TILT, _MAX_TILT)
        tilted = weight * np.exp(sign * (tilt[a] - tilt[b]))
        tilted *= weight.sum() / tilted.sum()
    return None


@dataclass(frozen=True)
class RunVotes:
    """The votes of a run that count."""

    votes: Votes
    native: int  # preferences that judges stated, having seen both answers
    derived: int  # preferences that follow from the scores of both
    self_judged: int  # left out
    left_out: Mapping[str, str]  # judge whose votes are left out -> why
    follows_fit: bool  # whether the leaderboard of all is that of the fit of scores
    total: int  # with those that do not count
    only_flagged: tuple[str, ...] = ()  # students on whom judges that are left out alone voted: these votes count


@once
def run_votes(loaded: LoadedRun) -> RunVotes:
    """Return the votes of a run by the rule of the house, of judges that are neither of the two."""
    votes, is_native = votes_of(loaded, Rule())
    judge = loaded.student_codes("judge")[votes.judge]
    is_own = (judge == votes.model_a) | (judge == votes.model_b)
    votes, rescued = _with_all_students(loaded, votes, is_native, ~is_own)
    fair = ~is_own & (votes.weight > 0)
    judged = {kind: bool((is_native == kind).any()) for kind in (True, False)}
    kept, is_native = votes.where(fair), is_native[fair]
    native, weight = int(is_native.sum()), kept.weight.copy()
    follows = False
    for kind, scores in ((True, fitted_verdicts(loaded)), (False, fitted_scores(loaded))):
        weights = as_fitted(kept.where(is_native == kind), loaded.students, scores)
        if weights is not None:
            weight[is_native == kind] = weights
            follows = not kind
    left_out: dict[str, str] = {}
    for kind in (True, False):
        if judged[kind]:
            left_out.update(judge_trust(loaded, native=kind).left_out)
    return RunVotes(
        votes=replace(kept, weight=weight),
        native=native,
        derived=len(kept) - native,
        self_judged=int(is_own.sum()) if fair.any() else 0,
        left_out=left_out,
        follows_fit=follows and not native,
        total=len(votes),
        only_flagged=tuple(loaded.students[code] for code in rescued),
    )


def _with_all_students(
    loaded: LoadedRun, votes: Votes, is_native: npt.NDArray[np.bool_], is_fair: npt.NDArray[np.bool_]
) -> tuple[Votes, list[int]]:
    """Return votes with a weight for those left out that are on students who would have none, and these students."""
    weight = votes.weight.copy()
    students: set[int] = set()
    for kind in (True, False):
        mine = is_fair & (is_native == kind)
        counts = mine & (weight > 0)
        if not counts.any():
            continue
        trust = judge_trust(loaded, native=kind)
        own = np.array([trust.weight_where_alone(name) for name in loaded.judges])
        rescued = mine & ~counts & on_others(votes.model_a, votes.model_b, counts) & (own[votes.judge] > 0)
        weight[rescued] = own[votes.judge[rescued]]
        both = (votes.model_a, votes.model_b)
        students |= {*np.concatenate([side[rescued] for side in both]).tolist()}
        students -= {*np.concatenate([side[counts] for side in both]).tolist()}
    return replace(votes, weight=weight), sorted(students)


@once
def run_board(loaded: LoadedRun) -> Leaderboard | None:
    """Return the leaderboard of all votes of a run, without intervals; None where there are too few."""
    counted = run_votes(loaded)
    try:
        return leaderboard_of(counted.votes, loaded.students, intervals=None) if len(counted.votes) else None
    except InputError:
        return None
