"""Command: `coeval wizard --out PATH`, a configuration out of a dozen questions, or out of one sentence."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coeval.cli import add_keys, add_out, keys_of
from p2l.common.cli import parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval wizard`."""
    flags = parser(
        "coeval wizard",
        "Write a configuration: answer a dozen questions, or describe the test in a sentence. It is checked, has "
        "comments, and says what the run will cost.",
    )
    add_out(flags, "the configuration to write, YAML")
    flags.add_argument("--overwrite", action="store_true", help="replace what --out names, if it is there")
    flags.add_argument("--answers", type=Path, metavar="FILE", help="answers, one a line, in place of the terminal's")
    flags.add_argument("--sentence", metavar="TEXT", help="what the test is for: a model makes the task of it")
    flags.add_argument(
        "--model", metavar="NAME", help="with --sentence: the model that writes the task, as `provider:model`"
    )
    add_keys(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Write the configuration; 1 where it cannot be used or written, or the model makes no task."""
    flags = build_parser()
    arguments = flags.parse_args(argv)
    if (arguments.sentence is None) != (arguments.model is None):
        flags.error("--sentence and --model go together")
    if arguments.out.exists() and not arguments.overwrite:
        flags.error(f"--out {arguments.out} is there already; choose another name, or add --overwrite to replace it")
    from coeval.config.loading import load_config
    from coeval.planning.estimate import dollars, estimate_text, minutes, static_estimate
    from coeval.planning.wizard import Wizard, config_text
    from p2l.common.files import atomic_path, check_can_write

    keys, out = keys_of(arguments.keys), check_can_write(arguments.out, arguments.answers)
    wizard = Wizard(_answers(arguments.answers), print, keys)
    task = wizard.task() if arguments.sentence is None else _from_sentence(arguments.sentence, arguments.model, keys)
    models = wizard.models()
    experiment = wizard.experiment(task, models)
    with atomic_path(out) as temporary:
        temporary.write_text(config_text(task, models, experiment, ""), encoding="utf-8")
        costs = static_estimate(load_config(temporary, keys=keys, fresh=False))
        summary = (
            f"{costs['total_calls']:,} calls, {dollars(costs['total_cost_usd'])}, {minutes(costs['total_time_min'])}"
        )
        temporary.write_text(config_text(task, models, experiment, f"Planned: {summary}."), encoding="utf-8")
    print(estimate_text(costs))
    print(f"written: {out}\ngo on with: coeval run --config {out}")
    return 0


def _answers(path: Path | None) -> Callable[[str], str]:
    """Return what asks: a file of answers, or the terminal."""
    if path is None:
        return input
    try:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        from coeval.errors import RunInputError

        why = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise RunInputError(f"--answers {path}: cannot be read: {why}") from None

    def ask(question: str) -> str:
        answer = next(lines, None)
        if answer is None:
            raise EOFError
        print(f"{question}{answer}")
        return answer

    return ask


def _from_sentence(sentence: str, name: str, keys: Keys) -> dict[str, Any]:
    import asyncio

    from coeval.calling.caller import make_caller
    from coeval.calling.calls import CallError
    from coeval.errors import RunError
    from coeval.planning.wizard import author_config, task_from

    config = author_config(name, keys)

    async def ask() -> dict[str, Any]:
        async with make_caller(config, keys) as caller:
            return await task_from(sentence, config.models[0], caller)

    try:
        task = asyncio.run(ask())
    except CallError as error:
        raise RunError(f"{name}: {error}") from None
    print(f"{name} calls the task {task['name']}: {task['description']}", file=sys.stderr)
    return task
