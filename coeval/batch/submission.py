"""Submit a job, find it again after an interruption, and poll it.

A CallError means that the provider cannot be asked, or not to any use; the job then stays pending.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from coeval.batch.backends import Backend, State, Submission, UndecidedError, with_retries
from coeval.batch.job import Charges, Job, PendingJobs, Sent, questions_file
from coeval.calling.calls import CallError, Reason
from coeval.calling.limits import ROUNDING, Retries
from coeval.interfaces import INTERFACES
from coeval.phases.question import Apply
from coeval.prices import Price, price_of
from coeval.schema import ROLE_OF, Model, Phase
from coeval.storage.run import Run
from coeval.storage.store import Log
from route.providers.base import Account, Fault, ProviderError

_UNCERTAIN = (Fault.CONNECTION, Fault.TIMEOUT, Fault.MALFORMED, Fault.SERVER)
"""After which a job may have been created all the same."""


@dataclass
class JobContext:
    """Everything that the batch jobs of one model in one phase need."""

    run: Run
    pending: PendingJobs
    charges: Charges
    log: Log
    backend: Backend
    model: Model
    phase: Phase
    apply: Apply
    retries: Retries
    interval: float = 0.0
    """Seconds between two polls of a job."""
    attempts: int = 1
    """Most attempts to get a usable answer; 1 where nothing may be submitted."""
    budget_usd: float | None = None
    most_tokens: int | None = None
    """Most prompt tokens of one job, once the provider has said so; None: as the backend says."""

    @property
    def token_limit(self) -> float:
        """Return how many prompt tokens a job may have."""
        limits = (self.backend.most_tokens, self.most_tokens)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    @property
    def price(self) -> Price:
        """Return the price of tokens in a batch."""
        return price_of(self.model, ROLE_OF[self.phase], batched=True)

    def most_cost(self, *sent: Sent) -> float:
        """Return the dollars that requests may cost."""
        return sum(self.price.cost(one.prompt_tokens, one.answer_tokens) for one in sent)

    def has_room_for(self, usd: float) -> bool:
        """Return whether the run may spend that much more; free requests always may be sent."""
        return not usd or self.budget_usd is None or self.charges.meta.spent_usd + usd <= self.budget_usd + ROUNDING

    def tell(self, job: Job, text: str, level: str = "INFO") -> None:
        """Log a line about a job."""
        self.log.write(level, f"{job.phase}: {job.model}: {text}")

    def cancel(self, job: Job) -> None:
        """Refund and forget a job of which nothing was asked."""
        self.charges.refund(job.token)
        self.pending.remove(job)


def backend_for(interface: str, account: Account) -> Backend:
    """Return the client of an interface that takes batch jobs; its protocol decides which."""
    # Here, because a run without batch jobs needs none of these modules.
    from coeval.batch.anthropic import AnthropicBatches
    from coeval.batch.backends import AzureBatches, OpenAIBatches
    from coeval.batch.clouds import BedrockBatches, VertexBatches
    from coeval.batch.gemini import GeminiBatches

    backends: dict[str, Callable[[Account], Backend]] = {
        "openai": OpenAIBatches,
        "azure": AzureBatches,
        "anthropic": AnthropicBatches,
        "gemini": GeminiBatches,
        "bedrock": BedrockBatches,
        "vertex": VertexBatches,
    }
    return backends[INTERFACES[interface].protocol](account)


async def submit(context: JobContext, job: Job) -> Job:
    """Submit a job that is pending as `submitting`; return it with its id.

    Raise NoRoomError if there is no room for it yet, CallError if it is rejected and forgotten. It stays pending after
    the first, and where the CallError says that its submission is uncertain.
    """
    failed = 0
    while True:
        # The attempt before may have uploaded the file already, and noted it.
        job = _stored(context, job)
        try:
            return _submitted(context, job, await context.backend.submit(_submission(context, job)))
        except ProviderError as error:
            failed += 1
            wait = context.retries.wait(error, failed)
            uncertain = error.fault in _UNCERTAIN
            if wait is None and uncertain:
                why = f"{error}; whether a batch job was sent is looked up with --continue"
                raise CallError(Reason.FATAL, why) from None
            if wait is None:
                context.cancel(_stored(context, job))
                raise CallError(Reason.FATAL, f"{error}: {error.detail}" if error.detail else str(error)) from None
        await asyncio.sleep(wait)
        located = await locate(context, job) if uncertain else None
        if located is not None:
            return located


def _stored(context: JobContext, job: Job) -> Job:
    """Return the job as it is stored now."""
    return next((one for one in context.pending.jobs(job.phase, job.model) if one.token == job.token), job)


def _submission(context: JobContext, job: Job) -> Submission:
    # Where a provider lets nothing be attached to a job, ours is looked for among those that no other entry claims.
    known = frozenset(one.batch_id for one in context.pending.jobs() if one.batch_id is not None)

    def note_file(file: str) -> None:
        context.pending.put(replace(job, input_file=file))

    return Submission(job, questions_file(context.run, job.token), note_file, known)


def _submitted(context: JobContext, job: Job, batch_id: str) -> Job:
    job = replace(_stored(context, job), batch_id=batch_id, status="pending")
    context.pending.put(job)
    context.tell(job, f"batch job {batch_id} of {job.n_requests} requests is at {job.interface}")
    return job


async def locate(context: JobContext, job: Job) -> Job | None:
    """Find a job whose submission was interrupted, waiting until that is decided; None if it was never submitted."""
    while True:
        try:
            batch_id = await look_up(context, job)
        except UndecidedError:
            context.tell(job, f"waiting for jobs at {job.interface}, one of which may be ours")
            await asyncio.sleep(context.interval)
            continue
        return None if batch_id is None else _submitted(context, job, batch_id)


async def look_up(context: JobContext, job: Job) -> str | None:
    """Return the id of a job if it was submitted after all, else None. Raise UndecidedError if only time will tell."""
    submission = _submission(context, _stored(context, job))
    try:
        return await with_retries(context.retries, lambda: context.backend.find(submission))
    except ProviderError as error:
        raise CallError(Reason.FATAL, f"{error}; whether a batch job was sent is not known") from None


async def wait_for(context: JobContext, job: Job) -> State:
    """Poll a job until it has ended."""
    counts = ""
    while True:
        state = await look(context, job)
        if state.done:
            return state
        # A job takes hours: a line only where something has changed since the last look.
        if state.counts != counts:
            counts = state.counts
            context.tell(job, f"batch job {job.batch_id}: {state.status}, {counts}", "DEBUG")
        await asyncio.sleep(context.interval)


async def look(context: JobContext, job: Job) -> State:
    """Return the state of a job; one that the provider does not know any more has failed."""
    try:
        return await with_retries(context.retries, lambda: context.backend.look(str(job.batch_id)))
    except ProviderError as error:
        # Providers delete old jobs; waiting for one would never end.
        if error.status == 404:
            return State("gone", True, "the provider knows it no more")
        raise CallError(Reason.FATAL, f"{error}; batch job {job.batch_id} stays noted for --continue") from None
