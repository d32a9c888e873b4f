"""Command: write the votes of a file in the order of the geometric buffer (`p2l.online_training.buffers`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.common.cli import parser, run
from p2l.online_training.buffers import GeometricBuffer as GeometricBuffer
from p2l.online_training.reorder import ABOUT, add_geometric, run_geometric


def build_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    top = parser("p2l buffer geometric", ABOUT["geometric"])
    add_geometric(top)
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    return run_geometric(build_parser().parse_args(argv))


if __name__ == "__main__":
    run(main)
