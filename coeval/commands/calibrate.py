"""Command: `coeval analyze calibrate --run PATH --annotations FILE --out PATH`, judges beside people.

It reports how far each judge agrees with people who scored some of the answers, what each judge's score is worth by the
people's scores of such answers, and the students' scores on all answers that follow.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coeval.cli import run_flags
from p2l.common.cli import counted

if TYPE_CHECKING:
    from coeval.analysis.people import Calibration


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze calibrate`."""
    flags = run_flags("analyze calibrate", "Compare judges with people who scored some of the answers.")
    flags.add_argument(
        "--annotations",
        required=True,
        type=Path,
        metavar="FILE",
        help="CSV or JSON lines: response_id (or datapoint_id and student), factor, score, and annotator if known",
    )
    flags.add_argument("--out", required=True, type=Path, metavar="PATH", help="folder for the page and the tables")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; it ends with 1 where the folder holds no run, or no annotation can be used."""
    args = build_parser().parse_args(argv)
    from coeval.analysis.annotations import WHY, read_annotations
    from coeval.analysis.people import calibration
    from coeval.analysis.tables import write_tables
    from coeval.analysis.units import load_run
    from coeval.reports.pairs import write_people

    loaded = load_run(args.run)
    annotations = read_annotations(args.annotations, loaded)
    for row in annotations.bad:
        print(f"left out: {row.count} {row.code}: {WHY[row.code]}; such as {row.example}", file=sys.stderr)
    report = calibration(loaded, annotations)
    tables = write_tables(cast("Any", report), args.out)
    print(text_of(report))
    print(f"wrote {write_people(report, args.out)} and {len(tables)} tables")
    return 0


def text_of(report: Calibration) -> str:
    """Return the main figures, in lines."""
    people = counted(len(report.annotators), "annotator")
    lines = [f"{counted(report.annotations, 'score')} of {people}"]
    for row in report.agreement:
        if row.dimension == "all" and row.kind != "annotator":
            kappa = "-" if row.kappa is None else f"{row.kappa:.3f}"
            who = row.rater if row.kind == "judge" else "people among themselves"
            lines.append(
                f"{who}: equal {row.equal:.3f}, weighted {row.weighted:.3f}, kappa {kappa}, {counted(row.rows, 'row')}"
            )
    for one in report.students:
        lines.append(
            f"{one.rank}. {one.student}: {one.raw:.3f} -> {one.calibrated:.3f} [{one.lower:.3f}, {one.upper:.3f}]"
        )
    if report.without_map:
        lines.append(f"no map, left out: {', '.join(report.without_map)}")
    return "\n".join(lines)
