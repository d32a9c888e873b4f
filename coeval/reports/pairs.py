"""Report pairs: students ranked by which of two answers is preferred."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coeval.analysis.results import PairBoardRow, PairsReport
from coeval.reports.frame import notes_of
from coeval.reports.judge_report import flips_table
from coeval.reports.tables import Notes, estimate, name_cell, named_table
from p2l.report import Column, Table, Value

__all__ = ["DIMENSIONS", "parts"]

DIMENSIONS = ("student",)
_LIKELIHOODS = {"bt": "Bradley-Terry, ties left out", "rk": "Rao-Kupper, ties counted", "grk": "Rao-Kupper, grounded"}


def parts(result: PairsReport) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(result.header)
    boards: dict[tuple[str, str], list[PairBoardRow]] = {}
    for row in result.rows:
        boards.setdefault((row.task, row.attribute), []).append(row)
    tables = [(task, _board(rows, notes)) for (task, attribute), rows in boards.items() if not attribute]
    parts = [(f"{task}: {name}", _board(rows, notes)) for (task, name), rows in boards.items() if name]
    return {
        "overall": tables[0][1] if tables else None,
        "boards": tables[1:],
        "crowded": len(tables) > 5 or len(result.header.students) > 8,
        "attributes": parts,
        "sources": _sources(result),
        "why_none": result.why_none,
        "flips": flips_table(result.flips, notes),
        "contents": [
            *(("ranking", "Ranking"), ("tasks", "By task"), ("attributes", "By attribute")),
            ("flips", "Order of the answers"),
        ],
    }


def _sources(result: PairsReport) -> list[tuple[str, str]]:
    return [
        ("verdicts on pairs", f"{result.native:,}"),
        ("from scores", f"{result.derived:,}"),
        ("self-judged, left out", f"{result.self_judged:,}"),
        ("model", _LIKELIHOODS.get(result.likelihood, result.likelihood)),
    ]


def _board(rows: Iterable[PairBoardRow], notes: Notes) -> Table | None:
    columns = [
        Column("rank"),
        Column("student", number=False),
        Column("score", note="as of chess ratings: 400 more is ten wins to one; the bar is a 95 % interval over items"),
        Column("win rate", 3, note="expected against the others"),
        Column("preferences"),
    ]
    cells: list[list[Value]] = [
        [
            row.rank,
            name_cell("student", row.student, notes),
            estimate(row.score, row.lower, row.upper, 0),
            row.win_rate,
            row.votes,
        ]
        for row in rows
    ]
    return named_table(columns, cells, barred=[2])
