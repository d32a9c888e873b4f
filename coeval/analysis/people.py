"""Judges calibrated by people's scores of some answers, and the students' calibrated scores on all answers.

A judge that is a model has one map for all factors, since it uses one scale; one that computes has one for each factor.
Limits of calibrated means add up two variances: which items the run has, and which of them people scored.

Shapes: P annotated (answer, factor) pairs, U units, S students, B draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coeval.analysis.annotations import Annotations, PeopleAgreement, agreement_rows
from coeval.analysis.records import LEVELS, Skipped
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
    blocks: list[list[float]] = []  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, heavy, many = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1], last[2] = last[1] + heavy, last[2] + many
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


@dataclass(frozen=True)
class Map:
    """What each of a judge's scores is worth."""

    scores: Floats  # (V,) those that the judge gave to what people scored too
    means: Floats  # (V,) what people gave on average
    counts: Codes  # (V,) of how many pairs
    fitted: Floats  # (V,) `means` made non-decreasing

    def __call__(self, scores: Floats) -> Floats:
        """Return the worth of any scores."""
        return np.interp(scores, self.scores, self.fitted)


def fit_map(judge: Floats, people: Floats) -> Map:
    """Fit a map to pairs (N,), at least one."""
    scores, place, counts = np.unique(judge, return_inverse=True, return_counts=True)
    return _map(scores, counts, np.bincount(place, people) / counts)


def _drawn_maps(judge: Floats, people: Floats, items: Codes, draws: Floats) -> list[Map | None]:
    """Fit a map for each draw (B, items) of how often an item was drawn; None for a draw without the judge's."""
    scores, place = np.unique(judge, return_inverse=True)
    cells, shape = items * len(scores) + place, (draws.shape[1], len(scores))
    counts = draws @ np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    sums = draws @ np.bincount(cells, people, minlength=shape[0] * shape[1]).reshape(shape)
    return [
        _map(scores[drawn], count[drawn].astype(np.int64), total[drawn] / count[drawn]) if drawn.any() else None
        for drawn, count, total in zip(counts > 0, counts, sums, strict=True)
    ]


def _map(scores: Floats, counts: Codes, means: Floats) -> Map:
    return Map(scores, means, counts, monotone(means, counts.astype(np.float64)))


def cross_validated(judge: Floats, people: Floats, items: Codes) -> Floats | None:
    """Return the worth of each score by a map of other items alone, (N,); None with fewer than two items."""
    different, item = np.unique(items, return_inverse=True)
    if len(different) < 2:
        return None
    # Folds of items, not of scores: what people gave other answers to an item would tell of this one.
    fold = np.random.default_rng(0).permutation(len(different))[item] % _FOLDS
    worth = np.empty(len(judge))
    for one in np.unique(fold):
        mine = fold == one
        worth[mine] = fit_map(judge[~mine], people[~mine])(judge[mine])
    return worth


FEW = 10
_CALIBRATED = "mean of what the judges' scores are worth, on all answers; 95 % interval"
_DRAWS = 200
_NORMAL_QUANTILE = 1.959964
_WORDS = {value: word.capitalize() for word, value in LEVELS.items()}


@dataclass(frozen=True)
class _JudgeCalibration:
    """What a judge's map is fitted to, and how much closer to people it brings the judge."""

    judge: JudgeName
    factor: str  # empty: all factors
    pairs: Annotated[int, Shown("compared", "(answer, factor) that the judge and people scored")]
    datapoints: ItemCount
    mae_raw: Annotated[float, Shown("distance", "mean distance from people's scores", 3)]
    mae_calibrated: Annotated[float | None, Shown("calibrated", "the same after a map made of other items", 3)]
    """Cross-validated in five folds; None with a single item."""
    few: bool  # whether there are fewer than ten items: the map is a guess


