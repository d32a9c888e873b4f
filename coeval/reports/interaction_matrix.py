"""Report interaction-matrix: which students do well on whose items."""

from __future__ import annotations

from typing import Any

from coeval.analysis.results import InteractionMatrix
from coeval.reports.frame import notes_of
from coeval.reports.pieces import Grid, grid_of

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("teacher", "student", "judge", "task", "factor")


def parts(result: InteractionMatrix) -> dict[str, Any]:
    """What the template shows."""
    factors = [name for name in result.header.factors if any(cell.factor == name for cell in result.cells)]
    return {
        "means": _grid(result, ""),
        "deviations": _grid(result, "", deviation=True),
        "factors": [(name, _grid(result, name), _grid(result, name, deviation=True)) for name in factors],
        "contents": [("means", "Means"), ("deviations", "Deviations"), ("factors", "By factor")],
    }


def _grid(result: InteractionMatrix, factor: str, *, deviation: bool = False) -> Grid:
    what = "deviation" if deviation else "mean"
    values = [
        (cell.teacher, cell.student, getattr(cell, what), f"from {cell.units:,} scores")
        for cell in result.cells
        if cell.factor == factor
    ]
    order = (result.header.teachers, result.header.students)
    return grid_of(
        ("teacher", "student"),
        values,
        notes=notes_of(result.header),
        own=True,
        order=order,
        deviation=deviation,
        most=None if deviation else 1.0,
    )
