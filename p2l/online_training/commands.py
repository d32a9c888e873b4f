"""Command: `p2l buffer geometric|replay`: write votes in the order in which a buffer gives them out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.command import parser, run
from p2l.online_training.reorder_flags import ABOUT, add_geometric, add_replay, run_geometric, run_replay

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """A command for each buffer."""
    top = parser("p2l buffer", "Write the votes of a file in the order in which online training takes them.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, add in (("geometric", add_geometric), ("replay", add_replay)):
        add(
            commands.add_parser(
                name,
                help=ABOUT[name],
                description=ABOUT[name],
                formatter_class=top.formatter_class,
                allow_abbrev=False,
            )
        )
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    args = build_parser().parse_args(argv)
    return {"geometric": run_geometric, "replay": run_replay}[args.command](args)


if __name__ == "__main__":
    run(main)
