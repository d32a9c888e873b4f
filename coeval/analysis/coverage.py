"""Coverage of a run, and the slices that the workbook and the live pages are computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.agreement import JudgeRow, Reliability, judge_rows, overall_reliability
from coeval.analysis.distribution import level_counts
from coeval.analysis.records import TaskInfo
from coeval.analysis.statistics import Codes, Summaries
from coeval.analysis.students import StudentRow, student_rows
from coeval.analysis.tables import (
    Columns,
    JudgeName,
    Shown,
    StudentName,
    TaskName,
    TeacherName,
    barred,
    estimated,
    named,
)
from coeval.analysis.teachers import TeacherRow, teacher_rows
from coeval.analysis.units import LoadedRun, Report, codes_of


@dataclass(frozen=True)
class CoverageRow:
    """The evaluations of one combination of models: expected, stored, valid and failed."""

    task: TaskName
    teacher: TeacherName
    student: StudentName
    judge: JudgeName
    expected: Annotated[int, Shown("expected", "items of the teacher in the task")]
    actual: Annotated[int, Shown("stored")]
    valid: Annotated[int, Shown("valid")]
    failed: Annotated[int, Shown("failed")]


@dataclass(frozen=True)
class _CountRow:
    """Records of a phase, by one value of a dimension."""

    phase: str
    dimension: Annotated[str, Shown("by")]
    value: str
    records: Annotated[int, Shown("records")]
    failed: int


@dataclass(frozen=True)
class _StrataRow:
    """The share of the combinations of a task's target attributes that have items."""

    task: TaskName
    # Of all attributes, or of as many as the task draws.
    strata: Annotated[int, Shown("combinations", "of one value of each declared target attribute")]
    covered: Annotated[int, Shown("with an item")]
    coverage: Annotated[float | None, barred("share", digits=2)]
    rare: Annotated[int, Shown("with one or two items")]
    values: Annotated[int, Shown("values", "declared values of all target attributes")]
    values_covered: Annotated[int, Shown("values with an item")]
    value_coverage: Annotated[float | None, barred("share of values", digits=2)]


@dataclass(frozen=True)
class CoverageSummary(Report):
    """Report coverage-summary."""

    meta: Mapping[str, Any]
    counts: tuple[_CountRow, ...]
    rows: Columns[CoverageRow]
    strata: tuple[_StrataRow, ...]


@dataclass(frozen=True)
class SummaryReport(Report):
    """Report summary-report."""

    students: tuple[StudentRow, ...]
    teachers: tuple[TeacherRow, ...]
    judges: tuple[JudgeRow, ...]
    teacher_threshold: float  # median of the teachers' scores by V1
    judge_threshold: float  # median of the judges' weighted SPA
    reliability: Reliability | None = None  # of all judges together


@dataclass(frozen=True)
class SliceRow:
    """Raw slice of the workbook; `factor` is empty in the sheet that sums it up."""

    task: str
    teacher: str
    student: str
    judge: str
    factor: str
    total: int  # evaluations that should hold the factor
    valid: int
    invalid: int
    mean: float | None
    sd: float | None
    high: int
    medium: int
    low: int
    is_self_judging: bool
    is_self_teaching: bool


@dataclass(frozen=True)
class ModelRow:
    """A model in all its roles; None where it has not the role."""

    model: Annotated[str, named("model")]
    student_mean: Annotated[float | None, estimated("as student", "mean score", "student_")]
    student_lower: float | None
    student_upper: float | None
    student_evals: int
    v1: Annotated[float | None, Shown("as teacher: V1", "how far its items set students apart", 4)]
    s2: float | None
    r3: float | None
    spa: Annotated[float | None, Shown("as judge: SPA", "how far peers agree with it", 3)]
    wpa: float | None
    kappa: Annotated[float | None, Shown("as judge: κ", "the same beyond chance", 3)]


@dataclass(frozen=True)
class CompleteReport(Report):
    """Report complete-report: the three sheets of the workbook."""

    raw: Columns[SliceRow]
    aggregated: Columns[SliceRow]
    models: tuple[ModelRow, ...]


_COUNTED = ("task", "teacher", "student", "judge")
_MAX_ITEMS_OF_RARE = 2


def coverage_summary(loaded: LoadedRun) -> CoverageSummary:
    """Compute the report on coverage."""
    strata = tuple(_strata(loaded, code, name) for code, name in enumerate(loaded.tasks))
    return CoverageSummary(loaded.header, dict(loaded.info.meta), tuple(_counts(loaded)), _rows(loaded), strata)


def _counts(loaded: LoadedRun) -> Iterator[_CountRow]:
    """Yield the counts of stored records by phase and by each name in them."""
    totals, failed = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for (phase, *names, is_failed), number in loaded.counts.items():
        for dimension, name in (("all", ""), *zip(_COUNTED, names, strict=True)):
            if name or dimension == "all":
                totals[phase, dimension, str(name)] += number
                failed[phase, dimension, str(name)] += number if is_failed else 0
    for phase, dimension, name in sorted(totals):
        key = phase, dimension, name
        yield _CountRow(phase=phase, dimension=dimension, value=name, records=totals[key], failed=failed[key])


