"""Command: `p2l-route NAME ...`, the commands of the router under one name. `python -m route.cli` is the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from p2l import __version__
from p2l.command import nearest, run

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "serve": ("route.openai_server", "serve OpenAI's API, every request by the best model the budget allows"),
    "costs": ("route.costs", "recompute the models' costs from a price list and the logged usage"),
}
"""Name: (module with a `main(argv)`, what it does)."""


def usage() -> str:
    """The text of `p2l-route --help`."""
    lines = [f"  {name:<12} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: p2l-route COMMAND [FLAGS]",
            "",
            "The OpenAI-compatible router.",
            "",
            "commands:",
            *lines,
            "",
            "`p2l-route COMMAND --help` explains the flags of one. Each is also `python -m <module>`.",
        ]
    )


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help"}:
        print(usage())
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        print(f"p2l-route {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"error: no command {words[0]!r}{nearest(words[0], COMMANDS)}; see p2l-route --help", file=sys.stderr)
        return 2
    result: int | None = importlib.import_module(COMMANDS[words[0]][0]).main(words[1:])
    return result


def main() -> None:
    """The console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
