"""One batch job, and what its requests are for.

The questions of a job lie in a file of their own, `batches/{token}.jsonl`, written before the job is sent, so that
another process can send it, find it at the provider, and make records of its answers. A request's id at the provider is
`{token}-{question}-{part}`, both counted from 0 and the token unlike any other, so that a job can be known by its
requests where a provider lets nothing else be attached to it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coeval.calling.calls import Reply
from coeval.errors import RunInputError
from coeval.phases.question import Question
from coeval.schema import Phase
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.meta import Meta
from coeval.storage.run import Run
from p2l.common.files import locked
from route.providers.base import JSON

SUBMITTING = "submitting"


@dataclass(frozen=True)
class Sent:
    """One part of a question as it goes to the provider."""

    body: JSON
    """In the provider's own words."""
    prompt_tokens: int
    """At most, for what is set aside."""
    answer_tokens: int


@dataclass(frozen=True)
class Entry:
    """A question of a job."""

    question: Question
    sent: Mapping[str, Sent]
    """Part -> what is asked in this job."""
    kept: Mapping[str, Reply] = field(default_factory=dict)
    """Part -> an answer of use from an earlier job."""
    used: Mapping[str, Reply] = field(default_factory=dict)
    """Part -> the last answer of no use, with the tokens of all of them."""
    attempt: int = 0

    def as_line(self) -> bytes:
        """The entry as it is stored."""
        value = {
            "question": self.question.to_json(),
            "sent": {part: asdict(sent) for part, sent in self.sent.items()},
            "kept": {part: asdict(reply) for part, reply in self.kept.items()},
            "used": {part: asdict(reply) for part, reply in self.used.items()},
            "attempt": self.attempt,
        }
        return json.dumps(value, ensure_ascii=False).encode(errors="replace") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """The entry that was stored."""
        value = json.loads(line)
        return cls(
            Question.from_json(value["question"]),
            {part: Sent(**sent) for part, sent in value["sent"].items()},
            {part: Reply(**reply) for part, reply in value["kept"].items()},
            {part: Reply(**reply) for part, reply in value["used"].items()},
            value["attempt"],
        )

    @property
    def prompt_tokens(self) -> int:
        """What is asked in this job comes to, at most."""
        return sum(sent.prompt_tokens for sent in self.sent.values())

    def key(self, part: str) -> str:
        """Names one request in the run: task, record, part and attempt."""
        return "\0".join((self.question.task, self.question.id, part, str(self.attempt)))


@dataclass(frozen=True)
class Job:
    """A job, as `pending_batches.json` has it."""

    token: str
    interface: str
    phase: Phase
    model: str
    description: str
    submitted_at: str
    """Before it was sent."""
    n_requests: int
    held_usd: float
    """Counted as spent until the answers tell what they cost."""
    id_to_key: Mapping[str, str] = field(repr=False)
    status: str = SUBMITTING
    """`submitting`, `pending`, `api_...` as the provider says at the end, or `provider_failed`."""
    batch_id: str | None = None
    input_file: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the model, without keys: where to ask for the job."""
    in_turn: bool = False
    """Whether it is part of a job that the provider had no room for: parts are sent one after the other."""

    @property
    def name(self) -> str:
        """Its key in the file: the provider's id, as soon as there is one."""
        return self.batch_id or f"{SUBMITTING}-{self.token}"

    def to_json(self) -> dict[str, Any]:
        """As it is stored under its name."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """As it was stored.

        Raises:
            TypeError: it was stored by another program.
        """
        return cls(**value)


def new_token() -> str:
    """A name for a job that no other has, anywhere."""
    return f"ce{secrets.token_hex(8)}"


def custom_id(token: str, question: int, part: int) -> str:
    """The id of a request at the provider."""
    return f"{token}-{question}-{part}"


def questions_file(run: Run, token: str) -> Path:
    """Where the questions of a job lie."""
    return run.folder / "batches" / f"{token}.jsonl"


def entries(path: Path) -> Iterator[Entry]:
    """The questions of a job, one in memory at a time.

    Raises:
        OSError: the file is not there.
        ValueError: it is damaged.
    """
    with path.open("rb") as lines:
        for line in lines:
            yield Entry.from_line(line)


# `pending_batches.json`: the jobs whose answers are not stored yet, replaced whole, under a lock of all processes.


class Pending:
    """The jobs of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def jobs(self, phase: str | None = None, model: str | None = None) -> list[Job]:
        """The jobs, of one phase and model or all, in the order in which they were sent.

        Raises:
            RunInputError: the file cannot be read: what it held may still be paid for, so it is not passed over.
        """
        found = [self._job(name, value) for name, value in self._read().items()]
        return [job for job in found if phase in (None, job.phase) and model in (None, job.model)]

    def put(self, *jobs: Job, instead: Job | None = None) -> None:
        """Add jobs, or renew them, and take another away, all at once; on the disk when this returns."""
        with self._changing() as data:
            gone = {job.token for job in jobs} | ({instead.token} if instead is not None else set())
            for name in [name for name, value in data.items() if value.get("token") in gone]:
                del data[name]
            data.update({job.name: job.to_json() for job in jobs})
        if instead is not None:
            self.tidy(instead.token)

    def remove(self, job: Job) -> None:
        """Take a job away, and its questions."""
        self.put(instead=job)

    def results_file(self, job: Job) -> Path:
        """Where the answers lie that were fetched."""
        return questions_file(self.run, job.token).with_suffix(".results.jsonl")

    def start_file(self, job: Job) -> Path:
        """Where it is noted how long the files of records were before this job's were added."""
        return questions_file(self.run, job.token).with_suffix(".start.json")

    def tidy(self, token: str) -> None:
        """Remove the files of a job that is not noted."""
        folder = questions_file(self.run, token).parent
        for pattern in (f"{token}.*", f".{token}.*"):  # the latter were being written when a process was killed
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are in there
            folder.rmdir()

    def _job(self, name: str, value: Any) -> Job:
        try:
            return Job.from_json(value)
        except TypeError:
            raise RunInputError(
                f"{self.run.pending}: job {name!r} was not written by this program; fetch its answers with the program "
                "that sent it, then remove the entry"
            ) from None

    def _read(self) -> dict[str, Any]:
        if not self.run.pending.exists():
            return {}
        data = read_json(self.run.pending)
        if not isinstance(data, dict):
            raise RunInputError(
                f"{self.run.pending}: is no JSON object; restore it, or remove it to send its jobs anew"
            )
        return data

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with locked(self.run.locks / "pending"):
            data = self._read()
            yield data
            if data:
                write_json(self.run.pending, data)
            else:
                self.run.pending.unlink(missing_ok=True)


