"""One record to be made, the calls that make it, and how answers become the record.

Live answers and answers of a batch job, in this process or a later one, go through the same `apply`. `context` is JSON
and holds all that the record needs besides the answers, so that a batch job can outlive the process that sent it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from coeval.calling.calls import Call, CallError, Reply
from coeval.parsing import MalformedAnswerError
from coeval.schema import Model, Phase, Role
from coeval.storage.run import Run
from coeval.storage.store import Store

Answer: TypeAlias = Reply | CallError
KindName: TypeAlias = Literal["item", "response", "scores", "factors", "pair"]
_MODULES: Mapping[KindName, str] = {
    "item": "coeval.phases.items",
    "response": "coeval.phases.responses",
    "scores": "coeval.phases.evaluation",
    "factors": "coeval.phases.evaluation",
    "pair": "coeval.phases.pair_schedule",
}


@dataclass(frozen=True)
class Question:
    """A record to be made."""

    kind: KindName
    phase: Phase
    role: Role
    model: str
    task: str
    context: Mapping[str, Any]
    """What the record needs besides the answers; `id` is the record's."""
    prompts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Part -> prompt; the only part of most questions is `""`."""
    first_attempt: int = 0
    """Number of the first attempt, so that neither the cache nor a scripted model repeats an answer of no use."""

    @property
    def id(self) -> str:
        """The id of the record."""
        return str(self.context["id"])

    @property
    def waiting_id(self) -> str:
        """Under what answers wait for others of the record: those about an earlier text are of no use."""
        about = self.context.get("judged")
        return self.id if about is None else f"{self.id} {about}"

    def call(self, model: Model, part: str = "", attempt: int = 0) -> Call:
        """One of the calls, for the first time or again."""
        key = (self.task, self.id, part, str(attempt))
        number = self.first_attempt + attempt
        weighs = bool(self.context.get("grading", {}).get("expected"))
        return Call(model, self.role, self.phase, self.task, key, self.prompts[part], number, logprobs=weighs)

    def calls(self, model: Model, attempt: int = 0) -> dict[str, Call]:
        """Part -> call."""
        return {part: self.call(model, part, attempt) for part in self.prompts}

    def to_json(self) -> dict[str, Any]:
        """All but the prompts, as JSON."""
        return {
            "kind": self.kind,
            "phase": self.phase,
            "role": self.role,
            "model": self.model,
            "task": self.task,
            "context": dict(self.context),
            "first_attempt": self.first_attempt,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Question:
        """A question whose prompts were sent before."""
        return cls(**value)


@dataclass(frozen=True)
class Settled:
    """What became of a question."""

    record: dict[str, Any] | None
    """As it was stored, if it was."""
    failures: Mapping[str, str]
    """Part -> why it has no answer of use."""


@dataclass(frozen=True)
class Kind:
    """How answers become records of one kind."""

    read: Callable[[Mapping[str, Any], str, str], Any]
    """(context, part, text) -> what it says; raises MalformedAnswerError."""
    record: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, str]], dict[str, Any] | None]
    """(context, part -> what it says, part -> why not) -> the record; None: nothing is stored."""
    path: Callable[[Run, Mapping[str, Any]], Path]
    """Where it is stored."""
    weigh: Callable[[Mapping[str, Any], Any, Any], Any] | None = None
    """(context, what it says, the tokens that it could have begun with) -> the same, weighed by their probabilities."""


Apply: TypeAlias = Callable[[Question, Mapping[str, Answer]], Settled]
"""Makes and stores a record."""


class Batching(Protocol):
    """What phases hand their questions to where answers may take a day."""

    def takes(self, model: Model, phase: Phase) -> bool:
        """Whether this model's questions in this phase go through batch jobs."""
        ...

    async def adopt(self, phase: Phase, model: Model, apply: Apply) -> None:
        """Wait for jobs that an earlier process sent, and apply their answers.

        Raises:
            CallError: they cannot be looked at, and what is in them must not be asked again.
        """
        ...

    async def answer(self, model: Model, questions: Iterable[Question], apply: Apply) -> None:
        """Send the questions, wait, and apply the answers; a QUOTA or BUDGET error leaves the rest unasked.

        Raises:
            CallError: the model's calls or the run's dollars are used up, or the provider refuses the job.
        """
        ...


@cache
def kind_of(name: KindName) -> Kind:
    """How records of a kind are made."""
    kind: Kind = importlib.import_module(_MODULES[name]).KINDS[name]
    return kind


def read_answer(question: Question, part: str, answer: Answer) -> tuple[Any, str | None]:
    """What an answer says, and why not where it says nothing of use."""
    if isinstance(answer, CallError):
        return None, str(answer)
    kind = kind_of(question.kind)
    try:
        value = kind.read(question.context, part, answer.text)
    except MalformedAnswerError as error:
        return None, str(error)
    if kind.weigh is not None and answer.tokens:
        value = kind.weigh(question.context, value, answer.tokens)
    return value, None


def apply(store: Store, question: Question, answers: Mapping[str, Answer]) -> Settled:
    """Make the record of a question from its answers and store it; note what failed.

    Raises:
        OSError: it cannot be stored.
    """
    kind = kind_of(question.kind)
    values, failures = {}, {}
    for part, answer in answers.items():
        value, why = read_answer(question, part, answer)
        if why is None:
            values[part] = value
        else:
            failures[part] = why
    record = kind.record(question.context, values, failures)
    if record is not None:
        replies = [answer for answer in answers.values() if isinstance(answer, Reply)]
        store.append(kind.path(store.run, question.context), {**record, **_usage(replies)})
    for part, why in failures.items():
        names = {"part": part} if part else {}
        store.error(
            question.phase, why, task=question.task, model=question.model, role=question.role, id=question.id, **names
        )
    return Settled(record, failures)


def _usage(replies: list[Reply]) -> dict[str, Any]:
    if not replies:
        return {}
    usage = {
        "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
        "completion_tokens": sum(reply.completion_tokens for reply in replies),
        "cost_usd": round(sum(reply.cost_usd for reply in replies), 9),
    }
    return {"seconds": round(max(reply.seconds for reply in replies), 3), "usage": usage}
