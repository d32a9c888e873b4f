"""Report pairs: students ranked by which of two answers is preferred."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coeval.analysis.annotations import WHY, PeopleAgreement
from coeval.analysis.people import Calibration
from coeval.analysis.results import PairBoardRow, PairsReport
from coeval.reports.judges import flips_table
from coeval.reports.pieces import Notes, Place, estimate, frame, name_cell, named_table, notes_of
from p2l.common.report.tables import Cell, Column, Table, Value, render, write_page
from p2l.likelihood import get

PAIRS_REPORT_DIMENSIONS = ("student",)


def pairs_report_parts(result: PairsReport) -> dict[str, Any]:
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
        "sources": _pairs_report_sources(result),
        "why_none": result.why_none,
        "flips": flips_table(result.flips, notes),
        "contents": [
            *(("ranking", "Ranking"), ("tasks", "By task"), ("attributes", "By attribute")),
            ("flips", "Order of the answers"),
        ],
    }


def _pairs_report_sources(result: PairsReport) -> list[tuple[str, str]]:
    return [
        ("verdicts on pairs", f"{result.native:,}"),
        ("from scores", f"{result.derived:,}"),
        ("self-judged, left out", f"{result.self_judged:,}"),
        ("model", get(result.likelihood).title),
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


# Report calibrate: judges beside people who scored some of the answers, and students put right.

_ABOUT = "How far judges agree with people who scored some of the answers, and the students' scores that follow."
_FIGURES = (
    ("equal", "share of equal scores"),
    ("weighted", "mean of 1 - |difference|"),
    ("kappa", "of equal scores, less what chance brings"),
    ("spearman", "correlation of ranks"),
    ("bias", "mean of the rater's score less people's"),
)


def write_people(found: Calibration, folder: Path) -> Path:
    """Write the page as `index.html`.

    Raises:
        InputError: the file cannot be written.
    """
    shown = {**frame(found.header, "Judges and people", _ABOUT, Place()), **people_report_parts(found)}
    return write_page(render("coeval.reports/people.html", cube="", dimensions=(), **shown), folder / "index.html")


def people_report_parts(found: Calibration) -> dict[str, Any]:
    """What the template shows."""
    notes = notes_of(found.header)
    overall = [row for row in found.agreement if row.dimension == "all"]
    narrow = [row for row in found.agreement if row.dimension != "all"]
    return {
        "students": _students(found, notes),
        "agreement": _agreement(overall, notes),
        "narrow": _agreement(narrow, notes, by_value=True),
        "alone": all(row.kind == "judge" for row in found.agreement),
        "judges": _judges(found, notes),
        "maps": _maps(found, notes),
        "few": [row.judge for row in found.judges if row.few],
        "without_map": found.without_map,
        "sources": _people_report_sources(found),
        "left_out": [(row.count, WHY.get(row.code, row.code), row.example) for row in found.left_out],
        "contents": [("ranking", "Students"), ("agreement", "Agreement"), ("maps", "What scores are worth")],
    }


def _people_report_sources(found: Calibration) -> list[tuple[str, str]]:
    return [
        ("rows of the file", f"{found.rows_read:,}"),
        ("scores of people", f"{found.annotations:,}"),
        ("annotators", f"{len(found.annotators):,}"),
    ]


def _students(found: Calibration, notes: Notes) -> Table | None:
    columns = [
        Column("rank"),
        Column("student", number=False),
        Column("calibrated", note="mean of what the judges' scores are worth, on all answers; 95 % interval"),
        Column("raw", note="mean of the same scores as judges gave them"),
        Column("raw rank"),
        Column("scores"),
        Column("people", 3, note="mean of what people gave the answers that they scored"),
        Column("people's scores", note="(answer, factor) that people scored"),
        Column("gap", note="people less calibrated judges on those answers"),
    ]
    rows: list[list[Value]] = [
        [
            row.rank,
            name_cell("student", row.student, notes),
            estimate(row.calibrated, row.lower, row.upper),
            estimate(row.raw, row.raw_lower, row.raw_upper),
            row.raw_rank,
            row.units,
            row.people,
            row.people_pairs,
            estimate(row.gap, row.gap_lower, row.gap_upper),
        ]
        for row in found.students
    ]
    return named_table(columns, rows, barred=(2, 3, 8))


def _agreement(chosen: Iterable[PeopleAgreement], notes: Notes, *, by_value: bool = False) -> Table | None:
    columns = [Column("rater", number=False)]
    columns += [Column("of", number=False), Column("", number=False)] if by_value else []
    columns += [Column(name, note=note) for name, note in _FIGURES]
    columns += [Column("comparisons"), Column("items")]
    rows: list[list[Value]] = []
    for row in chosen:
        where: list[Value] = [row.dimension, name_cell(row.dimension, row.value, notes)] if by_value else []
        figures = [_figure(row, name) for name, _ in _FIGURES]
        rows.append([_rater(row, notes), *where, *figures, row.rows, row.datapoints])
    first = 3 if by_value else 1
    return named_table(columns, rows, barred=range(first, first + len(_FIGURES)))


def _rater(row: PeopleAgreement, notes: Notes) -> Cell:
    if row.kind == "judge":
        return name_cell("judge", row.rater, notes)
    name = "people among themselves" if row.kind == "people" else f"{row.rater} beside the others"
    return Cell(name, name.casefold())


def _figure(row: PeopleAgreement, name: str) -> Cell | None:
    return estimate(*(getattr(row, f"{name}{ending}") for ending in ("", "_lower", "_upper")))


def _judges(found: Calibration, notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("factor", number=False),
        Column("compared", note="(answer, factor) that the judge and people scored"),
        Column("items"),
        Column("distance", 3, note="mean distance from people's scores"),
        Column("calibrated", 3, note="the same after a map made of other items"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes),
            row.factor or "all",
            row.pairs,
            row.datapoints,
            row.mae_raw,
            row.mae_calibrated,
        ]
        for row in found.judges
    ]
    return named_table(columns, rows)


def _maps(found: Calibration, notes: Notes) -> Table | None:
    columns = [
        Column("judge", number=False),
        Column("factor", number=False),
        Column("score", 3),
        Column("level", number=False),
        Column("people", note="mean of what people gave; 95 % interval"),
        Column("worth", 3, note="the same, made never to fall"),
        Column("compared"),
        Column("in the run"),
    ]
    rows: list[list[Value]] = [
        [
            name_cell("judge", row.judge, notes),
            row.factor or "all",
            row.score,
            row.level,
            estimate(row.people, row.lower, row.upper),
            row.calibrated,
            row.pairs,
            row.units,
        ]
        for row in found.maps
    ]
    return named_table(columns, rows, barred=[4])