# What jobs count for in `meta.json`, by token, so that a kill between two files counts nothing twice and nothing not.
#
# A job is counted before it is noted among the pending ones, and settled before it is noted there no more; each of
# these
# is one replacement of `meta.json`, and `reconcile` makes good what a kill left between it and the other file.

_KEY = "batches"
Data = dict[str, Any]


def charge_most(
    meta: Meta, token: str, phase: Phase, model: str, limit: int | None, marks: Sequence[tuple[int, float]]
) -> int:
    """Count a job's calls and dollars, of as many of its first questions as there are calls left.

    Args:
        meta: where they are counted.
        token: the job's.
        phase: the phase that it is of.
        model: the model that it is for.
        limit: calls that the model may make in all.
        marks: calls and dollars up to each question.

    Returns:
        Calls that were counted; none is counted for no question.
    """

    def change(data: Data) -> int:
        left = max(limit - data["quota_used"].get(model, 0), 0) if limit is not None else None
        calls, usd = max(((calls, usd) for calls, usd in marks if left is None or calls <= left), default=(0, 0.0))
        if calls:
            _add(data, token, phase, model, calls, usd)
        return calls

    return meta.change(change)


def charge_more(meta: Meta, token: str, phase: Phase, model: str, limit: int | None, calls: int, usd: float) -> bool:
    """Count further calls and dollars of a job that is being filled; False, and nothing is, where calls are used up."""

    def change(data: Data) -> bool:
        if limit is not None and data["quota_used"].get(model, 0) + calls > limit:
            return False
        before = _remove(data, token) or {"calls": 0, "usd": 0.0}
        _count(data, model, -before["calls"], -before["usd"])
        _add(data, token, phase, model, before["calls"] + calls, before["usd"] + usd)
        return True

    return meta.change(change)


def charge(meta: Meta, *jobs: Job, instead: Job | None = None) -> None:
    """Count jobs, in the place of another one."""

    def change(data: Data) -> None:
        if instead is not None:
            _undo(data, instead.token)
        for job in jobs:
            _add(data, job.token, job.phase, job.model, job.n_requests, job.held_usd)

    meta.change(change)


def settle(meta: Meta, job: Job, unasked: int, usd: float) -> None:
    """Count what a job cost for what was set aside, and give back the calls that were not made; done once."""

    def change(data: Data) -> None:
        entry = (data.get(_KEY) or {}).get(job.token)
        if entry is not None and not entry["settled"]:
            _count(data, entry["model"], -unasked, usd - entry["usd"])
            entry["settled"] = True

    meta.change(change)


def give_back(meta: Meta, token: str) -> None:
    """Undo what was counted for a job of which nothing was asked."""
    meta.change(lambda data: _undo(data, token))


def drop(meta: Meta, job: Job) -> None:
    """Forget a job that is settled, and noted nowhere else."""
    meta.change(lambda data: _remove(data, job.token))


def reconcile(meta: Meta, pending: Pending, phase: Phase, model: str) -> None:
    """Bring both files together; only for a process that nobody else is at work on the model's phase beside."""
    jobs = pending.jobs(phase, model)
    noted = {job.token for job in jobs}

    def change(data: Data) -> set[str]:
        counted = {
            token: entry
            for token, entry in (data.get(_KEY) or {}).items()
            if (entry["phase"], entry["model"]) == (phase, model)
        }
        for token in counted.keys() - noted:
            _remove(data, token) if counted[token]["settled"] else _undo(data, token)
        for job in jobs:
            if job.token not in counted:
                _add(data, job.token, phase, model, job.n_requests, job.held_usd)
        return counted.keys() - noted

    for token in meta.change(change):
        pending.tidy(token)


def _add(data: Data, token: str, phase: str, model: str, calls: int, usd: float) -> None:
    _count(data, model, calls, usd)
    entry = {"phase": phase, "model": model, "calls": calls, "usd": usd, "settled": False}
    data[_KEY] = {**(data.get(_KEY) or {}), token: entry}


def _undo(data: Data, token: str) -> None:
    entry = _remove(data, token)
    if entry is not None:
        _count(data, entry["model"], -entry["calls"], -entry["usd"])


def _remove(data: Data, token: str) -> Data | None:
    entries = dict(data.pop(_KEY, None) or {})
    entry: Data | None = entries.pop(token, None)
    if entries:
        data[_KEY] = entries
    return entry


def _count(data: Data, model: str, calls: int, usd: float) -> None:
    data["quota_used"][model] = max(data["quota_used"].get(model, 0) + calls, 0)
    data["spent_usd"] = round(data["spent_usd"] + usd, 9)
