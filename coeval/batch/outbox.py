"""From questions to jobs: as many in each as the provider takes, within the model's calls and the run's dollars.

Everything is on the disk, and counted, before a job is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from coeval.batch import job as ledger
from coeval.batch.job import Entry, Job, Sent, custom_id, entries, new_token, questions_file
from coeval.batch.submission import Desk
from coeval.calling.calls import CallError, Reason, chat_request
from coeval.calling.limits import most_tokens
from coeval.phases.question import Question
from coeval.schema import ROLE_OF
from coeval.storage.records import now
from route.providers.base import ProviderError

_ENVELOPE = 256  # bytes around a request
_HARMLESS = ("model", "base_url", "azure_endpoint", "api_version")


@dataclass
class Packing:
    """A job that is being filled."""

    token: str
    file: BinaryIO
    keys: dict[str, str] = field(default_factory=dict)
    usd: float = 0.0
    size: int = 0
    """Bytes of the requests as they are sent."""
    tokens: int = 0
    """Of the prompts, by an estimate."""
    marks: list[tuple[int, int, float]] = field(default_factory=list)
    """After each question: length of the file, requests, dollars."""

    def add(self, entry: Entry, usd: float, size: int) -> None:
        """Take in a question."""
        self.file.write(entry.as_line())
        for place, part in enumerate(entry.sent):
            self.keys[custom_id(self.token, len(self.marks), place)] = entry.key(part)
        self.usd += usd
        self.size += size
        self.tokens += entry.prompt_tokens
        self.marks.append((self.file.tell(), len(self.keys), self.usd))

    def cut(self, requests: int) -> None:
        """Leave out the last questions, so that there are no more requests than so many."""
        while self.marks and self.marks[-1][1] > requests:
            self.marks.pop()
        length, count, self.usd = self.marks[-1] if self.marks else (0, 0, 0.0)
        self.keys = dict(list(self.keys.items())[:count])
        self.file.flush()
        self.file.truncate(length)


class Outbox:
    """The questions of one model in one phase that are not in a job yet."""

    def __init__(self, desk: Desk, questions: Iterable[Question]) -> None:
        self._desk = desk
        self._entries = self._made(iter(questions))
        self._left: Entry | None = None
        self.stopped: CallError | None = None
        """Why the rest is not asked, or not before other jobs have shown what they cost."""

    async def next_job(self) -> Job | None:
        """The next job, noted and counted; None where there are no more questions, or `stopped` says why."""
        self.stopped = None
        self._left = self._left or next(self._entries, None)
        if self._left is None:
            return None
        packing = begin(self._desk, new_token())
        try:
            await self._fill(packing)
            if packing.keys:
                self._charge(packing)
            if packing.keys:
                job = closed(self._desk, packing)
                self._desk.pending.put(job)
                return job
            drop(self._desk, packing)
            return None
        except BaseException:
            packing.file.close()
            raise

    async def _fill(self, packing: Packing) -> None:
        backend = self._desk.backend
        while (entry := self._left or next(self._entries, None)) is not None:
            self._left = entry
            size = sum(len(json.dumps(sent.body)) + _ENVELOPE for sent in entry.sent.values())
            usd = sum(cost_of(self._desk, sent) for sent in entry.sent.values())
            full = len(packing.keys) + len(entry.sent) > backend.most_requests
            full = full or packing.size + size > backend.most_bytes
            if packing.keys and (full or packing.tokens + entry.prompt_tokens > self._desk.limit):
                return
            if not self._desk.has_room_for(packing.usd + usd):
                self.stopped = self._over_budget(usd)
                return
            packing.add(entry, usd, size)
            self._left = None
            if len(packing.marks) % 50 == 0:
                await asyncio.sleep(0)

    def _charge(self, packing: Packing) -> None:
        """Count calls and dollars; what is above the model's quota is left out."""
        desk, wanted = self._desk, len(packing.keys)
        marks = [(calls, usd) for _, calls, usd in packing.marks]
        granted = ledger.charge_most(desk.meta, packing.token, desk.phase, desk.model.name, desk.quota, marks)
        if granted < wanted:
            packing.cut(granted)
            self.stopped = CallError(Reason.QUOTA, f"its quota of {desk.quota} calls is used up")

    def _over_budget(self, usd: float) -> CallError:
        desk = self._desk
        return CallError(
            Reason.BUDGET,
            f"the budget of ${desk.budget_usd:g} is used up: ${desk.meta.spent_usd:.4f} are spent, "
            f"and the next question may cost ${usd:.4f}",
        )

    def _made(self, questions: Iterator[Question]) -> Iterator[Entry]:
        """The questions in the provider's words; those that it has no words for are settled as failed."""
        for question in questions:
            try:
                yield _entry(self._desk, question)
            except ProviderError as error:
                failed = CallError(Reason.FAILED, str(error))
                self._desk.apply(question, dict.fromkeys(question.prompts, failed))


def _entry(desk: Desk, question: Question) -> Entry:
    sent = {}
    for part, prompt in question.prompts.items():
        request = chat_request(desk.model, question.role, prompt)
        sent[part] = Sent(desk.backend.body(request), *most_tokens(request))
    return Entry(question, sent)


def cost_of(desk: Desk, sent: Sent) -> float:
    """Dollars that a request may cost."""
    return desk.price.cost(sent.prompt_tokens, sent.answer_tokens)


def begin(desk: Desk, token: str) -> Packing:
    """An empty job; its token is written down first, so that its file is removed if nothing comes of it."""
    ledger.charge_more(desk.meta, token, desk.phase, desk.model.name, None, 0, 0.0)
    path = questions_file(desk.run, token)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Packing(token, path.open("wb"))


def drop(desk: Desk, packing: Packing) -> None:
    """Forget a job without questions."""
    packing.file.close()
    desk.pending.tidy(packing.token)
    ledger.give_back(desk.meta, packing.token)


def split(desk: Desk, job: Job, most: float) -> list[Job]:
    """Note a job in parts, of so many tokens each at most or of one question, in its place."""
    path = questions_file(desk.run, job.token)
    packing, parts = begin(desk, new_token()), list[Job]()
    for entry in entries(path):
        if packing.keys and packing.tokens + entry.prompt_tokens > most:
            parts.append(closed(desk, packing))
            packing = begin(desk, new_token())
        packing.add(entry, sum(cost_of(desk, sent) for sent in entry.sent.values()), 0)
    parts.append(closed(desk, packing))
    # Prices may be others than when the job was sent: what was set aside then is given back in the end.
    total = sum(part.held_usd for part in parts) or 1.0
    parts = [replace(part, held_usd=job.held_usd * part.held_usd / total, in_turn=True) for part in parts]
    desk.pending.put(*parts, instead=job)
    ledger.charge(desk.meta, *parts, instead=job)
    return parts


def closed(desk: Desk, packing: Packing) -> Job:
    """A job whose questions are on the disk, to be noted."""
    packing.file.flush()
    os.fsync(packing.file.fileno())
    packing.file.close()
    model = desk.model
    return Job(
        packing.token,
        model.interface,
        desk.phase,
        model.name,
        f"coeval {desk.run.folder.name}: {desk.phase}, {model.name}",
        now(),
        len(packing.keys),
        packing.usd,
        packing.keys,
        settings=_settings(desk),
    )


def _settings(desk: Desk) -> Mapping[str, Any]:
    parameters = desk.model.parameters_for(ROLE_OF[desk.phase])
    return {key: parameters[key] for key in _HARMLESS if key in parameters}