@dataclass(frozen=True)
class _MapRow:
    """What one score of a judge is worth."""

    judge: JudgeName
    factor: str
    score: Annotated[float, Shown("score", digits=3)]
    level: Annotated[str, Shown("level")]  # the word for it, where the judge gives levels
    pairs: Annotated[int, Shown("compared")]
    people: Annotated[float | None, estimated("people", "mean of what people gave; 95 % interval")]
    """None where they scored no such answer."""
    lower: float | None
    upper: float | None
    calibrated: Annotated[float, Shown("worth", "the same, made never to fall", 3)]
    """Between its neighbours where people scored no such answer."""
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
    gap: Annotated[float | None, estimated("gap", "people less calibrated judges on those answers", "gap_")]
    """A judge may favour a student for what no map of scores sees."""
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
    """A judge's map with the scores that it is fitted to; factor -1: all."""

    judge: int
    factor: int
    map: Map
    scores: Floats
    people: Floats
    item: Codes
    cluster: Codes


def calibration(loaded: LoadedRun, annotations: Annotations) -> Calibration:
    """Compute agreement with people, maps, and calibrated scores of students."""
    pairs = _consensus(loaded, annotations)
    judges = list(_judges(loaded, pairs))
    return Calibration(
        header=loaded.header,
        annotations=len(annotations),
        rows_read=annotations.rows,
        annotators=annotations.annotators,
        left_out=annotations.bad,
        without_map=tuple(name for code, name in enumerate(loaded.judges) if all(one.judge != code for one in judges)),
        agreement=agreement_rows(loaded, annotations),
        judges=tuple(_summary(loaded, one) for one in judges),
        maps=tuple(row for one in judges for row in _map_rows(loaded, one)),
        students=_students(loaded, pairs, judges),
    )


def _consensus(loaded: LoadedRun, annotations: Annotations) -> _Consensus:
    """Return one score for each pair: the mean over annotators."""
    place = loaded.pair_places(annotations.response, annotations.factor)
    scored = place >= 0
    places, pair = np.unique(place[scored], return_inverse=True)
    people = Summaries(pair, annotations.score[scored], len(places)).mean
    point = loaded.pairs.datapoint[places]
    return _Consensus(people, places, point, np.unique(point, return_inverse=True)[1])


def _judges(loaded: LoadedRun, pairs: _Consensus) -> Iterator[_Judge]:
    factors = loaded.pairs.factor[pairs.place]
    for code, kind in enumerate(loaded.kinds):
        scores = loaded.pairs.scores[pairs.place, code]
        for factor in [-1] if kind == "model" else np.unique(factors).tolist():
            mine = ~np.isnan(scores) & ((factors == factor) | (factor < 0))
            if mine.any():
                people = pairs.people[mine]
                places = (pairs.item[mine], loaded.clusters[pairs.datapoint[mine]])
                yield _Judge(code, factor, fit_map(scores[mine], people), scores[mine], people, *places)


def _summary(loaded: LoadedRun, one: _Judge) -> _JudgeCalibration:
    worth = cross_validated(one.scores, one.people, one.item)
    return _JudgeCalibration(
        *_named(loaded, one),
        len(one.scores),
        len(np.unique(one.item)),
        float(np.abs(one.scores - one.people).mean()),
        None if worth is None else float(np.abs(worth - one.people).mean()),
        few=len(np.unique(one.item)) < FEW,
    )


def _named(loaded: LoadedRun, one: _Judge) -> tuple[str, str]:
    return loaded.judges[one.judge], "" if one.factor < 0 else loaded.factors[one.factor]


def _own(loaded: LoadedRun, one: _Judge) -> Units:
    """Return the units that a map applies to."""
    units = loaded.units
    return units.where((units.judge == one.judge) & ((units.factor == one.factor) | (one.factor < 0)))


def _map_rows(loaded: LoadedRun, one: _Judge) -> Iterator[_MapRow]:
    """Yield a row for each score that people met; of a judge that gives levels, for each that it gave."""
    units = _own(loaded, one)
    used, uses = np.unique(units.norm, return_counts=True)
    levels = bool(units.is_level.all())
    listed = np.union1d(one.map.scores, used) if levels else one.map.scores
    place = np.searchsorted(one.map.scores, one.scores)
    means = group_means(place, one.people, one.cluster, len(one.map.scores))
    for score in listed.tolist():
        at = np.flatnonzero(one.map.scores == score)
        met = len(at) > 0
        sure = met and len(np.unique(one.cluster[place == at[0]])) > 1
        yield _MapRow(
            *_named(loaded, one),
            score,
            _WORDS.get(score, "") if levels else "",
            pairs=int(one.map.counts[at[0]]) if met else 0,
            people=float(one.map.means[at[0]]) if met else None,
            lower=float(means.lower[at[0]]) if sure else None,
            upper=float(means.upper[at[0]]) if sure else None,
            calibrated=float(one.map(np.array([score]))[0]),
            units=int(uses[used == score].sum()),
        )


