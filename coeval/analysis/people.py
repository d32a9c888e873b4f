"""Judges calibrated by people's scores of some answers, and students corrected by them: scores, intervals, votes.

Shapes: P annotated (answer, factor) pairs, U units, S students, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from coeval.analysis.annotations import Annotations, NextLabel, PeopleAgreement, agreement_rows, next_labels
from coeval.analysis.fit import Fit, fit_run
from coeval.analysis.panel import Mask, ScoreTable, about_means, effective_number, item_products, score_table
from coeval.analysis.records import LEVEL_WORDS, Skipped
from coeval.analysis.statistics import Codes, Floats, Summaries, group_means, holm, t_limits, two_sided
from coeval.analysis.students import student_rows
from coeval.analysis.tables import ItemCount, JudgeName, Rank, Shown, StudentName, estimated
from coeval.analysis.units import LoadedRun, Report, Units, factor_weights
from coeval.errors import RunInputError

# Maps from a judge's scores to people's.
#
# For each score that a judge gave, the mean of what people gave the same (answer, factor), made non-decreasing by pool
# adjacent violators. Scores between two of these are interpolated, scores beyond the last take its value. There are too
# few levels for a line to be fitted. Shapes: V distinct scores, N pairs (answer, factor), B draws of items.

_FOLDS = 5


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the non-decreasing sequence nearest to `values` (V,), by weighted squares (pool adjacent violators)."""
    blocks: list[list[float]] = []  # mean, weight, number of values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, heavy, count = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += count
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


@dataclass(frozen=True)
class _Map:
    """The worth of each of a judge's scores on people's scale."""

    scores: Floats  # (V,) those that the judge gave to what people scored too
    means: Floats  # (V,) people's mean score of the same
    counts: Codes  # (V,) of pairs
    fitted: Floats  # (V,) `means` made non-decreasing

    def __call__(self, scores: Floats) -> Floats:
        """Return the worth of any scores."""
        return np.interp(scores, self.scores, self.fitted)


def fit_map(judge: Floats, people: Floats) -> _Map:
    """Fit a map to pairs (N,), at least one."""
    scores, place, counts = np.unique(judge, return_inverse=True, return_counts=True)
    means = np.bincount(place, people) / counts
    return _Map(scores, means, counts, monotone(means, counts.astype(np.float64)))


def cross_validated(judge: Floats, people: Floats, items: Codes) -> Floats | None:
    """Return the worth of each score by a map of other items alone, (N,); None with fewer than two items."""
    different, item = np.unique(items, return_inverse=True)
    if len(different) < 2:
        return None
    # Folds of items, not of scores: what people gave other answers to an item would tell of this one.
    fold = np.random.default_rng(0).permutation(len(different))[item] % _FOLDS
    worth = np.empty(len(judge))
    for number in np.unique(fold):
        mine = fold == number
        worth[mine] = fit_map(judge[~mine], people[~mine])(judge[mine])
    return worth


_MIN_ITEMS_OF_MAP = 10  # a map of fewer is a guess
_CALIBRATED = "on people's scale: what the panel's scores of all answers are worth, and the gap; 95 % interval"
_DRAWS = 200


@dataclass(frozen=True)
class _JudgeCalibration:
    """The basis of a judge's map, and the judge's distance from people without it and with it."""

    judge: JudgeName
    factor: str  # empty: all factors
    pairs: Annotated[int, Shown("compared", "(answer, factor) that the judge and people scored")]
    datapoints: ItemCount
    mae_raw: Annotated[float, Shown("distance", "mean distance from people's scores", 3)]
    # Cross-validated in five folds; None with a single item.
    mae_calibrated: Annotated[float | None, Shown("calibrated", "the same after a map made of other items", 3)]
    few: bool  # whether there are fewer than ten items: the map is a guess


@dataclass(frozen=True)
class _MapRow:
    """The worth of one score of a judge."""

    judge: JudgeName
    factor: str
    score: Annotated[float, Shown("score", digits=3)]
    level: Annotated[str, Shown("level")]  # the word for it, where the judge gives levels
    pairs: Annotated[int, Shown("compared")]
    # None where they scored no such answer.
    people: Annotated[float | None, estimated("people", "mean of what people gave; 95 % interval")]
    lower: float | None
    upper: float | None
    # Between its neighbours where people scored no such answer.
    calibrated: Annotated[float, Shown("worth", "the same, made never to fall", 3)]
    units: Annotated[int, Shown("in the run")]  # the judge's scores of this kind in the whole run


