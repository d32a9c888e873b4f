"""Pages on judges: how far they agree, what may be wrong with them, how they use the scale; on pairs; and on people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coeval.analysis.agreement import LEAST_COVERAGE, JudgeReport, JudgeRow
from coeval.analysis.annotations import WHY, PeopleAgreement
from coeval.analysis.bias import FlipRow
from coeval.analysis.distribution import JudgeConsistency
from coeval.analysis.judge_tests import CONSTANT, RANDOM
from coeval.analysis.people import Calibration
from coeval.analysis.units import Header
from coeval.pairs.board import PairBoardRow, PairsReport
from coeval.reports.findings import people
from coeval.reports.pieces import (
    NOTHING,
    Computed,
    Grid,
    drift_lines,
    frame,
    grid_across,
    grid_of,
    missing_table,
    name_cell,
    percent,
    table,
)
from p2l.common.report.tables import Cell, Column, Table, render, write_page
from p2l.likelihood import get

METRICS = {
    "spa": ("SPA", "share of equal levels"),
    "wpa": ("WPA", "mean closeness: equal 1, adjacent 0.5, opposite 0; of numbers 1 less their distance"),
    "kappa": ("κ", "agreement beyond chance: 0 is chance, 1 is full agreement"),
}
"""Metric -> its name and what it is."""


def judge_context(report: JudgeReport) -> dict[str, Any]:
    """Return the context of the page of judges."""
    header, order = report.header, [report.metric, *(name for name in METRICS if name != report.metric)]
    unranked = [row for row in report.judges if row.rank is None]
    dimensions = ("factor", "task", "teacher", "student")
    bias = report.bias
    places = {row.judge: place for place, row in enumerate(report.judges)}  # one order for all tables of judges
    judge = Computed(
        Column("judge", number=False),
        lambda row: name_cell(header, "judge", row.judge) if row.judge else "all judges",
    )
    return {
        "by_scores": bool(header.units) or not header.verdicts,
        "ranking": agreement_table(report.judges, header),
        "metric": METRICS[report.metric][0],
        "meanings": list(METRICS.values()),
        "degenerate": report.degenerate,
        "few": [row.judge for row in unranked if row.coverage < LEAST_COVERAGE],
        "alone": [row.judge for row in unranked if row.coverage >= LEAST_COVERAGE],
        "matrices": [(METRICS[name][0], _matrix(report, name)) for name in order],
        "pairs": table(report.pairs, header),
        "breakdown": [
            (METRICS[name][0], [(across, _breakdown(report, name, across)) for across in dimensions]) for name in order
        ],
        "reliability": table(
            [row for row in report.reliability if row.judges],
            header,
            ("scope", "value", "judges", "pairs", "alpha_interval", "alpha_ordinal", "icc_single", "icc_average"),
        ),
        "scales": table(
            sorted(report.scales, key=lambda row: places.get(row.judge, len(places))),
            header,
            None if header.units else ("judge", "sharpness", "reliability", "weight", "flags"),
        ),
        "tests": table(report.tests, header),
        "blunt": [row.judge for row in report.scales if {CONSTANT, RANDOM} & set(row.flags.split(", "))],
        "self_preference": table(
            bias.self_preference, header, ("judge", "preference", "own", "peers", "others_gap", "units")
        ),
        "family": table(bias.family, header, ("judge", "family", "students", "preference", "units")),
        "verbosity": table(bias.verbosity, header, (judge, "within_datapoint_r", "r", "responses")),
        "flips": _flips_table(bias.flips, header),
        "positions": table(bias.positions, header),
    }


def agreement_table(rows: Iterable[JudgeRow], header: Header, *first: Computed) -> Table | None:
    """Return a ranking of judges; columns that come `first` may be added."""
    note = "its scores as a share of those of the judge with most of its kind"
    coverage = Computed(Column("coverage", note=note), lambda row: percent(row.coverage, 1, LEAST_COVERAGE))
    weighted = ("weighted_spa", "weighted_wpa", "weighted_kappa", "kappa_label")
    return table(rows, header, (*first, "rank", "judge", "kind", "units", *weighted, "spa", "wpa", "kappa", coverage))


def _matrix(report: JudgeReport, metric: str) -> Grid:
    values = [
        (*names, getattr(pair, metric), f"{pair.n:,} scores in common")
        for pair in report.pairs
        for names in ((pair.judge_a, pair.judge_b), (pair.judge_b, pair.judge_a))
    ]
    ranked = [row.judge for row in report.judges]
    empty = "There are no two judges that scored the same answers."
    return grid_of(report.header, ("judge", "judge"), values, rows=ranked, columns=ranked, empty=empty)


def _breakdown(report: JudgeReport, metric: str, across: str) -> Grid:
    origin, ranked = "{n:,} scores in common", [row.judge for row in report.judges]
    return grid_across(
        report.header,
        "judge",
        across,
        report.breakdown,
        origin,
        metric,
        rows=ranked,
        own=across != "task",
        empty=f"{NOTHING}: no two judges scored the same answers.",
    )


def _flips_table(flips: Iterable[FlipRow], header: Header) -> Table | None:
    """Return how often judges change their verdict with the order of the answers."""
    return table(flips, header, ("judge", "flip_rate", "flips", "inconsistent", "pairs", "first_share"))


# Consistency: how each judge uses the scale, by attribute and over time.


def consistency_context(report: JudgeConsistency) -> dict[str, Any]:
    """Return the context of the page of judges' consistency."""
    spread = [
        (row.judge, f"{row.attribute}={row.value}", row.variance, f"mean {row.mean:.3f} of {row.units:,} scores")
        for row in report.spread
    ]
    attributes = dict.fromkeys(row.attribute for row in report.spread)
    empty = f"{NOTHING}: no scores of items with attributes."
    return {
        "calibration": report.calibration,
        "numeric": {row.judge: max(0.0, 1.0 - row.high - row.medium - row.low) for row in report.calibration},
        "flagged": [row.judge for row in report.calibration if row.flagged],
        "variance": grid_of(report.header, ("judge", "attribute"), spread, digits=3, most=None, empty=empty),
        "boxes": [(name, [row for row in report.spread if row.attribute == name]) for name in attributes],
        "drift": drift_lines(report.drift, "mean"),
        "agreement": drift_lines(report.drift, "spa"),
    }


