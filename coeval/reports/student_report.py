"""Report student-report: who answers best, overall and where, and how sure that is."""

from __future__ import annotations

from typing import Any

from coeval.analysis.results import LabelRow, LabelValueRow, StudentReport, StudentRow
from coeval.reports.frame import notes_of
from coeval.reports.pieces import Grid, grid_of
from coeval.reports.tables import Notes, amount, estimate, name_cell, named_table
from p2l.report import Cell, Column, Table, Value

__all__ = ["DIMENSIONS", "parts", "ranking"]

DIMENSIONS = ("student", "judge", "teacher", "task", "factor")
_ACROSS = ("task", "factor", "judge", "teacher", "attribute")
_MODELS = ("judge", "teacher")
_OPEN, _SHORT = 4, 8  # tables of tasks that may lie open together, rows of one


def parts(result: StudentReport) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    tasks = [(task, _task(result, task)) for task in result.header.tasks]
    return {
        "ranking": ranking(result.students, notes),
        "tasks": [(task, table) for task, table in tasks if table],
        "without_scores": [task for task, table in tasks if not table],
        "crowded": len(tasks) > _OPEN or len(result.students) > _SHORT,
        "grids": [(across, _grid(result, across)) for across in _ACROSS],
        "pairs": _pairs(result, notes),
        "power": _power(result, notes),
        "variance": _variance(result),
        "labels": _labels(result.labels, notes),
        "label_values": _label_values(result.label_values, notes),
        "contents": [
            ("ranking", "Ranking"),
            ("tasks", "By task"),
            ("grids", "Strengths"),
            ("sure", "How sure"),
            ("variance", "Where scores come from"),
            ("labels", "Labels"),
        ],
    }


def ranking(students: tuple[StudentRow, ...], notes: Notes) -> Table | None:
    """Students in order, with intervals."""
    columns = [
        Column("rank"),
        Column("student", number=False),
        Column("mean", note=f"of all scores{_weighted(students)}; the bar is a 95 % interval over items"),
        Column("mean over tasks", note="mean of the tasks' means: no task counts more for having more factors"),
        Column("without self", note="without the scores that it gave itself"),
        Column("1 to 5", 2, note="1 + 4 mean"),
        Column("scores"),
        Column("answers"),
        Column("items"),
    ]
    is_weighted = bool(_weighted(students))
    if is_weighted:
        columns.append(Column("unweighted", 3, note="the mean if all factors counted alike"))
    rows: list[list[Value]] = [
        [
            row.rank,
            name_cell("student", row.student, notes),
            estimate(row.mean, row.lower, row.upper),
            estimate(row.macro, row.macro_lower, row.macro_upper),
            estimate(row.without_self, row.without_self_lower, row.without_self_upper),
            row.composite,
            row.valid_evals,
            row.responses,
            row.datapoints,
            *([row.unweighted] if is_weighted else []),
        ]
        for row in students
    ]
    return named_table(columns, rows, barred=(2, 3))


def _weighted(students: tuple[StudentRow, ...]) -> str:
    return ", weighted by factor" if any(row.unweighted != row.mean for row in students) else ""


def _task(result: StudentReport, task: str) -> Table | None:
    """The ranking of one task."""
    notes = notes_of(result.header)
    cells = [cell for cell in result.cells if cell.dimension == "task" and cell.value == task]
    cells.sort(key=lambda cell: -cell.mean)
    columns = [Column("rank"), Column("student", number=False), Column("mean"), Column("scores")]
    rows: list[list[Value]] = [
        [
            place,
            name_cell("student", cell.student, notes),
            estimate(cell.mean, cell.lower, cell.upper),
            cell.units,
        ]
        for place, cell in enumerate(cells, 1)
    ]
    return named_table(columns, rows, barred=[2])


def _grid(result: StudentReport, across: str) -> Grid:
    cells = [cell for cell in result.cells if cell.dimension == across]
    values = [
        (cell.student, cell.value, cell.mean, f"{cell.lower:.3f} to {cell.upper:.3f}, from {cell.units:,} scores")
        for cell in cells
    ]
    order = ([row.student for row in result.students], getattr(result.header, f"{across}s", ()))
    why = "There is nothing to show: no valid scores" + (" of items with attributes." if across == "attribute" else ".")
    return grid_of(
        ("student", across), values, notes=notes_of(result.header), own=across in _MODELS, order=order, empty=why
    )


def _pairs(result: StudentReport, notes: Notes) -> Table | None:
    columns = [
        Column("better", number=False),
        Column("worse", number=False),
        Column("difference"),
        Column("p", 4, note="two-sided"),
        Column("significant", number=False, note="below 0.05 after Holm's correction for all pairs"),
        Column("items in common"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", pair.better, notes),
            name_cell("student", pair.worse, notes),
            estimate(pair.difference, pair.lower, pair.upper),
            Cell("< 0.0001", pair.p_value) if pair.p_value < 1e-4 else pair.p_value,
            Cell("yes", "yes", "good") if pair.significant else Cell("no", "no", "quiet"),
            pair.datapoints,
        ]
        for pair in result.pairs
    ]
    return named_table(columns, rows, barred=[2], zero=0.0)


def _power(result: StudentReport, notes: Notes) -> Table | None:
    columns = [
        Column("better", number=False),
        Column("worse", number=False),
        Column("difference", 3),
        Column("sd", 3, note="of the difference on one item"),
        Column("items it has"),
        Column("items it needs", note="to find this difference in 80 of 100 runs, two-sided at 5 %"),
        Column("power", 2, note="chance to find it with the items it has"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", one.better, notes),
            name_cell("student", one.worse, notes),
            one.difference,
            one.sd,
            one.datapoints,
            one.needed,
            one.power,
        ]
        for one in result.power
    ]
    return named_table(columns, rows)


def _variance(result: StudentReport) -> Table | None:
    rows: list[list[Value]] = [[row.source, amount(row.share, 3), row.variance] for row in result.variance]
    columns = [Column("source", number=False), Column("share"), Column("variance", 5)]
    return named_table(columns, rows, barred=[1], zero=0.0)


def _labels(labels: tuple[LabelRow, ...], notes: Notes) -> Table | None:
    columns = [
        Column("student", number=False),
        Column("task", number=False),
        Column("label", number=False),
        Column("accuracy", 3, note="among answers from which a label could be read"),
        Column("strict accuracy", note="among all answers"),
        Column("right"),
        Column("read"),
        Column("not read"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", row.student, notes),
            name_cell("task", row.task, notes),
            row.attribute,
            row.accuracy,
            amount(row.strict_accuracy, 3),
            row.n_matched,
            row.n_total,
            row.n_skipped,
        ]
        for row in labels
    ]
    return named_table(columns, rows, barred=[4], zero=0.0)


def _label_values(values: tuple[LabelValueRow, ...], notes: Notes) -> Table | None:
    columns = [
        Column("student", number=False),
        Column("task", number=False),
        Column("label", number=False),
        Column("value", number=False),
        Column("precision", 3),
        Column("recall", 3),
        Column("F1", 3),
        Column("items"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("student", row.student, notes),
            name_cell("task", row.task, notes),
            row.attribute,
            row.label,
            row.precision,
            row.recall,
            row.f1,
            row.support,
        ]
        for row in values
    ]
    return named_table(columns, rows)
