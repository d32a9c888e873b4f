"""Batch jobs of a run: what phases hand their questions to where a provider answers within a day, for less."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from dataclasses import replace

from coeval.batch import job as ledger
from coeval.batch.backends import NoRoomError, State
from coeval.batch.job import SUBMITTING, Job, Pending, entries, questions_file
from coeval.batch.outbox import Outbox, split
from coeval.batch.results import settle
from coeval.batch.submission import Desk, attempts_in, backend_for, locate, opened, send, wait_for
from coeval.calling.caller import Accounts
from coeval.calling.calls import CallError, Reason
from coeval.calling.limits import Retries
from coeval.interfaces import BATCHING
from coeval.phases.question import Apply, Batching, Question
from coeval.schema import Config, Model, Phase
from coeval.storage.meta import Meta
from coeval.storage.run import Run
from coeval.storage.store import Log
from p2l.common.errors import P2LError
from route.providers.base import ProviderError

# The course of a job: sent, waited for, settled; sent again, or in parts, where the provider has no room for it.

_PATIENCE = 24 * 3600.0  # seconds: as long as a job may take
_LONGEST = 600.0
_ROOM = re.compile(r"limit(?::| of)\s*([\d,]+)\s*([KMB]?)\b", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class TurnedDownError(CallError):
    """The provider did nothing of a whole job."""


async def taken_up(desk: Desk, jobs: Sequence[Job]) -> None:
    """Go on with jobs of an earlier process, one after the other; one turned down is asked again by the phase.

    Raises:
        CallError: one cannot be sent or looked at; it stays noted.
    """
    # Those at the provider first: they may take the room that the others wait for.
    known = [job if job.batch_id is not None else await locate(desk, job) or job for job in jobs]
    for job in sorted(known, key=lambda job: job.batch_id is None):
        try:
            await seen_through(desk, job)
        except TurnedDownError as error:
            desk.log.warning(f"{job.phase}: {job.model}: {error}")


async def seen_through(desk: Desk, job: Job, refusal: NoRoomError | None = None) -> None:
    """Wait for a job and settle it, and those that ask again what it had no answer of use to.

    `refusal` is what the provider said when the job was sent just now, if it was not taken.

    Raises:
        TurnedDownError: the provider did nothing of it.
        CallError: it cannot be sent or looked at; it stays noted.
    """
    following: Job | None = job
    waits = _waits(desk.interval)
    while following is not None:
        following, state = await _ended(desk, following) if refusal is None else (following, _refused(refusal))
        refusal = None
        if state.later:
            parts = await _in_parts(desk, following, state)
            if parts:
                for part in parts:
                    await seen_through(desk, part)
                return
            wait = next(waits, None)
            if wait is not None:
                following = await _unsent(desk, following, state, wait)
                continue
        if state.failure:
            desk.give_back(following)
            why = f"turned down batch job {following.batch_id or following.token}: {state.failure}"
            raise TurnedDownError(Reason.FATAL, f"{following.interface} {why}")
        following = await settle(desk, following, state)


async def _ended(desk: Desk, job: Job) -> tuple[Job, State]:
    """The end of a job, sent before if it was not."""
    try:
        sent = job if job.batch_id is not None else await send(desk, job)
        return sent, await wait_for(desk, sent)
    except NoRoomError as error:
        return job, _refused(error)


def _refused(error: NoRoomError) -> State:
    return State("failed", True, " ".join(str(error).split())[:300], later=True)


async def _in_parts(desk: Desk, job: Job, state: State) -> list[Job]:
    """A job that found no room in parts; none where it may find room when others have ended, or is one question."""
    found = list(entries(questions_file(desk.run, job.token)))
    tokens, room = sum(entry.prompt_tokens for entry in found), _room_in(state.failure)
    if len(found) < 2 or (room is not None and tokens <= room) or not _is_alone(desk, job):
        return []
    desk.most_tokens = room or -(-tokens // 2)
    parts = split(desk, job, desk.most_tokens)
    desk.log.warning(
        f"{job.phase}: {job.model}: {state.failure}; the batch job is sent in {len(parts)} parts, one after the other"
    )
    with contextlib.suppress(ProviderError):
        await desk.backend.tidy(state)
    return parts


def _is_alone(desk: Desk, job: Job) -> bool:
    """Whether no other job of the model is at work: otherwise it is these that take the room."""
    return not any(one.batch_id and one.token != job.token for one in desk.pending.jobs(model=job.model))


def _room_in(text: str) -> int | None:
    """Tokens that may wait at once, if the provider says so."""
    found = _ROOM.search(text)
    return int(found[1].replace(",", "")) * _UNITS[found[2].upper()] or None if found else None


def _waits(interval: float) -> Iterator[float]:
    """Seconds before a job is sent again that found no room: ever more, a day in all."""
    wait, waited = interval, 0.0
    while waited < _PATIENCE:
        yield wait
        waited, wait = waited + wait, min(2 * wait, _LONGEST)


async def _unsent(desk: Desk, job: Job, state: State, wait: float) -> Job:
    """A job that found no room, after a while; noted as unsent, so that another process would send it too."""
    desk.log.warning(f"{job.phase}: {job.model}: {state.failure}; the batch job is sent again in {wait:.0f} s")
    job = replace(job, batch_id=None, status=SUBMITTING)
    desk.pending.put(job)
    await asyncio.sleep(wait)
    return job


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
