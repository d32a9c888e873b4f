"""Pages on students and teachers: rankings, teachers by students, spread of scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from coeval.analysis.coverage import SummaryReport
from coeval.analysis.distribution import DistributionRow, InteractionMatrix, ScoreDistribution
from coeval.analysis.students import StudentReport, StudentRow
from coeval.analysis.tables import shown_fields
from coeval.analysis.teachers import TeacherReport, TeacherRow
from coeval.reports.pieces import (
    NOTHING,
    Computed,
    Grid,
    amount,
    drift_lines,
    grid_across,
    grid_of,
    levels_of,
    missing_table,
    table,
)
from p2l.common.report.tables import Column, Table

_MAX_OPEN_TASKS = 4  # tables of tasks that may lie open together
_MAX_ROWS_OF_OPEN_TASK = 8
_ITEMS_OF = {"attribute": " of items with attributes"}


def student_context(report: StudentReport) -> dict[str, Any]:
    """Return the context of the page of students."""
    header = report.header
    tasks = [(task, _task(report, task)) for task in header.tasks]
    pairs = ("better", "worse", "fit", "p_value", "significant", "difference", "datapoints", "prompts")
    labels = ("student", "task", "attribute", "accuracy", "strict_accuracy", "n_matched", "n_total", "n_skipped")
    return {
        "ranking": ranking(report),
        "other_means": _other_means(report),
        "tasks": [(task, rows) for task, rows in tasks if rows],
        "without_scores": [task for task, rows in tasks if not rows],
        "crowded": len(tasks) > _MAX_OPEN_TASKS or len(report.students) > _MAX_ROWS_OF_OPEN_TASK,
        "grids": [
            (across, _strengths(report, across)) for across in ("task", "factor", "judge", "teacher", "attribute")
        ],
        "pairs": table(report.pairs, header, pairs),
        "power": table(report.power, header),
        "variance": table(report.variance, header, ("source", "share", "variance")),
        "own_items": table(report.own_items, header),
        "missing": missing_table(report.missing, header),
        "labels": table(report.labels, header, labels),
        "label_values": table(report.label_values, header),
    }


_RANKING = ("rank", "student", "fit", "rating", "length_controlled", "mean", "valid_evals", "datapoints")
_OTHER_MEANS = ("rank", "student", "length_rank", "macro", "without_self", "composite", "responses")


def ranking(report: StudentReport | SummaryReport) -> Table | None:
    """Return the students in order, with intervals: what fits a page's width."""
    fields = dict(shown_fields(StudentRow))
    if _has_weights(report):
        note = fields["mean"].note.replace("of all scores", "of all scores, weighted by factor")
        return table(report.students, report.header, _RANKING, mean=replace(fields["mean"], note=note))
    return table(report.students, report.header, _RANKING)


def _has_weights(report: StudentReport | SummaryReport) -> bool:
    return any(row.unweighted != row.mean for row in report.students)


def _other_means(report: StudentReport) -> Table | None:
    """Return further means of the same students; where factors have weights, also those without."""
    return table(report.students, report.header, (*_OTHER_MEANS, *(["unweighted"] if _has_weights(report) else [])))


def _task(report: StudentReport, task: str) -> Table | None:
    """Return the ranking of one task, by its fit where it has one."""
    fitted = [row for row in report.tasks if row.task == task]
    if fitted:
        means = {cell.student: cell for cell in report.cells if cell.dimension == "task" and cell.value == task}
        mean = Computed(Column("mean", note="of all scores"), lambda row: amount(means[row.student].mean))
        units = Computed(Column("scores"), lambda row: amount(means[row.student].units, 0))
        return table(fitted, report.header, ("rank", "student", "fit", mean, units))
    cells = [cell for cell in report.cells if cell.dimension == "task" and cell.value == task]
    cells.sort(key=lambda cell: -cell.mean)
    ranks = {cell.student: rank for rank, cell in enumerate(cells, 1)}
    rank = Computed(Column("rank"), lambda cell: ranks[cell.student])
    return table(cells, report.header, (rank, "student", "mean", "units"))


