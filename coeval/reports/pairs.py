"""Pages on preferences and people: students ranked by pairs of answers, and judges beside people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coeval.analysis.annotations import WHY, PeopleAgreement
from coeval.analysis.people import Calibration
from coeval.pairs.board import PairBoardRow, PairsReport
from coeval.reports.findings import people
from coeval.reports.judges import flips_table
from coeval.reports.pieces import Computed, frame, name_cell, table
from p2l.common.report.tables import Cell, Column, Table, render, write_page
from p2l.likelihood import get


def pairs_context(report: PairsReport) -> dict[str, Any]:
    """Return what the page of pairs shows."""
    header = report.header
    boards: dict[tuple[str, str], list[PairBoardRow]] = {}
    for row in report.rows:
        boards.setdefault((row.task, row.attribute), []).append(row)
    tasks = [(task, table(rows, header)) for (task, attribute), rows in boards.items() if not attribute]
    return {
        "overall": tasks[0][1] if tasks else None,
        "boards": tasks[1:],
        "crowded": len(tasks) > 5 or len(header.students) > 8,
        "attributes": [(f"{task}: {name}", table(rows, header)) for (task, name), rows in boards.items() if name],
        "sources": [
            ("verdicts on pairs", f"{report.native:,}"),
            ("from scores", f"{report.derived:,}"),
            ("self-judged, left out", f"{report.self_judged:,}"),
            ("model", get(report.likelihood).title),
        ],
        "why_none": report.why_none,
        "flips": flips_table(report.flips, header),
    }


# Calibrate: judges beside people who scored some of the answers, and students' scores calibrated by them.

_ABOUT = "How far judges agree with people who scored some of the answers, and the students' scores that follow."
_STUDENT = ("rank", "student", "calibrated", "raw", "raw_rank", "units", "people", "people_pairs", "gap")


def write_people(report: Calibration, folder: Path) -> Path:
    """Write the page as `index.html`. Raise InputError if it cannot be written."""
    context = {**frame(report.header, "Judges and people", _ABOUT), **_people_context(report)}
    context["finding"] = people(report)
    return write_page(render("coeval.reports/people.html", cube="", dimensions=(), **context), folder / "index.html")


def _people_context(report: Calibration) -> dict[str, Any]:
    header, factor = report.header, Computed(Column("factor", number=False), lambda row: row.factor or "all")
    return {
        "students": table(report.students, header, _STUDENT),
        "agreement": _agreement(report, [row for row in report.agreement if row.dimension == "all"]),
        "narrow": _agreement(report, [row for row in report.agreement if row.dimension != "all"], by_value=True),
        "alone": all(row.kind == "judge" for row in report.agreement),
        "judges": table(report.judges, header, ("judge", factor, "pairs", "datapoints", "mae_raw", "mae_calibrated")),
        "maps": table(
            report.maps, header, ("judge", factor, "score", "level", "people", "calibrated", "pairs", "units")
        ),
        "few": [row.judge for row in report.judges if row.few],
        "without_map": report.without_map,
        "sources": [
            ("rows of the file", f"{report.rows_read:,}"),
            ("scores of people", f"{report.annotations:,}"),
            ("annotators", f"{len(report.annotators):,}"),
        ],
        "left_out": [(row.count, WHY.get(row.code, row.code), row.example) for row in report.left_out],
    }


def _agreement(report: Calibration, rows: Iterable[PeopleAgreement], *, by_value: bool = False) -> Table | None:
    def rater(row: PeopleAgreement) -> Cell:
        if row.kind == "judge":
            return name_cell(report.header, "judge", row.rater)
        name = "people among themselves" if row.kind == "people" else f"{row.rater} beside the others"
        return Cell(name, name.casefold())

    value = Computed(Column("", number=False), lambda row: name_cell(report.header, row.dimension, row.value))
    slices = ("dimension", value) if by_value else ()
    figures = ("equal", "weighted", "kappa", "spearman", "bias")
    columns = (Computed(Column("rater", number=False), rater), *slices, *figures, "rows", "datapoints")
    return table(rows, report.header, columns)