@dataclass(frozen=True)
class _StudentCalibration:
    """A student's scores, as the panel gave them and corrected by people's."""

    rank: Rank  # by `calibrated`
    student: StudentName
    raw_rank: Annotated[int, Shown("raw rank")]
    raw: Annotated[float, estimated("judges", "by the fit of the panel, before people", "raw_")]
    raw_lower: float
    raw_upper: float
    calibrated: Annotated[float, estimated("corrected", _CALIBRATED)]
    lower: float
    upper: float
    labels: Annotated[int, Shown("labels", "answers that people scored")]
    # Judges may favour a student for what no map of scores sees.
    gap: Annotated[float, Shown("gap", "what people give it beyond the map, as far as labels tell; in `corrected`", 3)]
    gap_doubt: Annotated[float, Shown("left open", "standard deviation of the gap that labels leave open", 3)]
    tied: Annotated[str, Shown("not told from", "by a difference beyond chance", wide=True)]  # names, with a comma


@dataclass(frozen=True)
class Calibration(Report):
    """Report calibrate."""

    annotations: int  # scores of people that count
    rows_read: int
    annotators: tuple[str, ...]
    left_out: tuple[Skipped, ...]
    without_map: tuple[str, ...]  # judges that scored nothing that people did
    agreement: tuple[PeopleAgreement, ...]
    judges: tuple[_JudgeCalibration, ...]
    maps: tuple[_MapRow, ...]
    worth: float | None  # number of independent judges that all are worth by people's labels
    next: tuple[NextLabel, ...]
    students: tuple[_StudentCalibration, ...]


@dataclass(frozen=True)
class _Consensus:
    """People's mean scores (P,) of annotated pairs."""

    people: Floats
    place: Codes  # row among the run's pairs
    datapoint: Codes
    item: Codes  # datapoints without gaps


@dataclass(frozen=True)
class _Judge:
    """A judge's map with the scores that it is fitted to and the units that it applies to."""

    code: int
    name: str
    factor: int  # -1: all
    factor_name: str  # empty: all
    units: Units
    map: _Map
    scores: Floats
    people: Floats
    item: Codes
    cluster: Codes


def calibration(loaded: LoadedRun, annotations: Annotations) -> Calibration:
    """Compute agreement with people, maps, and calibrated scores of students.

    Raise RunInputError for a run without scores.
    """
    if not len(loaded.units):
        only = ", only verdicts on pairs" if loaded.verdicts else ""
        raise RunInputError(f"{loaded.run.folder}: no scores that people's could correct{only}")
    # One score for each pair: the mean over annotators.
    place = loaded.pair_places(annotations.response, annotations.factor)
    scored = place >= 0
    places, pair = np.unique(place[scored], return_inverse=True)
    point = loaded.pairs.datapoint[places]
    pairs = _Consensus(
        people=Summaries(pair, annotations.score[scored], len(places)).mean,
        place=places,
        datapoint=point,
        item=np.unique(point, return_inverse=True)[1],
    )
    judges = list(_judges(loaded, pairs))
    corrected = corrected_run(loaded, annotations)
    _, panel = panel_scores(loaded)
    is_open = np.asarray(~(corrected.is_apart() | np.eye(len(corrected.score), dtype=bool)).all(axis=1))
    rows, people = labelled_rows(loaded, annotations)
    scores = score_table(loaded).scores[rows]
    judging = np.asarray((~np.isnan(scores)).any(axis=0))
    complete = np.asarray(~np.isnan(scores[:, judging]).any(axis=1))
    return Calibration(
        header=loaded.header,
        annotations=len(annotations),
        rows_read=annotations.rows,
        annotators=annotations.annotators,
        left_out=annotations.bad,
        without_map=tuple(
            name for code, name in enumerate(loaded.judges) if all(judge.code != code for judge in judges)
        ),
        agreement=agreement_rows(loaded, annotations),
        judges=tuple(map(_summary, judges)),
        maps=tuple(row for judge in judges for row in _map_rows(judge)),
        worth=worth_by_labels(scores[complete][:, judging], people[complete]),
        next=next_labels(loaded, annotations, panel, corrected.labels, is_open),
        students=_students(loaded, corrected),
    )


