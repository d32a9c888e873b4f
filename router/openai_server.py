"""`python -m router.openai_server ...`, as older instructions have it; the command is `route.openai_server`."""

from __future__ import annotations

from p2l.common.cli import run
from route.openai_server import build_parser, main

__all__ = ["build_parser", "main"]

if __name__ == "__main__":
    run(main)
