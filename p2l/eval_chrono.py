"""Command: evaluate every checkpoint of an online run on the validation slices of its time.

p2l eval-chrono --model outputs/my-run --val-dir validation_sets --output-dir outputs/my-run-slices
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.common import cli
from p2l.common.cli import parser, run


def build_parser(prog: str = "p2l eval-chrono") -> argparse.ArgumentParser:
    """Return the flags of the chronological evaluation."""
    flags = parser(
        prog,
        "Evaluate every checkpoint of a run on the validation slices of its time. The same command resumes a run that "
        "was stopped.",
    )
    _add_data_flags(flags.add_argument_group("data in and out"))
    _add_choice_flags(flags.add_argument_group("which slices (default: those up to the checkpoint's number)"))
    cli.add_inference_flags(flags)
    return flags


def _add_data_flags(group: argparse._ArgumentGroup) -> None:
    about = "folder or hub id that holds the folders checkpoint-N"
    cli.add_model_flag(group, about, "-m", dest="model_repo", metavar="RUN", required=True)
    group.add_argument(
        "--checkpoint-prefix", "-cp", default="checkpoint-", metavar="TEXT", help="the text before N in their names"
    )
    group.add_argument(
        "--val-dir",
        "-v",
        required=True,
        metavar="DIR",
        help="slices: files of votes (.csv, .jsonl, .parquet) with a number in their names, batches of the stream",
    )
    cli.add_label_list(group, "--label-list")
    cli.add_results_flags(
        group, folder="for checkpoint-N/checkpoint-N-val-V.json", restart="compute existing outputs again"
    )
    cli.add_html(group, "also write a page (.html) on the losses, which opens offline")


def _add_choice_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--time-align", action="store_true", help="choose by time: slices that ended before the checkpoint's last votes"
    )
    group.add_argument(
        "--train-time", metavar="FILE", help="with --time-align: last vote time of each batch (`p2l timestamps`)"
    )
    group.add_argument("--val-time", metavar="FILE", help="with --time-align: last vote time of each slice")
    group.add_argument(
        "--all-slices", action="store_true", help="later slices too: how well a checkpoint predicts future votes"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and run."""
    options = vars(build_parser().parse_args(argv))
    from p2l.chrono.run import ChronoOptions, evaluate_chrono

    options.pop("local_rank")
    evaluate_chrono(ChronoOptions(**options))


if __name__ == "__main__":
    run(main)
