"""How well a teacher's items tell students apart.

mu(s; t, k, a) is the mean over datapoints of student s's judge-mean score, for teacher t, task k, factor a.
* V1(t): mean over (k, a) of the variance (n - 1) of mu across students. * R3(t): mean over (k, a) of max - min of mu.
* S2(t): mean over (datapoint, factor) of the standard deviation (n - 1) across students of the judge-mean score; the
  square root of V1, a different quantity that also goes by that name, is given beside it.
What fewer than two students answered is left out; where nothing is left all are 0.

All three grow with the noise of judges. So teachers are ranked by what is left without it, in scores on the average
judge's scale, judges counting by what they can tell (`coeval.analysis.fit`):
* separation: the standard deviation of the students' true means on the teacher's items, from products of different
  prompts, in which neither the noise of judges nor that of single answers is; it takes the place of V1 and R3.
* spread: that of the quality of the answers to one item, from products of different judges; it takes the place of S2.
Limits are jackknifed by prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.fit import Fit, fit_run
from coeval.analysis.panel import item_products
from coeval.analysis.statistics import Floats, Summaries, jackknife_sums, with_limits
from coeval.analysis.tables import ItemCount, Rank, ScoreCount, Shown, TeacherName, barred, estimated
from coeval.analysis.units import DEFAULTS, LoadedRun, Pairs, Report, RobustSettings, once

_SEPARATION = "how far students truly differ on its items, judges' noise taken out (standard deviation)"
_SPREAD = "how far answers to one item truly differ, judges' noise taken out (standard deviation)"


@dataclass(frozen=True)
class TeacherRow:
    """How well a teacher's items tell students apart: larger is better."""

    rank: Rank
    teacher: TeacherName
    # None where it cannot be told from noise: with one prompt, one student, or without a fit.
    separation: Annotated[float | None, estimated("separation", _SEPARATION, "separation_")]
    separation_lower: float | None
    separation_upper: float | None
    # None with fewer than two judges of an answer, too.
    spread: Annotated[float | None, estimated("spread", _SPREAD, "spread_")]
    spread_lower: float | None
    spread_upper: float | None
    v1: Annotated[float, barred("V1", "mean over tasks and factors of the variance of the students' means")]
    s2: Annotated[float, barred("S2", "mean over items and factors of the standard deviation of the students' scores")]
    r3: Annotated[float, barred("R3", "mean over tasks and factors of the range of the students' means")]
    root_v1: Annotated[float, Shown("√V1", "the other form of S2: the square root of V1", 4)]
    items: ItemCount
    units: ScoreCount


@dataclass(frozen=True)
class _TeacherCell:
    """The same on one value of a dimension (factor, task, attribute)."""

    teacher: str
    dimension: str
    value: str
    v1: float
    s2: float
    r3: float
    mean: float
    units: int


@dataclass(frozen=True)
class TeacherReport(Report):
    """Report teacher-report."""

    formula: str  # what the ranking follows: v1, s2 or r3
    one_student: bool  # with one student there is nothing to discriminate: all values are 0
    teachers: tuple[TeacherRow, ...]
    cells: tuple[_TeacherCell, ...]


_Numbers = npt.NDArray[Any]