def _judges(loaded: LoadedRun, pairs: _Consensus) -> Iterator[_Judge]:
    factors, units = loaded.pairs.factor[pairs.place], loaded.units
    for code, kind in enumerate(loaded.kinds):
        scores = loaded.pairs.scores[pairs.place, code]
        # A judge that is a model uses one scale for all factors; each of those that compute has a scale of its own.
        for factor in [-1] if kind == "model" else np.unique(factors).tolist():
            mine = ~np.isnan(scores) & ((factors == factor) | (factor < 0))
            if mine.any():
                yield _Judge(
                    code=code,
                    name=loaded.judges[code],
                    factor=factor,
                    factor_name="" if factor < 0 else loaded.factors[factor],
                    units=units.where((units.judge == code) & ((units.factor == factor) | (factor < 0))),
                    map=fit_map(scores[mine], pairs.people[mine]),
                    scores=scores[mine],
                    people=pairs.people[mine],
                    item=pairs.item[mine],
                    cluster=loaded.clusters[pairs.datapoint[mine]],
                )


def _summary(judge: _Judge) -> _JudgeCalibration:
    worth = cross_validated(judge.scores, judge.people, judge.item)
    items = len(np.unique(judge.item))
    return _JudgeCalibration(
        judge=judge.name,
        factor=judge.factor_name,
        pairs=len(judge.scores),
        datapoints=items,
        mae_raw=float(np.abs(judge.scores - judge.people).mean()),
        mae_calibrated=None if worth is None else float(np.abs(worth - judge.people).mean()),
        few=items < _MIN_ITEMS_OF_MAP,
    )


def _map_rows(judge: _Judge) -> Iterator[_MapRow]:
    """Yield a row for each score that people met; of a judge that gives levels, for each that it gave."""
    used, uses = np.unique(judge.units.norm, return_counts=True)
    levels = bool(judge.units.is_level.all())
    listed = np.union1d(judge.map.scores, used) if levels else judge.map.scores
    place = np.searchsorted(judge.map.scores, judge.scores)
    means = group_means(place, judge.people, judge.cluster, len(judge.map.scores))
    for score in listed.tolist():
        at = np.flatnonzero(judge.map.scores == score)
        met = len(at) > 0
        sure = met and len(np.unique(judge.cluster[place == at[0]])) > 1  # one prompt says nothing of others
        yield _MapRow(
            judge=judge.name,
            factor=judge.factor_name,
            score=score,
            level=LEVEL_WORDS.get(score, "") if levels else "",
            pairs=int(judge.map.counts[at[0]]) if met else 0,
            people=float(judge.map.means[at[0]]) if met else None,
            lower=float(means.lower[at[0]]) if sure else None,
            upper=float(means.upper[at[0]]) if sure else None,
            calibrated=float(judge.map(np.array([score]))[0]),
            units=int(uses[used == score].sum()),
        )


# Students on people's scale: every answer's score by the panel made worth what people say, and what that leaves.
#
# With g the map from the panel's score p_r of an answer to what people gave, a student's score is
#
#     mean over its answers of g(p_r) + k_s mean over those that people scored of (h_r - g(p_r))
#
# where people's h_r is held against a map of other items (prediction-powered inference, Angelopoulos et al. 2023, with
# a map by pool adjacent violators). The gap that is left between people and map is a random effect of the student with
# variance t^2, and k_s = t^2 / (t^2 + s^2 / n_s) what n_s labels tell of it: without labels of a student it is 0, and
# the interval is as wide as gaps of students are. Shapes: R answers, L labelled ones, S students, C clusters, V values.

_WEIGHTS_FROM = 10.0  # labels from which people say more of judges' weights than the fit does
_RIDGE = 0.1  # as a share of a judge's variance: what two judges share is never known exactly
_LEAST_LABELS_OF_WORTH = 10
_PRIOR_LABELS = 5.0  # labels that a map is worth which only moves all scores alike
_PRIOR_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the panel's scores, where these lie
_PRIOR_GAP = 0.05  # standard deviation of students' gaps, worth two students
_PRIOR_GAP_STUDENTS = 2.0
_APART = 0.05  # chance of a difference, after Holm's correction, below which two students are told apart


