"""Commands: `coeval analyze SUB --run PATH --out PATH`, the reports of a run; `coeval compare`, two runs side by side.

Exit code 1 where the folder holds no run, or no item is left in the robust set that a subcommand is about. A run that
is not finished is analysed as it is, every report names its status, and a warning is printed without `--partial-ok`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import LOG_LEVELS, add_log_level, add_out, add_run
from coeval.reports.registry import PAGES, REPORTS, build
from p2l.common.cli import add_command, amount, parser
from p2l.common.errors import InputError

if TYPE_CHECKING:
    from coeval.analysis.compare import RunComparison
    from coeval.analysis.coverage import CompleteReport
    from coeval.analysis.robust import RobustSummary
    from coeval.analysis.units import Header, LoadedRun, Report, RobustSettings

FORWARDED = {
    "calibrate": (
        "coeval.commands.export:calibrate_main",
        "judges compared with people who scored some answers, and corrected scores",
    ),
    "tables": ("coeval.commands.export:tables_main", "tables for a paper, LaTeX or Markdown, with intervals and tests"),
    "export-units": ("coeval.commands.export:units_main", "all valid scores as one flat table, CSV or Parquet"),
    "export-preferences": ("coeval.commands.export:preferences_main", "votes for training, from pairs or from scores"),
    "pairs-leaderboard": (
        "coeval.commands.export:leaderboard_main",
        "leaderboards from pairs or scores, overall and by task",
    ),
}
"""Subcommand -> module and function that run it, what it does."""
_WHOLE = {
    "export-benchmark": "the items that the best judges agree on, as a benchmark",
    "all": "every page, the workbook, and an index",
}
_PARTIAL_HELP = (
    "the run need not be finished: analyse what there is without the warning; reports still say that it is partial"
)
_LARGE_WORKBOOK_SLICES = 10_000  # slices in a workbook
_CHOICES = [f"--{name}" for name in ("agreement-metric", "teacher-score-formula", "judge-selection")]
_CHOICES += ["--agreement-threshold", "--theta", "--q-fraction"]
_BENCHMARK_FORMATS = ("jsonl", "parquet")
_ROBUST = ("robust-summary", "export-benchmark", "all")


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze` and its subcommands."""
    flags = parser("coeval analyze", "Make reports, tables, benchmarks and preferences of a run.")
    subs = flags.add_subparsers(dest="sub", required=True, metavar="SUB")
    for name, about in {**{name: entry.help for name, entry in REPORTS.items()}, **_WHOLE}.items():
        line = f"coeval analyze {name} --run benchmark/runs/to-p2l --out reports"
        command = add_command(subs, name, about, examples=(line, f"{line} --partial-ok"))
        add_run(command)
        out = "file or folder" if name.startswith("export-") else "folder"
        add_out(command, "folder, or a file that ends in .xlsx" if name == "complete-report" else out)
        command.add_argument("--partial-ok", action="store_true", help=_PARTIAL_HELP)
        add_log_level(command)
        if name in (*_ROBUST, "judge-report", "teacher-report"):
            _add_choices(command, name)
        if name in _ROBUST:
            command.arrange({"which judges and items count": _CHOICES})
        if name == "export-benchmark":
            help_ = "of the file; without it as --out ends, else jsonl"
            command.add_argument("--benchmark-format", choices=_BENCHMARK_FORMATS, help=help_)
    for name, (_, about) in FORWARDED.items():
        subs.add_parser(name, help=about, add_help=False)
    return flags


def _add_choices(flags: ArgumentParser, name: str) -> None:
    if name != "teacher-report":
        help_ = "judges are ranked by this agreement with their peers"
        flags.add_argument("--agreement-metric", choices=("kappa", "spa", "wpa"), default="kappa", help=help_)
    if name != "judge-report":
        help_ = "teachers are ranked by this"
        flags.add_argument("--teacher-score-formula", choices=("v1", "s2", "r3"), default="v1", help=help_)
    if name in _ROBUST:
        flags.add_argument(
            "--judge-selection", choices=("top_half", "all"), default="top_half", help="judges that decide"
        )
        flags.add_argument(
            "--agreement-threshold",
            type=float,
            default=1.0,
            help="share of an item's (student, factor) pairs on which these judges give one score",
        )
        flags.add_argument(
            "--theta", type=float, help="instead: all pairs have judges within this distance of the mean"
        )
        flags.add_argument("--q-fraction", type=float, default=0.5, help="share of these judges that must agree")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the subcommand. Raise RunInputError if the run cannot be analysed, or a flag cannot be used."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in FORWARDED:
        module, _, function = FORWARDED[words[0]][0].partition(":")
        code: int | None = getattr(import_module(module), function)(words[1:])
        return code
    args = build_parser().parse_args(words)
    loaded = _load(args)
    settings = _settings(args)
    if args.sub == "all":
        return _write_all(loaded, settings, args.out)
    if args.sub == "export-benchmark":
        from coeval.analysis.robust import export_benchmark, robust_summary
        from coeval.commands.export import file_of

        flag = "--benchmark-format"
        path, form = file_of(args.out, flag, args.benchmark_format, _BENCHMARK_FORMATS, "benchmark")
        written = export_benchmark(loaded, path, form=form, settings=settings)
        summary = robust_summary(loaded, settings)
        if not written:
            _is_empty(summary)
            return 1
        _warn_of_judges(args, summary)
        print(f"wrote {written} items to {path}")
        return 0
    return _write_one(loaded, settings, args)


