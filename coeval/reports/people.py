"""Report calibrate: judges beside people who scored some of the answers, and students put right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coeval.people.agreement import PeopleAgreement
from coeval.people.annotations import WHY
from coeval.people.calibration import Calibration
from coeval.reports.frame import Place, frame, notes_of
from coeval.reports.tables import Notes, estimate, name_cell, named_table
from p2l.report import Cell, Column, Table, Value, render, write_page

__all__ = ["parts", "write_people"]

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
    shown = {**frame(found.header, "Judges and people", _ABOUT, Place()), **parts(found)}
    return write_page(render("coeval.reports/people.html", cube="", dimensions=(), **shown), folder / "index.html")


def parts(found: Calibration) -> dict[str, Any]:
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
        "sources": _sources(found),
        "left_out": [(row.count, WHY.get(row.code, row.code), row.example) for row in found.left_out],
        "contents": [("ranking", "Students"), ("agreement", "Agreement"), ("maps", "What scores are worth")],
    }


def _sources(found: Calibration) -> list[tuple[str, str]]:
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