@dataclass(frozen=True)
class Corrected:
    """Students' scores on people's scale."""

    score: Floats  # (S,), NaN of students without answers
    covariance: Floats  # (S, S): by the choice of items, of labels, and the gaps that labels leave open
    freedom: float
    gap: Floats  # (S,): what people give beyond the map, as far as labels tell; 0 without
    labels: Codes  # (S,): answers that people scored
    doubt: Floats  # (S,): standard deviation of the gap that is left

    def limits(self) -> tuple[Floats, Floats]:
        """Return 95 % limits of the scores, in [0, 1]."""
        lower, upper = t_limits(self.score, np.diagonal(self.covariance), self.freedom)
        return np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)

    def is_apart(self) -> Mask:
        """Return which students (S, S) are told apart."""
        apart = np.zeros(self.covariance.shape, dtype=bool)
        a, b = np.triu_indices(len(self.score), 1)
        known = np.isfinite(self.score[a] + self.score[b])
        a, b = a[known], b[known]
        variance = self.covariance[a, a] + self.covariance[b, b] - 2.0 * self.covariance[a, b]
        p_values = two_sided(self.score[a] - self.score[b], np.maximum(variance, 0.0), self.freedom)
        apart[a, b] = holm(p_values.tolist()) < _APART if len(a) else False
        return np.asarray(apart | apart.T)


def labelled_weights(moments: Floats, follows: Floats, labels: Floats, sharpness: Floats) -> Floats:
    """Return weights of judges (J,) by few labels: those of the best linear forecast of what people say.

    What judges' scores share, `moments` (J, J), is known of all answers; only their covariances with people's scores,
    `follows` (J,) by as many `labels` (J,), are told by people, and by the `sharpness` that the fit knows.
    """
    size = float(np.abs(sharpness).sum())
    prior = sharpness * (float(np.abs(follows).sum()) / size if size > 0 else 0.0)
    expected = (labels * follows + _WEIGHTS_FROM * prior) / (labels + _WEIGHTS_FROM)
    ridge = _RIDGE * np.diag(np.diagonal(moments) + 1e-12)
    return np.asarray(np.maximum(np.linalg.solve(moments + ridge, expected), 0.0))


def worth_by_labels(scores: Floats, people: Floats) -> float | None:
    """Return the effective number of judges by errors about people's scores (L,) of answers that all scored (L, J).

    It knows errors that all judges share; what people err by is shared too, so that it is a little too low. None with
    fewer than ten answers.
    """
    if len(people) < _LEAST_LABELS_OF_WORTH or scores.shape[1] < 2:
        return None
    y, h = scores - scores.mean(axis=0), people - people.mean()
    square = float(h @ h)
    rest = y - np.outer(h, y.T @ h / square) if square > 0 else y
    noise = (rest**2).mean(axis=0)
    sd = np.sqrt(np.maximum(noise, 1e-12))
    return float(effective_number(rest.T @ rest / len(rest) / np.outer(sd, sd), noise))


def _evidence_by_people(fit: Fit, labelled: Codes, people: Floats) -> Floats:
    """Return the judges' weights once people have scored the answers in rows `labelled` (L,) of the fit's table."""
    table, judges = fit.table, fit.judges
    scores = table.scores - table.length[:, None] * judges.excess
    moments = np.nan_to_num(item_products(table, scores, fit.counts).covariance())
    follows, labels = np.zeros(table.judges), np.zeros(table.judges)
    for judge in range(table.judges):
        rows = fit.counts[:, judge]
        centred = np.zeros(len(scores))
        centred[rows] = about_means(scores[rows, judge], table.item[rows], len(table.items))
        mine = rows[labelled]
        labels[judge] = mine.sum()
        if mine.any():
            follows[judge] = float((centred[labelled[mine]] * (people[mine] - people[mine].mean())).mean())
    return labelled_weights(moments, follows, labels, judges.sharpness)


def panel_scores(loaded: LoadedRun, weights: Floats | None = None) -> tuple[ScoreTable, Floats]:
    """Return the answers of a run with the panel's score of each (R,), in [0, 1]; NaN where no judge counts.

    Judges count by `weights` (J,), by default as in the fit.
    """
    fit, table = fit_run(loaded), score_table(loaded)
    given = ~np.isnan(table.scores)
    if fit is None:
        with np.errstate(invalid="ignore"):
            return table, np.where(given, table.scores, 0.0).sum(axis=1) / given.sum(axis=1)
    judges, solution = fit.judges, fit.solution
    severity = np.nan_to_num(solution.severity)[table.task]
    evidence, sharpness = judges.evidence if weights is None else weights, judges.sharpness
    if not (evidence * sharpness > 0).any():
        evidence, sharpness = np.ones(table.judges), np.ones(table.judges)
    rest = np.where(fit.counts, table.scores - severity - table.length[:, None] * judges.excess, 0.0) @ evidence
    below = fit.counts @ (evidence * sharpness)
    quality = np.divide(rest, below, out=np.full(len(rest), np.nan), where=(below > 0) & ~fit.at_home)
    return table, np.clip(fit.level[table.item] + fit.scale * (quality - solution.item[table.item]), 0.0, 1.0)


