"""Report robust-summary: the ranking on items on which good judges were of one mind, against the ranking on all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from coeval.analysis.results import RobustSettings, RobustStudent, RobustSummary
from coeval.reports.frame import notes_of
from coeval.reports.judge_report import agreement_columns, agreement_row
from coeval.reports.pieces import Grid, grid_of, signed_text
from coeval.reports.tables import Notes, amount, estimate, name_cell, named_table
from p2l.report import Cell, Column, Table, Value

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("student", "teacher", "judge", "task", "factor")
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


def parts(result: RobustSummary) -> dict[str, Any]:
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
        "grids": [(across, _grid(result, across)) for across in ("task", "factor")],
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


def _grid(result: RobustSummary, across: str) -> Grid:
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
