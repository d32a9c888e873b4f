"""Command: write the votes of a file in the order of the replay buffer (`p2l.online_training.replay`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.command import parser, run
from p2l.online_training.reorder_flags import ABOUT, add_replay, run_replay
from p2l.online_training.replay import ReplayBuffer

__all__ = ["ReplayBuffer", "build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    top = parser("p2l buffer replay", ABOUT["replay"])
    add_replay(top)
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    return run_replay(build_parser().parse_args(argv))


if __name__ == "__main__":
    run(main)
