"""Command: let the teachers propose attributes and rubrics, and write them into a configuration to look at and to run.

Exit codes: 0, 1 where the configuration is wrong, a model is not available or no teacher proposed anything.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coeval.command import add_keys, add_log_level, keys_of, run
from coeval.commands.probe import add_probe, run_probe
from p2l.command import atomic_path, check_can_write, parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.config.schema import Config
    from coeval.storage.log import Log

__all__ = ["build_parser", "main"]


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval generate", "Write a configuration with the attributes and rubrics that teachers propose.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--out", required=True, metavar="PATH", help="the configuration to write")
    add_probe(made)
    add_log_level(made)
    add_keys(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Probe the teachers, ask them, write."""
    arguments = build_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.generating import generate, static_text
    from coeval.storage.log import Log

    keys = keys_of(arguments.keys)
    config = load_config(arguments.config, keys=keys, fresh=False)
    out = check_can_write(arguments.out, arguments.config)
    log = Log(None, arguments.log_level)
    for note in config.notes:
        log.info(note)
    if not _are_there(config, keys, arguments.probe, arguments.probe_on_fail, log):
        return 1
    raw, changes = asyncio.run(generate(config, keys, log))
    with atomic_path(out) as temporary:
        temporary.write_text(static_text(raw, changes, str(arguments.config)), encoding="utf-8")
    for change in changes:
        log.info(change)
    log.info(f"written: {out}")
    return 0


def _are_there(config: Config, keys: Keys, mode: str | None, on_fail: str | None, log: Log) -> bool:
    """Whether the teachers can be asked, or that is not to matter."""
    from coeval.config.schema import PHASES
    from coeval.probing import tell_probe

    failed = tell_probe(run_probe(config, keys, mode or config.experiment.probe_mode, PHASES[:2]), log)
    if not failed or (on_fail or config.experiment.probe_on_fail) == "warn":
        return True
    log.error(f"not available: {', '.join(failed)}; mend this, or use --probe-on-fail warn")
    return False


if __name__ == "__main__":
    run(main)
