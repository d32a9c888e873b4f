"""Command: run a model over a whole data set of prompts.

p2l eval --model outputs/my-run --dataset prompts.jsonl
deepspeed --num_gpus=8 p2l.eval --model outputs/my-run --dataset prompts.parquet --format parquet
p2l eval --model outputs/my-run --dataset prompts.parquet --ray --workers 8
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.common import cli
from p2l.common.cli import parser, positive, run
from p2l.common.errors import ConfigError
from p2l.serving.ray_cluster import check_installed


def build_parser(prog: str = "p2l eval") -> argparse.ArgumentParser:
    """Return the flags of batch inference."""
    flags = parser(
        prog,
        "Run a model, or every checkpoint of a training run, over a data set of prompts. "
        "The same command resumes a run that was stopped.",
    )
    model = flags.add_mutually_exclusive_group(required=True)
    cli.add_model_flag(model, "a model folder or a hub id", "-m", metavar="MODEL")
    model.add_argument(
        "--training-output-dir", "-t", metavar="DIR", help="instead: evaluate every checkpoint in this folder"
    )
    group = flags.add_argument_group("data in and out")
    group.add_argument(
        "--dataset",
        "-d",
        required=True,
        metavar="DATA",
        help="with a column `prompt` (a text, or the list of the user's turns): a hub id, a save_to_disk folder, or a "
        ".parquet, .jsonl, .jsonl.gz or .csv file",
    )
    cli.add_dataset_split(group, "-ds")
    cli.add_limit(group, "only the first N rows")
    cli.add_results_flags(
        group,
        folder="the file is named after the model's last path part",
        restart="start anew, ignoring earlier output",
    )
    group.add_argument("--format", choices=("json", "parquet", "both"), default="json", help="of the output")
    group.add_argument(
        "--output-hf-path",
        "-oh",
        metavar="ID",
        help="push the output to this data set on the hub too; it is made private",
    )
    group.add_argument(
        "--drop-hidden",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave last_hidden_state out of the output; it takes some 8 kB a row",
    )
    group = flags.add_argument_group("Ray Data")
    group.add_argument(
        "--ray", action="store_true", help="on the machines of $RAY_ADDRESS, or on this one (pip install 'p2l[ray]')"
    )
    group.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="of Ray, each with a model (default: one for each GPU, else core)",
    )
    cli.add_inference_flags(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and run."""
    options = vars(build_parser().parse_args(argv))
    if options["workers"] and not options["ray"]:
        raise ConfigError("--workers is of Ray; add --ray, or use the launcher")
    if options["ray"]:
        check_installed()
    from p2l.batch_inference.launch import EvalOptions
    from p2l.batch_inference.run import evaluate

    options.pop("local_rank")
    options["split"] = options.pop("dataset_split")
    chosen, hidden = options.pop("format"), not options.pop("drop_hidden")
    formats = ("json", "parquet") if chosen == "both" else (chosen,)
    evaluate(EvalOptions(**options, formats=formats, hidden=hidden))


if __name__ == "__main__":
    run(main)
