"""Report coverage-summary: what the run should hold, what it holds, and what of that can be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.columns import Columns
from coeval.analysis.results import CoverageRow, CoverageSummary
from coeval.config.schema import PHASES
from coeval.reports.frame import notes_of
from coeval.reports.pieces import Grid, grid_of
from coeval.reports.tables import amount, name_cell, named_table
from p2l.report import Cell, Column, Table, Value

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("task", "teacher", "student", "judge")
_CONTENTS = (
    ("coverage", "Evaluations"),
    ("errors", "What went wrong"),
    ("phases", "Records by phase"),
    ("strata", "Attributes"),
    ("meta", "The run"),
)
_GRIDS = (("task", "judge"), ("teacher", "student"), ("student", "judge"))
_SHOWN = 300
"""Combinations of models on the page: a run of twenty models has 32,000, of which the thinnest matter."""


def parts(result: CoverageSummary) -> dict[str, Any]:
    """What the template shows."""
    sums = [int(result.rows.values[name].sum()) for name in ("expected", "actual", "valid", "failed")]
    return {
        "sums": list(zip(("expected", "stored", "valid", "failed"), (f"{count:,}" for count in sums), strict=True)),
        "grids": [(f"{rows} and {columns}", _grid(result, rows, columns)) for rows, columns in _GRIDS],
        "rows": _rows(result),
        "verdicts": result.header.verdicts,
        "combinations": len(result.rows),
        "shown": min(_SHOWN, len(result.rows)),
        "errors": _errors(result),
        "phases": _phases(result),
        "meta": _meta(result.meta),
        "strata": _strata(result),
        "contents": _CONTENTS,
    }


def _grid(result: CoverageSummary, kind: str, across: str) -> Grid:
    found = result.rows
    cells, cell = np.unique(found.values[kind] * len(found.names[across]) + found.values[across], return_inverse=True)
    expected, valid = (np.bincount(cell, found.values[name]).astype(int) for name in ("expected", "valid"))
    values = [
        (
            found.names[kind][key // len(found.names[across])],
            found.names[across][key % len(found.names[across])],
            good / due if due else None,
            f"{good:,} of {due:,} evaluations",
        )
        for key, due, good in zip(cells.tolist(), expected.tolist(), valid.tolist(), strict=True)
    ]
    order = (getattr(result.header, f"{kind}s"), getattr(result.header, f"{across}s"))
    own = "task" not in (kind, across)
    why = "No evaluation was expected."
    return grid_of((kind, across), values, notes=notes_of(result.header), own=own, order=order, empty=why)


def _thinnest(rows: Columns[CoverageRow]) -> Columns[CoverageRow]:
    """Those with the smallest share of what is expected."""
    expected: npt.NDArray[Any] = rows.values["expected"]
    share = np.where(expected > 0, rows.values["valid"] / np.maximum(expected, 1), 1.0)
    return rows.where(np.argsort(share, kind="stable")[:_SHOWN])


def _rows(result: CoverageSummary) -> Table | None:
    notes = notes_of(result.header)
    kinds = ("task", "teacher", "student", "judge")
    columns = [
        *(Column(kind, number=False) for kind in kinds),
        Column("expected", note="items of the teacher in the task"),
        Column("stored"),
        Column("valid"),
        Column("failed"),
        Column("valid share"),
    ]
    rows: list[list[Value]] = [
        [
            *(name_cell(kind, getattr(row, kind), notes) for kind in kinds),
            row.expected,
            row.actual,
            row.valid,
            row.failed,
            _part(row),
        ]
        for row in _thinnest(result.rows)
    ]
    return named_table(columns, rows)


def _part(row: CoverageRow) -> Cell | None:
    if not row.expected:
        return None
    part = row.valid / row.expected
    return Cell(f"{part:.0%}", part, "bad" if part < 0.9 else "")


def _errors(result: CoverageSummary) -> Table | None:
    columns = [Column("code", number=False), Column("records"), Column("for example", number=False, wide=True)]
    rows: list[list[Value]] = [[one.code, amount(one.count, 0), one.example] for one in result.header.skipped]
    return named_table(columns, rows, barred=[1], zero=0.0)


def _phases(result: CoverageSummary) -> list[tuple[str, Table | None]]:
    """Counts of each phase, over all and by model."""
    notes = notes_of(result.header)
    columns = [Column("by", number=False), Column("", number=False), Column("records"), Column("failed")]
    made = []
    found = {row.phase for row in result.counts}
    for phase in (*(name for name in PHASES if name in found), *sorted(found - set(PHASES))):
        rows: list[list[Value]] = [
            [
                row.dimension,
                name_cell(row.dimension, row.value, notes) if row.value else None,
                row.records,
                Cell(f"{row.failed:,}", row.failed, "bad" if row.failed else "quiet"),
            ]
            for row in result.counts
            if row.phase == phase
        ]
        made.append((phase, named_table(columns, rows)))
    return made


def _meta(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(key).replace("_", " "), _text(value)) for key, value in meta.items() if value not in (None, [], {}, "")
    ]


def _text(value: Any) -> str:
    """A value of meta.json for a reader."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(one) for one in value)
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _strata(result: CoverageSummary) -> Table | None:
    notes = notes_of(result.header)
    columns = [
        Column("task", number=False),
        Column("combinations", note="of one value of each declared target attribute"),
        Column("with an item"),
        Column("share"),
        Column("with one or two items"),
        Column("values", note="declared values of all target attributes"),
        Column("values with an item"),
        Column("share of values"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("task", row.task, notes),
            row.strata,
            row.covered,
            amount(row.coverage, 2),
            row.rare,
            row.values,
            row.values_covered,
            amount(row.value_coverage, 2),
        ]
        for row in result.strata
        if row.values
    ]
    return named_table(columns, rows, barred=(3, 7), zero=0.0)
