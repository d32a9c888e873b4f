"""A question: one record to be made, the calls that make it, and how their answers become the record."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias

from coeval.calling.calls import Call, CallError, Reply
from coeval.parsing import MalformedAnswerError
from coeval.schema import Model, Phase, Role
from coeval.storage.store import Store

ReplyOrError: TypeAlias = Reply | CallError
_KindName: TypeAlias = Literal["item", "response", "scores", "factors", "pair"]
_MODULES: Mapping[_KindName, str] = {
    "item": "coeval.phases.items",
    "response": "coeval.phases.responses",
    "scores": "coeval.phases.evaluation",
    "factors": "coeval.phases.evaluation",
    "pair": "coeval.phases.pairwise",
}


@dataclass(frozen=True)
class Question:
    """A record to be made."""

    kind: _KindName
    phase: Phase
    role: Role
    model: str
    task: str
    # JSON, so that a batch job can outlive the process that submitted it.
    context: Mapping[str, Any]  # the parts of the record besides the answers; `id` is the record's
    # Part -> prompt; the only part of most questions is `""`.
    prompts: Mapping[str, str] = field(default_factory=dict, repr=False)
    # JSON schema of each answer; None where text is asked for.
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    first_attempt: int = 0  # number of the first attempt: neither cache nor scripted model repeats an unusable answer

    @property
    def id(self) -> str:
        """Return the id of the record."""
        return str(self.context["id"])

    @property
    def waiting_id(self) -> str:
        """Return the id of its waiting replies, which differs once the texts they are about have changed."""
        about = self.context.get("judged")
        return self.id if about is None else f"{self.id} {about}"

    def call(self, model: Model, part: str = "", attempt: int = 0) -> Call:
        """Return the call for a part."""
        return Call(
            model=model,
            role=self.role,
            phase=self.phase,
            task=self.task,
            key=(self.task, self.id, part, str(attempt)),
            prompt=self.prompts[part],
            attempt=self.first_attempt + attempt,
            logprobs=bool(self.context.get("grading", {}).get("expected")),
            schema=self.schema,
        )

    def to_json(self) -> dict[str, Any]:
        """Return all but the prompts, which are sent before, as JSON; `Question(**columns)` reads it."""
        return {name: value for name, value in vars(self).items() if name != "prompts"}


@dataclass(frozen=True)
class Settled:
    """The outcome of a question."""

    record: dict[str, Any] | None  # the stored record, if any
    failures: Mapping[str, str]  # part -> why it has no usable answer


@dataclass(frozen=True)
class Kind:
    """How answers become records of one kind."""

    read: Callable[[Mapping[str, Any], str, str], Any]  # parses (context, part, text); raises MalformedAnswerError
    # Makes the record of (context, parsed answer by part, failure by part); None: nothing is stored.
    record: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, str]], dict[str, Any] | None]
    stored: str  # kind of record; see `coeval.storage.run.RECORD_FOLDERS`
    # Weighs (context, parsed answer, first tokens) by the tokens' probabilities.
    weigh: Callable[[Mapping[str, Any], Any, Any], Any] | None = None
    # Returns why a parsed answer cannot stand beside what is stored, for (store, context, parsed answer).
    conflict: Callable[[Store, Mapping[str, Any], Any], str | None] | None = None


Apply: TypeAlias = Callable[[Question, Mapping[str, ReplyOrError]], Settled]  # makes and stores a record


class Batching(Protocol):
    """Batch jobs, to which phases hand questions that may be answered within a day."""

    def takes(self, model: Model, phase: Phase) -> bool:
        """Return whether this model's questions in this phase go through batch jobs."""
        ...

    async def adopt(self, phase: Phase, model: Model, apply: Apply) -> None:
        """Finish the jobs that an earlier process submitted. Raise CallError if one stays pending."""
        ...

    async def answer(self, model: Model, questions: Iterable[Question], apply: Apply) -> None:
        """Send the questions, wait, and apply the answers; a QUOTA or BUDGET error leaves the rest unasked.

        Raise CallError if the model's calls or the run's budget are used up, or the provider rejects a job.
        """
        ...


@cache
def kind_of(name: _KindName) -> Kind:
    """Return how records of a kind are made."""
    # Imported by name: these modules import this one, and a direct import would be circular.
    kind: Kind = importlib.import_module(_MODULES[name]).KINDS[name]
    return kind


def read_answer(
    question: Question, part: str, answer: ReplyOrError, store: Store | None = None
) -> tuple[Any, str | None]:
    """Return the parsed answer, and why it is unusable if it is; with a store, beside what is stored too."""
    if isinstance(answer, CallError):
        return None, str(answer)
    kind = kind_of(question.kind)
    try:
        parsed = kind.read(question.context, part, answer.text)
    except MalformedAnswerError as error:
        return None, str(error)
    if kind.weigh is not None and answer.tokens:
        parsed = kind.weigh(question.context, parsed, answer.tokens)
    conflict = None if store is None or kind.conflict is None else kind.conflict(store, question.context, parsed)
    return parsed, conflict


def apply(store: Store, question: Question, answers: Mapping[str, ReplyOrError]) -> Settled:
    """Make the record of a question from its answers and store it; log what failed."""
    # Live answers and those of batch jobs, in this process or a later one, all pass here.
    kind = kind_of(question.kind)
    read = {part: read_answer(question, part, answer, store) for part, answer in answers.items()}
    parsed = {part: answer for part, (answer, why) in read.items() if why is None}
    failures = {part: why for part, (_, why) in read.items() if why is not None}
    record = kind.record(question.context, parsed, failures)
    if record is not None:
        stored = dict(record)
        replies = [answer for answer in answers.values() if isinstance(answer, Reply)]
        if replies:
            # The parts of a record are asked at once, so it took as long as the slowest.
            stored["seconds"] = round(max(reply.seconds for reply in replies), 3)
            stored["usage"] = {
                "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
                "completion_tokens": sum(reply.completion_tokens for reply in replies),
                "cost_usd": round(sum(reply.cost_usd for reply in replies), 9),
            }
        store.append(store.run.path_of(kind.stored, question.context), stored)
    for part, why in failures.items():
        names = {"task": question.task, "model": question.model, "role": question.role, "id": question.id}
        store.error(question.phase, why, **names, **({"part": part} if part else {}))
    return Settled(record, failures)
