"""Command: say what a run will do, what it will cost and how long it will take.

coeval plan --config experiment.yaml --estimate-samples 0
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coeval.command import add_keys, add_log_level, keys_of, run
from p2l.command import parser, whole

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.config.schema import Config, Mode, Phase
    from coeval.storage.layout import Run

__all__ = ["build_parser", "main", "run_estimate"]


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval plan", "Say what a run will do, what it will cost and how long it will take.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--continue", dest="go_on", action="store_true", help="what is left of the run in its folder")
    made.add_argument(
        "--estimate-samples",
        type=whole,
        metavar="N",
        help="questions to each model, to see how fast it is; 0: nobody is asked (default: what the file says, or 2)",
    )
    add_log_level(made)
    add_keys(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and the estimate; keep the estimate where the run has a folder."""
    arguments = build_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.phases.modes import start_of
    from coeval.planning import plan_text
    from coeval.pricing.text import estimate_text
    from coeval.storage.jsonl import write_json
    from coeval.storage.layout import Run
    from coeval.storage.log import Log

    keys = keys_of(arguments.keys)
    config = load_config(arguments.config, keys=keys, continue_in_place=arguments.go_on, fresh=False)
    log = Log(None, arguments.log_level)
    for note in config.notes:
        log.info(note)
    folder = Run(config.experiment.folder)
    there, modes = start_of(config, continue_in_place=arguments.go_on)
    print(plan_text(config, there, modes), end="\n\n")
    found = run_estimate(config, keys, samples=arguments.estimate_samples, run=there, modes=modes)
    print(estimate_text(found))
    if folder.folder.is_dir():
        write_json(folder.estimate, found)
    return 0


def run_estimate(
    config: Config, keys: Keys, *, samples: int | None, run: Run | None, modes: Mapping[Phase, Mode]
) -> dict[str, Any]:
    """The estimate, with models asked if `samples`, or the configuration, says so."""
    from coeval.calling.caller import make_caller
    from coeval.pricing.estimate import estimate, static_estimate

    count = config.experiment.estimate_samples if samples is None else samples
    if not count:
        return static_estimate(config, run=run, modes=modes)

    async def asked() -> dict[str, Any]:
        async with make_caller(config, keys) as caller:
            return await estimate(config, caller, samples=count, run=run, modes=modes)

    return asyncio.run(asked())


if __name__ == "__main__":
    run(main)
