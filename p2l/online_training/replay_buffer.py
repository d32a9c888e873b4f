"""Command: write the votes of a file in the order of the replay buffer (`p2l.online_training.buffers`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.common.cli import parser, run
from p2l.online_training.buffers import ReplayBuffer as ReplayBuffer
from p2l.online_training.reorder import ABOUT, add_replay, run_replay


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
