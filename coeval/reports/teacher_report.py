"""Report teacher-report: whose items tell students apart."""

from __future__ import annotations

from typing import Any

from coeval.analysis.results import TeacherReport
from coeval.reports.frame import notes_of
from coeval.reports.pieces import Grid, grid_of
from coeval.reports.tables import amount, name_cell, named_table
from p2l.report import Column, Table

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("teacher", "student", "judge", "task", "factor")
_FORMULAS = {
    "v1": "mean over tasks and factors of the variance of the students' means",
    "s2": "mean over items and factors of the standard deviation of the students' scores",
    "r3": "mean over tasks and factors of the range of the students' means",
}
_ACROSS = ("factor", "task", "attribute")


def parts(result: TeacherReport) -> dict[str, Any]:
    """What the template shows."""
    order = [result.formula, *(name for name in _FORMULAS if name != result.formula)]
    return {
        "ranking": _ranking(result),
        "formula": result.formula.upper(),
        "meanings": [(name.upper(), text) for name, text in _FORMULAS.items()],
        "one_student": result.one_student,
        "grids": [(name.upper(), [(across, _grid(result, name, across)) for across in _ACROSS]) for name in order],
        "means": _means(result),
        "contents": [("ranking", "Ranking"), ("grids", "Where they tell apart"), ("means", "Means")],
    }


def _means(result: TeacherReport) -> Grid:
    cells = [row for row in result.cells if row.dimension == "factor"]
    values = [(row.teacher, row.value, row.mean, f"from {row.units:,} scores") for row in cells]
    return grid_of(("teacher", "factor"), values, notes=notes_of(result.header))


def _ranking(result: TeacherReport) -> Table | None:
    notes = notes_of(result.header)
    columns = [
        Column("rank"),
        Column("teacher", number=False),
        *(Column(name.upper(), note=text) for name, text in _FORMULAS.items()),
        Column("√V1", 4, note="the other form of S2: the square root of V1"),
        Column("items"),
        Column("scores"),
    ]
    rows = [
        [
            row.rank,
            name_cell("teacher", row.teacher, notes),
            *(amount(getattr(row, name)) for name in _FORMULAS),
            row.root_v1,
            row.items,
            row.units,
        ]
        for row in result.teachers
    ]
    return named_table(columns, rows, barred=(2, 3, 4), zero=0.0)


def _grid(result: TeacherReport, formula: str, across: str) -> Grid:
    cells = [row for row in result.cells if row.dimension == across]
    values = [
        (row.teacher, row.value, getattr(row, formula), f"mean {row.mean:.3f} of {row.units:,} scores") for row in cells
    ]
    names = getattr(result.header, f"{across}s", ())
    order = ([row.teacher for row in result.teachers], names)
    why = "There is nothing to show: no scores" + (" of items with attributes." if across == "attribute" else ".")
    return grid_of(
        ("teacher", across), values, notes=notes_of(result.header), digits=3, most=None, order=order, empty=why
    )
