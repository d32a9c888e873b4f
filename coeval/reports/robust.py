"""Report robust-summary: the ranking on items on which good judges were of one mind, against the ranking on all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.results import Columns, CoverageRow, CoverageSummary, RobustSettings, RobustStudent, RobustSummary
from coeval.reports.judges import agreement_columns, agreement_row
from coeval.reports.pieces import Grid, Notes, amount, estimate, grid_of, name_cell, named_table, notes_of, signed_text
from coeval.schema import PHASES
from p2l.common.report.tables import Cell, Column, Table, Value

ROBUST_SUMMARY_DIMENSIONS = ("student", "teacher", "judge", "task", "factor")
_SIDE, _LEFT, _TOP = 300.0, 40.0, 10.0  # of the plot, in its own units
_BINS = 10


@dataclass(frozen=True)
class _Dot:
    """A student in the scatter: where, its number in the ranking, and what is read out."""

    x: float
    y: float
    label: str
    title: str
    flagged: bool


def robust_summary_parts(result: RobustSummary) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    return {
        "settings": _settings(result),
        "kept": result.kept,
        "alone": result.chosen_judges[0] if len(result.chosen_judges) == 1 else None,
        "others": sum(row.rank is not None for row in result.judges) > 1,
        "diagnostics": result.diagnostics,
        "ranking": _ranking(result.students, notes),
        "flagged": [row.student for row in result.students if row.flagged],
        "dots": [_dot(row) for row in result.students],
        "grids": [(across, _robust_summary_grid(result, across)) for across in ("task", "factor")],
        "judges": _judges(result, notes),
        "teachers": _teachers(result, notes),
        "fractions": _fractions(result),
        "contents": [("ranking", "Ranking"), ("grids", "Strengths"), ("chosen", "Who was chosen"), ("items", "Items")],
    }


def _settings(result: RobustSummary) -> list[tuple[str, str]]:
    settings = result.settings
    return [
        ("judges", settings.judge_selection.replace("_", " ")),
        ("agreement by", settings.agreement_metric.upper()),
        ("teachers by", settings.teacher_score_formula.upper()),
        *_limits(settings),
        (
            "judges chosen",
            f"{len(result.chosen_judges)} of {sum(row.rank is not None for row in result.judges)} ranked",
        ),
        ("teachers chosen", f"{len(result.chosen_teachers)} of {len(result.teachers)}"),
        ("items kept", f"{result.kept:,} of {result.candidates:,}"),
    ]


def _limits(settings: RobustSettings) -> list[tuple[str, str]]:
    if settings.theta is not None:
        return [
            ("within", f"{settings.theta:g} of the mean"),
            ("share of judges", f"{settings.q_fraction:g}"),
        ]
    threshold = settings.agreement_threshold
    return [] if threshold is None else [("of one mind on", f"{threshold:.0%} of pairs")]


def _ranking(students: tuple[RobustStudent, ...], notes: Notes) -> Table | None:
    columns = [
        Column("rank"),
        Column("student", number=False),
        Column("robust", note="mean over pairs of item and factor of the chosen judges' mean"),
        Column("on all", 3, note="all items and judges, on the factors that the chosen judges score"),
        Column("rank on all"),
        Column("difference", note="robust less all; in colour beyond 0.1"),
        Column("pairs", note="of item and factor"),
    ]
    rows: list[list[Value]] = [
        [
            row.rank,
            name_cell("student", row.student, notes),
            estimate(row.robust, row.lower, row.upper),
            row.full,
            row.full_rank,
            Cell(signed_text(row.delta, 3), row.delta, "bad" if row.flagged else ""),
            row.pairs,
        ]
        for row in students
    ]
    return named_table(columns, rows, barred=[2])


def _dot(row: RobustStudent) -> _Dot:
    """Scores on all to the right, robust ones upward, both from 0 to 1."""
    title = f"{row.student}: {row.full:.3f} on all, {row.robust:.3f} robust"
    x, y = round(_LEFT + _SIDE * row.full, 2), round(_TOP + _SIDE * (1 - row.robust), 2)
    return _Dot(x, y, str(row.rank), title, row.flagged)


def _robust_summary_grid(result: RobustSummary, across: str) -> Grid:
    values = [
        (cell.student, cell.value, cell.mean, f"{cell.lower:.3f} to {cell.upper:.3f}")
        for cell in result.cells
        if cell.dimension == across
    ]
    order = ([row.student for row in result.students], getattr(result.header, f"{across}s"))
    return grid_of(("student", across), values, notes=notes_of(result.header), order=order, empty="No item was kept.")


def _judges(result: RobustSummary, notes: Notes) -> Table | None:
    columns = [Column("chosen", number=False), *agreement_columns()]
    rows = [[_yes(row.judge in result.chosen_judges), *agreement_row(row, notes)] for row in result.judges]
    return named_table(columns, rows, barred=[5])


def _yes(chosen: bool) -> Cell:
    return Cell("yes", "0", "good") if chosen else Cell("no", "1", "quiet")


def _teachers(result: RobustSummary, notes: Notes) -> Table | None:
    formula = result.settings.teacher_score_formula.upper()
    columns = [
        Column("chosen", number=False),
        Column("teacher", number=False),
        Column(formula, note="with the chosen judges only"),
        Column("items"),
        Column("candidates"),
        Column("kept"),
        Column("kept share"),
    ]
    rows: list[list[Value]] = [
        [
            _yes(row.chosen),
            name_cell("teacher", row.teacher, notes),
            amount(row.score),
            row.items,
            row.candidates,
            row.kept,
            Cell(f"{row.kept / row.candidates:.0%}", row.kept / row.candidates) if row.candidates else None,
        ]
        for row in result.teachers
    ]
    return named_table(columns, rows, barred=[2], zero=0.0)


def _fractions(result: RobustSummary) -> Table | None:
    """How many items reach which share of pairs of one mind."""
    bins = Counter(min(_BINS - 1, int(_BINS * value)) for value in result.consistent_fraction.values())
    if not bins:
        return None
    rows: list[list[Value]] = [
        [Cell(f"{100 * place // _BINS} to {100 * (place + 1) // _BINS} %", place), amount(bins[place], 0)]
        for place in reversed(range(_BINS))
    ]
    return named_table([Column("pairs of one mind", number=False), Column("items")], rows, barred=[1], zero=0.0)


# Report coverage-summary: what the run should hold, what it holds, and what of that can be used.

COVERAGE_SUMMARY_DIMENSIONS = ("task", "teacher", "student", "judge")
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


def coverage_summary_parts(result: CoverageSummary) -> dict[str, Any]:
    """What the template shows."""
    sums = [int(result.rows.values[name].sum()) for name in ("expected", "actual", "valid", "failed")]
    return {
        "sums": list(zip(("expected", "stored", "valid", "failed"), (f"{count:,}" for count in sums), strict=True)),
        "grids": [(f"{rows} and {columns}", _coverage_summary_grid(result, rows, columns)) for rows, columns in _GRIDS],
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


def _coverage_summary_grid(result: CoverageSummary, kind: str, across: str) -> Grid:
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