def _rows(loaded: LoadedRun) -> Columns[CoverageRow]:
    """Return every (task, teacher) with items against every student that answers or should, and every judge."""
    evaluations, shape = loaded.evaluations, _shape(loaded)
    stored = np.ravel_multi_index(tuple(getattr(evaluations, name) for name in _COUNTED), shape)
    expected, items = _expected(loaded)
    keys = np.unique(np.concatenate([expected, stored]))
    place, size = np.searchsorted(keys, stored), len(keys)
    expected_items = np.zeros(size, dtype=np.int64)
    expected_items[np.searchsorted(keys, expected)] = items
    return Columns(
        CoverageRow,
        {name: loaded.names(name) for name in _COUNTED},
        {
            **dict(zip(_COUNTED, np.unravel_index(keys, shape), strict=True)),
            "expected": expected_items,
            "actual": np.bincount(place, minlength=size),
            "valid": np.bincount(place[evaluations.valid], minlength=size),
            "failed": np.bincount(place[evaluations.failed], minlength=size),
        },
    )


def _shape(loaded: LoadedRun) -> tuple[int, ...]:
    return tuple(max(len(loaded.names(name)), 1) for name in _COUNTED)


def _expected(loaded: LoadedRun) -> tuple[Codes, Codes]:
    """Return the sorted keys that should have evaluations, and of how many items each."""
    sizes, points = [len(loaded.names(name)) for name in _COUNTED], (loaded.datapoint_task, loaded.datapoint_teacher)
    counts = [np.zeros(sizes[:2], dtype=np.int64) for _ in range(2)]
    np.add.at(counts[0], points, 1)
    # Of a label judge only items that have a label to compare; all of a task of which the run does not tell.
    labels = [
        set(loaded.info.tasks[task].label_attributes) if task in loaded.info.tasks else set() for task in loaded.tasks
    ]
    attributes = zip(loaded.datapoint_task.tolist(), loaded.attributes, strict=True)
    labelled = np.array([not labels[task] or bool(labels[task] & set(item)) for task, item in attributes], dtype=bool)
    np.add.at(counts[1], tuple(codes[labelled] for codes in points), 1)
    kinds = list(zip(loaded.judges, loaded.kinds, strict=True))
    configured = set(loaded.info.roles["judge"])
    present = [not configured or name in configured or kind == "label" for name, kind in kinds]
    owes = [
        [at_work and loaded.info.owes(*judge, task) for judge, at_work in zip(kinds, present, strict=True)]
        for task in loaded.tasks
    ]
    task, teacher, student, judge = (codes.ravel() for codes in np.indices(sizes))
    of_label = np.array([kind == "label" for kind in loaded.kinds], dtype=bool)
    items = np.where(of_label[judge], counts[1][task, teacher], counts[0][task, teacher])
    due = (items > 0) & np.array(owes, dtype=bool).reshape(sizes[0], sizes[3])[task, judge]
    return np.ravel_multi_index((task, teacher, student, judge), _shape(loaded))[due], items[due]


def _strata(loaded: LoadedRun, code: int, task: str) -> _StrataRow:
    info = loaded.info.tasks.get(task, TaskInfo())
    declared = {name: set(values) for name, values in info.attributes.items()}
    items = [loaded.attributes[point] for point in np.flatnonzero(loaded.datapoint_task == code)]
    declared_items = [{name: value for name, value in item.items() if name in declared} for item in items]
    sound = [item for item in declared_items if item and all(value in declared[name] for name, value in item.items())]
    # The numbers of attributes that items are made with, as configured. Where no item is so, as they are: items of an
    # earlier configuration, or of a benchmark, span other combinations than the present one draws.
    low, high = info.drawn or (len(info.attributes), len(info.attributes))
    planned, present = set(range(low, high + 1)), {len(item) for item in sound}
    sizes = planned if planned & present or not present else present
    seen = Counter(frozenset(item.items()) for item in sound if len(item) in sizes)
    strata, values = _combinations(list(map(len, declared.values())), sizes), sum(map(len, declared.values()))
    covered_values = {
        (name, value) for item in declared_items for name, value in item.items() if value in declared[name]
    }
    covered = len(seen) if strata else 0
    return _StrataRow(
        task,
        strata,
        covered,
        coverage=covered / strata if strata else None,
        rare=sum(number <= _MAX_ITEMS_OF_RARE for number in seen.values()) if strata else 0,
        values=values,
        values_covered=len(covered_values),
        value_coverage=len(covered_values) / values if values else None,
    )


