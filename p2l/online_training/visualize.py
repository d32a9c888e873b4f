"""Command: the loss matrices of online runs as JSON, CSV, heat maps and line plots, and the runs beside each other.

p2l visualize --eval-folder outputs/naive outputs/geometric outputs/oracle --output-file figures \\
    --oracle oracle --naive naive
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import add_html, counted, need, parser, run
from p2l.common.errors import ConfigError
from p2l.common.text_table import add_rows_flag, rows_to_print


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the figures."""
    flags = parser(
        "p2l visualize",
        "Draw the results of `p2l eval-chrono`: how well each checkpoint forecasts the votes of each slice.",
    )
    flags.add_argument(
        "--eval-folder",
        nargs="+",
        required=True,
        metavar="DIR",
        help="the --output-dir of eval-chrono, one for each run",
    )
    flags.add_argument(
        "--output-file", required=True, metavar="DIR", help="folder for the results, which go below loss/ or accuracy/"
    )
    flags.add_argument("--names", nargs="+", metavar="NAME", help="of the runs (default: their folders' names)")
    flags.add_argument("--metric", metavar="NAME", help="a metric of votes (default: Loss)")
    flags.add_argument("--extract-accuracy", action="store_true", help="the same as --metric Accuracy")
    flags.add_argument("--oracle", metavar="NAME", help="the run on shuffled votes, to which gaps are measured")
    flags.add_argument("--naive", metavar="NAME", help="the run whose gap to --oracle the others are to close")
    flags.add_argument(
        "--loss-type", "-lt", metavar="TYPE", help="likelihood of outputs that do not say theirs (default: grk)"
    )
    add_html(flags)
    add_rows_flag(flags)
    flags.arrange({"which runs": ("--eval-folder", "--names", "--oracle", "--naive", "--loss-type")})
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    names, metric = _names(args), _metric(args)
    need("pyarrow")  # reads labels of earlier releases
    from p2l.common.report.reports import check_page, save_report
    from p2l.common.report.text import report_text

    if args.html is not None:
        args.html = str(check_page(args.html))
    from p2l.chrono.matrix import read_matrix
    from p2l.chrono.results import chrono_report, write_results

    folders = [Path(folder).expanduser() for folder in args.eval_folder]
    matrices = [
        read_matrix(folder, metric, run=name, loss_type=args.loss_type)
        for folder, name in zip(folders, names, strict=True)
    ]
    target = Path(args.output_file).expanduser() / metric.lower()
    can_draw = importlib.util.find_spec("matplotlib") is not None
    write_results(matrices, target, oracle=args.oracle, naive=args.naive, has_figures=can_draw)
    slices = max(len(matrix.slices) for matrix in matrices)
    report = chrono_report(matrices, f"{slices} slices of votes", oracle=args.oracle, naive=args.naive)
    print(f"{report_text(report, rows_to_print(args.rows))}\nwrote {target}")
    if args.html is not None:
        save_report(report, args.html)
        print(f"wrote {args.html}", file=sys.stderr)
    if not can_draw:
        print("note: no figures, as matplotlib is not installed: pip install 'p2l[plot]'")


def _names(args: argparse.Namespace) -> list[str]:
    names = args.names or [Path(folder).expanduser().resolve().name for folder in args.eval_folder]
    if len(names) != len(args.eval_folder):
        raise ConfigError(
            f"--names: {counted(len(names), 'name')} for {counted(len(args.eval_folder), 'folder')}; give one for each"
        )
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(f"two runs are called {twice!r}; --names tells them apart")
    odd = next((name for name in names if not name or "/" in name or name.startswith(".") or name == "summary"), None)
    if odd is not None:
        raise ConfigError(f"--names: {odd!r} cannot name files of a run; give another name")
    if args.naive is not None and args.oracle is None:
        raise ConfigError("--naive goes with --oracle, to which the gap is measured")
    for flag, name in (("--oracle", args.oracle), ("--naive", args.naive)):
        if name is not None and name not in names:
            raise ConfigError(f"{flag}: no run is called {name!r}; runs: {', '.join(names)}")
    if args.naive is not None and args.naive == args.oracle:
        raise ConfigError(f"--oracle and --naive are both {args.naive!r}: between one run and itself there is no gap")
    return list(names)


def _metric(args: argparse.Namespace) -> str:
    if args.extract_accuracy and args.metric not in (None, "Accuracy"):
        raise ConfigError("--extract-accuracy and --metric exclude each other")
    return "Accuracy" if args.extract_accuracy else args.metric or "Loss"


if __name__ == "__main__":
    run(main)