def _load(args: Namespace) -> LoadedRun:
    from coeval.analysis.units import load_run

    loaded = load_run(args.run)
    header = loaded.header
    if header.partial and not args.partial_ok:
        _print(args, "WARNING", f"{args.run} {header.may_change}; --partial-ok if that is known")
    counts = f"{header.units} scores from {header.valid_evaluations} of {header.evaluations} evaluations"
    counts = counts if header.evaluations else "no scores"
    counts += f", {header.verdicts} verdicts on pairs" if header.verdicts else ""
    models = f"{len(header.students)} students, {len(header.judges)} judges"
    _print(args, "INFO", f"{header.experiment_id}: {counts}, {header.datapoints} items, {models}")
    if header.prompts < header.datapoints:
        from coeval.reports.pieces import repeats_text

        _print(args, "WARNING", repeats_text(header))
    for row in header.skipped:
        _print(args, "WARNING", f"skipped: {row.count} {row.code}, such as {row.example}")
    return loaded


def _print(args: Namespace, level: str, text: str) -> None:
    """Print a text at or above `--log-level`: warnings to stderr, the rest to stdout."""
    if LOG_LEVELS.index(level) >= LOG_LEVELS.index(args.log_level):
        print(text, file=sys.stderr if level == "WARNING" else sys.stdout)


def _settings(args: Namespace) -> RobustSettings:
    from dataclasses import asdict, replace

    from coeval.analysis.units import DEFAULTS
    from coeval.errors import RunInputError

    flags = vars(args)  # of some subcommands only a few, or none
    settings = replace(DEFAULTS, **{name: flags[name] for name in asdict(DEFAULTS) if name in flags})
    for name, value in (("q-fraction", settings.q_fraction), ("theta", settings.theta or 0.0)):
        if not 0.0 <= value <= 1.0:
            raise RunInputError(f"--{name} {value}: give a number from 0 to 1")
    threshold = settings.agreement_threshold
    if threshold is not None and not 0.0 <= threshold <= 1.0:
        raise RunInputError(f"--agreement-threshold {threshold}: give a share from 0 to 1")
    return settings if settings.theta is None else replace(settings, agreement_threshold=None)


def _write_one(loaded: LoadedRun, settings: RobustSettings, args: Namespace) -> int:
    from coeval.analysis.coverage import CompleteReport, slices
    from coeval.analysis.robust import RobustSummary
    from coeval.analysis.tables import write_tables
    from coeval.pairs.board import PairsReport
    from coeval.reports.pages import WORKBOOK, write, write_workbook

    name, out = args.sub, args.out
    report = build(name, loaded, settings)
    if isinstance(report, RobustSummary):
        if _is_empty(report):
            return 1
        _warn_of_judges(args, report)
    if isinstance(report, CompleteReport) and out.suffix == ".xlsx":
        print(f"wrote {write_workbook(report, out)}")
        return 0
    tables = write_tables(report, out)
    path: Path | None
    if isinstance(report, CompleteReport):
        path = write_workbook(report, out / WORKBOOK)
    else:
        path = write(REPORTS[name].folder, report, out, slices=slices(loaded))
    if path is None:
        why = report.why_none if isinstance(report, PairsReport) else _no_scores(report.header)
        print(f"note: the page is not written, since it has nothing to show: {why}", file=sys.stderr)
    print(f"wrote {path or out} and {len(tables)} tables")
    return 0


