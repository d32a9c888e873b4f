"""What a model's text says, read leniently: JSON among other words, one word, a name under which it is often given.

Lenient about form, never about content: what is not there is an error, not a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

LEVELS = ("High", "Medium", "Low")
_PROMPT_KEYS = ("prompt", "input", "question", "task", "context", "user_input", "text", "scenario")
_RESPONSE_KEYS = ("response", "output", "answer", "completion", "result", "reference", "label")
_FENCE = re.compile(r"```[a-zA-Z]*\s*\n?(.*?)```", re.DOTALL)
_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_SHOWN = 60


class MalformedAnswerError(ValueError):
    """The text is not what was asked for."""


def read_object(text: str) -> dict[str, Any]:
    """The JSON object in a text: alone, in a fence, or among other words; of a list of objects the first.

    Raises:
        MalformedAnswerError: there is none.
    """
    for candidate in _candidates(_THINKING.sub("", text).strip()):
        try:
            value = json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict):
            return value
    raise MalformedAnswerError(f"no JSON object in {_shown(text)}")


def _candidates(text: str) -> Iterator[str]:
    """The pieces of a text that may be JSON, the likeliest first."""
    for piece in (text, *(fenced.strip() for fenced in _FENCE.findall(text))):
        yield piece
        starts = [at for at in (piece.find("{"), piece.find("[")) if at >= 0]
        for start in sorted(starts):
            yield piece[start:]
            end = piece.rfind("}" if piece[start] == "{" else "]")
            yield piece[start : end + 1]
        yield from _first_whole(piece, sorted(starts))


def _first_whole(text: str, starts: Sequence[int]) -> Iterator[str]:
    """The first value that ends before the text does, such as an object that another follows."""
    for start in starts:
        try:
            _, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield text[start:end]


def read_attributes(text: str) -> dict[str, list[Any]]:
    """Attribute -> values, of those that have a list of plain values.

    Raises:
        MalformedAnswerError: none has.
    """
    attributes = {}
    for name, values in read_object(text).items():
        plain = [value for value in values if isinstance(value, (str, int, float, bool))] if _is_list(values) else []
        if plain and name.strip():
            attributes[name.strip()] = plain
    if not attributes:
        raise MalformedAnswerError(f"no attribute with a list of values in {_shown(text)}")
    return attributes


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def read_rubric(text: str) -> dict[str, str]:
    """Factor -> description.

    Raises:
        MalformedAnswerError: no factor is described.
    """
    rubric = {}
    for name, description in read_object(text).items():
        if isinstance(description, str) and description.strip() and name.strip():
            rubric[name.strip()] = description.strip()
    if not rubric:
        raise MalformedAnswerError(f"no factor with a description in {_shown(text)}")
    return rubric


def read_item(text: str) -> tuple[str, str]:
    """The prompt of an item and its reference answer.

    Raises:
        MalformedAnswerError: one of them is missing or empty.
    """
    value = read_object(text)
    return _named(value, _PROMPT_KEYS, "prompt"), _named(value, _RESPONSE_KEYS, "response")


def _named(value: Mapping[str, Any], keys: Iterable[str], what: str) -> str:
    lowered = {str(key).strip().lower(): text for key, text in value.items()}
    for key in keys:
        text = lowered.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip()
        if text not in (None, "") and not isinstance(text, str):
            return json.dumps(text, ensure_ascii=False)
    raise MalformedAnswerError(f"the item has no {what}")


def read_scores(text: str, factors: Sequence[str]) -> dict[str, str]:
    """Factor -> level, of every factor that was asked for; a level may stand in an object with a reason.

    Raises:
        MalformedAnswerError: a factor has no level, or something that is none.
    """
    scores = {}
    for factor, value in graded_in(read_object(text), factors).items():
        if not isinstance(value, str):
            raise MalformedAnswerError(f"no level for {factor!r}")
        scores[factor] = read_level(value)
    return scores


def graded_in(reply: Mapping[str, Any], factors: Sequence[str]) -> dict[str, Any]:
    """Factor -> what an object says of it, of every factor; None where it says nothing."""
    grades = {_plain(name): value for name, value in reply.items()}
    graded = {}
    for factor in factors:
        value = grades.get(_plain(factor))
        if isinstance(value, Mapping):
            value = next((value[key] for key in ("score", "level", "rating", "value") if key in value), None)
        graded[factor] = value
    return graded


def _plain(name: str) -> str:
    """A factor's name as it is compared: models write spaces for underscores."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().strip("*`\"'").lower())


def read_level(text: str) -> str:
    """High, Medium or Low.

    Raises:
        MalformedAnswerError: it says something else.
    """
    return read_word(text, LEVELS)


def read_word(text: str, words: Sequence[str]) -> str:
    """The one of some words that a text consists of, in any case, with or without quotes and a full stop.

    Raises:
        MalformedAnswerError: it says something else, or several of them.
    """
    answer = _THINKING.sub("", text).strip().strip("*`\"' ").removesuffix(".").strip("*`\"' ").lower()
    for word in words:
        if answer == word.lower():
            return word
    raise MalformedAnswerError(f"{_shown(text)} is none of {', '.join(words)}")


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}...")
