"""How scores spread: by model and dimension, by teacher and student, by judge and attribute, and over time.

Shapes: U units, C cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coeval.analysis.statistics import Codes, Floats, Summaries
from coeval.analysis.units import DIMENSIONS, LoadedRun, Report, places_within


@dataclass(frozen=True)
class DistributionRow:
    """How the scores of a model spread, over all or one value of a dimension."""

    role: str  # the panel: student, teacher or judge
    model: str
    dimension: str  # `all`, or task, factor, judge, teacher, student, attribute
    value: str
    units: int
    mean: float
    sd: float
    high: int
    medium: int
    low: int
    numeric: int  # scores that are numbers of a metric, not levels


@dataclass(frozen=True)
class ScoreDistribution(Report):
    """Report score-distribution."""

    rows: tuple[DistributionRow, ...]
    drift: tuple[DriftRow, ...]  # mean score by order of evaluation, in windows of 20 evaluations


@dataclass(frozen=True)
class _InteractionCell:
    """A student on a teacher's items."""

    teacher: str
    student: str
    factor: str  # empty: all factors
    mean: float
    deviation: float  # from the student's mean on the same factors over all teachers
    units: int
    is_self: bool


@dataclass(frozen=True)
class InteractionMatrix(Report):
    """Report interaction-matrix."""

    cells: tuple[_InteractionCell, ...]


@dataclass(frozen=True)
class JudgeConsistency(Report):
    """Report judge-consistency."""

    calibration: tuple[_CalibrationRow, ...]
    spread: tuple[_SpreadRow, ...]  # variance and box-plot figures of each judge by attribute value
    drift: tuple[DriftRow, ...]  # mean score and agreement by order of evaluation, in windows of 50 units


@dataclass(frozen=True)
class _CalibrationRow:
    """How a judge uses the scale."""

    judge: str
    units: int
    mean: float
    sd: float
    high: float  # shares of levels; of all units
    medium: float
    low: float
    flagged: bool  # whether more than 90 % are High, or more than 90 % Low


@dataclass(frozen=True)
class _SpreadRow:
    """A judge's scores at one value of an attribute."""

    judge: str
    attribute: str
    value: str
    units: int
    mean: float
    variance: float
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float


@dataclass(frozen=True)
class DriftRow:
    """A window in the order of evaluation."""

    judge: str
    window: int  # from 1
    units: int
    mean: float
    spa: float | None  # agreement with peers within the window
    started: str  # time of its first evaluation


_EVALUATIONS_PER_WINDOW = 20
_UNITS_PER_WINDOW = 50
_MAX_SHARE_OF_LEVEL = 0.9  # a judge that gives High, or Low, more often is flagged


def score_distribution(loaded: LoadedRun) -> ScoreDistribution:
    """Compute the report on the distribution of scores."""
    units, table = loaded.units, list[DistributionRow]()
    for role in ("student", "teacher", "judge"):
        models = getattr(units, role)
        table += _rows(loaded, role, "all", models, np.arange(len(units)), ("",))
        for dimension in DIMENSIONS:
            if dimension != role:
                names = loaded.names(dimension)
                rows, values = loaded.grouped(units, dimension)
                table += _rows(loaded, role, dimension, models[rows] * len(names) + values, rows, names)
    windows = _evaluation_ranks(loaded)[units.evaluation] // _EVALUATIONS_PER_WINDOW
    return ScoreDistribution(loaded.header, tuple(table), tuple(_windows(loaded, windows)))


def _rows(
    loaded: LoadedRun, role: str, dimension: str, cells: Codes, rows: Codes, names: tuple[str, ...]
) -> Iterator[DistributionRow]:
    models = loaded.names(role)
    size = len(models) * len(names)
    means = Summaries(cells, loaded.units.norm[rows], size)
    counts = level_counts(loaded, cells, rows, size)
    for cell in np.flatnonzero(means.n):
        model, value = divmod(int(cell), len(names))
        high, medium, low, numeric = counts[cell].tolist()
        yield DistributionRow(
            role=role,
            model=models[model],
            dimension=dimension,
            value=names[value],
            units=int(means.n[cell]),
            mean=float(means.mean[cell]),
            sd=float(means.sd[cell]),
            high=high,
            medium=medium,
            low=low,
            numeric=numeric,
        )


def level_counts(loaded: LoadedRun, cells: Codes, rows: Codes, size: int) -> Codes:
    """Return how many scores of each cell are High, Medium, Low, or a number, (C, 4)."""
    norm, is_level = loaded.units.norm[rows], loaded.units.is_level[rows]
    column = np.where(is_level, 2 - np.rint(2 * norm).astype(np.int64), 3)
    return np.bincount(cells * 4 + column, minlength=4 * size).reshape(size, 4)


def interaction_matrix(loaded: LoadedRun) -> InteractionMatrix:
    """Compute the report on students by teacher."""
    return InteractionMatrix(loaded.header, (*_cells(loaded, by_factor=False), *_cells(loaded, by_factor=True)))


