"""A run from its first phase to its last."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from coeval.calling.call import Asking
from coeval.config.schema import PHASES, Config, Mode, Phase
from coeval.phases.attributes import map_attributes
from coeval.phases.evaluation import evaluate
from coeval.phases.items import generate_items
from coeval.phases.leftover import left_out
from coeval.phases.modes import keeps
from coeval.phases.progress import Progress
from coeval.phases.proposals import Halt
from coeval.phases.question import Batching
from coeval.phases.responses import collect_responses
from coeval.phases.rubric import map_rubrics
from coeval.phases.stage import Outcome, Stage
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import Meta
from coeval.storage.store import Store
from p2l.errors import P2LError

__all__ = ["WORK", "run_phases"]

WORK: Mapping[Phase, Callable[[Stage], Awaitable[Outcome]]] = {
    "attribute_mapping": map_attributes,
    "rubric_mapping": map_rubrics,
    "data_generation": generate_items,
    "response_collection": collect_responses,
    "evaluation": evaluate,
}
_TELLS_FAILURE = ("response_collection", "evaluation")


async def run_phases(
    config: Config,
    run: Run,
    meta: Meta,
    modes: Mapping[Phase, Mode],
    asking: Asking,
    log: Log,
    *,
    only: frozenset[str] | None = None,
    batching: Batching | None = None,
) -> int:
    """Run all phases; the exit code: 0, or 1 where a phase failed in part or brought nothing."""
    with Store(run) as store:
        stage = Stage(config, run, store, asking, log, modes, only, batching)
        try:
            failed, complete = await _all(stage, meta)
        except (P2LError, OSError) as error:
            log.error(_told(error, run))
            failed, complete = True, False
    meta.flush()
    status = "failed" if failed else "completed" if complete else "partial"
    if only is None:
        meta.update(status=status)
    _tell_end(stage, status, meta.spent_usd)
    return int(failed)


def _tell_end(stage: Stage, status: str, spent: float) -> None:
    part = f", as far as {', '.join(sorted(stage.only))} goes" if stage.only else ""
    hint = "" if status == "completed" else "; `coeval run ... --continue` asks for what is missing"
    if hint and any(keeps(stage.config, phase) for phase in PHASES):
        hint += ", but not where Keep is written"
    stage.log.info(f"run {status}{part}: {stage.run.folder}, ${spent:.4f} spent{hint}")


async def _all(stage: Stage, meta: Meta) -> tuple[bool, bool]:
    """Whether a phase failed in part, and whether nothing is missing in any."""
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
        complete = complete and outcome.complete
        if stage.only is None:
            complete = not left_out(stage, phase) and complete
            meta.mark(phase, complete=complete, kept=stage.modes[phase] == "Keep" and outcome.complete)
        failed = failed or (phase in _TELLS_FAILURE and outcome.is_failure)
        if stage.halted is not None:
            return failed, False
    return failed, complete


def _told(error: P2LError | OSError, run: Run) -> str:
    """One line, without the number of a system's error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or run.folder}: {error.strerror}"
    return str(error)


async def _phase(stage: Stage, phase: Phase, meta: Meta) -> Outcome:
    started, cached = time.monotonic(), stage.cached
    stage.log.info(f"{phase} ({stage.modes[phase]})")
    stage.progress = Progress(phase, lambda: meta.spent_usd)
    try:
        outcome = await WORK[phase](stage)
    except P2LError as error:
        stage.store.error(phase, str(error))
        raise
    finally:
        stage.progress.close()
        stage.store.flush()
        meta.flush()
    _tell(stage, phase, outcome, stage.cached - cached, time.monotonic() - started)
    return outcome


def _tell(stage: Stage, phase: Phase, outcome: Outcome, cached: int, seconds: float) -> None:
    numbers: dict[str, Any] = {"made": outcome.stored, "answers from the cache": cached, "failed": outcome.failed}
    numbers["missing"] = max(outcome.expected - outcome.stored - outcome.failed, 0)
    said = ", ".join(f"{count} {word}" for word, count in numbers.items() if count) or "nothing was missing"
    stage.log.info(f"{phase}: {said}, {seconds:.1f} s")
    if outcome.is_failure and phase in _TELLS_FAILURE:
        stage.log.error(f"{phase}: failed in part; see {stage.run.errors}")
