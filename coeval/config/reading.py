"""Mappings of a configuration read key by key: what is wrong is noted, a default stands in, and reading goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import yaml

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, P2LError

# What is wrong with a configuration: gathered, then told all at once, each with its line and its key.

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


# A YAML file as it is written: its values, the line of each, and what is no YAML, or is written twice.

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it was built
_MOST = 500_000
"""Values; a few lines of aliases of aliases may stand for more than fit into memory."""


def read_yaml(path: Path) -> tuple[Any, Problems]:
    """What a file says, and where mistakes in it go, with its lines; keys that are written twice are there already.

    Raises:
        ConfigErrors: it cannot be read, or is no YAML.
    """
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        found = [*islice(_lines(node, ()), _MOST)] if node is not None else []
        raw = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigErrors([f"{path}:{line}: is no YAML: {error.problem or error.context}; mend this line"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigErrors([f"{path}: is no YAML: {reason}"]) from None
    if len(found) == _MOST:
        raise ConfigErrors([f"{path}: holds more than {_MOST:,} values, counting what aliases stand for; shorten it"])
    problems = Problems(str(path), {where: line for where, line, _ in found})
    for where, _, repeated in found:
        if repeated:
            problems.add(where, "is written twice; remove one of the two")
    return raw, problems


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigErrors([f"{path}: there is no such file; mend --config"]) from None
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigErrors([f"{path}:{line}: is no text in UTF-8; save it in that encoding"]) from None


def _lines(node: yaml.Node, where: Where, above: tuple[yaml.Node, ...] = ()) -> Iterator[tuple[Where, int, bool]]:
    """Where each value is, and whether its key was there before.

    Raises:
        ValueError: an anchor holds itself.
    """
    if any(node is other for other in above):
        raise ValueError(f"line {node.start_mark.line + 1} refers to itself")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield (*where, number), inner.start_mark.line + 1, False
            yield from _lines(inner, (*where, number), above)
    elif isinstance(node, yaml.MappingNode):
        seen = set[str]()
        for key, inner in node.value:
            name = str(key.value)
            yield (*where, name), key.start_mark.line + 1, name in seen
            seen.add(name)
            yield from _lines(inner, (*where, name), above)


# Paths as users write them, looked at without an exception where one cannot be: it is not there then.


def expanded(text: str | Path) -> Path:
    """A path with `~` as the user's home; as it is where nobody knows that home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_there(path: Path) -> bool:
    """Whether something is at a path; not where it is too long, or may not be looked at."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder."""
    return is_there(path) and path.is_dir()


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
