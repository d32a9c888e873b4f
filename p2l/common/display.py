"""Texts of others as terminals and logs show them: without what moves the cursor, hides text or turns its direction.

A model's name or an answer may hold escape sequences that change the terminal, characters that are not seen, and marks
that show a text in another order than it has. They are removed where text is shown; files keep what they were given.
Letters of every script stay, those written from right to left too.
"""

from __future__ import annotations

import contextlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls of ASCII and of Latin-1: escape sequences begin with one
    "\xad\u034f\u180e\u200b-\u200d\u2060-\u2064\ufeff"  # zero width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u206a-\u206f"  # direction
    "\u2028\u2029\ufff9-\ufffb"  # ends of lines and paragraphs, notes between lines
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_UP = "\x1b[A"
_RETURN = re.compile(r"\r(?!\n)")  # would write over the beginning of a line
_BLANKS = "\t\n\x0b\x0c\r\x85\u2028\u2029"  # become a space, so that words stay apart


def printable(text: str, keep: str = "") -> str:
    """Return a text of one line without control, direction and zero-width characters, except those to `keep`."""
    if text.isprintable():  # most are
        return text
    return _HIDDEN.sub(lambda match: match[0] if match[0] in keep else " " if match[0] in _BLANKS else "", text)


def columns_of(text: str) -> int:
    """Return the columns that a text takes in a terminal: two for wide letters, such as Chinese ones and emoji."""
    if text.isascii():
        return len(text)
    columns = 0
    for mark in text:
        stands_on_letter_before = unicodedata.category(mark) in ("Mn", "Me", "Cf") or "\u1160" <= mark <= "\u11ff"
        if not stands_on_letter_before:
            columns += 2 if unicodedata.east_asian_width(mark) in "WF" else 1
    return columns


class _PrintableStream:
    """A stream that shows `printable` text; everything but writing is the stream's own."""

    def __init__(self, stream: TextIO, *, has_bars: bool) -> None:
        self._stream = stream
        self._has_bars = has_bars

    def write(self, text: str) -> int:
        # Lines are the program's own by now. Progress bars return to the start of theirs where they begin to write, and
        # one below another moves up in a write that holds nothing else.
        if self._has_bars and _UP in text and not text.replace(_UP, "").strip("\n"):
            self._stream.write(text)
            return len(text)
        shown = printable(text, keep="\n\t\r")
        if "\r" in shown:
            start = self._has_bars and shown.startswith("\r")
            shown = shown[:start] + _RETURN.sub(" ", shown[start:])
        self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Show what a command prints to stdout and stderr as `printable`."""
    streams = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", _PrintableStream(streams[0], has_bars=False))
    sys.stderr = cast("TextIO", _PrintableStream(streams[1], has_bars=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
