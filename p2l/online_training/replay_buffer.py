"""Command: write the votes of a file in the order of the replay buffer (`p2l.online_training.buffers`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from p2l.common.cli import run
from p2l.online_training.buffers import ReplayBuffer as ReplayBuffer
from p2l.online_training.reorder import main as write_in_order


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    return write_in_order(["replay", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    run(main)