def teacher_report(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> TeacherReport:
    """Compute the report on teachers."""
    formula = settings.teacher_score_formula
    one_student = len({*loaded.units.student.tolist()}) == 1
    return TeacherReport(loaded.header, formula, one_student, teacher_rows(loaded, formula), teacher_cells(loaded))


def teacher_rows(loaded: LoadedRun, formula: str = "v1") -> tuple[TeacherRow, ...]:
    """Return the teachers with scores, best first by what `formula` measures without noise, else by `formula`."""
    size = len(loaded.teachers)
    figures = _discrimination(loaded.pairs, loaded.pairs.teacher, np.arange(len(loaded.pairs)), size)
    items = np.bincount(loaded.datapoint_teacher, minlength=size)
    units = np.bincount(loaded.units.teacher, minlength=size)
    clean = _without_noise(loaded)
    present = [teacher for teacher in range(size) if units[teacher]]
    # By figures without noise: scores that are dealt at random spread most.
    ranking = clean["spread" if formula == "s2" else "separation"][:, 0]
    values = ranking if np.isfinite(ranking[present]).all() else figures[formula]
    order = sorted(
        present, key=lambda teacher: (-values[teacher], -figures[formula][teacher], loaded.teachers[teacher])
    )
    return tuple(
        TeacherRow(
            rank=rank,
            teacher=loaded.teachers[teacher],
            **with_limits("separation", clean["separation"][teacher]),
            **with_limits("spread", clean["spread"][teacher]),
            **{name: float(values[teacher]) for name, values in figures.items()},
            root_v1=float(np.sqrt(figures["v1"][teacher])),
            items=int(items[teacher]),
            units=int(units[teacher]),
        )
        for rank, teacher in enumerate(order, start=1)
    )


_CLEAN = ("separation", "spread")


@once
def _without_noise(loaded: LoadedRun) -> dict[str, Floats]:
    """Return separation and spread of teachers with their limits, each (T, 3); NaN where there is none."""
    figures = {name: np.full((len(loaded.teachers), 3), np.nan) for name in _CLEAN}
    fit = fit_run(loaded)
    if fit is None:
        return figures
    owner = loaded.datapoint_teacher[fit.table.items]
    columns = {"separation": _separation_columns(fit), "spread": _spread_columns(fit)}
    measures = {"separation": _separation, "spread": _ratio}
    for teacher in np.unique(owner).tolist():
        mine = owner == teacher
        cluster = np.unique(fit.table.cluster[mine], return_inverse=True)[1]
        for name in _CLEAN:
            sums = np.zeros((int(cluster.max()) + 1, columns[name].shape[1]))
            np.add.at(sums, cluster, columns[name][mine])
            # Products of different clusters: what a cluster's items have in common is left out.
            if name == "separation":
                sums = np.concatenate([sums, sums**2], axis=1)
            variance = jackknife_sums(sums, measures[name])
            limits = np.array([variance.estimate[0], variance.lower[0], variance.upper[0]])
            # A variance that is estimated without bias may come out below 0.
            if len(sums) > 1 and np.isfinite(limits).all():
                figures[name][teacher] = fit.scale * np.sqrt(np.maximum(limits, 0.0))
    return figures


def _separation_columns(fit: Fit) -> Floats:
    """Return the quality of answers about that of others to their item, and which answers there are, (D, 2 S)."""
    table, judges = fit.table, fit.judges
    b = judges.evidence
    severity = np.nan_to_num(fit.solution.severity)[table.task]
    rest = table.scores - severity - table.length[:, None] * judges.excess
    precision = fit.counts @ (b * judges.sharpness)
    rows = precision > 0
    quality = (np.where(fit.counts, rest, 0.0) @ b)[rows] / precision[rows]
    items, size = len(table.items), len(table.items) * table.students
    number = np.maximum(np.bincount(table.item[rows], minlength=items), 1)
    quality = quality - (np.bincount(table.item[rows], quality, minlength=items) / number)[table.item[rows]]
    cell = table.item[rows] * table.students + table.student[rows]
    parts = [np.bincount(cell, quality, minlength=size), np.bincount(cell, minlength=size).astype(np.float64)]
    return np.concatenate([part.reshape(items, table.students) for part in parts], axis=1)


def _separation(sums: Floats) -> Floats:
    """Return the variance of students' quality of sums (R, 4 S): of values and counts, then of their squares."""
    values, counts, squares, pairs = np.split(sums, 4, axis=1)
    students = (counts > 0).sum(axis=1)
    above = (values**2 - squares).sum(axis=1)
    below = (counts**2 - pairs).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where((below > 0) & (students > 1), above / below * students / (students - 1.0), np.nan)
    return result


def _spread_columns(fit: Fit) -> Floats:
    """Return by item the products of different judges' scores, and what they would be for a variance of 1, (D, 2)."""
    judges = fit.judges
    b = judges.evidence
    products = item_products(fit.table, fit.table.scores - fit.table.length[:, None] * judges.excess, fit.counts)
    weight = np.outer(b, b) * (1.0 - np.eye(len(b)))
    above = (products.cross * weight).sum(axis=(1, 2))
    below = (products.count * weight * np.outer(judges.sharpness, judges.sharpness)).sum(axis=(1, 2))
    return np.stack([above, below], axis=1)


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where(sums[:, 1] > 1e-12, sums[:, 0] / sums[:, 1], np.nan)
    return result


def teacher_cells(loaded: LoadedRun) -> tuple[_TeacherCell, ...]:
    """Compute the figures by factor, task and attribute value."""
    return tuple(cell for name in ("factor", "task", "attribute") for cell in _teacher_cells(loaded, name))


def _teacher_cells(loaded: LoadedRun, dimension: str) -> list[_TeacherCell]:
    names = loaded.names(dimension)
    rows, values = loaded.grouped(loaded.pairs, dimension)
    strata = loaded.pairs.teacher[rows] * len(names) + values
    size = len(loaded.teachers) * len(names)
    figures = _discrimination(loaded.pairs, strata, rows, size)
    unit_rows, unit_values = loaded.grouped(loaded.units, dimension)
    unit_strata = loaded.units.teacher[unit_rows] * len(names) + unit_values
    means = Summaries(unit_strata, loaded.units.norm[unit_rows], size)
    return [
        _TeacherCell(
            loaded.teachers[stratum // len(names)],
            dimension,
            names[stratum % len(names)],
            **{name: float(values[stratum]) for name, values in figures.items()},
            mean=float(means.mean[stratum]),
            units=int(means.n[stratum]),
        )
        for stratum in np.flatnonzero(means.n)
    ]


def _discrimination(pairs: Pairs, strata: _Numbers, rows: _Numbers, size: int) -> dict[str, Floats]:
    """Compute V1, S2 and R3 of strata, each (size,); a row of pairs may be in several."""
    factor, student, scores = pairs.factor[rows], pairs.student[rows], pairs.mean[rows]
    spread, stretch, stratum = _spread(np.stack([strata, pairs.task[rows], factor, student], axis=1), scores)
    by_item, _, item_stratum = _spread(np.stack([strata, pairs.datapoint[rows], factor, student], axis=1), scores)
    parts = {"v1": (stratum, spread), "s2": (item_stratum, np.sqrt(by_item)), "r3": (stratum, stretch)}
    return {
        name: np.bincount(owner, values, minlength=size) / np.maximum(np.bincount(owner, minlength=size), 1)
        for name, (owner, values) in parts.items()
    }


def _codes(keys: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the distinct rows of keys (N, K), and which of them each row is."""
    codes = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:  # made dense after each: the product of all sizes could overflow
        codes = np.unique(codes * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
    _, first = np.unique(codes, return_index=True)
    return keys[first], codes


def _spread(keys: _Numbers, scores: Floats) -> tuple[Floats, Floats, _Numbers]:
    """Return variance and range of the students' means in each cell with two or more students, and its stratum.

    `keys` (N, 4) are the stratum, two more of the cell, and the student.
    """
    students, codes = _codes(keys)
    means = Summaries(codes, scores, len(students)).mean
    owners, codes = _codes(students[:, :3])
    n = np.bincount(codes, minlength=len(owners))
    centre = np.bincount(codes, means, minlength=len(owners)) / np.maximum(n, 1)
    squares = np.bincount(codes, (means - centre[codes]) ** 2, minlength=len(owners))
    high, low = np.full(len(owners), -np.inf), np.full(len(owners), np.inf)
    np.maximum.at(high, codes, means)
    np.minimum.at(low, codes, means)
    enough = n > 1
    return squares[enough] / (n[enough] - 1), (high - low)[enough], owners[enough, 0]