def _students(loaded: LoadedRun, pairs: _Consensus, judges: list[_Judge]) -> tuple[_StudentCalibration, ...]:
    size = len(loaded.students)
    if not judges:
        return ()
    parts = [_own(loaded, one) for one in judges]
    student, point, norm = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("student", "datapoint", "norm")
    )
    worth = np.concatenate([one.map(part.norm) for one, part in zip(judges, parts, strict=True)])
    cluster = loaded.clusters[point]
    raw, calibrated = group_means(student, norm, cluster, size), group_means(student, worth, cluster, size)
    widths = np.hypot(
        (calibrated.upper - calibrated.lower) / 2, _NORMAL_QUANTILE * _map_errors(pairs, judges, parts, size)
    )
    people, gaps = _beside_people(loaded, pairs, judges)
    raw_ranks = ranked(loaded, raw)
    rows = []
    for rank, one in enumerate(ranked(loaded, calibrated), start=1):
        mean, half = float(calibrated.mean[one]), float(widths[one])
        rows.append(
            _StudentCalibration(
                rank,
                loaded.students[one],
                raw_ranks.index(one) + 1,
                *raw.estimate(one),
                *(mean, max(0.0, mean - half), min(1.0, mean + half)),
                units=int(calibrated.n[one]),
                people=float(people.mean[one]) if people.n[one] else None,
                people_pairs=int(people.n[one]),
                gap=float(gaps.mean[one]) if gaps.n[one] else None,
                gap_lower=float(gaps.lower[one]) if gaps.n[one] > 1 else None,
                gap_upper=float(gaps.upper[one]) if gaps.n[one] > 1 else None,
            )
        )
    return tuple(rows)


def _map_errors(pairs: _Consensus, judges: list[_Judge], parts: list[Units], size: int) -> Floats:
    """Return the standard error of each student's calibrated mean from the choice of annotated items, (S,)."""
    items = int(pairs.item.max(initial=-1)) + 1
    draws = np.random.default_rng(0).multinomial(items, np.full(items, 1.0 / items), size=_DRAWS).astype(np.float64)
    sums, counts = np.zeros((_DRAWS, size)), np.zeros(size)
    for one, part in zip(judges, parts, strict=True):
        scores, place = np.unique(part.norm, return_inverse=True)
        table = np.bincount(part.student * len(scores) + place, minlength=size * len(scores)).reshape(size, -1)
        counts += table.sum(axis=1)
        for draw, drawn_map in enumerate(_drawn_maps(one.scores, one.people, one.item, draws)):
            sums[draw] += table @ (drawn_map or one.map)(scores)
    errors: Floats = (sums / np.maximum(counts, 1)).std(axis=0, ddof=1)
    return errors


def _beside_people(loaded: LoadedRun, pairs: _Consensus, judges: list[_Judge]) -> tuple[Summaries, Summaries]:
    """Return by student what people gave on annotated pairs, and how far that is from the judges' worth."""
    factors, student = loaded.pairs.factor[pairs.place], loaded.pairs.student[pairs.place]
    total, n = np.zeros(len(pairs.place)), np.zeros(len(pairs.place))
    for one in judges:
        scores = loaded.pairs.scores[pairs.place, one.judge]
        mine = np.flatnonzero(~np.isnan(scores) & ((factors == one.factor) | (one.factor < 0)))
        total[mine] += one.map(scores[mine])
        n[mine] += 1
    both = np.flatnonzero(n)
    gaps = pairs.people[both] - total[both] / n[both]
    size = len(loaded.students)
    cluster = loaded.clusters[pairs.datapoint]
    people = group_means(student, pairs.people, cluster, size)
    return people, group_means(student[both], gaps, cluster[both], size, bounded=False)
