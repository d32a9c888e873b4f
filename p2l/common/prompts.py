"""Limits of prompts: turns, characters, and combining marks in a row.

A model reads the newest tokens of a prompt, so the newest turns and characters are kept of one that is too long.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

MAX_TURNS = 10_000
"""Turns of a request that an endpoint takes by default, those of all its prompts together."""
MAX_CHARS = 1_000_000
"""Characters of a prompt that an endpoint takes by default."""
MAX_MARKS = 30
"""Combining marks in a row, as in Unicode's stream-safe text format (UAX #15); no language writes as many."""


def newest_turns(turns: Sequence[str], *, max_turns: int, max_chars: int) -> Sequence[str]:
    """Return the newest turns and characters of a prompt, at least one turn; the prompt itself where it fits.

    The oldest turn that is kept is cut at its beginning.
    """
    if len(turns) <= max_turns and sum(map(len, turns)) <= max_chars:
        return turns
    newest: list[str] = []
    left = max_chars
    for turn in reversed(turns[-max_turns:]):
        if left <= 0 and newest:
            break
        newest.append(turn[max(0, len(turn) - max(0, left)) :])
        left -= len(turn)
    return newest[::-1]


def cut_marks(text: str) -> str:
    """Return the text with at most `MAX_MARKS` combining marks in a row; text that people write is returned as it is.

    Normalising a run of marks takes Python the square of its length: 20 s for 80,000.
    """
    if len(text) <= MAX_MARKS or text.isascii():
        return text
    coarse, exact = _long_runs()
    return coarse.sub(lambda run: exact.sub(lambda marks: marks[0][:MAX_MARKS], run[0]), text)


@lru_cache(maxsize=1)
def _long_runs() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile what finds too long runs of marks: a fast pattern that may find more, and an exact one."""
    # Some have no combining class of their own, only what they decompose into (U+0F73, U+FF9E).
    marks = [
        char
        for char in map(chr, range(0x300, 0x1F000))  # the planes beyond hold none
        if unicodedata.combining(unicodedata.normalize("NFKD", char)[0])
    ]
    exact = "".join(marks)
    # A set with many ranges of the second plane takes 30 times as long to look through.
    coarse = "".join(char for char in marks if char < "\U00010000") + "\U00010000-\U0001efff"
    # A set at the beginning, and not a repetition, lets the engine skip to the first mark.
    fast, slow = (re.compile(f"[{each}][{each}]{{{MAX_MARKS},}}") for each in (coarse, exact))
    return fast, slow
