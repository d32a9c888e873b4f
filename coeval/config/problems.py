"""What is wrong with a configuration: gathered, then told all at once, each with its line and its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from p2l.errors import ConfigError, P2LError

__all__ = ["ConfigErrors", "NoKeyError", "Problems", "Where"]

Where: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value of the file."""
_LONGEST = 80


class ConfigErrors(P2LError):  # noqa: N818 - there are several of them
    """A configuration cannot be used; `messages` holds one line for each thing to mend."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("\nerror: ".join(messages))
        self.messages = tuple(messages)


class NoKeyError(ConfigError):
    """A model's provider has no usable account; the message names the variable and the file that were looked at."""


class Problems:
    """What has been found so far."""

    def __init__(self, file: str = "", lines: Mapping[Where, int] | None = None) -> None:
        """`lines` are the numbers of the lines that values begin at."""
        self._file = file
        self._lines = lines or {}
        self._names: dict[Where, str] = {}
        self._found: list[tuple[int, str]] = []
        self._places: set[Where] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def at(self, *where: str | int) -> bool:
        """Whether something is wrong with this very value, so that what follows from it need not be told."""
        return where in self._places

    def within(self, *where: str | int) -> bool:
        """Whether something is wrong with this value or with anything in it."""
        return any(place[: len(where)] == where for place in self._places)

    def name(self, where: Where, name: str) -> None:
        """Call an entry of a list by its name in messages."""
        self._names[where] = name

    def add(self, where: Where, message: str, rule: str = "") -> None:
        """Note that the value at `where` is wrong; the message says what to do."""
        line = self._line(where)
        place = ":".join(str(part) for part in (self._file, line) if part)
        suffix = f" ({rule})" if rule else ""
        text = _on_one_line(": ".join(part for part in (place, self._shown(where), message) if part) + suffix)
        self._places.add(where)
        if all(text != other for _, other in self._found):
            self._found.append((line or 0, text))

    def messages(self) -> list[str]:
        """One line for each, in the order of the file."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]

    def raise_any(self) -> None:
        """End here if anything was found.

        Raises:
            ConfigErrors: it was.
        """
        if self._found:
            raise ConfigErrors(self.messages())

    def _line(self, where: Where) -> int | None:
        """Of the innermost part of `where` that the file has."""
        return next((self._lines[where[:end]] for end in range(len(where), 0, -1) if where[:end] in self._lines), None)

    def _shown(self, where: Where) -> str:
        text = ""
        for end, part in enumerate(where, 1):
            name = self._names.get(where[:end])
            if name is None and isinstance(part, int):
                text += f"[{part}]"
            else:
                word = str(name or part)[:_LONGEST]
                text += f".{word}" if text else word
        return text


def _on_one_line(text: str) -> str:
    """What a terminal shows as it is: line breaks and the like as YAML writes them."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
