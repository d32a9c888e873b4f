"""The records of a run, as lines of JSON: their keys, their ids, what makes one failed.

Ids: datapoint `{task}__{teacher}__{seq:05d}`, response `{datapoint}__{student}`, evaluation `{response}__{judge}`, pair
`{datapoint}__{a}__vs__{b}__{judge}`. So names of tasks and models hold no `__`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, TypedDict

from typing_extensions import NotRequired


class Usage(TypedDict):
    """Tokens and what they cost."""

    prompt_tokens: int
    completion_tokens: int
    cost_usd: float


class Datapoint(TypedDict):
    """An item: a prompt and a reference answer."""

    id: str
    task_id: str
    teacher_model_id: str
    sampled_target_attributes: dict[str, Any]
    prompt: str
    reference_response: str
    generated_at: str
    sampled_nuanced_attributes: NotRequired[dict[str, Any]]
    status: NotRequired[Literal["failed"]]
    benchmark_id: NotRequired[str]
    benchmark_split: NotRequired[str]
    benchmark_native_id: NotRequired[str]
    benchmark_native_score: NotRequired[float | None]
    usage: NotRequired[Usage]


class Response(TypedDict):
    """A student's answer."""

    id: str
    datapoint_id: str
    task_id: str
    teacher_model_id: str
    student_model_id: str
    input: str
    response: str
    token_count: int
    generated_at: str
    status: NotRequired[Literal["failed"]]
    error: NotRequired[str]
    seconds: NotRequired[float]
    usage: NotRequired[Usage]


class Evaluation(TypedDict):
    """A judge's scores of an answer: factor -> High, Medium, Low, or a number in [0, 1] as text."""

    id: str
    response_id: str
    datapoint_id: str
    task_id: str
    teacher_model_id: str
    judge_model_id: str
    scores: dict[str, str]
    evaluated_at: str
    judged: NotRequired[str]
    """Which texts it is about; see `coeval.storage.records`."""
    student_model_id: NotRequired[str]
    raw: NotRequired[str]
    grades: NotRequired[dict[str, str]]
    """Factor -> grade as the judge said it, where the score is another."""
    rationale: NotRequired[str]
    seconds: NotRequired[float]
    status: NotRequired[Literal["failed"]]
    error: NotRequired[str]
    usage: NotRequired[Usage]


class Pair(TypedDict):
    """A judge's verdict on two answers to one item, in `phase5_pairwise/{task}.{teacher}.{judge}.pairwise.jsonl`."""

    id: str
    datapoint_id: str
    task_id: str
    teacher_model_id: str
    model_a: str
    model_b: str
    response_a_id: str
    response_b_id: str
    winner: Literal["model_a", "model_b", "tie", "tie (bothbad)"] | None
    judge_model_id: str
    source: Literal["derived", "native"]
    margin: float | None
    order_consistent: bool | None
    verdicts: NotRequired[list[str]]
    """As given in each order, named from the point of view of (model_a, model_b)."""
    said: NotRequired[dict[str, str]]
    """Of a failed one: order that was answered (`ab` or `ba`) -> winner."""
    judged: NotRequired[str]
    """Which texts it is about; see `coeval.storage.records`."""
    created_at: str
    rationale: NotRequired[str]
    status: NotRequired[Literal["failed"]]
    error: NotRequired[str]
    usage: NotRequired[Usage]


def is_failed(record: Any) -> bool:
    """Whether a record stands for work that brought nothing."""
    return bool(record.get("status") == "failed")


def is_marked(record: Any) -> bool:
    """Whether a record was marked as failed after it was made: it does not say why."""
    return is_failed(record) and "error" not in record


def now() -> str:
    """The time as records hold it: UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# What a record was built on: an answer on the prompt of its item, a score or a verdict on what the judge saw.
#
# Ids outlast texts: an item or an answer may be made anew under its old id. A judge's record holds a mark of what it
# saw
# (`judged`), an answer the prompt itself (`input`); what does not fit the present texts is as if it were not there.


class ItemMark(NamedTuple):
    """An item's texts, by digest."""

    prompt: str
    seen: str
    """All that a judge sees of it: prompt, reference answer, attributes."""
    attributes: tuple[str, ...]
    """The names of the target attributes that it was made with."""


class AnswerMark(NamedTuple):
    """An answer's text, by digest."""

    text: str
    at: str
    """When it was given; empty where that is not known."""


def item_mark(item: Mapping[str, Any]) -> ItemMark:
    """The mark of a stored item."""
    prompt = item.get("prompt")
    attributes = item.get("sampled_target_attributes") or {}
    names = tuple(map(sys.intern, sorted(attributes))) if isinstance(attributes, Mapping) else ()
    return ItemMark(_digest(prompt), _digest([prompt, item.get("reference_response") or "", attributes]), names)


def answer_mark(answer: Mapping[str, Any]) -> AnswerMark:
    """The mark of a stored answer."""
    at = answer.get("generated_at")
    return AnswerMark(_digest(answer.get("response")), sys.intern(at) if isinstance(at, str) else "")


def judged(item: Mapping[str, Any], *answers: Mapping[str, Any]) -> str:
    """What a judge's record holds of the texts that it is about."""
    return _joined(item_mark(item), [answer_mark(answer) for answer in answers])


def is_answer_to(answer: Mapping[str, Any], item: ItemMark) -> bool:
    """Whether an answer was given to the item's present prompt, as far as it tells."""
    return answer.get("input") is None or _digest(answer["input"]) == item.prompt


def is_judgement_of(record: Mapping[str, Any], item: ItemMark, answers: Sequence[AnswerMark]) -> bool:
    """Whether a score or a verdict is about the present texts; one without a mark is, unless an answer is younger."""
    if isinstance(record.get("judged"), str):
        return bool(record["judged"] == _joined(item, answers))
    at = record.get("evaluated_at") or record.get("created_at")
    return not any(isinstance(at, str) and _is_before(at, answer.at) for answer in answers)


def _joined(item: ItemMark, answers: Sequence[AnswerMark]) -> str:
    return "-".join([item.seen, *(answer.text for answer in answers)])


def _digest(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _is_before(one: str, other: str) -> bool:
    """Whether a time is before another; of times that cannot be read none is."""
    if len(one) == len(other) and one.endswith("Z") and other.endswith("Z"):
        return one < other
    first, second = _time(one), _time(other)
    return first is not None and second is not None and first < second


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)


# What is kept of items and answers when a run is read.


@dataclass(frozen=True)
class Item:
    """A datapoint without its texts."""

    task: str
    teacher: str
    attributes: Mapping[str, str]
    prompt_key: bytes
    """Digest of the prompt, by which two runs know a datapoint they share."""
    mark: ItemMark


@dataclass(frozen=True)
class Answer:
    """A response; its text only in tasks with labels."""

    datapoint: str
    student: str
    tokens: float
    text: str | None
    mark: AnswerMark
