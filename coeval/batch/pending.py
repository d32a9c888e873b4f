"""Batch jobs on the disk: the questions of each, the list of pending ones, and what they count for until settled.

The questions of a job are written to `batches/{token}.jsonl` before the job is submitted, so that another process can
submit it, find it at the provider, and make records of its answers. The id of a request at the provider is
`{token}-{question}-{part}`, both counted from 0. The token is unique, so a job is recognised by its requests where a
provider lets nothing else be attached to it.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coeval.calling.calls import Reply
from coeval.errors import RunInputError
from coeval.phases.question import Question
from coeval.schema import Phase
from coeval.storage.meta import Meta
from coeval.storage.records import as_line, read_json, write_json
from coeval.storage.run import Run
from p2l.common.files import locked
from route.providers.base import JSON

SUBMITTING = "submitting"


@dataclass(frozen=True)
class Sent:
    """One part of a question as it is sent to the provider."""

    body: JSON
    prompt_tokens: int  # upper bound, for the budget
    answer_tokens: int


@dataclass(frozen=True)
class JobQuestion:
    """A question of a job."""

    question: Question
    sent: Mapping[str, Sent]  # part -> what this job asks
    kept: Mapping[str, Reply] = field(default_factory=dict)  # part -> usable answer from an earlier job
    used: Mapping[str, Reply] = field(default_factory=dict)  # part -> last unusable answer, with the tokens of all
    attempt: int = 0

    def as_line(self) -> bytes:
        """Return it as a line of JSON."""
        parts = {
            name: {part: asdict(value) for part, value in getattr(self, name).items()}
            for name in ("sent", "kept", "used")
        }
        return as_line({"question": self.question.to_json(), **parts, "attempt": self.attempt})

    @classmethod
    def from_line(cls, line: bytes) -> JobQuestion:
        """Parse a stored question."""
        columns = json.loads(line)
        return cls(
            question=Question(**columns["question"]),
            sent={part: Sent(**sent) for part, sent in columns["sent"].items()},
            kept={part: Reply(**reply) for part, reply in columns["kept"].items()},
            used={part: Reply(**reply) for part, reply in columns["used"].items()},
            attempt=columns["attempt"],
        )

    @property
    def prompt_tokens(self) -> int:
        """Upper bound of the prompt tokens that this job asks."""
        return sum(sent.prompt_tokens for sent in self.sent.values())

    def key(self, part: str) -> str:
        """Return the name of one request in the run: task, record, part and attempt."""
        return "\0".join((self.question.task, self.question.id, part, str(self.attempt)))


@dataclass(frozen=True)
class Job:
    """A job as stored in `pending_batches.json`."""

    token: str
    interface: str
    phase: Phase
    model: str
    description: str
    submitted_at: str  # taken before it was submitted
    n_requests: int
    held_usd: float  # counted as spent until the answers show the true cost
    id_to_key: Mapping[str, str] = field(repr=False)
    status: str = SUBMITTING  # `submitting`, `pending`, or `api_` and the provider's final state
    batch_id: str | None = None
    input_file: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # address parameters of the model, without keys
    in_turn: bool = False  # it is part of a job that found no room: such parts are sent one after the other

    @property
    def name(self) -> str:
        """Return its key in the file: the provider's id once known."""
        return self.batch_id or f"{SUBMITTING}-{self.token}"


def new_token() -> str:
    """Return a unique token for a job."""
    return f"ce{secrets.token_hex(8)}"


def custom_id(token: str, question: int, part: int) -> str:
    """Return the id of a request at the provider."""
    return f"{token}-{question}-{part}"


def questions_file(run: Run, token: str, ending: str = "jsonl") -> Path:
    """Return the path of a job's questions, or of a file beside them with another ending."""
    return run.folder / "batches" / f"{token}.{ending}"


def job_questions(path: Path) -> Iterator[JobQuestion]:
    """Yield the questions of a job, one in memory at a time. Raise OSError or ValueError if they cannot be read."""
    with path.open("rb") as lines:
        yield from map(JobQuestion.from_line, lines)


