"""Pack questions into jobs, submit a job, find it again after an interruption, and poll it.

A CallError means that the provider cannot be asked, or not to any use; the job then stays pending.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from coeval.batch.backends import Backend, State, Submission, UndecidedError, with_retries
from coeval.batch.pending import (
    Charges,
    Job,
    JobQuestion,
    PendingJobs,
    Sent,
    custom_id,
    job_questions,
    new_token,
    questions_file,
)
from coeval.calling.calls import CallError, Reason, chat_request, structure_parameters
from coeval.calling.limits import ROUNDING, Retries, most_tokens
from coeval.interfaces import INTERFACES, Price, price_of
from coeval.phases.question import Apply, Question
from coeval.schema import ROLE_OF, Model, Phase
from coeval.storage.records import now
from coeval.storage.run import Run
from coeval.storage.store import Log
from route.providers.base import Account, Fault, ProviderError

# After which a job may have been created all the same.
_UNCERTAIN = (Fault.CONNECTION, Fault.TIMEOUT, Fault.MALFORMED, Fault.SERVER)


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
    interval: float = 0.0  # seconds between two polls of a job
    attempts: int = 1  # most attempts to get a usable answer; 1 where nothing may be submitted
    budget_usd: float | None = None
    most_tokens: int | None = None  # most prompt tokens of one job, as the provider said; None: as the backend says

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
        return sum(self.price.cost(request.prompt_tokens, request.answer_tokens) for request in sent)

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
    from coeval.batch.clouds import BedrockBatches, GeminiBatches, VertexBatches

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
    return next((stored for stored in context.pending.jobs(job.phase, job.model) if stored.token == job.token), job)


def _submission(context: JobContext, job: Job) -> Submission:
    # Where a provider lets nothing be attached to a job, ours is looked for among those that no other entry claims.
    known = frozenset(other.batch_id for other in context.pending.jobs() if other.batch_id is not None)

    def note_file(file: str) -> None:
        context.pending.put(replace(job, input_file=file))

    return Submission(job=job, questions=questions_file(context.run, job.token), note_file=note_file, known=known)


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


# The queue of questions: packed into jobs as large as the provider accepts, within the model's calls and the budget.

_ENVELOPE = 256  # bytes around a request
_ADDRESS = (
    *("model", "base_url", "azure_endpoint", "api_version", "region", "project", "location", "service_account_key"),
    *("batch_s3_bucket", "batch_s3_prefix", "batch_role_arn", "batch_gcs_bucket", "batch_gcs_prefix"),
)


@dataclass
class Draft:
    """A job that is being filled."""

    context: JobContext
    token: str
    file: BinaryIO
    keys: dict[str, str] = field(default_factory=dict)
    usd: float = 0.0
    size: int = 0  # bytes of the requests as they are sent
    tokens: int = 0  # upper bound of the prompt tokens
    # After each question: length of the file, requests, dollars.
    marks: list[tuple[int, int, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, context: JobContext, token: str) -> Draft:
        """Start an empty job."""
        # A job is on the disk, and charged, before it is submitted.
        # The token is stored first, so that the file is removed if a kill leaves it behind.
        context.charges.charge(token, [(0, 0.0)])
        path = questions_file(context.run, token)
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(context, token, path.open("wb"))

    def add(self, entry: JobQuestion, usd: float, size: int = 0) -> None:
        """Append a question."""
        self.file.write(entry.as_line())
        for place, part in enumerate(entry.sent):
            self.keys[custom_id(self.token, len(self.marks), place)] = entry.key(part)
        self.usd += usd
        self.size += size
        self.tokens += entry.prompt_tokens
        self.marks.append((self.file.tell(), len(self.keys), self.usd))

    def cut(self, requests: int) -> None:
        """Remove the last questions until there are no more than `requests` requests."""
        while self.marks and self.marks[-1][1] > requests:
            self.marks.pop()
        length, count, self.usd = self.marks[-1] if self.marks else (0, 0, 0.0)
        self.keys = dict(list(self.keys.items())[:count])
        self.file.flush()
        self.file.truncate(length)

    def drop(self) -> None:
        """Forget the job."""
        self.file.close()
        self.context.pending.tidy(self.token)
        self.context.charges.refund(self.token)

    def close(self) -> Job:
        """Bring the questions to the disk and return the job, which is not pending yet."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        model, phase = self.context.model, self.context.phase
        parameters = model.parameters_for(ROLE_OF[phase])
        return Job(
            token=self.token,
            interface=model.interface,
            phase=phase,
            model=model.name,
            description=f"coeval {self.context.run.folder.name}: {phase}, {model.name}",
            submitted_at=now(),
            n_requests=len(self.keys),
            held_usd=self.usd,
            id_to_key=self.keys,
            settings={key: parameters[key] for key in _ADDRESS if key in parameters},
        )


