"""Judges calibrated by people's scores of some answers, and the students' calibrated scores on all answers.

Shapes: P annotated (answer, factor) pairs, U units, S students, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coeval.analysis.annotations import Annotations, PeopleAgreement, agreement_rows
from coeval.analysis.records import LEVEL_WORDS, Skipped
from coeval.analysis.statistics import Codes, Floats, Summaries, group_means
from coeval.analysis.students import ranked
from coeval.analysis.tables import ItemCount, JudgeName, Rank, ScoreCount, Shown, StudentName, estimated
from coeval.analysis.units import LoadedRun, Report, Units

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
_CALIBRATED = "mean of what the judges' scores are worth, on all answers; 95 % interval"
_DRAWS = 200
_NORMAL_QUANTILE = 1.959964


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
    """A student's scores on all answers, raw and calibrated."""

    rank: Rank  # by `calibrated`
    student: StudentName
    raw_rank: Annotated[int, Shown("raw rank")]
    raw: Annotated[float, estimated("raw", "mean of the same scores as judges gave them", "raw_")]
    raw_lower: float
    raw_upper: float
    calibrated: Annotated[float, estimated("calibrated", _CALIBRATED)]
    lower: float
    upper: float
    units: ScoreCount  # scores of judges that have a map
    people: Annotated[float | None, Shown("people", "mean of what people gave the answers that they scored", 3)]
    people_pairs: Annotated[int, Shown("people's scores", "(answer, factor) that people scored")]
    # A judge may favour a student for what no map of scores sees.
    gap: Annotated[float | None, estimated("gap", "people less calibrated judges on those answers", "gap_")]
    gap_lower: float | None
    gap_upper: float | None


@dataclass(frozen=True)
class Calibration(Report):
    """Report calibrate."""

    annotations: int  # scores of people that count
    rows_read: int
    annotators: tuple[str, ...]
    left_out: tuple[Skipped, ...]
    without_map: tuple[str, ...]  # judges that scored nothing that people did: their scores play no part in `students`
    agreement: tuple[PeopleAgreement, ...]
    judges: tuple[_JudgeCalibration, ...]
    maps: tuple[_MapRow, ...]
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
    """Compute agreement with people, maps, and calibrated scores of students."""
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
        students=_students(loaded, pairs, judges),
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


def _students(loaded: LoadedRun, pairs: _Consensus, judges: list[_Judge]) -> tuple[_StudentCalibration, ...]:
    size = len(loaded.students)
    if not judges:
        return ()
    student = np.concatenate([judge.units.student for judge in judges])
    point = np.concatenate([judge.units.datapoint for judge in judges])
    norm = np.concatenate([judge.units.norm for judge in judges])
    worth = np.concatenate([judge.map(judge.units.norm) for judge in judges])
    cluster = loaded.clusters[point]
    raw = group_means(student, norm, cluster, size)
    calibrated = group_means(student, worth, cluster, size)
    # Two variances add up: which items the run has, and which of them people scored.
    widths = np.hypot((calibrated.upper - calibrated.lower) / 2, _NORMAL_QUANTILE * _map_errors(pairs, judges, size))
    people, gaps = _beside_people(loaded, pairs, judges)
    raw_ranks = ranked(loaded, raw)
    rows = []
    for rank, code in enumerate(ranked(loaded, calibrated), start=1):
        mean, half = float(calibrated.mean[code]), float(widths[code])
        raw_mean, raw_lower, raw_upper = raw.estimate(code)
        rows.append(
            _StudentCalibration(
                rank=rank,
                student=loaded.students[code],
                raw_rank=raw_ranks.index(code) + 1,
                raw=raw_mean,
                raw_lower=raw_lower,
                raw_upper=raw_upper,
                calibrated=mean,
                lower=max(0.0, mean - half),
                upper=min(1.0, mean + half),
                units=int(calibrated.n[code]),
                people=float(people.mean[code]) if people.n[code] else None,
                people_pairs=int(people.n[code]),
                gap=float(gaps.mean[code]) if gaps.n[code] else None,
                gap_lower=float(gaps.lower[code]) if gaps.n[code] > 1 else None,
                gap_upper=float(gaps.upper[code]) if gaps.n[code] > 1 else None,
            )
        )
    return tuple(rows)


def _map_errors(pairs: _Consensus, judges: list[_Judge], size: int) -> Floats:
    """Return the standard error of each student's calibrated mean from the choice of annotated items, (S,)."""
    items = int(pairs.item.max(initial=-1)) + 1
    draws = np.random.default_rng(0).multinomial(items, np.full(items, 1.0 / items), size=_DRAWS).astype(np.float64)
    sums, counts = np.zeros((_DRAWS, size)), np.zeros(size)
    for judge in judges:
        given, place = np.unique(judge.units.norm, return_inverse=True)
        table = np.bincount(judge.units.student * len(given) + place, minlength=size * len(given)).reshape(size, -1)
        counts += table.sum(axis=1)
        # A map for each draw (B, items) of how often an item was drawn.
        scores, place = np.unique(judge.scores, return_inverse=True)
        cells, shape = judge.item * len(scores) + place, (items, len(scores))
        drawn_counts = draws @ np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        drawn_sums = draws @ np.bincount(cells, judge.people, minlength=shape[0] * shape[1]).reshape(shape)
        for draw, (n, total) in enumerate(zip(drawn_counts, drawn_sums, strict=True)):
            drawn = n > 0
            if drawn.any():
                fitted = monotone(total[drawn] / n[drawn], n[drawn])
                sums[draw] += table @ np.interp(given, scores[drawn], fitted)
            else:  # none of the judge's items
                sums[draw] += table @ judge.map(given)
    errors: Floats = (sums / np.maximum(counts, 1)).std(axis=0, ddof=1)
    return errors


def _beside_people(loaded: LoadedRun, pairs: _Consensus, judges: list[_Judge]) -> tuple[Summaries, Summaries]:
    """Return by student people's scores of annotated pairs, and how far these are from the judges' worth."""
    factors, student = loaded.pairs.factor[pairs.place], loaded.pairs.student[pairs.place]
    total, n = np.zeros(len(pairs.place)), np.zeros(len(pairs.place))
    for judge in judges:
        scores = loaded.pairs.scores[pairs.place, judge.code]
        mine = np.flatnonzero(~np.isnan(scores) & ((factors == judge.factor) | (judge.factor < 0)))
        total[mine] += judge.map(scores[mine])
        n[mine] += 1
    both = np.flatnonzero(n)
    gaps = pairs.people[both] - total[both] / n[both]
    size = len(loaded.students)
    cluster = loaded.clusters[pairs.datapoint]
    people = group_means(student, pairs.people, cluster, size)
    return people, group_means(student[both], gaps, cluster[both], size, bounded=False)
