"""Command: ask every provider whether it has the models of an experiment. No token is spent.

Exit codes: 0 all are there (or --probe-on-fail warn), 1 the configuration is wrong, 2 a model is not available.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coeval.command import add_keys, add_log_level, keys_of, run
from p2l.command import parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.config.schema import Config, Phase

__all__ = ["add_probe", "build_parser", "main", "run_probe"]


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval probe", "Ask every provider whether it has the models of an experiment, without a token.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    add_probe(made)
    add_log_level(made)
    add_keys(made)
    return made


def add_probe(made: ArgumentParser) -> None:
    """Add `--probe` and `--probe-on-fail`."""
    made.add_argument(
        "--probe",
        choices=("full", "resume", "disable"),
        help="all models, those that are still needed, or none (default: what the file says, or full)",
    )
    made.add_argument(
        "--probe-on-fail",
        choices=("abort", "warn"),
        help="what follows when a model is not available (default: what the file says, or abort)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Probe; keep the results where the run has a folder."""
    arguments = build_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.probing import probe_results, tell_probe
    from coeval.storage.jsonl import write_json
    from coeval.storage.layout import Run
    from coeval.storage.log import Log

    keys = keys_of(arguments.keys)
    config = load_config(arguments.config, keys=keys, fresh=False)
    log = Log(None, arguments.log_level)
    for note in config.notes:
        log.info(note)
    mode = arguments.probe or config.experiment.probe_mode
    on_fail = arguments.probe_on_fail or config.experiment.probe_on_fail
    found = run_probe(config, keys, mode)
    failed = tell_probe(found, log)
    folder = Run(config.experiment.folder)
    if found and folder.folder.is_dir():
        write_json(folder.probe, probe_results(mode, on_fail, found))
    if failed and on_fail == "abort":
        log.error(f"not available: {', '.join(failed)}")
        return 2
    return 0


def run_probe(config: Config, keys: Keys, mode: str, phases: Sequence[Phase] | None = None) -> dict[str, str]:
    """Model -> `ok` or why not, of the models that these phases need: by default all phases, or those left, or none."""
    from coeval.config.schema import PHASES
    from coeval.probing import probe_models

    if mode == "disable":
        return {}
    left = phases or (_left(config) if mode == "resume" else PHASES)
    return asyncio.run(probe_models(config, keys, left))


def _left(config: Config) -> Sequence[Phase]:
    """The phases of which a run that goes on has something to do; all, where there is none."""
    from coeval.config.schema import PHASES
    from coeval.phases.modes import start_of
    from coeval.planning import phases_left
    from coeval.storage.layout import Run
    from coeval.storage.snapshot import stored_meta

    if stored_meta(Run(config.experiment.folder)) is None:
        return PHASES
    return phases_left(config, *start_of(config, continue_in_place=True))


if __name__ == "__main__":
    run(main)
