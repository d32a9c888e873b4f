"""How well a teacher's items tell students apart.

mu(s; t, k, a) is the mean over datapoints of student s's judge-mean score, for teacher t, task k, factor a.
* V1(t): mean over (k, a) of the variance (n - 1) of mu across students. * R3(t): mean over (k, a) of max - min of mu.
* S2(t): mean over (datapoint, factor) of the standard deviation (n - 1) across students of the judge-mean score; the
  square root of V1, a different quantity that also goes by that name, is given beside it.
What fewer than two students answered is left out; where nothing is left all are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.statistics import Summaries
from coeval.analysis.tables import ItemCount, Rank, ScoreCount, Shown, TeacherName, barred
from coeval.analysis.units import DEFAULTS, Floats, LoadedRun, Pairs, Report, RobustSettings


@dataclass(frozen=True)
class TeacherRow:
    """How well a teacher's items tell students apart: larger is better."""

    rank: Rank
    teacher: TeacherName
    v1: Annotated[float, barred("V1", "mean over tasks and factors of the variance of the students' means")]
    s2: Annotated[float, barred("S2", "mean over items and factors of the standard deviation of the students' scores")]
    r3: Annotated[float, barred("R3", "mean over tasks and factors of the range of the students' means")]
    root_v1: Annotated[float, Shown("√V1", "the other form of S2: the square root of V1", 4)]
    items: ItemCount
    units: ScoreCount


@dataclass(frozen=True)
class TeacherCell:
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
    cells: tuple[TeacherCell, ...]


Numbers = npt.NDArray[Any]


def teacher_report(loaded: LoadedRun, settings: RobustSettings = DEFAULTS) -> TeacherReport:
    """Compute the report on teachers."""
    formula = settings.teacher_score_formula
    one_student = len({*loaded.units.student.tolist()}) == 1
    return TeacherReport(loaded.header, formula, one_student, teacher_rows(loaded, formula), teacher_cells(loaded))


def teacher_rows(loaded: LoadedRun, formula: str = "v1") -> tuple[TeacherRow, ...]:
    """Return the teachers with scores, best first by `formula`."""
    size = len(loaded.teachers)
    figures = _discrimination(loaded.pairs, loaded.pairs.teacher, np.arange(len(loaded.pairs)), size)
    items = np.bincount(loaded.datapoint_teacher, minlength=size)
    units = np.bincount(loaded.units.teacher, minlength=size)
    order = sorted(
        (teacher for teacher in range(size) if units[teacher]),
        key=lambda teacher: (-figures[formula][teacher], loaded.teachers[teacher]),
    )
    return tuple(
        TeacherRow(
            rank,
            loaded.teachers[teacher],
            **{name: float(values[teacher]) for name, values in figures.items()},
            root_v1=float(np.sqrt(figures["v1"][teacher])),
            items=int(items[teacher]),
            units=int(units[teacher]),
        )
        for rank, teacher in enumerate(order, start=1)
    )


def teacher_cells(loaded: LoadedRun) -> tuple[TeacherCell, ...]:
    """Compute the figures by factor, task and attribute value."""
    return tuple(cell for name in ("factor", "task", "attribute") for cell in _teacher_cells(loaded, name))


def _teacher_cells(loaded: LoadedRun, dimension: str) -> list[TeacherCell]:
    names = loaded.names(dimension)
    rows, values = loaded.grouped(loaded.pairs, dimension)
    strata = loaded.pairs.teacher[rows] * len(names) + values
    size = len(loaded.teachers) * len(names)
    figures = _discrimination(loaded.pairs, strata, rows, size)
    unit_rows, unit_values = loaded.grouped(loaded.units, dimension)
    unit_strata = loaded.units.teacher[unit_rows] * len(names) + unit_values
    means = Summaries(unit_strata, loaded.units.norm[unit_rows], size)
    return [
        TeacherCell(
            loaded.teachers[stratum // len(names)],
            dimension,
            names[stratum % len(names)],
            **{name: float(values[stratum]) for name, values in figures.items()},
            mean=float(means.mean[stratum]),
            units=int(means.n[stratum]),
        )
        for stratum in np.flatnonzero(means.n)
    ]


def _discrimination(pairs: Pairs, strata: Numbers, rows: Numbers, size: int) -> dict[str, Floats]:
    """Compute V1, S2 and R3 of strata, each (size,); a row of pairs may be in several."""
    factor, student, scores = pairs.factor[rows], pairs.student[rows], pairs.mean[rows]
    spread, stretch, stratum = _spread(np.stack([strata, pairs.task[rows], factor, student], axis=1), scores)
    by_item, _, item_stratum = _spread(np.stack([strata, pairs.datapoint[rows], factor, student], axis=1), scores)
    parts = {"v1": (stratum, spread), "s2": (item_stratum, np.sqrt(by_item)), "r3": (stratum, stretch)}
    return {
        name: np.bincount(owner, values, minlength=size) / np.maximum(np.bincount(owner, minlength=size), 1)
        for name, (owner, values) in parts.items()
    }


def _codes(keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct rows of keys (N, K), and which of them each row is."""
    codes = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:  # made dense after each: the product of all sizes could overflow
        codes = np.unique(codes * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
    _, first = np.unique(codes, return_index=True)
    return keys[first], codes


def _spread(keys: Numbers, scores: Floats) -> tuple[Floats, Floats, Numbers]:
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
