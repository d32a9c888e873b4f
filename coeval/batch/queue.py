"""The queue of questions: packed into jobs as large as the provider accepts, within the model's calls and the budget.

A job is on the disk, and charged, before it is submitted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from coeval.batch.job import Job, JobQuestion, Sent, custom_id, job_questions, new_token, questions_file
from coeval.batch.submission import JobContext
from coeval.calling.calls import CallError, Reason, chat_request
from coeval.calling.limits import most_tokens
from coeval.phases.question import Question
from coeval.schema import ROLE_OF
from coeval.storage.records import now
from route.providers.base import ProviderError

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
    size: int = 0
    """Bytes of the requests as they are sent."""
    tokens: int = 0
    """Upper bound of the prompt tokens."""
    marks: list[tuple[int, int, float]] = field(default_factory=list)
    """After each question: length of the file, requests, dollars."""

    @classmethod
    def begin(cls, context: JobContext, token: str) -> Draft:
        """Start an empty job."""
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
            self.token,
            model.interface,
            phase,
            model.name,
            f"coeval {self.context.run.folder.name}: {phase}, {model.name}",
            now(),
            len(self.keys),
            self.usd,
            self.keys,
            settings={key: parameters[key] for key in _ADDRESS if key in parameters},
        )


class RequestQueue:
    """The questions of one model in one phase that are in no job yet."""

    def __init__(self, context: JobContext, questions: Iterable[Question]) -> None:
        self._context = context
        self._entries = self._prepared(questions)
        self._next: JobQuestion | None = None
        self.stopped: CallError | None = None
        """Why the rest is not asked, or not before other jobs have shown their cost."""

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
                self._charge(draft)
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

    def _charge(self, draft: Draft) -> None:
        """Charge the job; what is above the model's quota is cut."""
        context, requests = self._context, len(draft.keys)
        marks = [(calls, usd) for _, calls, usd in draft.marks]
        granted = context.charges.charge(draft.token, marks)
        if granted < requests:
            draft.cut(granted)
            self.stopped = CallError(Reason.QUOTA, f"its quota of {context.charges.limit} calls is used up")

    def _prepared(self, questions: Iterable[Question]) -> Iterator[JobQuestion]:
        """Yield the questions in the provider's format; record as failed what it does not support."""
        for question in questions:
            sent = {}
            try:
                for part, prompt in question.prompts.items():
                    request = chat_request(self._context.model, question.role, prompt)
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