def corrected_scores(
    panel: Floats, student: Codes, cluster: Codes, students: int, labelled: Codes, people: Floats
) -> Corrected:
    """Correct the panel's scores (R,) by people's (L,) of the answers at places `labelled` (L,)."""
    values, place = np.unique(panel, return_inverse=True)
    answers = np.bincount(student * len(values) + place, minlength=students * len(values)).reshape(students, -1)
    number = answers.sum(axis=1)
    shares = np.divide(answers, number[:, None], out=np.zeros(answers.shape), where=number[:, None] > 0)
    at, who, group = place[labelled], student[labelled], np.unique(cluster[labelled], return_inverse=True)[1]
    groups = int(group.max(initial=-1)) + 1
    worth = _worth(values, panel, at, people, np.ones(len(at)))
    rest = people - worth[at]
    if groups > 1:  # against a map of other items
        fold = np.random.default_rng(0).permutation(groups)[group] % _FOLDS
        for number_of_fold in np.unique(fold):
            out = fold == number_of_fold
            rest[out] = people[out] - _worth(values, panel, at[~out], people[~out], np.ones((~out).sum()))[at[out]]
    labels = np.bincount(who, minlength=students)
    mean = np.bincount(who, rest, minlength=students) / np.maximum(labels, 1)
    noise, gap_variance = _variances(rest, who, mean, labels)
    kept = np.where(labels > 0, gap_variance / (gap_variance + noise / np.maximum(labels, 1)), 0.0)
    covariance = np.diag((1.0 - kept) * gap_variance) + _of_items(worth[place], student, cluster, students)
    draws = np.zeros((_DRAWS, students))
    chance = np.random.default_rng(0)
    for draw in range(_DRAWS if groups > 1 else 0):
        weight = np.bincount(chance.integers(groups, size=groups), minlength=groups)[group].astype(np.float64)
        drawn = _worth(values, panel, at, people, weight)
        total = np.bincount(who, weight, minlength=students)
        moved = np.bincount(who, weight * (rest - (drawn - worth)[at]), minlength=students) / np.maximum(total, 1.0)
        draws[draw] = shares @ drawn + kept * np.where(total > 0, moved, mean)
    covariance = covariance + np.cov(draws, rowvar=False).reshape(students, students)
    score = np.where(number > 0, shares @ worth + kept * mean, np.nan)
    return Corrected(
        score=score,
        covariance=covariance,
        freedom=float(max(groups - 1, 1)) if groups else float(max(len(np.unique(cluster)) - 1, 1)),
        gap=kept * mean,
        labels=labels,
        doubt=np.sqrt((1.0 - kept) * gap_variance),
    )


def _worth(values: Floats, panel: Floats, at: Codes, people: Floats, weight: Floats) -> Floats:
    """Return what people give to answers of each value (V,), by labels of places `at` and a prior of five."""
    offset = float((weight * (people - values[at])).sum() / max(weight.sum(), 1e-9)) if len(at) else 0.0
    known = np.quantile(panel, _PRIOR_QUANTILES)
    prior = np.full(len(known), _PRIOR_LABELS / len(known))
    scores, place = np.unique(np.concatenate([values[at], known]), return_inverse=True)
    weights = np.concatenate([weight, prior])
    total = np.bincount(place, weights)
    sums = np.bincount(place, weights * np.concatenate([people, np.clip(known + offset, 0.0, 1.0)]))
    counted = total > 0
    fitted = monotone(sums[counted] / total[counted], total[counted].astype(np.float64))
    return np.interp(values, scores[counted], fitted)


