"""Run a configuration: load, plan, estimate and probe it, and only then write anything and run its phases."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.errors import RunError, RunInputError
from coeval.phases.evaluation import evaluate
from coeval.phases.items import generate_items
from coeval.phases.mapping import Halt, map_attributes, map_rubrics
from coeval.phases.progress import Outcome, Progress, Stage
from coeval.phases.responses import collect_responses
from coeval.phases.start import keeps
from coeval.schema import PHASES, Config, Mode, Phase
from coeval.storage.claims import Claims
from coeval.storage.meta import Meta, adding, alone, main_process, starting
from coeval.storage.records import write_json
from coeval.storage.run import KINDS_OF, Run
from coeval.storage.store import Log, Store
from p2l.common.cli import nearest
from p2l.common.errors import P2LError
from p2l.common.files import atomic_path


@dataclass(frozen=True)
class Options:
    """The flags of a run; None leaves it to the configuration."""

    config: Path
    keys: Keys
    resume: str | None = None
    continue_in_place: bool = False
    only: frozenset[str] | None = None
    join: bool = False
    dry_run: bool = False
    probe_mode: str | None = None
    probe_on_fail: str | None = None
    estimate_only: bool = False
    estimate_samples: int | None = None
    log_level: str | None = None


@dataclass(frozen=True)
class _Start:
    """A run that is about to start."""

    config: Config
    options: Options
    run: Run
    stored: Run | None  # the same run, where the start builds on what is in its folder
    modes: Mapping[Phase, Mode]
    log: Log
    planned: Mapping[Phase, float]  # phase -> tokens of the answers that are left to ask for
    joining: contextlib.ExitStack  # keeps others that join from looking at the run until this process has set it up


def launch(options: Options) -> int:
    """Run, or stop after the plan or the estimate; return the exit code; P2LError for unusable input or models."""
    with contextlib.ExitStack() as joining:
        config = _configured(options)
        folder = Run(config.experiment.folder)
        if options.join:
            try:
                joining.enter_context(starting(folder) if not options.dry_run else contextlib.nullcontext())
            except OSError as error:
                raise RunInputError(f"{folder.folder}: cannot be written: {error.strerror or error}") from error
            # Another process was faster: what this one would have started it now continues.
            if folder.meta.exists():
                options = replace(options, continue_in_place=True)
                config = _configured(options)
        return _launch(options, config, joining)


def _launch(options: Options, config: Config, joining: contextlib.ExitStack) -> int:
    from coeval.phases.start import check_only, start_of
    from coeval.planning.counting import remaining, tokens_by_phase
    from coeval.planning.plan import plan_text

    stored, modes = start_of(config, continue_in_place=options.continue_in_place)
    if options.only is not None:
        check_only(stored, modes)
    left = remaining(config, stored, modes, options.only)
    print(plan_text(config, left, options.only), flush=True)
    if options.dry_run:
        return 0
    log = Log(None, config.experiment.log_level)
    for note in config.notes:
        log.info(note)
    start = _Start(
        config=config,
        options=options,
        run=Run(config.experiment.folder),
        stored=stored,
        modes=modes,
        log=log,
        planned=tokens_by_phase(left.work),
        joining=joining,
    )
    was_there = start.run.meta.exists()
    files = asyncio.run(_look_ahead(start))
    if files is None:
        return 0
    try:
        with contextlib.nullcontext() if options.only is not None else main_process(start.run, joined=options.join):
            return _run(start, files, was_there=was_there)
    except OSError as error:
        raise RunInputError(f"{start.run.folder}: cannot be written: {error.strerror or error}") from error


def _configured(options: Options) -> Config:
    if options.join and options.only:
        raise RunInputError("--join shares the work of all models already; leave --only-models out")
    if options.resume and options.continue_in_place:
        raise RunInputError("--resume starts a new run and --continue continues one; leave one of the two out")
    config = load_config(
        options.config,
        keys=options.keys,
        resume=options.resume,
        continue_in_place=options.continue_in_place,
        in_use=not options.dry_run and not options.join,
    )
    if (options.join or options.only) and config.experiment.stop_at is not None:
        raise RunInputError(
            "experiment.stop_at looks at all judges together; leave out --join and --only-models, or it"
        )
    names = [model.name for model in config.models]
    for name in sorted(options.only or ()):
        if name not in names:
            raise RunInputError(f"--only-models: there is no model {name!r}{nearest(name, names)}")
    keys = ("probe_mode", "probe_on_fail", "estimate_samples", "log_level")
    changes = {key: flag for key in keys if (flag := getattr(options, key)) is not None}
    return replace(config, experiment=replace(config.experiment, **changes))


async def _look_ahead(start: _Start) -> dict[Path, Any] | None:
    """Estimate and probe as the configuration says; return the files to write, None where only the estimate counts."""
    files: dict[Path, Any] = {}
    run = start.run
    if start.options.estimate_only or start.config.experiment.estimate_cost:
        files[run.estimate] = await _estimate(start)
        if start.options.estimate_only:
            if run.meta.exists():
                write_json(run.estimate, files[run.estimate])
            return None
        budget, spent = start.config.experiment.budget_usd, 0.0 if start.stored is None else Meta(run).spent_usd
        cost = spent + files[run.estimate]["total_cost_usd"]
        if budget is not None and cost > budget:
            already = f", ${spent:.4f} of it spent already" if spent else ""
            raise RunError(
                f"the run is expected to cost ${cost:.4f}{already}, above experiment.budget_usd of ${budget:.4f}; "
                "raise it, or make the run smaller; nothing was asked"
            )
    probe = await _probe(start)
    return files if probe is None else {**files, run.probe: probe}


async def _estimate(start: _Start) -> dict[str, Any]:
    from coeval.calling.caller import make_caller
    from coeval.planning.estimate import estimate, estimate_text

    only, samples = start.options.only, start.config.experiment.estimate_samples
    async with make_caller(start.config, start.options.keys) as caller:
        costs = await estimate(start.config, caller, samples=samples, run=start.stored, modes=start.modes, only=only)
    print(estimate_text(costs), flush=True)
    figures = f"{costs['total_calls']} calls, ${costs['total_cost_usd']:.4f}, {costs['total_time_min']:.1f} min"
    start.log.info(f"estimate: {figures}")
    return costs


async def _probe(start: _Start) -> dict[str, Any] | None:
    """Return `probe_results.json`, None without probes; RunError if a model is unavailable and that ends the run."""
    from coeval.planning.plan import phases_left
    from coeval.planning.probing import log_probe, probe_models, probe_results

    config, only = start.config, start.options.only
    mode, on_fail = config.experiment.probe_mode, config.experiment.probe_on_fail
    if mode == "disable":
        return None
    left = PHASES if mode == "full" else phases_left(config, start.stored, start.modes, only)
    models = tuple(model for model in config.models if only is None or model.name in only)
    results = await probe_models(replace(config, models=models), start.options.keys, left)
    failed = log_probe(results, start.log)
    report = probe_results(mode, on_fail, results)
    if failed and on_fail == "abort":
        if start.stored is not None:
            start.log.keep_in(start.run.log(only))
            write_json(start.run.probe, report)
        raise RunError(f"not available: {', '.join(failed)}; fix this, or use --probe-on-fail warn")
    return report if results else None


def _run(start: _Start, files: Mapping[Path, Any], *, was_there: bool) -> int:
    from coeval.config.keys import snapshot_text
    from coeval.config.loading import put_aside
    from coeval.phases.start import prepare

    config, options, run, log = start.config, start.options, start.run, start.log
    run.folder.mkdir(parents=True, exist_ok=True)
    claims = Claims(run) if options.join else None
    log.keep_in(run.log(options.only if claims is None else [claims.name]))
    in_place, whole = options.continue_in_place, options.only is None
    with alone(run):
        meta, modes = prepare(config, run, log, continue_in_place=in_place, was_there=was_there, whole=whole)
        if was_there:
            put_aside(config, run, log)
    if whole:
        meta.update(status="in_progress")
    with atomic_path(run.config) as temporary:
        temporary.write_text(snapshot_text(config, options.keys.secrets()), encoding="utf-8")
    for path, content in files.items():
        write_json(path, content)
    # From here on another process may join: all that it reads is written.
    start.joining.close()
    with adding(run), claims or contextlib.nullcontext():
        return asyncio.run(_phases(start, meta, modes, claims))


async def _phases(start: _Start, meta: Meta, modes: Mapping[Phase, Mode], claims: Claims | None) -> int:
    from coeval.batch.jobs import make_batching
    from coeval.calling.caller import make_caller

    config, run, log, options = start.config, start.run, start.log, start.options
    batching = make_batching(config, options.keys, run, meta, log)
    async with make_caller(config, options.keys, run, meta, warn=log.warning) as caller:
        progress = Progress(start.planned, lambda: meta.spent_usd)
        with Store(run, is_shared=claims is not None) as store:
            stage = Stage(
                config=config,
                run=run,
                store=store,
                asking=caller,
                log=log,
                modes=modes,
                only=options.only,
                batching=batching,
                progress=progress,
                claims=claims,
            )
            return await _run_phases(stage, meta)


def left_out(stage: Stage, phase: Phase) -> int:
    """Return how many records a phase in mode `Keep` or `Model` leaves out; log them in one line."""
    from coeval.planning.gaps import find_gaps

    mode = stage.modes[phase]
    if mode not in ("Keep", "Model") or phase not in KINDS_OF:
        return 0
    missing: Counter[str] = Counter()
    for gap in find_gaps(stage.run, KINDS_OF[phase]):
        missing[gap.model] += gap.missing
    if not missing:
        return 0
    who = ", ".join(f"{count} of {model}" for model, count in missing.most_common())
    way = "write Extend" if keeps(stage.config, phase) else "use --continue"
    stage.log.warning(f"{phase}: mode {mode} leaves out {missing.total()} records ({who}); {way} for them")
    return missing.total()


_WORK: Mapping[Phase, Callable[[Stage], Awaitable[Outcome]]] = {
    "attribute_mapping": map_attributes,
    "rubric_mapping": map_rubrics,
    "data_generation": generate_items,
    "response_collection": collect_responses,
    "evaluation": evaluate,
}
_FAIL_THE_RUN = ("response_collection", "evaluation")


async def _run_phases(stage: Stage, meta: Meta) -> int:
    """Run all phases; return the exit code: 0, or 1 where a phase failed in part or brought nothing."""
    log, lines = stage.log, asyncio.create_task(stage.progress.log_lines(stage.log.info))
    try:
        failed, complete = await _all(stage, meta)
    except (P2LError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:  # whose text begins with a number
            message = f"{error.filename or stage.run.folder}: {error.strerror}"
        log.error(message)
        failed, complete = True, False
    finally:
        lines.cancel()
    stage.store.flush()
    meta.flush()
    status = "failed" if failed else "completed" if complete else "partial"
    if stage.only is None:
        meta.update(status=status)
        hint = "" if status == "completed" else "; `coeval run ... --continue` asks for what is missing"
        if hint and any(keeps(stage.config, phase) for phase in PHASES):
            hint += ", but not where Keep is written"
        log.info(f"run {status}: {stage.run.folder}, ${meta.spent_usd:.4f} spent{hint}")
    else:
        # Say what the run still lacks: a process for some models does not know whether it is complete.
        from coeval.planning.gaps import missing_text

        who = ", ".join(sorted(stage.only or ()))
        missing = missing_text(stage.run)
        state = (
            f"the run still lacks {missing}" if missing else "the run lacks nothing; `--continue` marks it completed"
        )
        stage.log.info(f"{who} {'failed in part' if failed else 'done'}, ${meta.spent_usd:.4f} spent by all; {state}")
    return int(failed)


async def _all(stage: Stage, meta: Meta) -> tuple[bool, bool]:
    """Return whether a phase failed in part, and whether nothing is missing in any."""
    failed, complete = False, True
    for phase in PHASES:
        if stage.only is None and not (stage.modes[phase] == "Keep" and phase in meta.settled):
            meta.mark(phase, complete=False)
        try:
            outcome = await _phase(stage, phase, meta)
        except Halt as halt:
            stage.log.warning(str(halt))
            return failed, False
        stage.limited = stage.limited or bool(outcome.stopped)
        complete = complete and _is_complete(stage, phase, outcome)
        if stage.only is None:
            complete = not left_out(stage, phase) and complete
            meta.mark(phase, complete=complete, kept=stage.modes[phase] == "Keep" and outcome.complete)
        failed = failed or (phase in _FAIL_THE_RUN and outcome.is_failure)
        if stage.halted is not None:
            return failed, False
    return failed, complete


def _is_complete(stage: Stage, phase: Phase, outcome: Outcome) -> bool:
    """Return whether a phase lacks nothing; of what other processes made the records alone tell."""
    if stage.claims is None or phase not in KINDS_OF:
        return outcome.complete
    from coeval.planning.gaps import find_gaps

    stage.store.flush()
    return not any(find_gaps(stage.run, KINDS_OF[phase]))


async def _phase(stage: Stage, phase: Phase, meta: Meta) -> Outcome:
    started, cached = time.monotonic(), stage.cached
    stage.log.info(f"{phase} ({stage.modes[phase]})")
    stage.progress.begin(phase)
    try:
        stop_at = stage.config.experiment.stop_at
        if phase == "evaluation" and stop_at is not None:
            from coeval.planning.stopping import evaluate_until_decided  # it brings the analysis

            outcome = await evaluate_until_decided(stage, stop_at)
        else:
            outcome = await _WORK[phase](stage)
    except P2LError as error:
        stage.store.error(phase, str(error))
        raise
    finally:
        stage.progress.close()
        stage.store.flush()
        meta.flush()
    numbers = {
        "made": outcome.stored,
        "answers from the cache": stage.cached - cached,
        "failed": outcome.failed,
        "missing": max(outcome.expected - outcome.stored - outcome.failed, 0),
    }
    counts = ", ".join(f"{count} {word}" for word, count in numbers.items() if count) or "nothing was missing"
    stage.log.info(f"{phase}: {counts}, {time.monotonic() - started:.1f} s")
    if outcome.is_failure and phase in _FAIL_THE_RUN:
        stage.log.error(f"{phase}: failed in part; see {stage.run.errors}")
    return outcome
