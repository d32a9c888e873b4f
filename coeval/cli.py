"""Command: `coeval NAME ...`, every command of CoEval under one name. `python -m coeval` is the same."""

from __future__ import annotations

from collections.abc import Sequence

from coeval.command import run
from p2l import program

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "run": ("coeval.commands.run", "run an experiment, or go on with one"),
    "probe": ("coeval.commands.probe", "ask every provider whether it has the models, without a token"),
    "plan": ("coeval.commands.plan", "say what a run will do, cost and take"),
    "status": ("coeval.commands.status", "say how far a run is; fetch what batches have brought"),
    "repair": ("coeval.commands.repair", "find what is broken or missing in a run, so that it can be made again"),
    "describe": ("coeval.commands.describe", "show a configuration as a page: models, tasks, prompts, costs"),
    "generate": ("coeval.commands.generate", "let the teachers write attributes and rubrics into the configuration"),
    "models": ("coeval.commands.models", "list the models that your keys can reach"),
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
