"""One batch job, and what its requests are for.

The questions of a job lie in a file of their own, `batches/{token}.jsonl`, written before the job is sent, so that
another process can send it, find it at the provider, and make records of its answers. A request's id at the provider is
`{token}-{question}-{part}`, both counted from 0 and the token unlike any other, so that a job can be known by its
requests where a provider lets nothing else be attached to it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coeval.calling.call import Reply
from coeval.config.schema import Phase
from coeval.phases.question import Question
from coeval.storage.layout import Run
from route.providers.base import JSON

__all__ = ["SUBMITTING", "Entry", "Job", "Sent", "custom_id", "entries", "new_token", "questions_file"]

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
