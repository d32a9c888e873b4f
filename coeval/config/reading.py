"""A YAML file read into pydantic models: every mistake with its line and key, all of them at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    Strict,
    ValidationError,
    model_validator,
)

from p2l.common.cli import nearest, nearest_of
from p2l.common.config import Where, kind_of, line_at, lines_of, owner_of, parse_yaml, read_limited
from p2l.common.errors import ConfigError, P2LError

_MAX_NAME_LETTERS = 80  # letters of a name in a message


class ConfigErrors(P2LError):  # noqa: N818 - there are several of them
    """A configuration cannot be used; `messages` holds one line for each mistake."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("\nerror: ".join(messages))
        self._messages = tuple(messages)

    @property
    def messages(self) -> tuple[str, ...]:
        """The mistakes, in the order of the file."""
        return self._messages


class NoKeyError(ConfigError):
    """A model's provider has no usable account; the message names the variable and the file that were looked at."""


class Problems:
    """The mistakes of a file so far."""

    def __init__(self, file: str = "", lines: Mapping[Where, int] | None = None) -> None:
        """`lines` are the numbers of the lines that values begin at."""
        self._file = file
        self._lines = lines or {}
        self._names: dict[Where, str] = {}
        self._messages: dict[str, int] = {}  # each once -> its line
        self._places: set[Where] = set()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def at(self, *where: str | int) -> bool:
        """Whether this very value is wrong, so that what follows from it need not be reported."""
        return where in self._places

    def within(self, *where: str | int) -> bool:
        """Whether this value or anything in it is wrong."""
        return any(place[: len(where)] == where for place in self._places)

    def any_within(self, part: str, *keys: str) -> bool:
        """Whether an entry of a list, or one of these keys of an entry, is wrong."""
        return any(
            place[:1] == (part,) and (len(place) == 2 or place[2:3] in [(key,) for key in keys])
            for place in self._places
        )

    def name(self, where: Where, entry: object) -> None:
        """Call an entry of a list by its name in messages, if it has one."""
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name.strip():
            self._names[where] = name

    def add(self, where: Where, message: str, rule: str = "") -> None:
        """Note that the value at `where` is wrong; the message says what to do."""
        line = line_at(self._lines, where)
        place = ":".join(str(part) for part in (self._file, line) if part)
        text = ": ".join(part for part in (place, self._key(where), message) if part)
        # Names and values come from the file: line breaks and the like are shown as YAML writes them.
        text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
        self._places.add(where)
        self._messages.setdefault(f"{text} ({rule})" if rule else text, line or 0)

    def pass_over(self, where: Where) -> None:
        """Note that the value at `where` is wrong for a reason that is reported elsewhere."""
        self._places.add(where)

    def raise_any(self) -> None:
        """Raise ConfigErrors with all mistakes, in the order of the file, if there are any."""
        if self._messages:
            raise ConfigErrors(sorted(self._messages, key=self._messages.__getitem__))

    def _key(self, where: Where) -> str:
        text = ""
        for end, part in enumerate(where, 1):
            name = self._names.get(where[:end])
            if name is None and isinstance(part, int):
                text += f"[{part}]"
            else:
                word = str(name or part)[:_MAX_NAME_LETTERS]
                text += f".{word}" if text else word
        return text


def read_yaml(path: Path) -> tuple[Any, Problems]:
    """Return what a file says, and the keys that it has twice; ConfigErrors if it cannot be read, or is not YAML."""
    text = _text(path)
    try:
        raw, node = parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigErrors([f"{path}:{line}: is not YAML: {error.problem or error.context}; fix this line"]) from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigErrors([f"{path}: is not YAML: {reason}"]) from None
    places = [*lines_of(node)] if node is not None else []
    problems = Problems(str(path), {where: line for where, line, _ in places})
    for where, _, is_repeated in places:
        if is_repeated:
            problems.add(where, "is written twice; remove one of the two")
    for where, message in _misread(node, ()) if node is not None else ():
        problems.add(where, message)
    return raw, problems


