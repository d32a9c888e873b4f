"""Command: `p2l-route NAME ...`, the commands of the router under one name. `python -m route.cli` is the same."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.common import program
from p2l.common.cli import run

COMMANDS = {
    "serve": ("route.openai_server", "serve OpenAI's API, every request by the best model the budget allows"),
    "keys": ("route.manage_keys", "make, list, limit and revoke keys of clients"),
    "migrate": ("route.migrate", "move what a router's SQLite file holds to a PostgreSQL database"),
    "compare-policies": ("route.compare_policies", "compare the policies of an experiment by the router's log"),
    "verify": ("route.verify", "test whether a deployment still answers as the model of an earlier day"),
    "costs": ("route.costs", "recompute the models' costs from a price list and the logged usage"),
}
"""Name: (module with a `main(argv)`, what it does)."""
GROUPS = {"commands": COMMANDS}


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    return program.dispatch("p2l-route", "The OpenAI-compatible router.", GROUPS, argv)


def main() -> None:
    """The console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
