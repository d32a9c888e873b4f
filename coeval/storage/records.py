"""The records of a run as lines of JSON, whose keys docs/coeval/runs.md lists: failed ones, and those out of date.

Ids: datapoint `{task}__{teacher}__{seq:05d}`, response `{datapoint}__{student}`, evaluation `{response}__{judge}`, pair
`{datapoint}__{a}__vs__{b}__{judge}`. So names of tasks and models hold no `__`.

Ids outlast texts: an item or an answer may be made anew under its old id. A judge's record holds a mark of what it saw
(`judged`), an answer the prompt itself (`input`); a record that does not fit the present texts is ignored.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple


def is_failed(record: Any) -> bool:
    """Return whether a record stands for work that failed."""
    return bool(record.get("status") == "failed")


def is_marked(record: Any) -> bool:
    """Return whether a record was marked as failed after it was made: it does not say why."""
    return is_failed(record) and "error" not in record


def now() -> str:
    """Return the time as records hold it: UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class ItemMark(NamedTuple):
    """Digests of an item's texts."""

    prompt: str
    seen: str
    """What a judge sees of it: prompt, reference answer, attributes."""
    attributes: tuple[str, ...]
    """Names of the target attributes that it was made with."""


class AnswerMark(NamedTuple):
    """Digest and time of an answer."""

    text: str
    at: str
    """Time of the answer; empty if unknown."""


def item_mark(item: Mapping[str, Any]) -> ItemMark:
    """Return the mark of a stored item."""
    prompt = item.get("prompt")
    attributes = item.get("sampled_target_attributes") or {}
    # Interned, as thousands of items in memory share a few names.
    names = tuple(map(sys.intern, sorted(attributes))) if isinstance(attributes, Mapping) else ()
    return ItemMark(_digest(prompt), _digest([prompt, item.get("reference_response") or "", attributes]), names)


def answer_mark(answer: Mapping[str, Any]) -> AnswerMark:
    """Return the mark of a stored answer."""
    at = answer.get("generated_at")
    return AnswerMark(_digest(answer.get("response")), sys.intern(at) if isinstance(at, str) else "")


def judged(item: Mapping[str, Any], *answers: Mapping[str, Any]) -> str:
    """Return the mark that a judge's record holds of the texts that it saw."""
    return _joined(item_mark(item), [answer_mark(answer) for answer in answers])


def is_answer_to(answer: Mapping[str, Any], item: ItemMark) -> bool:
    """Return whether an answer was given to the item's present prompt, as far as it tells."""
    return answer.get("input") is None or _digest(answer["input"]) == item.prompt


def is_judgement_of(record: Mapping[str, Any], item: ItemMark, answers: Sequence[AnswerMark]) -> bool:
    """Return whether a judgement is about the present texts; one without a mark is, unless an answer is younger."""
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
    """Return whether a time is before another; False for times that cannot be parsed."""
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


@dataclass(frozen=True)
class Item:
    """A datapoint without its texts."""

    task: str
    teacher: str
    attributes: Mapping[str, str]
    prompt_key: bytes
    """Digest of the prompt, by which two runs recognise a datapoint they share."""
    mark: ItemMark
    cluster: int = -1
    """Code of the prompt that it has, or nearly has (`coeval.duplicates`)."""


@dataclass(frozen=True)
class Answer:
    """A response; its text only in tasks with labels."""

    datapoint: str
    student: str
    tokens: float
    text: str | None
    mark: AnswerMark
