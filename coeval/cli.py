"""Command: `coeval NAME ...`, every command of CoEval under one name. `python -m coeval` is the same."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from p2l.common import cli, program
from p2l.common.errors import InputError
from p2l.common.program import Parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.schema import Config
    from coeval.storage.store import Log

Main = Callable[[Sequence[str] | None], "int | None"]
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")  # those of `Log`, whose import every --help would wait for


def run(main: Main, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command's `main` and exit, with 1 and a line on stderr for each mistake where input cannot be used."""
    # Looking for plugins, pydantic reads the metadata of every installed package: 40 ms of each start, for none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    cli.run(partial(with_exit_code, main), argv)


def with_exit_code(main: Main, argv: Sequence[str] | None = None) -> int | None:
    """Return what `main` returns, or 1 for input that cannot be used."""
    try:
        return main(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run_flags(name: str, about: str) -> Parser:
    """Return the parser of a command about the run in a folder."""
    flags = cli.parser(f"coeval {name}", about)
    add_run(flags)
    return flags


def add_run(flags: cli.Flags, *, required: bool = True) -> None:
    """Add `--run`."""
    flags.add_argument("--run", required=required, type=Path, metavar="PATH", help="folder of the run")


def add_out(flags: cli.Flags, about: str, *, required: bool = True) -> None:
    """Add `--out`, the file or folder that a command writes."""
    flags.add_argument("--out", required=required, type=Path, metavar="PATH", help=about)


def add_continue(flags: cli.Flags, about: str) -> None:
    """Add `--continue`, of a run that is in its folder."""
    flags.add_argument("--continue", dest="continue_in_place", action="store_true", help=about)


def add_estimate_samples(flags: cli.Flags) -> None:
    """Add `--estimate-samples`."""
    flags.add_argument(
        "--estimate-samples",
        type=cli.whole,
        metavar="N",
        help="calls to each model, to measure its speed; 0: no call (default: what the file says, or 2)",
    )


def add_dry_run(flags: cli.Flags, about: str) -> None:
    """Add `--dry-run`."""
    flags.add_argument("--dry-run", action="store_true", help=about)


def config_flags(name: str, about: str) -> Parser:
    """Return the parser of a command about a configuration, for `load`."""
    flags = cli.parser(f"coeval {name}", about)
    flags.add_argument("--config", required=True, type=Path, metavar="PATH", help="the experiment, YAML")
    add_keys(flags)
    return flags


def add_keys(flags: ArgumentParser) -> None:
    """Add `--keys`."""
    flags.add_argument(
        "--keys", metavar="PATH", help="key file; otherwise COEVAL_KEYS_FILE, ./keys.yaml or ~/.coeval/keys.yaml"
    )


def add_log_level(flags: Parser, default: str | None = "INFO") -> None:
    """Add `--log-level`."""
    flags.add_argument("--log-level", choices=LOG_LEVELS, default=default, help="lowest level to print")
    flags.hide_rare("--log-level")


def names(text: str) -> tuple[str, ...]:
    """Return the names of a list `A,B`, for `type=` of a flag."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def keys_of(path: str | None) -> Keys:
    """Return the keys of `--keys` and this process's environment; ConfigErrors if the key file cannot be used."""
    from coeval.config.keys import load_keys

    return load_keys(path, os.environ)


def load(arguments: Namespace, *, continue_in_place: bool = False) -> tuple[Config, Keys, Log]:
    """Load the configuration, keys and log of a command that runs nothing; ConfigErrors if one cannot be used."""
    from coeval.config.loading import load_config
    from coeval.storage.store import Log

    keys, log = keys_of(arguments.keys), Log(None, arguments.log_level)
    config = load_config(arguments.config, keys=keys, continue_in_place=continue_in_place, fresh=False)
    for note in config.notes:
        log.info(note)
    return config, keys, log


GROUPS = {
    "one experiment, in this order": {
        "wizard": ("coeval.commands.plan:wizard_main", "write a configuration from a dozen questions, or one sentence"),
        "generate": (
            "coeval.commands.run:generate_main",
            "let teachers write attributes and rubrics into a configuration",
        ),
        "describe": (
            "coeval.commands.plan:describe_main",
            "show a configuration as a page: models, tasks, prompts, costs",
        ),
        "probe": ("coeval.commands.plan:probe_main", "ask every provider whether it has the models, at no cost"),
        "plan": ("coeval.commands.plan", "print what a run will do, what it will cost and how long it takes"),
        "run": ("coeval.commands.run", "run an experiment, or continue one"),
        "status": ("coeval.commands.run:status_main", "print the progress of a run; fetch answers of batch jobs"),
        "repair": (
            "coeval.commands.run:repair_main",
            "find broken or missing records of a run, for the next run to make",
        ),
        "view": (
            "coeval.commands.run:view_main",
            "look at a run in a browser, down to prompts, answers, rationales",
        ),
        "analyze": ("coeval.commands.analyze", "make reports, tables, benchmarks and preferences of a run"),
        "calibrate": (
            "coeval.commands.export:calibrate_main",
            "correct a ranking by people who scored some answers; say which to score next",
        ),
    },
    "more": {
        "compare": ("coeval.commands.analyze:compare_main", "compare two runs; fails where a student became worse"),
        "ingest": ("coeval.commands.ingest", "add the items of a benchmark, or of a file of prompts, to a run"),
        "models": ("coeval.commands.plan:models_main", "list the models that your keys can reach"),
    },
}
"""Purpose: {name: (module with a `main(argv)`, what it does)}."""
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    about = "Votes and benchmarks without people: teachers write tasks, students answer, judges score."
    return program.dispatch("coeval", about, GROUPS, argv)


def main() -> None:
    """The console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
