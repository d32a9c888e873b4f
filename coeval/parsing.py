"""Parse the answers of models: JSON among other words, a single word, values under usual names.

Lenient about form, never about content: a missing value is an error, not a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from p2l.common.files import parse_json

LEVELS = ("High", "Medium", "Low")
_PROMPT_KEYS = ("prompt", "input", "question", "task", "context", "user_input", "text", "scenario")
_RESPONSE_KEYS = ("response", "output", "answer", "completion", "result", "reference", "label")
_LANGUAGE = re.compile(r"\A[a-zA-Z]*\s*")
_THOUGHT = re.compile(r"<think(?:ing)?>")
_END_OF_THOUGHT = re.compile(r"</think(?:ing)?>")
_LETTERS_SHOWN = 60


class MalformedAnswerError(ValueError):
    """The text does not have the form that the prompt asked for."""


def read_object(text: str) -> dict[str, Any]:
    """Return the (first) JSON object in a text: alone, in a fence, or among words; MalformedAnswerError without one."""
    for candidate in _candidates(_without_thoughts(text).strip()):
        try:
            value = parse_json(candidate, strict=False)
        except ValueError:
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict):
            return value
    raise MalformedAnswerError(f"no JSON object in {_shown(text)}")


# A model may go on for as long as it likes: a reply is searched once, from front to back, and by no pattern that starts
# anew behind each beginning that has no end.


def _without_thoughts(text: str) -> str:
    answer, end = [], 0
    while (start := _THOUGHT.search(text, end)) and (last := _END_OF_THOUGHT.search(text, start.end())):
        answer.append(text[end : start.start()])
        end = last.end()
    return "".join([*answer, text[end:]])


def _candidates(text: str) -> Iterator[str]:
    """Yield the pieces of a text that may be JSON, the likeliest first."""
    pieces = text.split("```")
    # What stands in fences, without the name of its language.
    fenced = [_LANGUAGE.sub("", piece, count=1).strip() for piece in pieces[1:-1:2]]
    for piece in (text, *fenced):
        yield piece
        starts = [at for at in (piece.find("{"), piece.find("[")) if at >= 0]
        for start in sorted(starts):
            yield piece[start:]
            end = piece.rfind("}" if piece[start] == "{" else "]")
            yield piece[start : end + 1]
        # The first value that ends before the text does, such as an object that another follows.
        for start in sorted(starts):
            try:
                _, end = json.JSONDecoder(strict=False).raw_decode(piece, start)
            except (ValueError, RecursionError):
                continue
            yield piece[start:end]


def read_attributes(text: str) -> dict[str, list[Any]]:
    """Return attribute -> values, of those that have a list of plain values; MalformedAnswerError if none has."""
    attributes = {}
    for name, values in read_object(text).items():
        entries = values if isinstance(values, list) else []
        plain = [value for value in entries if isinstance(value, (str, int, float, bool))]
        if plain and name.strip():
            attributes[name.strip()] = plain
    if not attributes:
        raise MalformedAnswerError(f"no attribute with a list of values in {_shown(text)}")
    return attributes


def read_rubric(text: str) -> dict[str, str]:
    """Return factor -> description; MalformedAnswerError if no factor is described."""
    rubric = {}
    for name, description in read_object(text).items():
        if isinstance(description, str) and description.strip() and name.strip():
            rubric[name.strip()] = description.strip()
    if not rubric:
        raise MalformedAnswerError(f"no factor with a description in {_shown(text)}")
    return rubric


def read_item(text: str) -> tuple[str, str]:
    """Return the prompt of an item and its reference answer; MalformedAnswerError if one is missing or empty."""
    prompt, response, _ = read_quoting_item(text)
    return prompt, response


def read_quoting_item(text: str) -> tuple[str, str, Any]:
    """Return the same with what the item quotes, unchecked; None where it quotes nothing."""
    value = read_object(text)
    return _named(value, _PROMPT_KEYS, "prompt"), _named(value, _RESPONSE_KEYS, "response"), value.get("quotes")


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
    """Return factor -> level, which may stand in an object with a reason; MalformedAnswerError unless all have one."""
    scores = {}
    for factor, value in graded_in(read_object(text), factors).items():
        if not isinstance(value, str):
            raise MalformedAnswerError(f"no level for {factor!r}")
        scores[factor] = read_level(value)
    return scores


def graded_in(reply: Mapping[str, Any], factors: Sequence[str]) -> dict[str, Any]:
    """Return factor -> its value in an object, of every factor; None where it has none."""
    grades = {_plain(name): value for name, value in reply.items()}
    graded = {}
    for factor in factors:
        value = grades.get(_plain(factor))
        if isinstance(value, Mapping):
            value = next((value[key] for key in ("score", "level", "rating", "value") if key in value), None)
        graded[factor] = value
    return graded


def _plain(name: str) -> str:
    """Return a factor's name for comparison: models write spaces for underscores."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().strip("*`\"'").lower())


def read_level(text: str) -> str:
    """Return High, Medium or Low; MalformedAnswerError for anything else."""
    return read_word(text, LEVELS)


def read_word(text: str, words: Sequence[str]) -> str:
    """Return the one word of a text, in any case, with or without quotes and full stop; else MalformedAnswerError."""
    answer = _without_thoughts(text).strip().strip("*`\"' ").removesuffix(".").strip("*`\"' ").lower()
    for word in words:
        if answer == word.lower():
            return word
    raise MalformedAnswerError(f"{_shown(text)} is none of {', '.join(words)}")


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= _LETTERS_SHOWN else f"{plain[:_LETTERS_SHOWN]}...")
