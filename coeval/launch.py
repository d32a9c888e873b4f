"""From a configuration to the end of its run: checked, told, estimated, probed, and only then anything is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.config.schema import BATCH_PHASES, PHASES, Config
from coeval.errors import RunError, RunInputError
from coeval.phases.question import Batching
from coeval.storage.claims import alone, main_process
from coeval.storage.jsonl import write_json
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import Meta
from p2l.command import atomic_path, nearest

__all__ = ["Options", "launch"]


@dataclass(frozen=True)
class Options:
    """What a run was started with; None leaves it to the configuration."""

    config: Path
    keys: Keys
    resume: str | None = None
    continue_in_place: bool = False
    only: frozenset[str] | None = None
    dry_run: bool = False
    probe_mode: str | None = None
    probe_on_fail: str | None = None
    estimate_only: bool = False
    estimate_samples: int | None = None
    log_level: str | None = None


@dataclass
class _Before:
    """What was found out before anything was written."""

    estimate: dict[str, Any] | None = None
    probe: dict[str, Any] | None = None


def launch(options: Options) -> int:
    """Do what was asked for; the exit code.

    Raises:
        P2LError: the configuration, a key or the folder cannot be used, or a model is not available.
    """
    from coeval.commands.plan import plan_text

    config = _configured(options)
    run = Run(config.experiment.folder)
    print(plan_text(config, run if options.continue_in_place else None), flush=True)
    if options.dry_run:
        return 0
    was_there = run.meta.exists()
    before = asyncio.run(_look_ahead(config, options, run))
    if before is None:
        return 0
    with _at_work(run, options.only):
        return _run(config, options, run, before, was_there=was_there)


def _configured(options: Options) -> Config:
    if options.resume and options.continue_in_place:
        raise RunInputError("--resume starts a new run and --continue goes on with one; leave one of the two out")
    config = load_config(
        options.config, keys=options.keys, resume=options.resume, continue_in_place=options.continue_in_place
    )
    names = [model.name for model in config.models]
    for name in sorted(options.only or ()):
        if name not in names:
            raise RunInputError(f"--only-models: there is no model {name!r}{nearest(name, names)}")
    given: dict[str, Any] = {
        "probe_mode": options.probe_mode,
        "probe_on_fail": options.probe_on_fail,
        "estimate_samples": options.estimate_samples,
        "log_level": options.log_level,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    return replace(config, experiment=replace(config.experiment, **changes))


async def _look_ahead(config: Config, options: Options, run: Run) -> _Before | None:
    """Estimate and probe, as far as wanted; None where that is all that was wanted."""
    before = _Before()
    if options.estimate_only or config.experiment.estimate_cost:
        before.estimate = await _estimated(config, options, run)
        if options.estimate_only:
            if run.meta.exists():
                write_json(run.estimate, before.estimate)
            return None
        _check_budget(config, before.estimate, Meta(run).spent_usd if options.continue_in_place else 0.0)
    before.probe = await _probed(config, options, run)
    return before


async def _estimated(config: Config, options: Options, run: Run) -> dict[str, Any]:
    from coeval.calling.caller import make_caller
    from coeval.pricing.estimate import estimate, estimate_text

    stored = run if options.continue_in_place else None
    async with make_caller(config, options.keys) as caller:
        found = await estimate(config, caller, samples=config.experiment.estimate_samples, run=stored)
    print(estimate_text(found), flush=True)
    return found


def _check_budget(config: Config, estimate: Mapping[str, Any], spent: float) -> None:
    budget, cost = config.experiment.budget_usd, spent + estimate["total_cost_usd"]
    if budget is not None and cost > budget:
        already = f", ${spent:.4f} of it spent already" if spent else ""
        raise RunError(
            f"the run is expected to cost ${cost:.4f}{already}, above experiment.budget_usd of ${budget:.4f}; "
            "raise it, or make the run smaller; nothing was asked"
        )


async def _probed(config: Config, options: Options, run: Run) -> dict[str, Any] | None:
    """What `probe_results.json` holds; None without a probe.

    Raises:
        RunError: a model is not available, and that is to end the run.
    """
    mode, on_fail = config.experiment.probe_mode, config.experiment.probe_on_fail
    if mode == "disable":
        return None
    from coeval.commands.probe import probe_models

    completed = Meta(run).completed if options.continue_in_place else []
    left = [phase for phase in PHASES if mode == "full" or phase not in completed]
    models = tuple(model for model in config.models if options.only is None or model.name in options.only)
    results = await probe_models(replace(config, models=models), options.keys, left)
    for name, said in sorted(results.items()):
        print(f"probe: {name}: {said}", flush=True)
    failed = sorted(name for name, said in results.items() if said != "ok")
    if failed and on_fail == "abort":
        raise RunError(f"not available: {', '.join(failed)}; mend this, or use --probe-on-fail warn")
    return {"mode": mode, "on_fail": on_fail, "results": dict(results), "probed_models": sorted(results)}


@contextlib.contextmanager
def _at_work(run: Run, only: frozenset[str] | None) -> Iterator[None]:
    """Be the main process of the run, or one beside it."""
    try:
        with contextlib.nullcontext() if only is not None else main_process(run):
            yield
    except OSError as error:
        raise RunInputError(f"{run.folder}: cannot be written: {error.strerror or error}") from error


def _run(config: Config, options: Options, run: Run, before: _Before, *, was_there: bool) -> int:
    from coeval.phases.modes import prepare

    run.folder.mkdir(parents=True, exist_ok=True)
    log = Log(run.log(options.only), config.experiment.log_level)
    for note in config.notes:
        log.info(note)
    with alone(run):
        meta, modes = prepare(config, run, log, continue_in_place=options.continue_in_place, was_there=was_there)
    if options.only is None:
        meta.update(status="in_progress")
    _write_snapshot(config, options.keys, run)
    for path, value in ((run.estimate, before.estimate), (run.probe, before.probe)):
        if value is not None:
            write_json(path, value)
    return asyncio.run(_phases(config, options, run, meta, modes, log))


def _write_snapshot(config: Config, keys: Keys, run: Run) -> None:
    from coeval.config.redact import snapshot_text

    with atomic_path(run.config) as temporary:
        temporary.write_text(snapshot_text(config, keys.secrets()), encoding="utf-8")


async def _phases(config: Config, options: Options, run: Run, meta: Meta, modes: Mapping[Any, Any], log: Log) -> int:
    from coeval.calling.caller import make_caller
    from coeval.phases.runner import run_phases

    batching = _batching(config, options.keys, run, meta, log)
    async with make_caller(config, options.keys, run, meta, warn=log.warning) as caller:
        return await run_phases(config, run, meta, modes, caller, log, only=options.only, batching=batching)


def _batching(config: Config, keys: Keys, run: Run, meta: Meta, log: Log) -> Batching | None:
    """Batch jobs, where some are asked for or still pending."""
    wanted = any(config.is_batched(model, phase) for model in config.models for phase in BATCH_PHASES)
    if not wanted and not run.pending.exists():
        return None
    from coeval.batch.jobs import make_batching

    return make_batching(config, keys, run, meta, log)
