"""What a record was built on: an answer on the prompt of its item, a score or a verdict on what the judge saw.

Ids outlast texts: an item or an answer may be made anew under its old id. A judge's record holds a mark of what it saw
(`judged`), an answer the prompt itself (`input`); what does not fit the present texts is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

__all__ = ["AnswerMark", "ItemMark", "answer_mark", "is_answer_to", "is_judgement_of", "item_mark", "judged"]


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