def _cells(loaded: LoadedRun, *, by_factor: bool) -> Iterator[_InteractionCell]:
    units, factors = loaded.units, loaded.factors if by_factor else ("",)
    factor = units.factor if by_factor else np.zeros(len(units), dtype=np.int64)
    inner = units.student * len(factors) + factor
    of_student = Summaries(inner, units.norm, len(loaded.students) * len(factors))
    width = len(loaded.students) * len(factors)
    means = Summaries(units.teacher * width + inner, units.norm, len(loaded.teachers) * width)
    for cell in np.flatnonzero(means.n):
        teacher, rest = divmod(int(cell), width)
        student = loaded.students[rest // len(factors)]
        mean = float(means.mean[cell])
        yield _InteractionCell(
            teacher=loaded.teachers[teacher],
            student=student,
            factor=factors[rest % len(factors)],
            mean=mean,
            deviation=mean - float(of_student.mean[rest]),
            units=int(means.n[cell]),
            is_self=loaded.teachers[teacher] == student,
        )


def judge_consistency(loaded: LoadedRun) -> JudgeConsistency:
    """Compute the report on how each judge uses the scale."""
    units, spread = loaded.units, tuple(_spread(loaded))
    windows = places_within(units.judge, units.factor, _evaluation_ranks(loaded)[units.evaluation]) // _UNITS_PER_WINDOW
    return JudgeConsistency(loaded.header, tuple(_calibration(loaded)), spread, tuple(_windows(loaded, windows)))


def _calibration(loaded: LoadedRun) -> Iterator[_CalibrationRow]:
    units, size = loaded.units, len(loaded.judges)
    means = Summaries(units.judge, units.norm, size)
    counts = level_counts(loaded, units.judge, np.arange(len(units)), size)
    for judge in np.flatnonzero(means.n):
        high, medium, low = (float(share) for share in counts[judge, :3] / means.n[judge])
        yield _CalibrationRow(
            judge=loaded.judges[judge],
            units=int(means.n[judge]),
            mean=float(means.mean[judge]),
            sd=float(means.sd[judge]),
            high=high,
            medium=medium,
            low=low,
            flagged=max(high, low) > _MAX_SHARE_OF_LEVEL,
        )


def _spread(loaded: LoadedRun) -> Iterator[_SpreadRow]:
    """Yield box-plot figures of each judge and attribute value."""
    names = loaded.attribute_names
    rows, values = loaded.grouped(loaded.units, "attribute")
    cells = loaded.units.judge[rows] * len(names) + values
    order = np.argsort(cells, kind="stable")
    owners, starts = np.unique(cells[order], return_index=True)
    # Without rows there is no owner, but `split` still returns one empty part.
    for cell, scores in zip(owners, np.split(loaded.units.norm[rows][order], starts[1:]), strict=False):
        judge, value = divmod(int(cell), len(names))
        attribute, _, text = names[value].partition("=")
        minimum, lower, median, upper, maximum = np.quantile(scores, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
        yield _SpreadRow(
            judge=loaded.judges[judge],
            attribute=attribute,
            value=text,
            units=len(scores),
            mean=float(scores.mean()),
            variance=float(scores.var(ddof=1)) if len(scores) > 1 else 0.0,
            minimum=minimum,
            lower_quartile=lower,
            median=median,
            upper_quartile=upper,
            maximum=maximum,
        )


def _evaluation_ranks(loaded: LoadedRun) -> Codes:
    """Rank each valid evaluation among those of its judge, by time and then by id, (E,)."""
    evaluations = loaded.evaluations
    times = np.unique(np.array(evaluations.at, dtype=object), return_inverse=True)[1]
    judge = np.where(evaluations.valid, evaluations.judge, len(loaded.judges))
    return places_within(judge, times)


def _windows(loaded: LoadedRun, window: Codes) -> Iterator[DriftRow]:
    """Yield windows of each judge's units, numbered from 0 in the order of the times of evaluation."""
    units, width = loaded.units, int(window.max(initial=0)) + 1
    cells, size = units.judge * width + window, len(loaded.judges) * width
    means = Summaries(cells, units.norm, size)
    # The share of other judges of a unit's pair that gave the same score; NaN without others.
    pair = np.unique(loaded.pair_keys(units.response, units.factor), return_inverse=True)[1]
    score = np.rint(units.norm * 10_000).astype(np.int64)  # records hold four places
    n = np.bincount(pair)[pair] if len(pair) else pair
    _, same, counts = np.unique(pair * 10_001 + score, return_inverse=True, return_counts=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        agreement: Floats = (counts[same] - 1) / (n - 1)
    has_peers = ~np.isnan(agreement)
    shared = Summaries(cells[has_peers], agreement[has_peers], size)
    first = np.full(size, len(loaded.evaluations.at))
    times = np.argsort(np.argsort(np.array(loaded.evaluations.at, dtype=object), kind="stable"), kind="stable")
    np.minimum.at(first, cells, times[units.evaluation])
    at = sorted(loaded.evaluations.at)
    for cell in np.flatnonzero(means.n):
        judge, number = divmod(int(cell), width)
        yield DriftRow(
            judge=loaded.judges[judge],
            window=number + 1,
            units=int(means.n[cell]),
            mean=float(means.mean[cell]),
            spa=float(shared.mean[cell]) if shared.n[cell] else None,
            started=at[first[cell]],
        )
