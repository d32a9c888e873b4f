"""The records of a run, as lines of JSON: their keys, their ids, what makes one failed.

Ids: datapoint `{task}__{teacher}__{seq:05d}`, response `{datapoint}__{student}`, evaluation `{response}__{judge}`, pair
`{datapoint}__{a}__vs__{b}__{judge}`. So names of tasks and models hold no `__`.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Literal, TypedDict

from typing_extensions import NotRequired

__all__ = ["Datapoint", "Evaluation", "Pair", "Response", "Usage", "is_failed", "is_marked", "now"]


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
    """Which texts it is about; see `coeval.storage.lineage`."""
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
    """Which texts it is about; see `coeval.storage.lineage`."""
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