def _is_empty(report: Report) -> bool:
    """Whether a robust set is empty; print why, step by step."""
    from coeval.analysis.robust import RobustSummary

    if not isinstance(report, RobustSummary) or report.kept:
        return False
    if not report.header.units:
        print(f"error: {_no_scores(report.header)}", file=sys.stderr)
        return True
    print("error: no item is left in the robust set", file=sys.stderr)
    for line in report.diagnostics:
        print(f"  {line}", file=sys.stderr)
    return True


def _warn_of_judges(args: Namespace, report: RobustSummary) -> None:
    for line in report.diagnostics:
        if line.startswith("warning: "):
            _print(args, "WARNING", line.removeprefix("warning: "))
    if len(report.chosen_judges) == 1:  # who always agrees with itself
        text = f"one judge alone decides which items are robust: {report.chosen_judges[0]}; --judge-selection all"
        _print(args, "WARNING", f"{text} takes every judge" if len(report.judges) > 1 else text.partition(";")[0])


def _no_scores(header: Header) -> str:
    """Return what a run without scores has instead."""
    if header.verdicts:
        where = "`pairs`, `pairs-leaderboard` and `export-preferences` use these, other reports have nothing to show"
        return f"{header.experiment_id} has no scores, but {header.verdicts} verdicts on pairs: {where}"
    return f"{header.experiment_id} has neither scores nor verdicts on pairs; look at `coverage-summary`"


def _write_all(loaded: LoadedRun, settings: RobustSettings, out: Path) -> int:
    from coeval.analysis.coverage import complete_report
    from coeval.analysis.tables import write_tables
    from coeval.reports.pages import WORKBOOK, write_all
    from p2l.common.spreadsheets import missing_package

    complete = complete_report(loaded)
    wait_for_workbook = _begin_workbook(complete, out / WORKBOOK)
    results = {entry.folder: build(entry.name, loaded, settings) for entry in PAGES.values()}
    is_empty = False
    if not loaded.header.units:
        print(f"note: {_no_scores(loaded.header)}", file=sys.stderr)
    elif is_empty := _is_empty(results["robust_summary"]):
        print("warning: the other reports are written all the same", file=sys.stderr)
    for folder, report in {**results, "complete_report": complete}.items():
        write_tables(report, out / folder)
    write_all(results, complete, out, with_workbook=not missing_package())
    wait_for_workbook()
    print(f"wrote {out / 'index.html'}")
    return int(is_empty)


def _begin_workbook(report: CompleteReport, path: Path) -> Callable[[], object]:
    """Write the workbook, a large one in a process beside this one, since it takes as long as all pages.

    Return a function that waits for it, and raises its error.
    """
    from coeval.reports.pages import write_workbook
    from p2l.common.spreadsheets import missing_package

    if why := missing_package():  # the pages need no workbook
        print(f"warning: no workbook: {why}", file=sys.stderr)
        return lambda: None
    if len(report.raw) < _LARGE_WORKBOOK_SLICES:
        write_workbook(report, path)
        return lambda: None
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # A fork would copy the locks that threads of NumPy and pandas may hold at this moment.
    beside = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    written = beside.submit(write_workbook, report, path)
    beside.shutdown(wait=False)
    return written.result


# `coeval compare` exits with 1 where a student became worse by more than `--threshold` and not by chance (95 %), so
# that it can stand in a pipeline that must not let a regression through; with 0 where none did, and with 2 where the
# runs cannot be compared.

_COMPARE_FILES = (".json", ".jsonl", ".csv", ".html", ".xlsx", ".txt", ".md")


def compare_parser() -> ArgumentParser:
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


def compare_main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and say by the exit code whether a student became worse.

    Unlike other commands of CoEval it ends with 2, not 1, for a folder that holds no run, runs that share nothing or a
    named student that is not in both: 1 is for a regression alone.
    """
    args = compare_parser().parse_args(argv)
    try:
        return _compare(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compare(args: Namespace) -> int:
    import json

    if args.out is not None and args.out.suffix.lower() in _COMPARE_FILES:
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
        only = [f"{row.kind} {row.name}" for row in comparison.left_out[:4]]
        why = f"; only one of them has {', '.join(only)}" if only else ""
        raise RunInputError(
            f"{comparison.before} and {comparison.after} share no student with scores of the same task, factor and "
            f"judge, and no verdicts of the same task and judge: nothing to compare{why}"
        )
    missing = [name for name in students or () if name not in names]
    if missing:
        raise RunInputError(f"--students {missing[0]}: both runs have only {', '.join(names)}")
    changes = tuple(change for change in comparison.changes if students is None or change.student in students)
    return replace(comparison, changes=changes)
