"""What every command of CoEval shares: bad input ends it with exit code 1, as its manual has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from p2l import command
from p2l.errors import InputError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from coeval.config.keys import Keys

__all__ = ["LOG_LEVELS", "Main", "add_keys", "add_log_level", "keys_of", "run", "with_exit_code"]

Main = Callable[[Sequence[str] | None], "int | None"]
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def run(main: Main, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command's `main` and exit, with 1 and a line on stderr for each mistake where input cannot be used."""
    command.run(partial(with_exit_code, main), argv)


def with_exit_code(main: Main, argv: Sequence[str] | None = None) -> int | None:
    """What `main` returns, or 1 for input that cannot be used."""
    try:
        return main(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def add_keys(parser: ArgumentParser) -> None:
    """Add `--keys`."""
    parser.add_argument(
        "--keys", metavar="PATH", help="key file; otherwise COEVAL_KEYS_FILE, ./keys.yaml or ~/.coeval/keys.yaml"
    )


def add_log_level(parser: ArgumentParser, default: str | None = "INFO") -> None:
    """Add `--log-level`."""
    parser.add_argument("--log-level", choices=LOG_LEVELS, default=default, help="what is told")


def keys_of(path: str | None) -> Keys:
    """The keys of `--keys` and this process's environment.

    Raises:
        ConfigErrors: the key file cannot be used.
    """
    from coeval.config.keys import load_keys

    return load_keys(path, os.environ)