def _combinations(sizes: Sequence[int], drawn: set[int]) -> int:
    """Count the ways to choose some attributes and a value of each: elementary symmetric sums of their sizes."""
    sums = [1] + [0] * len(sizes)
    for place, size in enumerate(sizes, start=1):
        for number in range(place, 0, -1):
            sums[number] += sums[number - 1] * size
    return sum(sums[number] for number in drawn if number > 0)


def slices(loaded: LoadedRun, *, by_factor: bool = True) -> Columns[SliceRow]:
    """Compute figures of every (task, teacher, student, judge[, factor]) that was evaluated, failed or not."""
    evaluations, units, shape = loaded.evaluations, loaded.units, _shape(loaded)
    stored = np.ravel_multi_index(tuple(getattr(evaluations, name) for name in _COUNTED), shape)
    keys, group = np.unique(stored, return_inverse=True)
    factors = loaded.factors if by_factor else ("",)
    cells = group[units.evaluation] * len(factors) + (units.factor if by_factor else 0)
    size = len(keys) * len(factors)
    means = Summaries(cells, units.norm, size)
    valid = np.bincount(group[evaluations.valid], minlength=len(keys))
    chosen = np.arange(size)
    if by_factor:
        # Combinations of which all evaluations failed have no scores: they get a row for each factor that is owed.
        lost = _owed(loaded, np.unravel_index(keys, shape)) & (valid == 0)[:, None]
        chosen = np.flatnonzero((means.n > 0) | lost.ravel())
    owner, factor = np.divmod(chosen, max(len(factors), 1))
    codes = dict(zip(_COUNTED, np.unravel_index(keys[owner], shape), strict=True))
    total = np.bincount(group, minlength=len(keys))[owner]
    valid = valid[owner]
    levels = level_counts(loaded, cells, np.arange(len(units)), size)[chosen]
    has_scores = means.n[chosen] > 0
    return Columns(
        SliceRow,
        {**{name: loaded.names(name) for name in _COUNTED}, "factor": factors},
        {
            **codes,
            "factor": factor,
            "total": total,
            "valid": valid,
            "invalid": total - valid,
            "mean": np.where(has_scores, means.mean[chosen], np.nan),
            "sd": np.where(has_scores, means.sd[chosen], np.nan),
            **{name: levels[:, place] for place, name in enumerate(("high", "medium", "low"))},
            "is_self_judging": loaded.student_codes("judge")[codes["judge"]] == codes["student"],
            "is_self_teaching": loaded.student_codes("teacher")[codes["teacher"]] == codes["student"],
        },
    )


def _owed(loaded: LoadedRun, codes: Sequence[Codes]) -> npt.NDArray[np.bool_]:
    """Return whether the judge of a (task, teacher, student, judge) has to score each factor, (N, factors)."""
    places = codes_of(loaded.factors)
    owed = np.zeros((len(loaded.tasks), len(loaded.judges), max(len(places), 1)), dtype=bool)
    for task, judge in np.unique(np.stack([codes[0], codes[3]]), axis=1).T.tolist():
        names = loaded.info.required(loaded.kinds[judge], loaded.tasks[task], loaded.judges[judge])
        owed[task, judge, [places[name] for name in names or () if name in places]] = True
    return owed[codes[0], codes[3], : len(places)]


def complete_report(loaded: LoadedRun) -> CompleteReport:
    """Compute the sheets of the workbook."""
    students = {row.student: row for row in student_rows(loaded)}
    teachers = {row.teacher: row for row in teacher_rows(loaded)}
    judges = {row.judge: row for row in judge_rows(loaded)}
    rows = []
    for model in sorted({*loaded.students, *loaded.teachers, *loaded.judges}):
        student, teacher, judge = students.get(model), teachers.get(model), judges.get(model)
        rows.append(
            ModelRow(
                model=model,
                student_mean=student.mean if student else None,
                student_lower=student.lower if student else None,
                student_upper=student.upper if student else None,
                student_evals=student.valid_evals if student else 0,
                v1=teacher.v1 if teacher else None,
                s2=teacher.s2 if teacher else None,
                r3=teacher.r3 if teacher else None,
                spa=judge.weighted_spa if judge else None,
                wpa=judge.weighted_wpa if judge else None,
                kappa=judge.weighted_kappa if judge else None,
            )
        )
    return CompleteReport(loaded.header, slices(loaded), slices(loaded, by_factor=False), tuple(rows))


def summary_report(loaded: LoadedRun) -> SummaryReport:
    """Compute the report that the summary page shows."""
    teachers, judges = teacher_rows(loaded), judge_rows(loaded)
    spa = [row.weighted_spa for row in judges if row.rank is not None and row.weighted_spa is not None]
    return SummaryReport(
        loaded.header,
        student_rows(loaded),
        teachers,
        judges,
        teacher_threshold=float(np.median([row.v1 for row in teachers])) if teachers else 0.0,
        judge_threshold=float(np.median(spa)) if spa else 0.0,
        reliability=overall_reliability(loaded),
    )