# Preferences and people: students ranked by pairs of answers, and judges beside people.


def pairs_context(report: PairsReport) -> dict[str, Any]:
    """Return the context of the page of pairs."""
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
            ("judges left out", ", ".join(f"{judge} ({why})" for judge, why in report.flagged.items()) or "none"),
            *([("but on", f"{', '.join(report.only_flagged)}: none else compared it")] if report.only_flagged else []),
            *([("model", get(report.likelihood).title)] if report.likelihood else []),
        ],
        "follows_fit": report.follows_fit,
        "why_none": report.why_none,
        "own_items": table(report.own_items, header),
        "missing": missing_table(report.missing, header),
        "flips": _flips_table(report.flips, header),
    }


# Calibrate: judges beside people who scored some of the answers, and students' scores calibrated by them.

_ABOUT = "How far judges agree with people who scored some of the answers, and the students' scores that follow."
_STUDENT = ("rank", "student", "calibrated", "tied", "labels", "gap", "gap_doubt", "raw", "raw_rank")


def write_people(report: Calibration, folder: Path) -> Path:
    """Write the page as `index.html`. Raise InputError if it cannot be written."""
    header, factor = report.header, Computed(Column("factor", number=False), lambda row: row.factor or "all")
    context = {
        **frame(header, "Judges and people", _ABOUT),
        "finding": people(report),
        "students": table(report.students, header, _STUDENT),
        "next": table(report.next, header, ("response_id", "student", "factor")),
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
    return write_page(render("coeval.reports/people.html", cube="", dimensions=(), **context), folder / "index.html")


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
