"""Command: run an experiment, go on with one, or say what it would do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coeval.command import LOG_LEVELS, add_keys, keys_of, run
from p2l.command import parser, whole

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser("coeval run", "Run an experiment: five phases, each stored as it goes; a stopped run can go on.")
    flags.add_argument("--config", required=True, type=Path, help="the experiment, YAML")
    flags.add_argument("--resume", metavar="ID", help="start a new run from what this earlier run has made")
    flags.add_argument(
        "--continue", dest="continue_in_place", action="store_true", help="go on with the run that is in the folder"
    )
    flags.add_argument(
        "--only-models",
        type=_names,
        metavar="A,B",
        help="confine phases 3 to 5 to these models; may run beside a main process",
    )
    flags.add_argument("--dry-run", action="store_true", help="print the plan; ask nothing, write nothing")
    flags.add_argument("--probe", choices=("full", "resume", "disable"), help="which models are probed before phase 1")
    flags.add_argument("--probe-on-fail", choices=("abort", "warn"), help="what follows when a model is not available")
    flags.add_argument("--skip-probe", action="store_true", help="deprecated: the same as --probe disable")
    flags.add_argument("--estimate-only", action="store_true", help="print what the run will cost, and end")
    flags.add_argument("--estimate-samples", type=whole, metavar="N", help="calls for each model to measure its speed")
    flags.add_argument("--log-level", choices=LOG_LEVELS, help="least that is logged")
    add_keys(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 for a configuration that cannot be used, an abort, or a phase that failed in part."""
    given = build_parser().parse_args(argv)
    from coeval.launch import Options, launch

    if given.skip_probe:
        print("warning: --skip-probe is deprecated; use --probe disable", file=sys.stderr)
    options = Options(
        config=given.config,
        keys=keys_of(given.keys),
        resume=given.resume,
        continue_in_place=given.continue_in_place,
        only=given.only_models,
        dry_run=given.dry_run,
        probe_mode="disable" if given.skip_probe else given.probe,
        probe_on_fail=given.probe_on_fail,
        estimate_only=given.estimate_only,
        estimate_samples=given.estimate_samples,
        log_level=given.log_level,
    )
    try:
        return launch(options)
    except BrokenPipeError:
        if given.dry_run or given.estimate_only:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("error: stopped, since nobody reads the output any more; start again, or use --continue", file=sys.stderr)
        return 1


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no model")
    return names


if __name__ == "__main__":
    run(main)
