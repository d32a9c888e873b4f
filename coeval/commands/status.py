"""Command: how far a run is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.command import add_keys, keys_of, run
from p2l.command import parser

if TYPE_CHECKING:
    from coeval.storage.layout import Run

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser("coeval status", "Say how far a run is: phases, records, pending batch jobs, the last errors.")
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument(
        "--fetch-batches", action="store_true", help="first store the answers of the pending batch jobs that are done"
    )
    add_keys(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or a batch job cannot be looked at."""
    from coeval.storage.layout import Run
    from coeval.summary import status_text

    given = build_parser().parse_args(argv)
    lost = _fetch(Run(given.run), given.keys) if given.fetch_batches else 0
    print(status_text(Run(given.run)))
    return int(lost > 0)


def _fetch(folder: Run, keys: str | None) -> int:
    """Fetch batches; how many jobs could not be looked at."""
    import asyncio

    from coeval.batch.fetch import fetch_batches

    lost = asyncio.run(fetch_batches(folder, keys_of(keys), lambda line: print(line, flush=True)))
    print()
    return lost


if __name__ == "__main__":
    run(main)
