"""Command: train a prompt-to-leaderboard model on a file of votes.

p2l train --votes votes.parquet --size tiny
deepspeed --num_gpus=8 p2l.train --config training_configs/qwen2.5-1.5b-grk.yaml --no-eval --save-steps 512
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from p2l.common import cli
from p2l.common.cli import parser, run
from p2l.common.errors import ConfigError
from p2l.training.recipe import SIZES

if TYPE_CHECKING:
    from p2l.training.loop import RunOptions

_EXPERIMENTAL = (
    "GPUs, bfloat16 on a GPU, varlen attention kernels and `compile: true` are experimental: tested on one GPU, once "
    "(benchmarks/RESULTS.md lists the last runs)."
)
_VOTES_ONLY = ("size", "val", "backbone", "encoder", "control", "people", "output", "dry_run")


def build_parser(prog: str = "p2l train") -> argparse.ArgumentParser:
    """Return the flags of offline training."""
    flags = parser(
        prog,
        "Train a prompt-to-leaderboard model on pairwise votes, with derived settings (--votes) or a file (--config).",
    )
    flags.epilog = _EXPERIMENTAL
    source = flags.add_mutually_exclusive_group(required=True)
    cli.add_votes(
        source,
        "votes to train on (file, folder or hub id); backbone, batch, rate, lengths and likelihood are derived "
        "and written to training.yaml in the run's folder; the same command resumes a run that was stopped",
    )
    cli.add_config(source, "training configuration (YAML); docs/train/training.md lists its keys")
    _add_votes_flags(flags.add_argument_group("with --votes"))
    cli.add_checkpoint(
        flags,
        "the run, or its checkpoint-N, to resume; or, with --config, a folder or hub id with plain weights: "
        "weights and model list are used, everything else starts anew",
    )
    flags.add_argument(
        "--resume",
        action="store_true",
        help="with --config: go on with the configuration's run from its newest checkpoint, or begin it, in the folder "
        "output_dir/proj_name; for launchers that start processes again (torchrun --max-restarts)",
    )
    cli.add_training_flags(
        flags,
        eval_steps=None,
        steps_note=" (60; with --votes 4 times a run)",
        no_eval_note=", no votes are held out, the last step is the result",
        save_note="-1; with --votes 20 times a run, of which the newest two stay",
    )
    flags.arrange({"checkpoints and validation": ("--model", "--resume", "--eval-steps", "--no-eval", "--save-steps")})
    return flags


def _add_votes_flags(group: argparse._ArgumentGroup) -> None:
    sizes = "; ".join(f"{size.name}: {size.about}" for size in SIZES.values())
    group.add_argument(
        "--size",
        metavar="|".join(SIZES),
        help=f"{sizes} (default: reader; for a --backbone small, and on a GPU base from 100,000 votes on)",
    )
    group.add_argument(
        "--val",
        metavar="FILE",
        help="votes to compare with one leaderboard on (default: a tenth of the votes, by whole prompts, at most "
        "5,000; of fewer than 5,000 prompts all, each predicted by a model that was not trained on it)",
    )
    cli.add_encoder(
        group,
        "the reader's sentence encoder, which stays as it is: a folder or hub id of sentence-transformers, "
        "multilingual (of the extra p2l[multilingual]), static (MiniLM's vectors of single tokens: fast), or none "
        "(default: MiniLM of the extra p2l[encoder], or none where that is not installed)",
    )
    cli.add_control(
        group,
        "the model, left out of its predictions",
        " (key covariates of a configuration); none fits nothing (default: side, where the votes show it)",
    )
    group.add_argument(
        "--people",
        metavar="NAME",
        help="what the column `source` calls people, whose votes the model predicts (default: human, or people); other "
        "sources are judges, of whose verdicts it learns with a scale and offsets of their own",
    )
    cli.add_backbone(group, "a text model in place of the size's own: a folder or hub id")
    cli.add_output(
        group,
        "folder of the run, made new or resumed; one that holds anything else is an error (default: outputs/ and "
        "the names of votes and size, with _1, _2, ... if it exists)",
        metavar="DIR",
    )
    group.add_argument("--dry-run", action="store_true", help="print the derived configuration, train nothing")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and train."""
    flags = build_parser().parse_args(argv)
    if flags.votes is not None:
        _train_on_votes(flags)
        return
    for name in _VOTES_ONLY:
        if getattr(flags, name):
            raise ConfigError(f"--{name.replace('_', '-')} goes with --votes; a configuration holds its own settings")
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train

    options = RunOptions(
        checkpoint=flags.checkpoint,
        push_to_hf=flags.push_to_hf,
        eval_steps=None if flags.no_eval else flags.eval_steps or 60,
        save_steps=flags.save_steps if flags.save_steps and flags.save_steps > 0 else None,
        quiet=flags.quiet,
    )
    if not flags.resume:
        train(flags.config, options)
    elif (resumed := _resumed(flags.config, options)) is not None:
        train(flags.config, resumed)


def _resumed(config: str, options: RunOptions) -> RunOptions | None:
    """Return the options with the run of the configuration, begun or stopped; None for one that has ended."""
    from p2l.training.offline import take_up
    from p2l.training.train_config import load_config

    if options.checkpoint is not None:
        raise ConfigError("--resume finds the checkpoint itself; leave out --checkpoint or --resume")
    if options.save_steps is None:
        raise ConfigError("--resume needs checkpoints to go on from; add --save-steps N")
    run = take_up(load_config(config), validate=options.eval_steps is not None)
    return None if run is None else replace(options, folder=run[0], checkpoint=run[1])


def _train_on_votes(flags: argparse.Namespace) -> None:
    if flags.resume:
        raise ConfigError("--resume goes with --config; with --votes a run that was stopped goes on as it is")
    if flags.push_to_hf:
        raise ConfigError("--push-to-hf goes with --config; train, then add repo_id to the run's training.yaml")
    if flags.no_eval and flags.val:
        raise ConfigError("--val and --no-eval exclude each other; leave one out")
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train
    from p2l.training.planning import Request, dry_run, plan_run
    from p2l.training.run_records import CONFIG_FILE

    request = Request(
        votes=flags.votes,
        size=flags.size,
        val=flags.val,
        backbone=flags.backbone,
        output=flags.output,
        encoder=flags.encoder,
        control=tuple(flags.control or ()),
        people=flags.people,
        validate=not flags.no_eval,
    )
    if flags.dry_run:
        if os.environ.get("RANK", "0") == "0":
            print(dry_run(request), end="")
        return
    planned = plan_run(request, flags.checkpoint, quiet=flags.quiet)
    save_steps = planned.save_steps if flags.save_steps is None else flags.save_steps
    eval_steps = None if planned.eval_steps is None else flags.eval_steps or planned.eval_steps
    options = RunOptions(
        checkpoint=planned.checkpoint,
        eval_steps=eval_steps,
        save_steps=save_steps if save_steps > 0 else None,
        quiet=flags.quiet,
        folder=planned.folder,
        keep_checkpoints=2,
    )
    with planned.lock or nullcontext():  # of the first process, which others do not hold
        train(str(planned.folder / CONFIG_FILE), options)


if __name__ == "__main__":
    run(main)
