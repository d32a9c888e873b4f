"""Commands on one run: start it or go on with it, propose what teachers add, say how far it is, repair or view it."""

from __future__ import annotations

import itertools
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import (
    add_continue,
    add_dry_run,
    add_estimate_samples,
    add_keys,
    add_log_level,
    add_out,
    config_flags,
    keys_of,
    load,
    names,
    run_flags,
)
from coeval.commands.plan import add_probe, run_probe
from p2l.common.cli import number_of, whole
from p2l.common.errors import ConfigError

if TYPE_CHECKING:
    from coeval.planning.gaps import Inspection
    from coeval.storage.run import Run
    from coeval.view.site import Site

_SHOWN_CHARS = 160  # of a valid record
_KINDS = {"3": ("data_generation",), "4": ("response_collection",), "5": ("evaluation", "pairwise")}


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval run`, which `Options` has under the same names."""
    flags = config_flags("run", "Run an experiment: five phases, each stored as it goes; a stopped run can go on.")
    flags.add_argument("--resume", metavar="ID", help="start a new run from the records of this earlier one")
    add_continue(flags, "continue the run in the folder")
    flags.add_argument(
        "--only-models",
        dest="only",
        type=_model_names,
        metavar="A,B",
        help="confine phases 3 to 5 to these models; may run beside a main process",
    )
    flags.add_argument(
        "--join",
        action="store_true",
        help="share the run with other processes started the same way, here or on machines that share its folder: "
        "the first begins it, or goes on with it, the others join, and each makes what no other does",
    )
    add_dry_run(flags, "print the plan; ask nothing, write nothing")
    add_probe(flags)
    flags.add_argument("--estimate-only", action="store_true", help="print what the run will cost, and end")
    add_estimate_samples(flags)
    add_log_level(flags, None)
    flags.hide_rare("--estimate-samples")
    flags.arrange(
        {
            "an earlier run": ("--resume", "--continue", "--only-models"),
            "before the first phase": ("--probe", "--probe-on-fail", "--estimate-samples"),
            "run nothing": ("--dry-run", "--estimate-only"),
        }
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0, or 1 for a configuration that cannot be used, an abort, or a phase that failed in part."""
    flags = vars(build_parser().parse_args(argv))
    # Here and in every command: what the work needs is imported once the flags are right, so that --help comes at once.
    from coeval.run import Options, launch

    flags.pop("help_all", None)
    flags["probe_mode"] = flags.pop("probe")
    options = Options(**flags | {"keys": keys_of(flags["keys"])})
    try:
        return launch(options)
    except BrokenPipeError:
        if options.dry_run or options.estimate_only:
            raise
        # A run must not look complete to whoever started it: 1, where other commands end with 0.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("error: stopped, since nobody reads the output any more; start again, or use --continue", file=sys.stderr)
        return 1


def _model_names(text: str) -> frozenset[str]:
    if not names(text):
        raise ArgumentTypeError("names no model")
    return frozenset(names(text))


def generate_parser() -> ArgumentParser:
    """Return the flags of `coeval generate`."""
    flags = config_flags("generate", "Write a configuration with the attributes and rubrics that teachers propose.")
    add_out(flags, "the configuration to write")
    add_probe(flags)
    add_log_level(flags)
    return flags


def generate_main(argv: Sequence[str] | None = None) -> int:
    """Write a configuration with what its teachers propose; 1 where it is wrong or no teacher proposes anything."""
    arguments = generate_parser().parse_args(argv)
    import asyncio

    from coeval.planning.probing import generate, log_probe, static_text
    from coeval.schema import PHASES
    from p2l.common.files import atomic_path, check_can_write

    config, keys, log = load(arguments)
    out = check_can_write(arguments.out, arguments.config)
    if out.exists():  # written by hand, perhaps
        raise ConfigError(f"--out {out} is there already; choose another name, or remove it")
    mode = arguments.probe or config.experiment.probe_mode
    failed = log_probe(run_probe(config, keys, mode, PHASES[:2]), log)
    if failed and (arguments.probe_on_fail or config.experiment.probe_on_fail) != "warn":
        log.error(f"not available: {', '.join(failed)}; fix this, or use --probe-on-fail warn")
        return 1
    raw, changes = asyncio.run(generate(config, keys, log))
    with atomic_path(out) as temporary:
        temporary.write_text(static_text(raw, changes, str(arguments.config)), encoding="utf-8")
    for change in changes:
        log.info(change)
    log.info(f"written: {out}")
    return 0


def status_parser() -> ArgumentParser:
    """Return the flags of `coeval status`."""
    flags = run_flags("status", "Say how far a run is: phases, records, pending batch jobs, the last errors.")
    flags.add_argument(
        "--fetch-batches", action="store_true", help="first store the answers of the pending batch jobs that are done"
    )
    add_keys(flags)
    return flags


def status_main(argv: Sequence[str] | None = None) -> int:
    """Print how far a run is; 1 where the folder holds no run, or a batch job cannot be looked at."""
    arguments = status_parser().parse_args(argv)
    from coeval.planning.plan import status_text
    from coeval.storage.run import Run

    folder, lost = Run(arguments.run), 0
    if arguments.fetch_batches:
        import asyncio

        from coeval.batch.results import fetch_batches

        lost = asyncio.run(fetch_batches(folder, keys_of(arguments.keys), lambda line: print(line, flush=True)))
        print()
    print(status_text(folder))
    return int(lost > 0)


def repair_parser() -> ArgumentParser:
    """Return the flags of `coeval repair`."""
    flags = run_flags(
        "repair",
        "Find unusable and missing records; mark or remove the unusable, so that `run --continue` makes them again.",
    )
    add_dry_run(flags, "say what would be done, change nothing")
    flags.add_argument("--stats", action="store_true", help="print counts alone, change nothing")
    flags.add_argument("--examples", type=_count, default=5, metavar="N", help="invalid records to show; -1: all")
    flags.add_argument("--phase", choices=tuple(_KINDS), help="only this phase")
    flags.add_argument("--breakdown", action="store_true", help="count by file, and gaps by task and model")
    flags.add_argument("--show-valid", type=whole, default=0, metavar="N", help="valid records to show")
    return flags


def repair_main(argv: Sequence[str] | None = None) -> int:
    """Repair; 1 where the folder holds no run, or another process is at work on it."""
    arguments = repair_parser().parse_args(argv)
    from coeval.planning.gaps import KINDS, examine, mend
    from coeval.storage.meta import Meta, main_process, replacing
    from coeval.storage.run import Run

    folder = Run(arguments.run)
    Meta(folder)
    kinds = _KINDS[arguments.phase] if arguments.phase else KINDS
    if arguments.dry_run or arguments.stats:
        _print(folder, [inspection for kind, inspection in examine(folder).items() if kind in kinds], arguments)
        return 0
    with main_process(folder), replacing(folder):
        inspections = examine(folder)
        _print(folder, [inspections[kind] for kind in kinds], arguments)
        changed = mend(folder, inspections, kinds)
    is_lacking = any(inspections[kind].bad or inspections[kind].gaps for kind in kinds)
    hint = "`coeval run --config ... --continue` makes what is missing" if is_lacking else "nothing is missing"
    print(f"{changed} lines changed; {hint}")
    return 0


def _count(text: str) -> int:
    return number_of(text, int, lambda number: number >= -1, "a whole number of at least 0, or -1 for all")


def _print(folder: Run, inspections: Sequence[Inspection], arguments: Namespace) -> None:
    for inspection in inspections:
        if folder.record_files(inspection.kind) or inspection.gaps:
            print("\n".join(_summary(folder, inspection, arguments)))


def _summary(folder: Run, inspection: Inspection, arguments: Namespace) -> Iterator[str]:
    import json

    gaps, bad = sum(gap.missing for gap in inspection.gaps), inspection.bad
    yield f"{inspection.kind}: {len(inspection.valid)} valid, {len(bad)} unusable, {gaps} missing"
    for reason, count in Counter(line.reason for line in bad).most_common():
        yield f"  {count} {reason}"
    if arguments.breakdown:
        files = Counter(line.path.name for line in bad)
        yield from (f"  {name}: {count} unusable" for name, count in files.most_common())
        yield from (f"  {gap.task}, {gap.model}: {gap.missing} missing" for gap in inspection.gaps)
    if not arguments.stats:
        examples = bad if arguments.examples < 0 else bad[: arguments.examples]
        yield from (f"  {line.path.name}:{line.number}: {line.id or 'no id'}: {line.reason}" for line in examples)
        valid = (record for record in folder.read(inspection.kind) if record.get("id") in inspection.valid)
        for record in itertools.islice(valid, arguments.show_valid):
            text = json.dumps(record, ensure_ascii=False)
            yield f"  valid: {text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + '...'}"


_VIEW_KEY = "COEVAL_VIEW_KEY"


def view_parser() -> ArgumentParser:
    """Return the flags of `coeval view`."""
    from p2l.common.access import add_address_flags
    from p2l.common.connections import add_connection_flags

    flags = run_flags("view", "Show a run in a browser: the ranking and, one click from any score, the item behind it.")
    flags.add_argument(
        "--bundle", type=Path, metavar="DIR", help="write the pages to this new folder, for any web server, and end"
    )
    server = flags.add_argument_group("server")
    add_address_flags(server, host="127.0.0.1", port_number=8050)
    server.add_argument(
        "--key",
        help=f"what readers type once (default: ${_VIEW_KEY}; else none on this machine, and a random one for others)",
    )
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=5.0)
    flags.hide_rare("--header-seconds", "--idle-seconds", "--max-connections", "--max-peer-connections")
    return flags


def view_main(argv: Sequence[str] | None = None) -> int | None:
    """Serve a run read-only until interrupted, or write its pages; 1 where one of the folders cannot be used."""
    from p2l.common.access import check_address, digest_of
    from p2l.common.connections import limits_of

    flags = view_parser().parse_args(argv)
    if flags.bundle is not None:
        site = _site(flags.run)
        size = site.write(flags.bundle)
        files = sum(1 for _ in site.paths())
        print(f"wrote {files:,} files, {size / 1e6:.1f} MB; open {flags.bundle / 'index.html'} through a web server")
        return 0
    check_address(flags.host, flags.port)
    limits, key = limits_of(flags), _view_key(flags.key, flags.host)
    site = _site(flags.run)
    for path in ("index.html", "items.html"):  # what they compute of the whole run is then there for the first reader
        site.read(path)
    from coeval.view.serving import serve

    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    print(f"{site.summary()}; open http://{host}:{flags.port}/", flush=True)
    serve(site, flags.host, flags.port, None if key is None else digest_of(key), limits)
    return None


def _site(run: Path) -> Site:
    from coeval.analysis.units import load_run
    from coeval.view.site import Site

    site = Site(load_run(run))
    if site.loaded.header.partial:
        print(f"note: {run} is {site.loaded.header.status}: this shows what it holds now", file=sys.stderr)
    return site


def _view_key(typed: str | None, host: str) -> str | None:
    """Return what readers have to type; None where browsers of this machine need nothing."""
    from p2l.common.access import is_loopback, new_key

    key = os.environ.get(_VIEW_KEY) if typed is None else typed
    if key is not None and not key.strip():
        raise ConfigError(f"--key (or ${_VIEW_KEY}) is empty; pass a key, or leave it out")
    if key is None and not is_loopback(host):
        key = new_key()
        print(f"no --key was given; readers type this one: {key}", flush=True)
    return None if key is None else key.strip()
