"""The batch jobs of a run: phases hand over their questions, and providers answer them within a day, for less.

A job is submitted, polled and settled; it is submitted again, whole or in parts, where the provider has no room for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from coeval.batch.backends import NoRoomError, State
from coeval.batch.pending import SUBMITTING, Charges, Job, PendingJobs, job_questions, questions_file
from coeval.batch.results import settle
from coeval.batch.submission import JobContext, RequestQueue, backend_for, locate, split, submit, wait_for
from coeval.calling.caller import Accounts
from coeval.calling.calls import CallError, Reason
from coeval.calling.limits import Retries
from coeval.interfaces import BATCHING
from coeval.phases.asking import ATTEMPTS
from coeval.phases.question import Apply, Batching, Question
from coeval.schema import BATCH_PHASES, ROLE_OF, Config, Model, Phase
from coeval.storage.meta import Meta
from coeval.storage.run import Run
from coeval.storage.store import Log
from p2l.common.errors import P2LError
from route.providers.base import ProviderError

# A job has a day: a provider that is down for some minutes should not end the run.
RETRIES = Retries(attempts=10, timed_out=6)
_MAX_WAIT_FOR_ROOM_SECONDS = 24 * 3600.0  # as long as a job may take
_MAX_PAUSE_SECONDS = 600.0
_ROOM = re.compile(r"limit(?::| of)\s*([\d,]+)\s*([KMB]?)\b", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class _JobRejectedError(CallError):
    """The provider rejected a whole job."""


def make_batching(config: Config, keys: Accounts, run: Run, meta: Meta, log: Log) -> Batching | None:
    """Return what sends a run's batch jobs; None where none is configured and none is pending."""
    batched = [
        model
        for model in config.models
        if any(ROLE_OF[phase] in model.roles and config.is_batched(model, phase) for phase in BATCH_PHASES)
    ]
    for model in batched:
        if model.interface not in BATCHING:
            log.warning(f"{model.name}: interface {model.interface} has no batches here; it is asked call by call")
    for task in config.tasks:
        if task.evaluation_mode != "pairwise" or task.pairwise.schedule != "active":
            continue
        # Comparisons that depend on earlier ones take long where each round may take a day.
        for model in batched:
            if "judge" in model.roles and model.interface in BATCHING and config.is_batched(model, "evaluation"):
                log.warning(
                    f"task {task.name!r}: judge {model.name} answers in rounds, each a batch job of up to a day; write "
                    "`schedule: all`, or `batch_enabled: false` at the judge, to wait less"
                )
    if not any(model.interface in BATCHING for model in batched) and not run.pending.exists():
        return None
    return _BatchJobs(config, keys, run, meta, log)


class _BatchJobs:
    """The batch jobs of one run; see `coeval.phases.question.Batching`."""

    def __init__(self, config: Config, keys: Accounts, run: Run, meta: Meta, log: Log) -> None:
        self._config, self._keys, self._run, self._meta, self._log = config, keys, run, meta, log
        self._pending = PendingJobs(run)

    def takes(self, model: Model, phase: Phase) -> bool:
        """Return whether this model's questions in this phase go through batch jobs."""
        return model.interface in BATCHING and self._config.is_batched(model, phase)

    async def adopt(self, phase: Phase, model: Model, apply: Apply) -> None:
        """Finish the jobs that an earlier process submitted, or was about to, and apply their answers."""
        Charges(self._meta, phase, model.name).reconcile(self._pending)
        jobs = self._pending.jobs(phase, model.name)
        if jobs:
            self._log.info(f"{phase}: {model.name}: {len(jobs)} batch jobs of an earlier start are taken up again")
        for interface in sorted({job.interface for job in jobs}):
            sent = [job for job in jobs if job.interface == interface]
            # The configuration may have moved the model to another provider since.
            sender = (
                model if model.interface == interface else Model(model.name, interface, model.roles, sent[0].settings)
            )
            async with self._context(sender, phase, apply) as context:
                # All at once, but parts of a job that found no room one after the other.
                parts = [job for job in sent if job.in_turn]
                groups = [[job] for job in sent if not job.in_turn] + ([parts] if parts else [])
                outcomes = await asyncio.gather(*(_adopt(context, group) for group in groups), return_exceptions=True)
                for error in filter(None, outcomes):
                    raise error

    async def answer(self, model: Model, questions: Iterable[Question], apply: Apply) -> None:
        """Send the questions, wait, and apply the answers."""
        remaining = iter(questions)
        first = next(remaining, None)
        if first is None:
            return
        async with self._context(model, first.phase, apply) as context:
            await _Running(context, RequestQueue(context, chain([first], remaining))).run()

    @contextlib.asynccontextmanager
    async def _context(self, model: Model, phase: Phase, apply: Apply) -> AsyncIterator[JobContext]:
        experiment = self._config.experiment
        charges = Charges(self._meta, phase, model.name, experiment.quota.get(model.name))
        try:
            backend = backend_for(model.interface, self._keys.account(model))
        except P2LError as error:
            raise CallError(Reason.FATAL, str(error)) from None
        async with contextlib.aclosing(backend):
            yield JobContext(
                run=self._run,
                pending=self._pending,
                charges=charges,
                log=self._log,
                backend=backend,
                model=model,
                phase=phase,
                apply=apply,
                retries=RETRIES,
                interval=experiment.batch_poll_seconds or backend.interval,
                attempts=1 + experiment.generation_retries if phase == "data_generation" else ATTEMPTS,
                budget_usd=experiment.budget_usd,
            )


