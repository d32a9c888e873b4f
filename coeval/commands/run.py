"""Command: run an experiment, go on with one, or say what it would do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import LOG_LEVELS, add_keys, add_log_level, keys_of, run
from coeval.commands.plan import add_probe, run_probe
from p2l.common.cli import parser, whole
from p2l.common.files import atomic_path, check_can_write

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.repairing import Found
    from coeval.schema import Config
    from coeval.storage.run import Run
    from coeval.storage.store import Log


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
    from coeval.run import Options, launch

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


# Command: let the teachers propose attributes and rubrics, and write them into a configuration to look at and to run.
#
# Exit codes: 0, 1 where the configuration is wrong, a model is not available or no teacher proposed anything.


def generate_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval generate", "Write a configuration with the attributes and rubrics that teachers propose.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--out", required=True, metavar="PATH", help="the configuration to write")
    add_probe(made)
    add_log_level(made)
    add_keys(made)
    return made


def generate_main(argv: Sequence[str] | None = None) -> int:
    """Probe the teachers, ask them, write."""
    import asyncio

    arguments = generate_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.probing import generate, static_text
    from coeval.storage.store import Log

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
    from coeval.probing import tell_probe
    from coeval.schema import PHASES

    failed = tell_probe(run_probe(config, keys, mode or config.experiment.probe_mode, PHASES[:2]), log)
    if not failed or (on_fail or config.experiment.probe_on_fail) == "warn":
        return True
    log.error(f"not available: {', '.join(failed)}; mend this, or use --probe-on-fail warn")
    return False


# Command: how far a run is.


def status_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser("coeval status", "Say how far a run is: phases, records, pending batch jobs, the last errors.")
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument(
        "--fetch-batches", action="store_true", help="first store the answers of the pending batch jobs that are done"
    )
    add_keys(flags)
    return flags


def status_main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or a batch job cannot be looked at."""
    from coeval.planning.plan import status_text
    from coeval.storage.run import Run

    given = status_parser().parse_args(argv)
    lost = _fetch(Run(given.run), given.keys) if given.fetch_batches else 0
    print(status_text(Run(given.run)))
    return int(lost > 0)


def _fetch(folder: Run, keys: str | None) -> int:
    """Fetch batches; how many jobs could not be looked at."""
    import asyncio

    from coeval.batch.results import fetch_batches

    lost = asyncio.run(fetch_batches(folder, keys_of(keys), lambda line: print(line, flush=True)))
    print()
    return lost


# Command: find what is broken or missing in a run, and open it for `run --continue`.

_KINDS = {"3": ("data_generation",), "4": ("response_collection",), "5": ("evaluation", "pairwise")}
_SHOWN = 160


def repair_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser(
        "coeval repair",
        "Find records of no use and gaps; mark or remove the records, and open their phases for `run --continue`.",
    )
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    flags.add_argument("--stats", action="store_true", help="print counts alone, change nothing")
    flags.add_argument("--examples", type=_count, default=5, metavar="N", help="records of no use to show; -1: all")
    flags.add_argument("--phase", choices=tuple(_KINDS), help="look at one phase alone")
    flags.add_argument("--breakdown", action="store_true", help="count by file, and gaps by task and model")
    flags.add_argument("--show-valid", type=whole, default=0, metavar="N", help="sound records to show")
    return flags


def repair_main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or another process is at work on it."""
    given = repair_parser().parse_args(argv)
    from coeval.repairing import KINDS, examine, mend
    from coeval.storage.meta import Meta, main_process, replacing
    from coeval.storage.run import Run

    folder = Run(given.run)
    Meta(folder)
    kinds = _KINDS[given.phase] if given.phase else KINDS
    if given.dry_run or given.stats:
        _print(folder, [found for kind, found in examine(folder).items() if kind in kinds], given)
        return 0
    with main_process(folder), replacing(folder):
        found = examine(folder)
        _print(folder, [found[kind] for kind in kinds], given)
        changed = mend(folder, found, kinds)
    lacking = any(found[kind].bad or found[kind].gaps for kind in kinds)
    hint = "`coeval run --config ... --continue` makes what is missing" if lacking else "nothing is missing"
    print(f"{changed} lines changed; {hint}")
    return 0


def _count(text: str) -> int:
    if text != "-1" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor -1 for all")
    return int(text)


def _print(folder: Run, found: Sequence[Found], given: argparse.Namespace) -> None:
    for one in found:
        if folder.record_files(one.kind) or one.gaps:
            print("\n".join(_told(folder, one, given)))


def _told(folder: Run, found: Found, given: argparse.Namespace) -> Iterator[str]:
    gaps = sum(gap.missing for gap in found.gaps)
    yield f"{found.kind}: {len(found.valid)} valid, {len(found.bad)} of no use, {gaps} missing"
    for why, count in found.reasons().most_common():
        yield f"  {count} {why}"
    if given.breakdown:
        yield from (f"  {name}: {count} of no use" for name, count in _by_file(found).most_common())
        yield from (f"  {gap.task}, {gap.model}: {gap.missing} missing" for gap in found.gaps)
    if not given.stats:
        bad = found.bad if given.examples < 0 else found.bad[: given.examples]
        yield from (f"  {one.path.name}:{one.line}: {one.id or 'no id'}: {one.why}" for one in bad)
        yield from _valid(folder, found, given.show_valid)


def _by_file(found: Found) -> Counter[str]:
    return Counter(bad.path.name for bad in found.bad)


def _valid(folder: Run, found: Found, count: int) -> Iterator[str]:
    from coeval.storage.jsonl import read_records

    records = (record for path in folder.record_files(found.kind) for record in read_records(path))
    sound = (record for record in records if record.get("id") in found.valid)
    for record, _ in zip(sound, range(count), strict=False):
        text = json.dumps(record, ensure_ascii=False)
        yield f"  valid: {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"


if __name__ == "__main__":
    run(main)