def _variances(rest: Floats, who: Codes, mean: Floats, labels: Codes) -> tuple[float, float]:
    """Return the variance of people about the map within students, and that of gaps (DerSimonian and Laird 1986)."""
    several = int((labels > 0).sum())
    within = float(((rest - mean[who]) ** 2).sum())
    noise = (within + _PRIOR_GAP**2) / (max(len(rest) - several, 0) + 1.0)
    weight = labels / noise
    total = float(weight.sum())
    if several < 2 or total <= 0:
        return noise, _PRIOR_GAP**2
    centre = float((weight * mean).sum()) / total
    spread = float((weight * (mean - centre) ** 2).sum())
    scale = total - float((weight**2).sum()) / total
    moment = max(0.0, (spread - (several - 1)) / max(scale, 1e-12))
    prior = _PRIOR_GAP_STUDENTS * _PRIOR_GAP**2
    return noise, ((several - 1) * moment + prior) / (several - 1 + _PRIOR_GAP_STUDENTS)


def _of_items(worth: Floats, student: Codes, cluster: Codes, students: int) -> Floats:
    """Return the covariance of students' means (S, S) by the choice of clusters of items."""
    dense = np.unique(cluster, return_inverse=True)[1]
    clusters = int(dense.max(initial=-1)) + 1
    cell, size = dense * students + student, clusters * students
    sums = np.bincount(cell, worth, minlength=size).reshape(clusters, students)
    counts = np.bincount(cell, minlength=size).reshape(clusters, students)
    total = np.maximum(counts.sum(axis=0), 1)
    influence = (sums - counts * (sums.sum(axis=0) / total)) / total
    result: Floats = influence.T @ influence * clusters / max(clusters - 1, 1)
    return result


def labelled_rows(loaded: LoadedRun, annotations: Annotations) -> tuple[Codes, Floats]:
    """Return the rows of the table of scores that people scored (L,), and their mean scores by the rubric's weights."""
    table = score_table(loaded)
    responses = np.unique(loaded.pairs.response)
    row = np.searchsorted(responses, annotations.response)
    there = row < len(responses)
    there[there] = responses[row[there]] == annotations.response[there]
    row, factor, score = row[there], annotations.factor[there], annotations.score[there]
    weights = factor_weights(loaded)[table.task[row], factor]
    total = np.bincount(row, weights, minlength=len(responses))
    sums = np.bincount(row, weights * score, minlength=len(responses))
    rows = np.flatnonzero(total > 0)
    return rows, sums[rows] / total[rows]


def corrected_run(loaded: LoadedRun, annotations: Annotations) -> Corrected:
    """Return the students of a run corrected by people's scores of some answers."""
    rows, people_of_rows = labelled_rows(loaded, annotations)
    fit = fit_run(loaded)
    weights = _evidence_by_people(fit, rows, people_of_rows) if fit is not None and len(rows) > 1 else None
    table, panel = panel_scores(loaded, weights)
    people = np.zeros(len(panel))
    people[rows] = people_of_rows
    scored = np.isfinite(panel)
    labelled = rows[scored[rows]]
    place = np.cumsum(scored) - 1
    corrected = corrected_scores(
        panel[scored],
        table.student[scored],
        table.cluster[table.item[scored]],
        table.students,
        place[labelled],
        people[labelled],
    )
    # Without labels nothing is corrected; the panel's scores of answers are cut at the ends of the scale.
    return corrected if len(labelled) or fit is None else replace(corrected, score=fit.score)


def _students(loaded: LoadedRun, corrected: Corrected) -> tuple[_StudentCalibration, ...]:
    lower, upper = corrected.limits()
    apart = corrected.is_apart()
    before = {row.student: row for row in student_rows(loaded)}
    order = [
        code for code in np.argsort(-corrected.score, kind="stable").tolist() if np.isfinite(corrected.score[code])
    ]
    rows = []
    for rank, code in enumerate(order, start=1):
        judged = before[loaded.students[code]]
        raw = (judged.mean, judged.lower, judged.upper)
        if judged.fit is not None:
            raw = (judged.fit, judged.fit_lower or 0.0, judged.fit_upper or 1.0)
        near = [loaded.students[other] for other in order if other != code and not apart[code, other]]
        rows.append(
            _StudentCalibration(
                rank=rank,
                student=loaded.students[code],
                raw_rank=judged.rank,
                raw=raw[0],
                raw_lower=raw[1],
                raw_upper=raw[2],
                calibrated=float(np.clip(corrected.score[code], 0.0, 1.0)),
                lower=float(lower[code]),
                upper=float(upper[code]),
                labels=int(corrected.labels[code]),
                gap=float(corrected.gap[code]),
                gap_doubt=float(corrected.doubt[code]),
                tied=", ".join(near),
            )
        )
    return tuple(rows)
