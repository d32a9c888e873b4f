"""Find the JSON objects in what a model wrote, in their order, also those that are not quite JSON.

The second reading takes what people and models write for JSON: trailing commas, single or curly quotes, comments, names
without quotes, the constants of Python. It recovers an object that has one meaning and refuses all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from p2l.common.files import DEEPEST_JSON, is_deeper

# Braces at which reading begins, the last ones of a reply; a reply of braces alone ends in bounded time.
_MAX_BRACES_TRIED = 1_000
_MAX_LOOSE_LETTERS = 20_000  # of an object that is not quite JSON
_MAX_LOOSE_DEPTH = 20
_SPACE_OR_COMMENT = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)+", re.DOTALL)
_WORD = re.compile(r"[^\W\d][\w-]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_CLOSING_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}
_COLONS, _COMMAS = ":：", ",，"
# After the quote that ends a text there is one of these; `it's` and `says "no" here` have quotes that end nothing.
_AFTER_A_TEXT = re.compile(r"(?:\s++|//[^\n]*+|#[^\n]*+)*+(?:[:：,，}\]]|/\*|\Z)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class _LooseError(ValueError):
    """The text is no object, not even loosely."""


@dataclass(frozen=True)
class FoundObject:
    """An object in a text."""

    start: int
    end: int
    value: dict[str, Any]
    is_strict: bool  # JSON as it stands
    clash: str = ""  # the key that stands twice with two values; empty: none


def objects_in(text: str) -> list[FoundObject]:
    """Return the objects of a text that stand in no other object, in their order."""
    starts = [match.start() for match in re.finditer("{", text)][-_MAX_BRACES_TRIED:]
    objects: list[FoundObject] = []
    end = 0
    for start in starts:
        if start < end:  # within the object before
            continue
        found = _strict(text, start) or _loose(text, start)
        if found is not None:
            objects.append(found)
            end = found.end
    return objects


def _strict(text: str, start: int) -> FoundObject | None:
    clashes: list[str] = []

    def joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, entry in pairs:
            if key in value and value[key] != entry:
                clashes.append(key)
            value[key] = entry
        return value

    try:
        value, end = json.JSONDecoder(strict=False, object_pairs_hook=joined).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if is_deeper(value, DEEPEST_JSON):
        return None
    return FoundObject(start, end, value, True, clashes[0] if clashes else "")


def _loose(text: str, start: int) -> FoundObject | None:
    reader = _LooseReader(text[start : start + _MAX_LOOSE_LETTERS])
    try:
        value = reader.read_object(0)
    except _LooseError:
        return None
    return FoundObject(start, start + reader.at, value, False, reader.clash)


class _LooseReader:
    """Reads one object from the beginning of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self.clash = ""  # the last key that stood twice with two values

    def read_object(self, depth: int) -> dict[str, Any]:
        """Read an object whose brace comes next. Raise _LooseError for anything else."""
        value: dict[str, Any] = {}
        for _ in self._entries("{", "}", depth):
            key = self._quoted() if self._next() in _CLOSING_QUOTES else self._word()
            self._skip()
            self._take(_COLONS)
            self._skip()
            entry = self._value(depth + 1)
            if key in value and value[key] != entry:
                self.clash = key
            value[key] = entry
        return value

    def _entries(self, opening: str, closing: str, depth: int) -> Iterator[None]:
        """Yield at the beginning of each entry between two brackets, with a comma after each but perhaps the last."""
        if depth > _MAX_LOOSE_DEPTH:
            raise _LooseError
        self._take(opening)
        self._skip()
        while self._next() != closing:
            yield
            self._skip()
            if self._next() != closing:
                self._take(_COMMAS)
                self._skip()
        self._take(closing)

    def _value(self, depth: int) -> Any:
        letter = self._next()
        if letter == "{":
            return self.read_object(depth)
        if letter == "[":
            return [self._value(depth + 1) for _ in self._entries("[", "]", depth)]
        if letter in _CLOSING_QUOTES:
            return self._quoted()
        number = _NUMBER.match(self._text, self.at)
        if number is not None:
            self.at = number.end()
            return int(number[0]) if number[0].lstrip("+-").isdigit() else float(number[0])
        word = self._word()
        return _CONSTANTS.get(word, word)

    def _word(self) -> str:
        word = _WORD.match(self._text, self.at)
        if word is None:
            raise _LooseError
        self.at = word.end()
        return word[0]

    def _quoted(self) -> str:
        closing = _CLOSING_QUOTES[self._next()]
        letters = []
        self.at += 1
        while (letter := self._next()) != closing or _AFTER_A_TEXT.match(self._text, self.at + 1) is None:
            self.at += 1
            if letter == "\\":
                letters.append(self._escaped())
            else:
                letters.append(letter)
        self.at += 1
        return "".join(letters)

    def _escaped(self) -> str:
        letter = self._next()
        self.at += 1
        if letter != "u":
            return _ESCAPES.get(letter, letter)
        digits = self._text[self.at : self.at + 4]
        try:
            code = int(digits, 16)
        except ValueError:
            raise _LooseError from None
        self.at += 4
        return chr(code)

    def _next(self) -> str:
        if self.at >= len(self._text):
            raise _LooseError
        return self._text[self.at]

    def _take(self, letters: str) -> None:
        """Pass over one of some letters. Raise _LooseError for any other."""
        if self._next() not in letters:
            raise _LooseError
        self.at += 1

    def _skip(self) -> None:
        space = _SPACE_OR_COMMENT.match(self._text, self.at)
        if space is not None:
            self.at = space.end()