_OLD_NUMBER = re.compile(r"[-+]?(?:0[0-9_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+)")
_WORDS_FOR_BOOLS = {"yes": "true", "no": "false", "on": "true", "off": "false"}


def _misread(node: yaml.Node, where: Where, *, is_word: bool = False) -> Iterator[tuple[Where, str]]:
    """Yield the values without quotes that YAML 1.1 takes for others than a reader does: `[yes, no]`, 010, 1:30.

    `is_word` says that a text may stand at the node, as in a list or for a key.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _misread(key, (*where, str(key.value)), is_word=True)
            yield from _misread(value, (*where, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            yield from _misread(value, (*where, place), is_word=True)
    elif isinstance(node, yaml.ScalarNode) and not node.style:
        text = str(node.value)
        if node.tag == "tag:yaml.org,2002:int" and _OLD_NUMBER.fullmatch(text):
            base = "60" if ":" in text else "8"
            yield where, f"{text[:40]} is a number in base {base} to YAML; write it without the zero, or in quotes"
        elif is_word and node.tag == "tag:yaml.org,2002:bool" and text.lower() in _WORDS_FOR_BOOLS:
            yield where, f'{text} is {_WORDS_FOR_BOOLS[text.lower()]} to YAML; write "{text}" in quotes'


def _text(path: Path) -> str:
    try:
        return read_limited(path).decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except ConfigError as error:
        raise ConfigErrors([str(error)]) from None
    except FileNotFoundError:
        raise ConfigErrors([f"{path}: there is no such file; correct --config"]) from None
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigErrors([f"{path}:{line}: is not text in UTF-8; save it in that encoding"]) from None


class Entry(BaseModel):
    """A mapping of the file; an empty value counts as none.

    Of its fields, the description says what to add where the key is missing, and the title which rule a mistake breaks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        return {key: value for key, value in raw.items() if value is not None or key not in cls.model_fields}


_AnyEntry = TypeVar("_AnyEntry", bound=Entry)


def read(kind: type[_AnyEntry], raw: object, where: Where, problems: Problems, **context: Any) -> _AnyEntry:
    """Return the mapping at `where` as a model whose fields all have defaults; `context` is for its validators.

    Where a value is wrong the problem is noted and the default stands in.
    """
    if not isinstance(raw, Mapping):
        problems.add(where, f"must be a mapping, 'key: value', and is {kind_of(raw)}")
        return kind()
    misspelt = _misspelt(raw, kind.model_fields)
    for key, field in kind.model_fields.items():
        if key in misspelt and raw.get(key) is None:
            problems.pass_over((*where, key))
        elif field.description and raw.get(key) is None:
            problems.add((*where, key), f"is missing; add {field.description}")
    try:
        return kind.model_validate(raw, context=context)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    unknown = [each["loc"] for each in errors if each["type"] == "extra_forbidden"]
    for each in errors:
        place = each["loc"]
        if each["type"] == "missing" and place[-1] in _misspelt(
            [str(other[-1]) for other in unknown if other[:-1] == place[:-1]], owner_of(kind, place).model_fields
        ):
            problems.pass_over((*where, *place))
            continue
        # Lines are known by keys as text; of some keys that are wrong pydantic says so by a further `[key]`.
        if place[-1] == "[key]" or each["type"] == "invalid_key":
            place = (*place[: -2 if place[-1] == "[key]" else -1], str(each["input"]))
        rule = next((field.title for key, field in kind.model_fields.items() if key == place[0]), None)
        problems.add((*where, *place), _message(kind, each), rule or "")
    wrong = {each["loc"][0] for each in errors}
    # A number as key may be so long that pydantic's place of it is a text, which is not among the keys.
    kept = {key: value for key, value in raw.items() if isinstance(key, str) and key not in wrong}
    return kind.model_validate(kept, context=context)


def _misspelt(keys: Iterable[object], fields: Collection[str]) -> set[str]:
    """Return the fields that unknown keys are taken to mean: they do not count as missing, too."""
    unknown = [key for key in keys if isinstance(key, str) and key not in fields]
    return {near for key in unknown if (near := nearest_of(key, fields)) is not None}


