"""Command: train a prompt-to-leaderboard model on votes as they come.

p2l online-train --config training_configs/online/tiny.yaml --save-steps 64
deepspeed --num_gpus=8 p2l.online_training.online_train --config F --checkpoint DIR --no-eval --save-steps 512
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.command import parser, positive, run
from p2l.errors import ConfigError
from p2l.online_training.derived import derived_configuration
from p2l.online_training.follow import add_follow_flags, follow_flags

if TYPE_CHECKING:
    from p2l.run_loop import RunOptions

__all__ = ["build_parser", "main"]

LIVE_SAVE_STEPS, LIVE_KEEP = 200, 2
"""A run without an end has to save on its way, and cannot keep everything."""


def build_parser(prog: str = "p2l online-train") -> argparse.ArgumentParser:
    """The flags of online training."""
    flags = parser(
        prog,
        "Train a prompt-to-leaderboard model on votes in the order in which they came; models join as they appear. "
        "docs/online.md lists the keys of the configuration.",
    )
    flags.add_argument(
        "--config",
        metavar="FILE",
        help="configuration (YAML) of the run; by default that of --checkpoint, which p2l train or this command has "
        "made, with a third of an offline run's learning rate",
    )
    flags.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="a folder of this trainer (a run, or its checkpoint-N): everything continues, with votes that have come "
        "since; or plain weights, a folder or hub id: weights and model list are taken over, the rest starts afresh",
    )
    flags.add_argument(
        "--initial-counts",
        metavar="FILE",
        type=Path,
        help="with plain weights: how many votes each model had already, a JSON object of names and counts",
    )
    flags.add_argument("--sort", action="store_true", help="sort the votes by time (tstamp) first")
    flags.add_argument("--push-to-hf", action="store_true", help="push the result to the configuration's repo_id")
    flags.add_argument("--eval-steps", type=positive, default=60, metavar="N", help="validate after every N steps")
    flags.add_argument("--no-eval", action="store_true", help="do not validate: val_data_path is not needed")
    flags.add_argument(
        "--save-steps",
        type=int,
        metavar="N",
        help=f"save a checkpoint after every N steps; -1: only at the end (-1; with --follow {LIVE_SAVE_STEPS})",
    )
    flags.add_argument(
        "--keep",
        type=positive,
        metavar="N",
        help=f"keep the newest N checkpoints and remove earlier ones (all stay; with --follow {LIVE_KEEP})",
    )
    add_follow_flags(flags)
    flags.add_argument("--quiet", action="store_true", help="no progress bar and no notes")
    flags.add_argument("--local_rank", type=int, default=0, help="set by the DeepSpeed launcher")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and train."""
    flags = build_parser().parse_args(argv)
    following = follow_flags(flags)
    if flags.sort and following.follow:
        raise ConfigError("--sort does not go with --follow: votes are taken as they come; leave out one of the two")
    config, changes = (flags.config, {}) if flags.config else derived_configuration(flags.checkpoint)
    if flags.sort:
        changes["vote_order"] = "sort"
    if following.follow:
        changes["train_data_path"] = str(following.follow)
    from p2l.online_training.online_run import OnlineOptions, learned_votes, train_online

    live = following.live(learned=learned_votes(flags.checkpoint), quiet=flags.quiet) if following.is_live else None
    train_online(str(config), OnlineOptions(_run_options(flags), flags.initial_counts, changes, live))


def _run_options(flags: argparse.Namespace) -> RunOptions:
    from p2l.run_loop import RunOptions

    usual = (-1, None) if flags.follow is None else (LIVE_SAVE_STEPS, LIVE_KEEP)
    save_steps = usual[0] if flags.save_steps is None else flags.save_steps
    return RunOptions(
        checkpoint=flags.checkpoint,
        push_to_hf=flags.push_to_hf,
        eval_steps=None if flags.no_eval else flags.eval_steps,
        save_steps=save_steps if save_steps > 0 else None,
        quiet=flags.quiet,
        keep_checkpoints=flags.keep or usual[1],
    )


if __name__ == "__main__":
    run(main)
