"""Command: `p2l buffer geometric|replay`: write votes in the order in which a buffer gives them out."""

from __future__ import annotations

from collections.abc import Sequence

from p2l import program
from p2l.command import run

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "geometric": ("p2l.online_training.geometric_buffer", "spread votes between familiar models over a long horizon"),
    "replay": ("p2l.online_training.replay_buffer", "replay past votes among the new ones"),
}
"""Name: (module with a `main(argv)`, what it does)."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    about = "Write the votes of a file in the order in which online training would take them."
    return program.dispatch("p2l buffer", about, COMMANDS, argv)


if __name__ == "__main__":
    run(main)
