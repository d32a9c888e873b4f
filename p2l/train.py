"""Command: train a prompt-to-leaderboard model on a file of votes.

deepspeed --num_gpus=8 p2l.train --config training_configs/qwen2.5-1.5b-grk.yaml --no-eval --save-steps 512
python -m p2l.train --config training_configs/tiny.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.command import parser, positive, run

__all__ = ["build_parser", "main"]


def build_parser(prog: str = "p2l train") -> argparse.ArgumentParser:
    """The flags of offline and online training."""
    flags = parser(prog, "Train a prompt-to-leaderboard model on pairwise votes, in the order given.")
    flags.add_argument("--config", required=True, help="training configuration (YAML); docs/training.md lists its keys")
    flags.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="a folder of this trainer (a run, or its checkpoint-N): training goes on where it stopped; "
        "or plain weights, a folder or hub id: weights and model list are taken over, everything else starts afresh",
    )
    flags.add_argument("--push-to-hf", action="store_true", help="push the result to the configuration's repo_id")
    flags.add_argument("--eval-steps", type=positive, default=60, metavar="N", help="validate after every N steps")
    flags.add_argument("--no-eval", action="store_true", help="do not validate; val_data_path is not needed")
    flags.add_argument(
        "--save-steps",
        type=int,
        default=-1,
        metavar="N",
        help="save a checkpoint after every N steps; -1: only at the end",
    )
    flags.add_argument("--quiet", action="store_true", help="no progress bar")
    flags.add_argument("--local_rank", type=int, default=0, help="set by the DeepSpeed launcher")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and train."""
    flags = build_parser().parse_args(argv)
    from p2l.training import RunOptions, train

    train(
        flags.config,
        RunOptions(
            checkpoint=flags.checkpoint,
            push_to_hf=flags.push_to_hf,
            eval_steps=None if flags.no_eval else flags.eval_steps,
            save_steps=flags.save_steps if flags.save_steps > 0 else None,
            quiet=flags.quiet,
        ),
    )


if __name__ == "__main__":
    run(main)
