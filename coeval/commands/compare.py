"""Command: `coeval compare --before RUN --after RUN`, two runs beside each other.

Exit code 1 where a student became worse by more than `--threshold` and not by chance (95 %), so that it can stand in a
pipeline that must not let a regression through; 0 where none did; 2 where the runs cannot be compared.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import add_out
from p2l.common.cli import amount, parser

if TYPE_CHECKING:
    from coeval.analysis.compare import RunComparison


_FILES = (".json", ".jsonl", ".csv", ".html", ".xlsx", ".txt", ".md")


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval compare`."""
    flags = parser("coeval compare", "Compare two runs; exit code 1 where a student became worse, 2 for errors.")
    flags.add_argument("--before", required=True, type=Path, metavar="PATH", help="folder of the earlier run")
    flags.add_argument("--after", required=True, type=Path, metavar="PATH", help="folder of the later run")
    flags.add_argument(
        "--threshold", type=amount, default=0.02, help="largest drop of the mean score that is not a regression"
    )
    flags.add_argument("--students", metavar="A,B", help="compare only these (default: all that both runs have)")
    flags.add_argument("--per-task", action="store_true", help="a regression in a single task counts too")
    flags.add_argument("--format", choices=("table", "json"), default="table", help="what is printed")
    add_out(flags, "folder for report.json and changes.csv", required=False)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and say by the exit code whether a student became worse.

    Unlike other commands of CoEval it ends with 2, not 1, for a folder that holds no run, runs that share nothing or a
    named student that is not in both: 1 is for a regression alone.
    """
    args = build_parser().parse_args(argv)
    from p2l.common.errors import InputError

    try:
        return _compare(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compare(args: Namespace) -> int:
    import json

    if args.out is not None and args.out.suffix.lower() in _FILES:
        from coeval.errors import RunInputError

        name = args.out.with_suffix("")
        raise RunInputError(f"--out {args.out}: is a folder for report.json and changes.csv; name one, such as {name}")

    from coeval.analysis.compare import compare_runs
    from coeval.analysis.tables import plain, write_tables
    from coeval.analysis.units import load_run
    from coeval.reports.texts import comparison_text

    students = args.students.split(",") if args.students else None
    comparison = _chosen(compare_runs(load_run(args.before), load_run(args.after), args.threshold), students)
    print(json.dumps(plain(comparison), indent=2) if args.format == "json" else comparison_text(comparison))
    if args.out is not None:
        write_tables(comparison, args.out)
    return int(any(args.per_task or not change.task for change in comparison.regressions))


def _chosen(comparison: RunComparison, students: Sequence[str] | None) -> RunComparison:
    from dataclasses import replace

    from coeval.errors import RunInputError

    names = sorted({change.student for change in comparison.changes})
    if not names:
        raise RunInputError(
            f"{comparison.before} and {comparison.after} share no student with scores of the same task, factor and "
            f"judge, and no verdicts of the same task and judge: nothing to compare{_why(comparison)}"
        )
    missing = [name for name in students or () if name not in names]
    if missing:
        raise RunInputError(f"--students {missing[0]}: both runs have only {', '.join(names)}")
    changes = tuple(change for change in comparison.changes if students is None or change.student in students)
    return replace(comparison, changes=changes)


def _why(comparison: RunComparison) -> str:
    only = [f"{row.kind} {row.name}" for row in comparison.left_out[:4]]
    return f"; only one of them has {', '.join(only)}" if only else ""
