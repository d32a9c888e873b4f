"""Command: join trained models into one that answers with their mean.

    p2l committee outputs/my-run outputs/bag-of-words --output outputs/both

Models that read prompts in different ways (a transformer from scratch, a sentence encoder, a bag of words) err in
different ways, and the mean of their coefficients, eta and gamma errs less than each (docs/experiments.md). The folder
that is written holds a copy of each member, and serves wherever a model folder does for reading; its cost is the sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.command import parser, run

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = parser("p2l committee", "Join trained models into one that answers with the mean of their coefficients.")
    flags.add_argument("models", nargs="+", metavar="MODEL", help="a model folder or hub id; two at the least")
    flags.add_argument("--output", required=True, metavar="DIR", help="folder of the committee; must not exist")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    from p2l.members import join

    output = Path(flags.output).expanduser()
    join(flags.models, output)
    print(f"committee of {len(flags.models)} models: {output}")


if __name__ == "__main__":
    run(main)
