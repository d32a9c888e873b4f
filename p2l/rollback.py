"""Command: `p2l rollback DIR`: serve the model that was published before the one that is served now.

An endpoint with `--watch DIR` follows within seconds, without a restart. The model taken out stays in DIR/rolled-back.
A run that publishes into DIR goes on; what it publishes next is served.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.command import parser, run

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The flags of `p2l rollback`."""
    flags = parser("p2l rollback", "Serve the model that was published before the one that is served now.")
    flags.add_argument("folder", metavar="DIR", help="the folder that models are published to (--publish, --watch)")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    from p2l.online_training.publishing import roll_back

    done = roll_back(Path(build_parser().parse_args(argv).folder).expanduser())
    print(f"serving {done.back_to.name}, revision {done.back_revision}, again")
    print(f"taken out: {done.taken_out}, revision {done.revision}")
    return None


if __name__ == "__main__":
    run(main)