async def _adopt(context: JobContext, jobs: Sequence[Job]) -> None:
    """Finish jobs of an earlier process one after the other; the phase asks the questions of rejected ones again."""
    # Those at the provider first: they may occupy the room that the others wait for.
    located = [job if job.batch_id is not None else await locate(context, job) or job for job in jobs]
    for job in sorted(located, key=lambda job: job.batch_id is None):
        try:
            await _finish(context, job)
        except _JobRejectedError as error:
            context.tell(job, str(error), "WARNING")


async def _finish(context: JobContext, job: Job, state: State | None = None) -> None:
    """Wait for a job, whose end `state` may be, and settle it and the jobs that ask again what it left unanswered.

    Raise JobRejectedError if the provider rejects it, CallError if it cannot be looked up and stays pending.
    """
    following: Job | None = job
    waits = _waits(context.interval)
    while following is not None:
        if state is None:
            try:
                following = following if following.batch_id is not None else await submit(context, following)
                state = await wait_for(context, following)
            except NoRoomError as error:
                state = _no_room(error)
        if state.no_room:
            parts = await _split(context, following, state)
            for part in parts:
                await _finish(context, part)
            if parts:
                return
            wait = next(waits, None)
            if wait is not None:
                context.tell(following, f"{state.failure}; the batch job is sent again in {wait:.0f} s", "WARNING")
                # Stored as not submitted, so that another process would submit it too.
                following, state = replace(following, batch_id=None, status=SUBMITTING), None
                context.pending.put(following)
                await asyncio.sleep(wait)
                continue
        if state.failure:
            context.cancel(following)
            why = f"turned down batch job {following.batch_id or following.token}: {state.failure}"
            raise _JobRejectedError(Reason.FATAL, f"{following.interface} {why}")
        following, state = await settle(context, following, state), None


def _no_room(error: NoRoomError) -> State:
    return State("failed", True, " ".join(str(error).split())[:300], no_room=True)


async def _split(context: JobContext, job: Job, state: State) -> list[Job]:
    """Split a job that found no room; return no parts if it is one question, or will fit when other jobs have ended."""
    questions = list(job_questions(questions_file(context.run, job.token)))
    tokens = sum(entry.prompt_tokens for entry in questions)
    # Some providers say how many tokens may be queued at once.
    match = _ROOM.search(state.failure)
    room = int(match[1].replace(",", "")) * _UNITS[match[2].upper()] or None if match else None
    others = (other for other in context.pending.jobs(model=job.model) if other.token != job.token)
    is_alone = not any(other.batch_id for other in others)
    if len(questions) < 2 or (room is not None and tokens <= room) or not is_alone:
        return []
    context.most_tokens = room or math.ceil(tokens / 2)
    parts = split(context, job, context.most_tokens)
    sent = f"the batch job is sent in {len(parts)} parts, one after the other"
    context.tell(job, f"{state.failure}; {sent}", "WARNING")
    with contextlib.suppress(ProviderError):
        await context.backend.tidy(state)
    return parts


def _waits(interval: float) -> Iterator[float]:
    """Yield the seconds before each new submission of a job that found no room: growing, a day in all."""
    wait, waited = interval, 0.0
    while waited < _MAX_WAIT_FOR_ROOM_SECONDS:
        yield wait
        waited, wait = waited + wait, min(2 * wait, _MAX_PAUSE_SECONDS)


class _Running:
    """The jobs of a queue that are running at the provider."""

    def __init__(self, context: JobContext, queue: RequestQueue) -> None:
        self._context, self._queue = context, queue
        self._tasks: set[asyncio.Task[None]] = set()
        self._rejected: CallError | None = None

    async def run(self) -> None:
        """Submit all questions and settle all answers. Raise CallError if some were not submitted or rejected."""
        queue = self._queue
        try:
            # What the budget stops may go on when running jobs have ended.
            while self._rejected is None and (
                await self._start_next() or (self._tasks and queue.stopped and queue.stopped.reason is Reason.BUDGET)
            ):
                if self._tasks and (queue.stopped is not None or self._context.most_tokens is not None):
                    await self._wait_for_one()  # then there is room, or they cost less than was held
            while self._tasks:
                await self._wait_for_one()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        stopped = self._rejected or queue.stopped
        if stopped is not None:
            raise stopped

    async def _start_next(self) -> bool:
        """Submit the next job, if there is one."""
        job, state = await self._queue.next_job(), None
        if job is None:
            return False
        try:
            job = await submit(self._context, job)
        except NoRoomError as error:
            state = _no_room(error)
        except CallError as error:
            self._rejected = error
            return False
        self._tasks.add(asyncio.create_task(_finish(self._context, job, state)))
        return True

    async def _wait_for_one(self) -> None:
        done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            try:
                task.result()
            except CallError as error:
                self._rejected = self._rejected or error
