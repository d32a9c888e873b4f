"""One line of a growing file as a vote.

The rules are those of `p2l votes check`, but each line is judged by itself: whether it is a vote may not depend on the
lines that happened to come with it, or a run that was stopped would go on with other votes. 130,000 lines take
about a second.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from p2l.errors import VoteError
from p2l.votes.codes import WINNERS, unknown_winner

__all__ = ["LineVote", "parse_line"]

_CODES = {winner: code for code, winner in enumerate(WINNERS)}


class LineVote(NamedTuple):
    """What a line says."""

    prompt: list[str]
    """The user's turns."""
    model_a: str
    model_b: str
    winner: int
    """Position in WINNERS."""
    weight: float
    tstamp: float
    """Seconds since 1970; NaN: not stated."""


def parse_line(line: bytes) -> LineVote:
    """The vote of one line.

    Raises:
        VoteError: it is none; the message says why, not where.
    """
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise VoteError(f"is not UTF-8 (byte {error.start + 1})") from error
    except (ValueError, RecursionError) as error:
        raise VoteError(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise VoteError(f"holds a {type(row).__name__}; every line must be an object")
    model_a, model_b = (_name(row, key) for key in ("model_a", "model_b"))
    if model_a == model_b:
        raise VoteError(f"model_a and model_b are both {model_a!r}")
    return LineVote(
        turns_of(row),
        model_a,
        model_b,
        _winner(row.get("winner")),
        _weight(row.get("weight")),
        _time(row.get("tstamp")),
    )


def turns_of(row: dict[str, Any]) -> list[str]:
    """The prompt of a line's object.

    Raises:
        VoteError: it has none, or one that is no text and no list of texts.
    """
    prompt = row.get("prompt")
    turns = [prompt] if isinstance(prompt, str) else prompt
    if turns is None:
        raise VoteError("prompt is missing")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise VoteError("prompt must be a text or a list of the user's turns")
    try:
        "".join(turns).encode()
    except UnicodeEncodeError as error:
        raise VoteError("prompt holds half of a surrogate pair, which is no text") from error
    return turns


def _name(row: dict[str, Any], key: str) -> str:
    name = row.get(key)
    if name is None or (isinstance(name, str) and not name.strip()):
        raise VoteError(f"{key} has no name")
    if not isinstance(name, str):
        raise VoteError(f"{key} must be text, not {name!r}")
    return name


def _winner(value: Any) -> int:
    code = _CODES.get(value) if isinstance(value, str) else None
    if code is None:
        raise VoteError(unknown_winner(value if value is None else str(value)))
    return code


def _weight(value: Any) -> float:
    weight = 1.0 if value is None else _number(value)
    if not (math.isfinite(weight) and weight >= 0):
        raise VoteError(f"weight is {value!r}; it must be a finite number, zero or more")
    return weight


def _time(value: Any) -> float:
    if value is None:
        return math.nan
    seconds = _number(value)
    if math.isnan(seconds) and isinstance(value, str):
        seconds = _date(value)
    if not math.isfinite(seconds):
        raise VoteError(f"tstamp is {value!r}; it must be seconds since 1970, or a date and time")
    return seconds


def _number(value: Any) -> float:
    """A number, or a text that is one; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _date(text: str) -> float:
    import pyarrow as pa

    from p2l.votes.schema import numbers

    return float(numbers(pa.array([text]))[0])
