"""Report score-distribution: how High, Medium and Low spread over students, teachers and judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from coeval.analysis.results import DistributionRow, DriftRow, ScoreDistribution
from coeval.reports.frame import notes_of
from coeval.reports.pieces import Grid, LevelRow, grid_of, levels_of
from coeval.reports.tables import Spark, sparks

__all__ = ["DIMENSIONS", "drift_lines", "parts"]

DIMENSIONS = ("student", "teacher", "judge", "task", "factor")
"""What the page filters by."""
_ROLES = ("student", "teacher", "judge")
_ACROSS = ("task", "factor", "student", "teacher", "judge", "attribute")


def parts(result: ScoreDistribution) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    panels = [(role, levels_of(map(_counts, _rows(result, role, "all")), role, notes)) for role in _ROLES]
    by = [(kind, _over(result, kind)) for kind in ("task", "factor", "attribute")]
    return {
        "panels": panels,
        "by": [(kind, levels_of(rows, kind, notes)) for kind, rows in by],
        "grids": [(role, _grids(result, role)) for role in _ROLES],
        "drift": drift_lines(result.drift, "mean"),
        "numeric": any(row.numeric for row in result.rows),
        "contents": [
            ("levels", "Levels"),
            ("by", "By task, factor and attribute"),
            ("grids", "Means"),
            ("drift", "Drift"),
        ],
    }


def _rows(result: ScoreDistribution, role: str, dimension: str) -> Iterable[DistributionRow]:
    return (row for row in result.rows if row.role == role and row.dimension == dimension)


def _counts(row: DistributionRow) -> tuple[str, int, float, DistributionRow, int]:
    return row.model, row.units, row.mean, row, row.numeric


def _over(result: ScoreDistribution, kind: str) -> list[tuple[str, int, float, LevelRow, int]]:
    """A value of a dimension over all students, whose units add up to all."""
    found: dict[str, list[DistributionRow]] = defaultdict(list)
    for row in _rows(result, "student", kind):
        found[row.value].append(row)
    return [(value, *_sum(value, rows)) for value, rows in found.items()]


def _sum(value: str, rows: list[DistributionRow]) -> tuple[int, float, LevelRow, int]:
    units = sum(row.units for row in rows)
    mean = sum(row.mean * row.units for row in rows) / units if units else 0.0
    high, medium, low = (sum(getattr(row, level) for row in rows) for level in ("high", "medium", "low"))
    return units, mean, LevelRow(value, "", units, mean, high, medium, low), sum(row.numeric for row in rows)


def _grids(result: ScoreDistribution, role: str) -> list[tuple[str, Grid]]:
    return [(across, _grid(result, role, across)) for across in _ACROSS if across != role]


def _origin(row: DistributionRow) -> str:
    return f"from {row.units:,} scores, {row.high:,} High, {row.medium:,} Medium, {row.low:,} Low"


def _grid(result: ScoreDistribution, role: str, across: str) -> Grid:
    header = result.header
    rows = [(row.model, row.value, row.mean, _origin(row)) for row in _rows(result, role, across)]
    order = (getattr(header, f"{role}s"), getattr(header, f"{across}s", ()))
    return grid_of((role, across), rows, notes=notes_of(header), own=across in _ROLES, order=order)


def drift_lines(rows: Iterable[DriftRow], what: str) -> list[Spark]:
    """A line for each judge over its windows."""
    found: dict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        found[row.judge].append(getattr(row, what))
    return sparks(found.items(), "mean score" if what == "mean" else "agreement with peers")
