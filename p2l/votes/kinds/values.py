"""What the fields of other tools' files mean: messages, verdicts, grades, times and identifiers, each read in one "
"way."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

from p2l.votes.kinds.self_names import REVEALS, SelfNames
from p2l.votes.kinds.texts import RowError, holds_turns, turns, unquoted

_LATEST_SECONDS = 1e11  # since 1970; larger numbers are milliseconds
_BAD_TIE = "tie (bothbad)"
BOTH_BAD = frozenset(
    {"bothbad", "both bad", "both_bad", "tie (both_bad)", "tie (both bad)", "tie(bothbad)", _BAD_TIE, "bothbad_vote"}
)
"""Spellings of `tie (bothbad)`."""
_WINNER_WORDS = {
    "model_a": (
        "model_a",
        "a",
        "model a",
        "model_1",
        "model1",
        "response_a",
        "answer_a",
        "left",
        "leftvote",
        "a>b",
        "a>>b",
    ),
    "model_b": (
        "model_b",
        "b",
        "model b",
        "model_2",
        "model2",
        "response_b",
        "answer_b",
        "right",
        "rightvote",
        "b>a",
        "b>>a",
    ),
    "tie": ("tie", "tied", "draw", "equal", "both", "a=b", "b=a", "tievote", "tie (inconsistent)", "c"),
}
_WINNERS = {word: winner for winner, words in _WINNER_WORDS.items() for word in words}
_WINNERS |= dict.fromkeys(BOTH_BAD, _BAD_TIE)
_PEOPLE = ("author", "expert", "arena_user", "user", "human", "annotator", "people", "crowd")
_ANYBODY = frozenset(
    {"human", "humans", "people", "user", "users", "crowd", "annotator", "annotators", "expert", "experts"}
)
"""What says that a person voted, and not which."""
_GRADES = {
    1.0: ("c", "correct", "pass", "passed", "true", "yes", "y", "resolved", "success", "right"),
    0.5: ("p", "partial", "partially correct"),
    0.0: ("i", "incorrect", "fail", "failed", "false", "no", "n", "unresolved", "failure", "wrong", "not_attempted"),
}
_GRADE_OF = {word: grade for grade, words in _GRADES.items() for word in words}
# Markdown that is counted, in what the expressions of Python and of Arrow (RE2) share.
FENCE_MARKS = ("```", "~~~")
HEADER = r" {0,3}#{1,6}[ \t]+[^\s]"
LIST_ITEM = r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])[ \t]+[^\s]"
BOLD = r"\*\*[^*\n]+\*\*|__[^_\n]+__"
_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_HEADERS = re.compile(f"^{HEADER}", re.MULTILINE | re.ASCII)
_LISTS = re.compile(f"^{LIST_ITEM}", re.MULTILINE | re.ASCII)
_BOLD = re.compile(BOLD)
MEASURES = ("length", "headers", "lists", "bold", "code", REVEALS)
"""What is counted in the answers of each side."""


class NoVerdictError(ValueError):
    """A row that is as its tool writes it and says nothing: an error, a chat without a vote. The text names it."""


def answer_text(value: Any, what: str = "answer") -> str | None:
    """Return a model's answer as one text, all of its turns; None where it is no text."""
    parsed = unquoted(value)
    if isinstance(value, str) and not holds_turns(parsed):  # an answer may be JSON, or begin like it
        return value
    if parsed is None:
        return None
    if isinstance(parsed, list) and all(isinstance(turn, str) or turn is None for turn in parsed):
        return "\n\n".join(turn or "" for turn in parsed)
    with contextlib.suppress(RowError):
        return "\n\n".join(turns(parsed, "assistant", what))
    return None


def without_code(text: str) -> tuple[str, int]:
    """Return a text without its fenced code, in which Markdown does not count, and how many blocks that were."""
    return _FENCED.subn("", text) if any(mark in text for mark in FENCE_MARKS) else (text, 0)


def measures(text: str | None, side: str) -> dict[str, int]:
    """Return characters and Markdown of an answer, and whether it tells its model, as columns of a side."""
    if text is None:
        return {}
    prose, blocks = without_code(text)
    # Most answers have none of a mark, which is seen sooner than a pattern is tried at every letter.
    return {
        f"length_{side}": len(text),
        f"headers_{side}": len(_HEADERS.findall(prose)) if "#" in prose else 0,
        f"lists_{side}": len(_LISTS.findall(prose)) if "\n" in prose or _LISTS.match(prose) else 0,
        f"bold_{side}": len(_BOLD.findall(prose)) if "**" in prose or "__" in prose else 0,
        f"code_{side}": blocks,
        f"{REVEALS}_{side}": int(SelfNames.of().revealed(text)),
    }


def winner_of(value: Any, what: str = "winner") -> str:
    """Return the outcome that a word stands for; RowError for a word that stands for none."""
    if isinstance(value, str) and value.strip().lower() in _WINNERS:
        return _WINNERS[value.strip().lower()]
    if value is None:
        raise RowError(f"{what} is missing")
    raise RowError(f"{what} {str(value)[:40]!r} is no outcome; one of model_a, model_b, tie, tie (bothbad)")


def grade(value: Any, what: str = "score") -> float:
    """Return a score as a number: also true and false, correct and incorrect, C, P and I, a percentage."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _GRADE_OF:
            return _GRADE_OF[text]
        with contextlib.suppress(ValueError):
            number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
            if math.isfinite(number):
                return number
    if value is None:
        raise NoVerdictError(f"no {what}")
    raise RowError(f"{what} {str(value)[:40]!r} is neither a number nor a verdict such as 'correct'")


def whole_number(value: Any) -> int | None:
    """Return a count, also as text; None where there is none."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def name_of(value: Any, what: str) -> str:
    """Return a model's name; RowError where it is none."""
    if isinstance(value, str) and value.strip():
        return value
    raise RowError(f"{what} is missing" if value is None or value == "" else f"{what} is not text")


def identifier(value: Any) -> str | None:
    """Return an identifier as text; None where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def seconds(value: Any) -> float | None:
    """Return a time in seconds since 1970: numbers (milliseconds too), ISO times, dates; None where there is none."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc).timestamp()
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        number = float(value)
        if not math.isfinite(number):
            return None
        return number / 1000.0 if number > _LATEST_SECONDS else number
    except (TypeError, ValueError):
        pass
    try:
        return seconds(datetime.fromisoformat(str(value).strip().replace("Z", "+00:00")))
    except ValueError:
        raise RowError(f"time {str(value)[:40]!r} cannot be read") from None


def voter_and_source(judge: Any) -> dict[str, str]:
    """Return who voted: people have names such as `author_2` or `expert_7`, judges those of models."""
    if isinstance(judge, list | tuple):
        judge = next((name for name in judge if isinstance(name, str)), None)
    if not isinstance(judge, str) or not judge.strip():
        return {}
    name = judge.strip().lower()
    if name in _ANYBODY:
        return {"source": "human"}
    if name.startswith(_PEOPLE):
        return {"voter": judge, "source": "human"}
    return {"source": judge.removesuffix("_pair").removesuffix("_single")}


def first_of(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of several fields that is there and not null."""
    return next((row[name] for name in names if row.get(name) is not None), None)