class RequestQueue:
    """The questions of one model in one phase that are in no job yet."""

    def __init__(self, context: JobContext, questions: Iterable[Question]) -> None:
        self._context = context
        self._entries = self._prepared(questions)
        self._next: JobQuestion | None = None
        self.stopped: CallError | None = None  # why the rest is not asked, or not before other jobs show their cost

    async def next_job(self) -> Job | None:
        """Return the next job, pending and charged; None if no questions are left, or `stopped` says why."""
        self.stopped = None
        self._next = self._next or next(self._entries, None)
        if self._next is None:
            return None
        draft = Draft.begin(self._context, new_token())
        try:
            await self._fill(draft)
            if draft.keys:
                requests = len(draft.keys)
                granted = self._context.charges.charge(draft.token, [(calls, usd) for _, calls, usd in draft.marks])
                if granted < requests:  # the model's quota has no more calls
                    draft.cut(granted)
                    quota = self._context.charges.limit
                    self.stopped = CallError(Reason.QUOTA, f"its quota of {quota} calls is used up")
            if not draft.keys:
                draft.drop()
                return None
            job = draft.close()
            self._context.pending.put(job)
            return job
        except BaseException:
            draft.file.close()
            raise

    async def _fill(self, draft: Draft) -> None:
        context, backend = self._context, self._context.backend
        while (entry := self._next or next(self._entries, None)) is not None:
            self._next = entry
            size = sum(len(json.dumps(sent.body)) + _ENVELOPE for sent in entry.sent.values())
            usd = context.most_cost(*entry.sent.values())
            full = (
                len(draft.keys) + len(entry.sent) > backend.most_requests
                or draft.size + size > backend.most_bytes
                or draft.tokens + entry.prompt_tokens > context.token_limit
            )
            if draft.keys and full:
                return
            if not context.has_room_for(draft.usd + usd):
                spent = f"${context.charges.meta.spent_usd:.4f} are spent, and the next question may cost ${usd:.4f}"
                self.stopped = CallError(Reason.BUDGET, f"the budget of ${context.budget_usd:g} is used up: {spent}")
                return
            draft.add(entry, usd, size)
            self._next = None
            if len(draft.marks) % 50 == 0:  # calls of other models go on meanwhile
                await asyncio.sleep(0)

    def _prepared(self, questions: Iterable[Question]) -> Iterator[JobQuestion]:
        """Yield the questions in the provider's format; record as failed what it does not support."""
        for question in questions:
            sent = {}
            try:
                for part, prompt in question.prompts.items():
                    model, role = self._context.model, question.role
                    form = structure_parameters(model, role, question.schema) if question.schema is not None else None
                    request = chat_request(model, role, prompt, form)
                    sent[part] = Sent(self._context.backend.body(request), *most_tokens(request))
            except ProviderError as error:
                failed = CallError(Reason.FAILED, str(error))
                self._context.apply(question, dict.fromkeys(question.prompts, failed))
            else:
                yield JobQuestion(question, sent)


def split(context: JobContext, job: Job, most: float) -> list[Job]:
    """Replace a pending job by parts of at most `most` tokens, or of one question."""
    draft, parts = Draft.begin(context, new_token()), list[Job]()
    for entry in job_questions(questions_file(context.run, job.token)):
        if draft.keys and draft.tokens + entry.prompt_tokens > most:
            parts.append(draft.close())
            draft = Draft.begin(context, new_token())
        draft.add(entry, context.most_cost(*entry.sent.values()))
    parts.append(draft.close())
    # Prices may have changed since the job was charged: what was held then is refunded in the end.
    total = sum(part.held_usd for part in parts) or 1.0
    parts = [replace(part, held_usd=job.held_usd * part.held_usd / total, in_turn=True) for part in parts]
    context.pending.put(*parts, instead=job)
    context.charges.replace(job, parts)
    return parts
