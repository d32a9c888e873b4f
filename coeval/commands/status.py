"""Command: how far a run is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from coeval.command import run
from p2l.command import parser

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser("coeval status", "Say how far a run is: phases, records, pending batch jobs, the last errors.")
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run."""
    from coeval.storage.layout import Run
    from coeval.summary import status_text

    given = build_parser().parse_args(argv)
    print(status_text(Run(given.run)))
    return 0


if __name__ == "__main__":
    run(main)
