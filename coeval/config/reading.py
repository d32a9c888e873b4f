"""Mappings of a configuration read key by key: what is wrong is noted, a default stands in, and reading goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, overload

from coeval.config.paths import expanded
from coeval.config.problems import Problems, Where
from p2l.command import nearest

__all__ = ["Fields", "kind_of", "shown"]

Choice = TypeVar("Choice", bound=str)


def kind_of(value: object) -> str:
    """What a value is, in the words of somebody who writes YAML."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bytes):
        return "bytes"
    return "a list" if isinstance(value, Sequence) else str(value)


def shown(value: object) -> str:
    """A value of a key that holds no secret, for a message: short, on one line."""
    return repr(value)[:60] if isinstance(value, str) else kind_of(value)


class Fields:
    """One mapping of the file."""

    def __init__(self, value: object, where: Where, problems: Problems, known: Collection[str] | None) -> None:
        """`known` are the keys that it may have; None: any."""
        self.where, self.problems = where, problems
        self.values: dict[str, Any] = {}
        self.is_mapping = isinstance(value, Mapping)
        if not isinstance(value, Mapping):
            problems.add(where, f"must be a mapping, 'key: value', and is {kind_of(value)}")
            return
        for key, inner in value.items():
            if not isinstance(key, str):
                problems.add((*where, str(key)), f"keys are text: write {str(key)!r} in quotes")
            elif known is not None and key not in known:
                hint = nearest(key, known) or f"; there are {', '.join(known)}"
                problems.add((*where, key), f"unknown key{hint}")
            else:
                self.values[key] = inner

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self.values.get(key) is not None

    def wrong(self, key: str, message: str, rule: str = "") -> None:
        """Note that a key's value is wrong."""
        self.problems.add((*self.where, key), message, rule)

    def is_unclear(self, key: str) -> bool:
        """Whether a mistake in a key's value leaves open what it says."""
        return self.problems.within(*self.where, key)

    def required(self, key: str, what: str) -> bool:
        """Whether the key has a value; noted when it has none."""
        if not self.has(key) and self.is_mapping:
            self.wrong(key, f"is missing; add {what}")
        return self.has(key)

    @overload
    def text(self, key: str) -> str | None: ...
    @overload
    def text(self, key: str, *, needed: str) -> str: ...
    def text(self, key: str, *, needed: str = "") -> str | None:
        """A text that is not blank; with `needed`, which says what it is, one has to be there."""
        value = self.values.get(key)
        if value is None and needed:
            self.required(key, needed)
        elif value is not None and not isinstance(value, str):
            self.wrong(key, f"must be text, and is {kind_of(value)}; write it in quotes")
        elif value is not None and not value.strip():
            self.wrong(key, "must not be empty")
        return value if isinstance(value, str) and value.strip() else "" if needed else None

    def folder(self, key: str, *, needed: str) -> Path:
        """A path of a folder, `~` being the user's; the working folder where there is none."""
        return expanded(self.text(key, needed=needed))

    def secret(self, key: str) -> str | None:
        """A text that no message repeats."""
        value = self.values.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            self.wrong(key, "must be text that is not empty; write it in quotes")
            return None
        return value

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.wrong(key, f"must be true or false, and is {shown(value)}")
        return value if isinstance(value, bool) else default

    def whole(self, key: str, default: int, least: int = 0, rule: str = "") -> int:
        """A whole number."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.wrong(key, f"must be a whole number of at least {least}, and is {shown(value)}", rule)
            return default
        return value

    def above_zero(self, key: str) -> float | None:
        """A number above 0."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
            self.wrong(key, f"must be a number above 0, and is {shown(value)}")
            return None
        return float(value)

    def choice(self, key: str, choices: Sequence[Choice], default: Choice, rule: str = "") -> Choice:
        """One of several words."""
        value = self.values.get(key)
        if value is None:
            return default
        for choice in choices:
            if choice == value:
                return choice
        hint = nearest(value, choices) if isinstance(value, str) else ""
        self.wrong(key, f"must be one of {', '.join(choices)}, and is {shown(value)}{hint}", rule)
        return default

    def fields(self, key: str, known: Collection[str] | None = None) -> Fields:
        """The mapping below a key; empty when there is none."""
        value = self.values.get(key)
        return Fields({} if value is None else value, (*self.where, key), self.problems, known)

    def entries(self, key: str) -> list[Any]:
        """The list below a key."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(key, f"must be a list, '- ...', and is {kind_of(value)}")
            return []
        return value