def _message(kind: type[Entry], error: Mapping[str, Any]) -> str:
    """Return what is wrong as the end of a sentence that begins with the key."""
    place, value, sort = error["loc"], error["input"], error["type"]
    is_key = place[-1] == "[key]"
    if sort == "value_error":
        return str(error["ctx"]["error"])
    if sort == "invalid_key" or (is_key and sort == "string_type"):
        return f"keys are text: write {str(value)!r} in quotes"
    if sort == "missing":
        return f"is missing; add {owner_of(kind, place).model_fields[str(place[-1])].description}"
    if sort == "extra_forbidden":
        return f"unknown key{hint(str(place[-1]), owner_of(kind, place).model_fields, or_all=True)}"
    if sort == "literal_error":
        choices = re.findall("'([^']*)'", error["ctx"]["expected"])
        if is_key:
            return f"unknown key{hint(value, choices, or_all=True)}"
        return f"must be one of {', '.join(choices)}, and is {shown(value)}{hint(value, choices)}"
    if sort == "bool_type":
        return f"must be true or false, and is {shown(value)}"
    if sort == "string_type":
        return f"must be text, and is {kind_of(value)}; write it in quotes"
    form = "list, '- ...'" if sort in ("list_type", "tuple_type") else "mapping, 'key: value'"
    return f"must be a {form}, and is {kind_of(value)}"


def hint(word: object, choices: Collection[str], otherwise: str = "", *, or_all: bool = False) -> str:
    """Return the nearest of the words that may stand there, else another text, or (`or_all`) all of them."""
    near = nearest(word, choices) if isinstance(word, str) else ""
    return near or (f"; there are {', '.join(choices)}" if or_all else otherwise)


def shown(value: object) -> str:
    """Return a value of a key that holds no secret, for a message: short, on one line."""
    return repr(value)[:60] if isinstance(value, str) else kind_of(value)


# Types of values.


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _secret(value: object) -> str:
    if not (isinstance(value, str) and value.strip()):
        raise ValueError("must be text that is not empty; write it in quotes")
    return value


def number(words: str, accepts: Callable[[Any], bool], of: type = float) -> PlainValidator:
    """Accept a number, or with `of=int` a whole one."""

    def check(value: Any) -> Any:
        is_number = not isinstance(value, bool) and isinstance(value, int if of is int else (int, float))
        if not is_number or not accepts(value):
            raise ValueError(f"must be {words}, and is {shown(value)}")
        return of(value)

    return PlainValidator(check)


def one_of(choices: Collection[str], message: str) -> BeforeValidator:
    """Accept some words; the message may show the `value`, the word `near` to it, and `all` of them."""

    def check(value: Any) -> Any:
        if value not in tuple(choices):
            near = hint(value, choices)
            raise ValueError(message.format(value=shown(value), near=near, all=", ".join(choices)))
        return value

    return BeforeValidator(check)


def empty_as(default: object) -> BeforeValidator:
    """Accept an empty value, below a key that is not a field, as this one."""
    return BeforeValidator(lambda value: default if value is None else value)


Text = Annotated[str, Strict(), AfterValidator(_not_blank)]
Secret = Annotated[str, PlainValidator(_secret)]  # text that no message repeats
Bool = Annotated[bool, Strict()]
AboveZero = Annotated[float, number("a number above 0", lambda value: isfinite(value) and value > 0)]
Count = Annotated[int, number("a whole number of at least 0", lambda value: value >= 0, int)]
Positive = Annotated[int, number("a whole number of at least 1", lambda value: value >= 1, int)]


# Paths as users write them. Where one is too long, may not be looked at, or has a home that nobody knows, os.path says
# that nothing is there; pathlib raises.


is_there, is_folder, is_file = os.path.exists, os.path.isdir, os.path.isfile


def expanded(text: str | Path) -> Path:
    """Return a path with `~` as the user's home; as it is where nobody knows that home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111