class PendingJobs:
    """The jobs of a run whose answers are not stored yet: `pending_batches.json`, replaced whole under a lock."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def jobs(self, phase: str | None = None, model: str | None = None) -> list[Job]:
        """Return the jobs of a phase and model, or all, as submitted. Raise RunInputError if the file is broken."""
        jobs = []
        for name, columns in self._read().items():
            try:
                job = Job(**columns)
            except TypeError:
                raise RunInputError(
                    f"{self.run.pending}: job {name!r} was not written by this program; fetch its answers with the "
                    "program that sent it, then remove the entry"
                ) from None
            if phase in (None, job.phase) and model in (None, job.model):
                jobs.append(job)
        return jobs

    def put(self, *jobs: Job, instead: Job | None = None) -> None:
        """Add or update jobs and remove another in one replacement, on the disk when this returns."""
        gone = {job.token for job in (*jobs, *([instead] if instead else []))}
        with locked(self.run.locks / "pending"):
            stored = {name: columns for name, columns in self._read().items() if columns.get("token") not in gone}
            stored.update({job.name: asdict(job) for job in jobs})
            if stored:
                write_json(self.run.pending, stored)
            else:
                self.run.pending.unlink(missing_ok=True)
        # Files go last: a kill before this leaves files of no job, which `reconcile` removes.
        if instead is not None:
            self.tidy(instead.token)

    def remove(self, job: Job) -> None:
        """Remove a job and its files."""
        self.put(instead=job)

    def tidy(self, token: str) -> None:
        """Remove the files of a job that is not pending."""
        folder = questions_file(self.run, token).parent
        for pattern in (f"{token}.*", f".{token}.*"):  # the latter are unfinished files of a killed process
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other jobs have files there
            folder.rmdir()

    def _read(self) -> dict[str, Any]:
        if not self.run.pending.exists():
            return {}
        stored = read_json(self.run.pending)
        if not isinstance(stored, dict):
            raise RunInputError(
                f"{self.run.pending}: is not a JSON object; restore it, or remove it to send its jobs anew"
            )
        return stored


_META_KEY = "batches"
Data = dict[str, Any]


@dataclass
class Charges:
    """What the jobs of one model in one phase count for, by token, under `batches` of meta.json.

    A job is charged before it becomes pending and settled before it is no longer pending, each by one replacement of
    meta.json, so that a kill between the two files forgets nothing; `reconcile` repairs what such a kill left. A kill
    between meta.json and its counters leaves too much counted, never too little.
    """

    meta: Meta
    phase: Phase
    model: str
    limit: int | None = None  # calls that the model may make in all

    def charge(self, token: str, marks: Sequence[tuple[int, float]]) -> int:
        """Charge as many of a job's next questions as calls are left; return their calls.

        `marks` are the total calls and dollars up to each question.
        """

        def change(data: Data) -> int:
            left = math.inf if self.limit is None else max(self.limit - data["quota_used"].get(self.model, 0), 0)
            most = max((mark for mark in marks if mark[0] <= left), default=None)
            if most is None:
                return 0
            before = (data.get(_META_KEY) or {}).get(token) or {"calls": 0, "usd": 0.0}
            self._charge(data, token, before["calls"] + most[0], before["usd"] + most[1])
            return most[0]

        return self.meta.change(change)

    def replace(self, job: Job, parts: Sequence[Job]) -> None:
        """Charge the parts of a job in its place."""

        def change(data: Data) -> None:
            self._refund(data, job.token)
            for part in parts:
                self._charge(data, part.token, part.n_requests, part.held_usd)

        self.meta.change(change)

    def settle(self, job: Job, unasked: int, usd: float) -> None:
        """Replace the charge of a job by its true cost, and refund the calls that were not made; once."""

        def change(data: Data) -> None:
            before = (data.get(_META_KEY) or {}).get(job.token)
            if before is not None and not before["settled"]:
                self._charge(data, job.token, before["calls"] - unasked, usd, settled=True)

        self.meta.change(change)

    def refund(self, token: str) -> None:
        """Undo the charge of a job of which nothing was asked."""
        self.meta.change(lambda data: self._refund(data, token))

    def forget(self, job: Job) -> None:
        """Forget a job that is settled and no longer pending."""
        self.meta.change(lambda data: _pop(data, job.token))

    def reconcile(self, pending: PendingJobs) -> None:
        """Make both files agree; only for the process that has the model's phase to itself."""
        jobs = {job.token: job for job in pending.jobs(self.phase, self.model)}

        def change(data: Data) -> set[str]:
            charges = dict(data.get(_META_KEY) or {})
            key = (self.phase, self.model)
            charged = {token for token, charge in charges.items() if (charge["phase"], charge["model"]) == key}
            for token in charged - jobs.keys():
                _pop(data, token) if charges[token]["settled"] else self._refund(data, token)
            for token in jobs.keys() - charged:
                self._charge(data, token, jobs[token].n_requests, jobs[token].held_usd)
            return charged - jobs.keys()

        for token in self.meta.change(change):
            pending.tidy(token)

    def _charge(self, data: Data, token: str, calls: int, usd: float, *, settled: bool = False) -> None:
        """Charge a job in the place of what it was charged before."""
        self._refund(data, token)
        self._count(data, calls, usd)
        entry = {"phase": self.phase, "model": self.model, "calls": calls, "usd": usd, "settled": settled}
        data[_META_KEY] = {**(data.get(_META_KEY) or {}), token: entry}

    def _refund(self, data: Data, token: str) -> None:
        before = _pop(data, token)
        if before is not None:
            self._count(data, -before["calls"], -before["usd"])

    def _count(self, data: Data, calls: int, usd: float) -> None:
        data["quota_used"][self.model] = max(data["quota_used"].get(self.model, 0) + calls, 0)
        # A refund of what was charged must leave 0, not 1e-17.
        data["spent_usd"] = round(data["spent_usd"] + usd, 9)


def _pop(data: Data, token: str) -> Data | None:
    charges = dict(data.pop(_META_KEY, None) or {})
    charge: Data | None = charges.pop(token, None)
    if charges:
        data[_META_KEY] = charges
    return charge
