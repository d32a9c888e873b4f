"""Everything that the batch jobs of one model in one phase take, and how a job is sent and found again."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from coeval.batch import job as ledger
from coeval.batch.backends import Backend, Parcel, State, UndecidedError, patiently
from coeval.batch.job import Job, Pending, questions_file
from coeval.calling.calls import CallError, Reason
from coeval.calling.limits import Retries
from coeval.interfaces import INTERFACES
from coeval.phases.driving import ATTEMPTS
from coeval.phases.question import Apply
from coeval.prices import Price, price_of
from coeval.schema import ROLE_OF, Config, Model, Phase
from coeval.storage.meta import Meta
from coeval.storage.run import Run
from coeval.storage.store import Log
from route.providers.base import Account, Fault, ProviderError

_UNCLEAR = (Fault.CONNECTION, Fault.TIMEOUT, Fault.MALFORMED, Fault.SERVER)
"""After which a job may be there all the same."""
_BACKENDS = {
    "openai": ("coeval.batch.backends", "OpenAIBatches"),
    "azure": ("coeval.batch.backends", "AzureBatches"),
    "anthropic": ("coeval.batch.anthropic", "AnthropicBatches"),
    "gemini": ("coeval.batch.gemini", "GeminiBatches"),
}
"""Protocol -> module and class, imported when they are used."""
_ROUNDING = 1e-9


@dataclass
class Desk:
    """Where one model's jobs of one phase are sent from and come back to."""

    run: Run
    pending: Pending
    meta: Meta
    log: Log
    backend: Backend
    model: Model
    phase: Phase
    apply: Apply
    retries: Retries
    interval: float
    """Seconds between two looks at a job."""
    attempts: int
    """Of an answer of no use, the first one counted; 1 where nothing may be sent."""
    quota: int | None = None
    budget_usd: float | None = None
    most_tokens: int | None = None
    """Of one job's prompts, as it turned out; None: as the provider has it."""

    @property
    def limit(self) -> float:
        """Tokens that a job's prompts may have."""
        limits = (self.backend.most_tokens, self.most_tokens)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    @property
    def price(self) -> Price:
        """What tokens cost in a batch."""
        return price_of(self.model, ROLE_OF[self.phase], batched=True)

    def has_room_for(self, usd: float) -> bool:
        """Whether the run may spend that much more; what costs nothing may always be asked."""
        return not usd or self.budget_usd is None or self.meta.spent_usd + usd <= self.budget_usd + _ROUNDING

    def give_back(self, job: Job) -> None:
        """Undo what was counted for a job of which nothing was asked, and forget the job."""
        ledger.give_back(self.meta, job.token)
        self.pending.remove(job)


def backend_for(interface: str, account: Account) -> Backend:
    """Return the client of an interface that takes batch jobs; its protocol decides which."""
    module, name = _BACKENDS[INTERFACES[interface].protocol]
    backend: Backend = getattr(importlib.import_module(module), name)(account)
    return backend


@contextlib.asynccontextmanager
async def opened(desk: Desk) -> AsyncIterator[Desk]:
    """Close the connections at the end."""
    try:
        yield desk
    finally:
        await desk.backend.close()


def attempts_in(config: Config, phase: Phase) -> int:
    """How often an answer is asked for that is of no use."""
    return 1 + config.experiment.generation_retries if phase == "data_generation" else ATTEMPTS


async def send(desk: Desk, job: Job) -> Job:
    """Send a job that is noted as `submitting`; afterwards it has its id.

    Raises:
        NoRoomError: it was not taken, and stays noted.
        CallError: it is refused, and forgotten; or nobody knows, and it stays noted.
    """
    failed = 0
    while True:
        job = _noted(desk, job)
        try:
            return _sent(desk, job, await desk.backend.submit(_parcel(desk, job)))
        except ProviderError as error:
            failed += 1
            wait = desk.retries.wait(error, failed)
            unclear = error.fault in _UNCLEAR
            if wait is None:
                raise _unsent(desk, job, error, unclear=unclear) from None
        await asyncio.sleep(wait)
        found = await locate(desk, job) if unclear else None
        if found is not None:
            return found


def _noted(desk: Desk, job: Job) -> Job:
    """The job with all that was noted of it meanwhile."""
    return next((one for one in desk.pending.jobs(job.phase, job.model) if one.token == job.token), job)


def _parcel(desk: Desk, job: Job) -> Parcel:
    known = frozenset(one.batch_id for one in desk.pending.jobs() if one.batch_id is not None)

    def note(file: str) -> None:
        desk.pending.put(replace(job, input_file=file))

    return Parcel(job, questions_file(desk.run, job.token), note, known)


def _sent(desk: Desk, job: Job, batch_id: str) -> Job:
    sent = replace(_noted(desk, job), batch_id=batch_id, status="pending")
    desk.pending.put(sent)
    desk.log.info(f"{job.phase}: {job.model}: batch job {batch_id} of {job.n_requests} requests is at {job.interface}")
    return sent


def _unsent(desk: Desk, job: Job, error: ProviderError, *, unclear: bool) -> CallError:
    if unclear:
        return CallError(Reason.FATAL, f"{error}; whether a batch job was sent is looked up with --continue")
    desk.give_back(_noted(desk, job))
    detail = f": {error.detail}" if error.detail else ""
    return CallError(Reason.FATAL, f"{error}{detail}")


async def locate(desk: Desk, job: Job) -> Job | None:
    """A job of which nobody knows whether it was sent; None where it was not. Waits until that is known.

    Raises:
        CallError: that cannot be found out.
    """
    while True:
        try:
            found = await look_up(desk, job)
        except UndecidedError:
            desk.log.info(f"{job.phase}: {job.model}: waiting for jobs at {job.interface}, one of which may be ours")
            await asyncio.sleep(desk.interval)
            continue
        return None if found is None else _sent(desk, job, found)


async def look_up(desk: Desk, job: Job) -> str | None:
    """The id of a job of which nobody knows whether it was sent; None where it was not.

    Raises:
        UndecidedError: that will be known later.
        CallError: that cannot be found out.
    """
    parcel = _parcel(desk, _noted(desk, job))
    try:
        return await patiently(desk.retries, lambda: desk.backend.find(parcel))
    except ProviderError as error:
        raise CallError(Reason.FATAL, f"{error}; whether a batch job was sent is not known") from None


async def wait_for(desk: Desk, job: Job) -> State:
    """The end of a job.

    Raises:
        CallError: it cannot be looked at; it stays noted.
    """
    told = ""
    while True:
        state = await look(desk, job)
        if state.done:
            return state
        if state.counts != told:
            told = state.counts
            desk.log.debug(f"{job.phase}: {job.model}: batch job {job.batch_id}: {state.status}, {told}")
        await asyncio.sleep(desk.interval)


async def look(desk: Desk, job: Job) -> State:
    """How a job is; one that the provider has no more has failed.

    Raises:
        CallError: it cannot be looked at.
    """
    try:
        return await patiently(desk.retries, lambda: desk.backend.look(str(job.batch_id)))
    except ProviderError as error:
        if error.status == 404:
            return State("gone", True, "the provider knows it no more")
        raise CallError(Reason.FATAL, f"{error}; batch job {job.batch_id} stays noted for --continue") from None
