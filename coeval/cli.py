"""Command: `coeval NAME ...`, every command of CoEval under one name. `python -m coeval` is the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from p2l.common import cli, program
from p2l.common.errors import InputError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from coeval.config.keys import Keys


# What every command of CoEval shares: bad input ends it with exit code 1, as its manual has it.

Main = Callable[[Sequence[str] | None], "int | None"]
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def run(main: Main, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command's `main` and exit, with 1 and a line on stderr for each mistake where input cannot be used."""
    cli.run(partial(with_exit_code, main), argv)


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


COMMANDS = {
    "run": ("coeval.commands.run", "run an experiment, or go on with one"),
    "probe": ("coeval.commands.plan:probe_main", "ask every provider whether it has the models, without a token"),
    "plan": ("coeval.commands.plan", "say what a run will do, cost and take"),
    "status": ("coeval.commands.run:status_main", "say how far a run is; fetch what batches have brought"),
    "repair": (
        "coeval.commands.run:repair_main",
        "find what is broken or missing in a run, so that it can be made again",
    ),
    "describe": ("coeval.commands.plan:describe_main", "show a configuration as a page: models, tasks, prompts, costs"),
    "generate": (
        "coeval.commands.run:generate_main",
        "let the teachers write attributes and rubrics into the configuration",
    ),
    "models": ("coeval.commands.plan:models_main", "list the models that your keys can reach"),
    "ingest": ("coeval.commands.ingest", "take the items of a benchmark, or of any file of prompts, into a run"),
    "analyze": ("coeval.commands.analyze", "make reports, tables, benchmarks and preferences of a run"),
    "compare": ("coeval.commands.compare", "compare two runs; fails where a student became worse"),
}
"""Name: (module with a `main(argv)`, what it does)."""


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    about = "Votes and benchmarks without people: teachers write tasks, students answer, judges score."
    return program.dispatch("coeval", about, COMMANDS, argv)


def main() -> None:
    """The console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
