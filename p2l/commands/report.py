"""Command: the page of a training run, from its folder.

p2l report outputs/sample
p2l report outputs/live --html live.html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import add_html, parser, run
from p2l.common.files import STDOUT

PAGE = "report.html"


def build_parser(prog: str = "p2l report") -> argparse.ArgumentParser:
    """Return the flags of the command."""
    flags = parser(
        prog,
        "Write the page of a training run: whether the model reads prompts, how its loss fell, its leaderboard and "
        "metrics of held-out votes, and what was published.",
    )
    flags.add_argument(
        "run",
        metavar="RUN",
        help="folder of a run that p2l train or p2l online-train has made, finished or not, or the served folder that "
        "a live run publishes to",
    )
    add_html(
        flags,
        f"the page, a file that opens without a network; - is stdout (default: {PAGE} in the folder)",
        earlier=("--output",),
    )
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    from p2l.common.report.reports import check_page, save_report
    from p2l.evaluation.training_report import training_report
    from p2l.training.run_records import read_run

    folder = Path(args.run).expanduser()
    records = read_run(folder)
    output = str(folder / PAGE) if args.html is None else args.html
    if output != STDOUT:
        output = str(check_page(output))
    report = training_report(records)
    save_report(report, output)
    if output != STDOUT:
        print(report.verdict.sentence)
        print(f"wrote {output}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
