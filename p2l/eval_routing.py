"""Command: measure routing on graded answers (`p2l eval-routing`); the work is in `route.evaluation.command`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from p2l.command import run

__all__ = ["build_parser", "main"]

_PLACE = "route.evaluation.command"  # by its name: this package does not depend on the router


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    made: argparse.ArgumentParser = importlib.import_module(_PLACE).build_parser()
    return made


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    code: int | None = importlib.import_module(_PLACE).main(argv)
    return code


if __name__ == "__main__":
    run(main)