def _strengths(report: StudentReport, across: str) -> Grid:
    origin, ranked = "{lower:.3f} to {upper:.3f}, from {units:,} scores", [row.student for row in report.students]
    own, empty = across in ("judge", "teacher"), f"{NOTHING}: no valid scores{_ITEMS_OF.get(across, '')}."
    return grid_across(report.header, "student", across, report.cells, origin, rows=ranked, own=own, empty=empty)


# Teachers: how well their items tell students apart.


def teacher_context(report: TeacherReport) -> dict[str, Any]:
    """Return the context of the page of teachers."""
    fields = shown_fields(TeacherRow)
    order = [report.formula, *(name for name in ("v1", "s2", "r3") if name != report.formula)]
    dimensions = ("factor", "task", "attribute")
    return {
        "ranking": table(report.teachers, report.header),
        "formula": fields[report.formula].title,
        "meanings": [(fields[name].title, fields[name].note) for name in ("v1", "s2", "r3")],
        "one_student": report.one_student,
        "grids": [
            (fields[name].title, [(across, _discrimination(report, name, across)) for across in dimensions])
            for name in order
        ],
        "means": grid_across(report.header, "teacher", "factor", report.cells, "from {units:,} scores"),
    }


def _discrimination(report: TeacherReport, formula: str, across: str) -> Grid:
    origin, ranked = "mean {mean:.3f} of {units:,} scores", [row.teacher for row in report.teachers]
    empty = f"{NOTHING}: no scores{_ITEMS_OF.get(across, '')}."
    return grid_across(
        report.header,
        "teacher",
        across,
        report.cells,
        origin,
        formula,
        rows=ranked,
        digits=3,
        most=None,
        empty=empty,
    )


# Teachers and students: which students do well on which teacher's items.


def interaction_context(report: InteractionMatrix) -> dict[str, Any]:
    """Return the context of the page of teachers and students."""
    factors = [name for name in report.header.factors if any(cell.factor == name for cell in report.cells)]
    return {
        "means": _interactions(report, ""),
        "deviations": _interactions(report, "", deviation=True),
        "factors": [
            (name, _interactions(report, name), _interactions(report, name, deviation=True)) for name in factors
        ],
    }


def _interactions(report: InteractionMatrix, factor: str, *, deviation: bool = False) -> Grid:
    values = [
        (cell.teacher, cell.student, cell.deviation if deviation else cell.mean, f"from {cell.units:,} scores")
        for cell in report.cells
        if cell.factor == factor
    ]
    most = None if deviation else 1.0
    return grid_of(report.header, ("teacher", "student"), values, own=True, deviation=deviation, most=most)


# Distribution: how High, Medium and Low spread over students, teachers and judges.

_ROLES = ("student", "teacher", "judge")


def distribution_context(report: ScoreDistribution) -> dict[str, Any]:
    """Return the context of the page of the distribution of scores."""
    header, dimensions = report.header, ("task", "factor", "student", "teacher", "judge", "attribute")
    return {
        "panels": [
            (role, levels_of(header, role, ((row.model, row) for row in _rows(report, role, "all")))) for role in _ROLES
        ],
        "by": [
            (kind, levels_of(header, kind, ((row.value, row) for row in _rows(report, "student", kind))))
            for kind in ("task", "factor", "attribute")
        ],
        "grids": [
            (role, [(across, _spread(report, role, across)) for across in dimensions if across != role])
            for role in _ROLES
        ],
        "drift": drift_lines(report.drift, "mean"),
        "numeric": any(row.numeric for row in report.rows),
    }


def _rows(report: ScoreDistribution, role: str, dimension: str) -> Iterable[DistributionRow]:
    return (row for row in report.rows if row.role == role and row.dimension == dimension)


def _spread(report: ScoreDistribution, role: str, across: str) -> Grid:
    origin = "from {units:,} scores, {high:,} High, {medium:,} Medium, {low:,} Low"
    rows = [row for row in report.rows if row.role == role]
    return grid_across(report.header, role, across, rows, origin, name="model", own=across in _ROLES)
