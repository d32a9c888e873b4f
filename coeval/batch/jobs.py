"""Batch jobs of a run: what phases hand their questions to where a provider answers within a day, for less."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

from coeval.batch import ledger
from coeval.batch.backend import NoRoomError
from coeval.batch.course import seen_through, taken_up
from coeval.batch.desk import Desk, attempts_in, backend_for, opened, send
from coeval.batch.job import Job
from coeval.batch.outbox import Outbox
from coeval.batch.pending import Pending
from coeval.calling.call import CallError, Reason
from coeval.calling.clients import Accounts
from coeval.calling.retry import Retries
from coeval.config.interfaces import BATCHING
from coeval.config.schema import Config, Model, Phase
from coeval.phases.question import Apply, Batching, Question
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import Meta
from p2l.errors import P2LError

__all__ = ["RETRIES", "Batches", "make_batching"]

RETRIES = Retries(attempts=10, timed_out=6)
"""A job has a day: a provider that is out for some minutes should not end the run."""


def make_batching(config: Config, keys: Accounts, run: Run, meta: Meta, log: Log) -> Batching | None:
    """What sends batch jobs for a run; None where none is asked for and none is pending."""
    wanted = [model for model in config.models if any(config.is_batched(model, phase) for phase in _phases(model))]
    for model in wanted:
        if model.interface not in BATCHING:
            log.warning(f"{model.name}: interface {model.interface} has no batches here; it is asked call by call")
    for task in config.tasks:
        if task.evaluation_mode == "pairwise" and task.pairwise.schedule == "active":
            _tell_of_rounds(config, task.name, wanted, log)
    if not any(model.interface in BATCHING for model in wanted) and not run.pending.exists():
        return None
    return Batches(config, keys, run, meta, log)


def _tell_of_rounds(config: Config, task: str, wanted: list[Model], log: Log) -> None:
    """Say that comparisons each of which depends on those before take long where each may take a day."""
    for model in wanted:
        if "judge" in model.roles and model.interface in BATCHING and config.is_batched(model, "evaluation"):
            log.warning(
                f"task {task!r}: judge {model.name} answers in rounds, each a batch job of up to a day; write "
                "`schedule: all`, or `batch_enabled: false` at the judge, to wait less"
            )


def _phases(model: Model) -> tuple[Phase, ...]:
    roles: dict[str, Phase] = {"teacher": "data_generation", "student": "response_collection", "judge": "evaluation"}
    return tuple(roles[role] for role in model.roles)


class Batches:
    """The batch jobs of one run; see `coeval.phases.question.Batching`."""

    def __init__(
        self, config: Config, keys: Accounts, run: Run, meta: Meta, log: Log, *, retries: Retries | None = None
    ) -> None:
        """What sends batch jobs; connects when it has one. `retries` says how often a provider is asked that is out."""
        self._config, self._keys, self._run, self._meta, self._log = config, keys, run, meta, log
        self._retries = retries or RETRIES
        self._pending = Pending(run)

    def takes(self, model: Model, phase: Phase) -> bool:
        """Whether this model's questions in this phase go through batch jobs."""
        return model.interface in BATCHING and self._config.is_batched(model, phase)

    async def adopt(self, phase: Phase, model: Model, apply: Apply) -> None:
        """Wait for jobs that an earlier process sent, or was about to send, and apply their answers.

        Raises:
            CallError: they cannot be looked at, and what is in them must not be asked again.
        """
        ledger.reconcile(self._meta, self._pending, phase, model.name)
        jobs = self._pending.jobs(phase, model.name)
        if not jobs:
            return
        self._log.info(f"{phase}: {model.name}: {len(jobs)} batch jobs of an earlier start are taken up again")
        interfaces = sorted({job.interface for job in jobs})
        for interface in interfaces:
            async with self._desk(_as_sent(model, interface, jobs), phase, apply) as desk:
                await _all(_courses(desk, [job for job in jobs if job.interface == interface]))

    async def answer(self, model: Model, questions: Iterable[Question], apply: Apply) -> None:
        """Send the questions, wait, and apply the answers; a QUOTA or BUDGET error leaves the rest unasked.

        Raises:
            CallError: the model's calls or the run's dollars are used up, or the provider refuses a job.
        """
        waiting = iter(questions)
        first = next(waiting, None)
        if first is None:
            return
        async with self._desk(model, first.phase, apply) as desk:
            await _Answering(desk).run(Outbox(desk, _chained(first, waiting)))

    @contextlib.asynccontextmanager
    async def _desk(self, model: Model, phase: Phase, apply: Apply) -> AsyncIterator[Desk]:
        experiment = self._config.experiment
        try:
            backend = backend_for(model.interface, self._keys.account(model))
        except P2LError as error:
            raise CallError(Reason.FATAL, str(error)) from None
        desk = Desk(
            self._run,
            self._pending,
            self._meta,
            self._log,
            backend,
            model,
            phase,
            apply,
            self._retries,
            experiment.batch_poll_seconds or backend.interval,
            attempts_in(self._config, phase),
            experiment.quota.get(model.name),
            experiment.budget_usd,
        )
        async with opened(desk):
            yield desk


def _chained(first: Question, rest: Iterable[Question]) -> Iterable[Question]:
    yield first
    yield from rest


def _as_sent(model: Model, interface: str, jobs: list[Job]) -> Model:
    """The model as it was when its jobs were sent, if the configuration has moved it to another provider since."""
    if model.interface == interface:
        return model
    settings = next(job.settings for job in jobs if job.interface == interface)
    return Model(model.name, interface, model.roles, settings)


def _courses(desk: Desk, jobs: list[Job]) -> Sequence[Awaitable[None]]:
    """All jobs at once, but the parts of those for which there was no room one after the other."""
    parts = [job for job in jobs if job.in_turn]
    return [taken_up(desk, [job]) for job in jobs if not job.in_turn] + ([taken_up(desk, parts)] if parts else [])


class _Answering:
    """Jobs under way."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: CallError | None = None

    async def run(self, outbox: Outbox) -> None:
        """Send all questions and settle all answers.

        Raises:
            CallError: not all were sent, or a job was refused.
        """
        try:
            while self._refused is None and (await self._begun(outbox) or self._may_go_on(outbox)):
                if self._tasks and (outbox.stopped is not None or self._desk.most_tokens is not None):
                    await self._some_end()  # then there is room, or they cost less than was set aside
            while self._tasks:
                await self._some_end()
        finally:
            await _end(self._tasks)
        stopped = self._refused or outbox.stopped
        if stopped is not None:
            raise stopped

    def _may_go_on(self, outbox: Outbox) -> bool:
        """Whether there are questions yet that can be sent when jobs have ended."""
        return outbox.stopped is not None and outbox.stopped.reason is Reason.BUDGET and bool(self._tasks)

    async def _begun(self, outbox: Outbox) -> bool:
        """Send the next job, if there is one."""
        job, refusal = await outbox.next_job(), None
        if job is None:
            return False
        try:
            job = await send(self._desk, job)
        except NoRoomError as error:
            refusal = error
        except CallError as error:
            self._refused = error
            return False
        self._tasks.add(asyncio.create_task(seen_through(self._desk, job, refusal)))
        return True

    async def _some_end(self) -> None:
        done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            try:
                task.result()
            except CallError as error:
                self._refused = self._refused or error


async def _all(works: Sequence[Awaitable[None]]) -> None:
    """All of them at once; the first error is told when all have ended."""
    tasks = {asyncio.ensure_future(work) for work in works}
    try:
        await asyncio.wait(tasks)
    finally:
        await _end(tasks)
    for task in tasks:
        task.result()


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
