"""Command: train a prompt-to-leaderboard model on votes as they come.

p2l online-train --config training_configs/online/tiny.yaml --save-steps 64
deepspeed --num_gpus=8 p2l.online_training.online_train --config F --checkpoint DIR --no-eval --save-steps 512

A run that follows a file or a router's database trains as votes come. SIGTERM and Ctrl-C end it after the step under
way, with a checkpoint from which the same command goes on.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from p2l.common import cli
from p2l.common.cli import above_zero, amount, number_of, parser, positive, run
from p2l.common.errors import ConfigError

_DEFAULT_HELD_SHARE = 0.02
_DEFAULT_COMPUTE = 2.0
_LIVE_SAVE_STEPS = 200  # a run without an end has to save on its way
_LIVE_KEEP = 2  # and cannot keep everything


def _share(text: str) -> float:
    return number_of(text, float, lambda number: 0 < number <= 0.5, "a number above 0 and at most 0.5")


def _add_follow_flags(flags: argparse.ArgumentParser) -> None:
    """Add the flags of a live run to those of online training."""
    live = flags.add_argument_group("live")
    live.add_argument(
        "--follow",
        metavar="FILE",
        type=Path,
        help="train on votes as they arrive in this JSONL file, or in this database of a router; in place of "
        "train_data_path",
    )
    cli.add_idle(live, "end when no vote has arrived for this long (default: never)")
    live.add_argument(
        "--poll", metavar="SECONDS", type=amount, default=1.0, help="pause between two checks for new votes"
    )
    live.add_argument(
        "--publish", metavar="DIR", type=Path, help="folder for models to serve, with `p2l endpoint --watch DIR`"
    )
    live.add_argument("--publish-votes", metavar="N", type=positive, help="publish after every N votes")
    live.add_argument("--publish-minutes", metavar="M", type=above_zero, help="publish every M minutes")
    live.add_argument("--publish-keep", metavar="N", type=positive, default=5, help="newest models to keep there")
    live.add_argument(
        "--hold-out",
        metavar="SHARE",
        type=lambda text: number_of(text, float, lambda number: 0 <= number <= 0.5, "a number from 0 to 0.5"),
        help="votes on this share of the prompts are never trained on; the newest of them decide how far what is "
        f"published is shrunk towards one leaderboard ({_DEFAULT_HELD_SHARE:g} with --publish; 0: nothing is shrunk)",
    )
    live.add_argument(
        "--gate",
        metavar="SHARE",
        type=_share,
        nargs="?",
        const=0.0,
        help="publish only what forecasts the newest held-out votes no worse than the served model, beyond noise; "
        "SHARE is that of --hold-out",
    )
    live.add_argument(
        "--retrain",
        metavar="TIMES",
        # Each vote once is what a run takes that never trains anew.
        type=lambda text: number_of(text, float, lambda number: 1 < number < math.inf, "a number above 1"),
        nargs="?",
        const=_DEFAULT_COMPUTE,
        help="train anew on all votes in the background where that gains, take the model over if it is better beyond "
        f"noise, and spend at most TIMES ({_DEFAULT_COMPUTE:g}) the compute of training on each vote once",
    )


def _check_follow_flags(flags: argparse.Namespace) -> None:
    """Raise ConfigError, naming both, for a flag without the other one that it needs."""
    if flags.follow is None and flags.stop_when_idle is not None:
        raise ConfigError("--stop-when-idle goes with --follow; a data set has an end")
    publishing = (flags.publish_votes, flags.publish_minutes, flags.gate, flags.hold_out)
    if flags.publish is None and any(value is not None for value in publishing):
        raise ConfigError(
            "--publish-votes, --publish-minutes, --gate and --hold-out need --publish DIR, the folder to serve"
        )
    if flags.gate and flags.hold_out not in (None, flags.gate):
        raise ConfigError("--gate and --hold-out name different shares; leave out one of the two")
    if flags.gate is not None and flags.hold_out == 0:
        raise ConfigError("--gate judges by held-out votes; leave out --hold-out 0")
    if flags.publish is not None and flags.publish_votes is None and flags.publish_minutes is None:
        raise ConfigError("--publish needs --publish-votes N or --publish-minutes M: how often")
    if flags.retrain is not None and (flags.follow is None or not _held_share(flags)):
        raise ConfigError(
            "--retrain judges by held-out votes of a stream; give --follow FILE and --publish DIR with it"
        )
    if flags.retrain is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--retrain goes with a run of one process; start the run without a launcher")
    if flags.past is not None and flags.follow is not None and Path(flags.past).resolve() == flags.follow.resolve():
        raise ConfigError("--past and --follow name one file: past votes are those before the stream; leave out --past")
    if flags.sort and flags.follow:
        raise ConfigError("--sort does not go with --follow: votes are taken as they arrive; leave out one of the two")


def _held_share(flags: argparse.Namespace) -> float:
    """Return the share of the prompts whose votes are held out; 0 where nothing is published."""
    if flags.publish is None:
        return 0.0
    return float(flags.gate or (_DEFAULT_HELD_SHARE if flags.hold_out is None else flags.hold_out))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of online training."""
    flags = parser(
        "p2l online-train",
        "Train a prompt-to-leaderboard model on votes in the order in which they came; models join as they appear. "
        "docs/train/online.md lists the keys of the configuration.",
    )
    cli.add_config(
        flags,
        "configuration (YAML) of the run; by default that of --checkpoint, which p2l train or this command has "
        "made, with two ninths of an offline run's learning rate",
    )
    cli.add_checkpoint(
        flags,
        "a folder of this trainer (a run, or its checkpoint-N): everything continues, with votes that have come "
        "since; or plain weights, a folder or hub id: weights and model list are taken over, the rest starts afresh",
    )
    flags.add_argument(
        "--initial-counts",
        metavar="FILE",
        type=Path,
        help="with plain weights: how many votes each model had already, a JSON object of names and counts",
    )
    flags.add_argument(
        "--past",
        metavar="FILE",
        help="votes that the model in --checkpoint was trained on, for replay from the first step on, or none (without "
        "--config: those that the checkpoint records, if they are there and not those that are followed)",
    )
    flags.add_argument("--sort", action="store_true", help="sort the votes by time (tstamp) first")
    cli.add_training_flags(
        flags, eval_steps=60, steps_note="", no_eval_note="", save_note=f"-1; with --follow {_LIVE_SAVE_STEPS}"
    )
    flags.add_argument(
        "--keep",
        type=positive,
        metavar="N",
        help=f"keep the newest N checkpoints and remove earlier ones (all stay; with --follow {_LIVE_KEEP})",
    )
    _add_follow_flags(flags)
    flags.arrange(
        {"checkpoints and validation": ("--eval-steps", "--no-eval", "--save-steps", "--keep", "--push-to-hf")}
    )
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and train."""
    from p2l.online_training.online_config import derived_configuration

    flags = build_parser().parse_args(argv)
    _check_follow_flags(flags)
    config, changes = (flags.config, {}) if flags.config else derived_configuration(flags.checkpoint, flags.follow)
    changes |= _past(flags, changes)
    if flags.sort:
        changes["vote_order"] = "sort"
    if flags.follow:
        changes["train_data_path"] = str(flags.follow)
    from p2l.online_training.live_run import LiveRun
    from p2l.online_training.online_run import OnlineOptions, learned_votes, train_online
    from p2l.training.loop import RunOptions

    live = None
    if flags.follow is not None or flags.publish is not None:
        live = LiveRun(flags, held_share=_held_share(flags), learned=learned_votes(flags.checkpoint))
    save_steps, keep = flags.save_steps, flags.keep
    if flags.follow is not None:
        save_steps = _LIVE_SAVE_STEPS if save_steps is None else save_steps
        keep = keep or _LIVE_KEEP
    run_options = RunOptions(
        checkpoint=flags.checkpoint,
        push_to_hf=flags.push_to_hf,
        eval_steps=None if flags.no_eval else flags.eval_steps,
        save_steps=save_steps if save_steps is not None and save_steps > 0 else None,
        quiet=flags.quiet,
        keep_checkpoints=keep,
    )
    options = OnlineOptions(run=run_options, initial_counts=flags.initial_counts, changes=changes, live=live)
    train_online(str(config), options)


def _past(flags: argparse.Namespace, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the keys that --past replaces."""
    from p2l.online_training.online_config import replay_of_past

    if flags.past is None:
        return {}
    if flags.past == "none":
        return {"past_data_path": None}
    if flags.checkpoint is None:
        raise ConfigError("--past goes with --checkpoint, the model that was trained on these votes")
    # A buffer that the user chose stays: it may replay less, or be one of its own.
    return {"past_data_path": flags.past} | ({"buffer": replay_of_past()} if "output_dir" in changes else {})


if __name__ == "__main__":
    run(main)
