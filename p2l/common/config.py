"""Kit for the YAML configurations of p2l, route and coeval: reading, numbers, the line and the model of each key."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import yaml
from pydantic import BaseModel, BeforeValidator

from p2l.common.errors import ConfigError

Where: TypeAlias = tuple[str | int, ...]  # the keys and positions that lead to a value of a file


def lines_of(node: yaml.Node, where: Where = ()) -> Iterator[tuple[Where, int, bool]]:
    """Yield each value's place and line, and whether its key stands in the same mapping before."""
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield (*where, number), inner.start_mark.line + 1, False
            yield from lines_of(inner, (*where, number))
    elif isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, inner in node.value:
            name = str(key.value)
            yield (*where, name), key.start_mark.line + 1, name in keys
            keys.add(name)
            yield from lines_of(inner, (*where, name))


def line_at(lines: Mapping[Where, int], where: Where) -> int | None:
    """Return the line of a value, or of the innermost mapping or list around it that the file has."""
    ends = range(len(where), 0, -1)
    return next((lines[where[:end]] for end in ends if where[:end] in lines), None)


def line_of(path: str | Path, place: Sequence[str]) -> int | None:
    """Return the line, from 1, of a key in a file that can be read, or of the innermost part of it that is there."""
    node = yaml.compose(Path(path).expanduser().read_text(encoding="utf-8"), Loader=YamlLoader)
    # Names of models may hold dots, and the place of a message is split at each: joined both are the same.
    lines = {".".join(map(str, where)): line for where, line, _ in lines_of(node)} if node else {}
    ends = range(len(place), 0, -1)
    return next((line for end in ends if (line := lines.get(".".join(place[:end])))), None)


def kind_of(value: object) -> str:
    """Name the kind of a value in the words of somebody who writes YAML."""
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


def owner_of(kind: type[BaseModel], where: Where) -> type[BaseModel]:
    """Return the pydantic model that the last key of `where` belongs to, starting from the model of the whole."""
    for key in where[:-1]:
        field = kind.model_fields.get(str(key))
        kind = (_model_in(field.annotation) if field else None) or kind
    return kind


def _model_in(hint: Any) -> type[BaseModel] | None:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    return next((model for argument in get_args(hint) if (model := _model_in(argument))), None)


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


# pydantic takes `true` for 1.
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds, without its empty values."""
    try:
        text = read_limited(Path(path).expanduser()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise ConfigError(f"{path}: {reason}") from error
    try:
        raw, _ = parse_yaml(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        # What is wrong and where, but not the text that is wrong, which may be a secret.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else f"{path}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a value cannot be read"
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(problem).split())}") from error
    if not isinstance(raw, dict):
        problem = "is empty; write" if raw is None else f"is {kind_of(raw):.80}, and must have"
        raise ConfigError(f"{path}: {problem} 'key: value' lines")
    return {key: value for key, value in raw.items() if value is not None}


# What a YAML text stands for is counted on its events, before anything of it is built: a few lines of aliases of
# aliases, or of merges, may stand for more than fits into memory, and libyaml ends the process where it nests too deep.

MAX_BYTES = 16 << 20
_MAX_VALUES = 100_000
_MAX_DEPTH = 100
_MAX_DIGITS = 400
_NUMBER = re.compile(r"[-+.]?[0-9][0-9_:.]*")
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it was built


class YamlLoader(_SafeLoader):  # type: ignore[misc]
    """Refuse a value that is not what its tag says (`!!timestamp soon`) with its line, whatever PyYAML raises then."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; raise ConstructorError, with its place, where that cannot be built."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            problem = f"a value cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def read_limited(path: Path) -> bytes:
    """Return the content of a configuration file; OSError if it cannot be read, ConfigError if it is malformed."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES >> 20} MiB; is it a configuration?")
    return content


def parse_yaml(text: str, loader_type: Any = YamlLoader) -> tuple[Any, yaml.Node | None]:
    """Return the content of a YAML text, and its nodes.

    Raise YAMLError where it is not YAML, nests too deep, or stands for too many values, and ValueError for a value that
    cannot be built.
    """
    _check_extent(yaml.parse(text, Loader=loader_type))
    node = yaml.compose(text, Loader=loader_type)
    # Building what merges stand for changes the nodes: keys that are merged would stand beside those that replace them.
    return loader_type(text).get_single_data(), node


@dataclass
class _Extent:
    """Number of values that a node stands for, and the levels on which they nest."""

    anchor: str | None = None
    values: int = 1
    depth: int = 1


def _check_extent(events: Iterator[Any]) -> None:
    """Raise YAMLError, with the line, where a text stands for too much."""
    above = [_Extent()]
    anchors: dict[str, _Extent | None] = {}  # None while it is open
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            above.append(_Extent(event.anchor))
            anchors[event.anchor or ""] = None
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            extent = _extent(event, above, anchors)
            anchors[extent.anchor or ""] = extent
            above[-1].values += extent.values
            above[-1].depth = max(above[-1].depth, extent.depth + 1)
        else:
            continue
        if above[-1].values > _MAX_VALUES:
            raise _refusal(event, f"stands for more than {_MAX_VALUES:,} values, with what aliases repeat; shorten it")
        if max(above[-1].depth, len(above)) > _MAX_DEPTH + 1:  # the first is not a node but the whole text
            raise _refusal(event, f"is nested deeper than {_MAX_DEPTH} levels")


def _extent(event: Any, above: list[_Extent], anchors: dict[str, _Extent | None]) -> _Extent:
    """Return the extent of the node that an event ends: the innermost collection, a scalar, or an alias's target."""
    if isinstance(event, yaml.CollectionEndEvent):
        return above.pop()
    if isinstance(event, yaml.AliasEvent):
        # An anchor that is unknown is refused later, with the other mistakes of YAML.
        extent = anchors.get(event.anchor or "", _Extent(event.anchor))
        if extent is None:
            raise _refusal(event, f"*{event.anchor} stands within what it refers to")
        return extent
    is_number = event.implicit[0] or event.tag is not None
    if is_number and len(event.value) > _MAX_DIGITS and _NUMBER.fullmatch(event.value):
        raise _refusal(event, f"is a number of {len(event.value):,} digits")
    return _Extent(event.anchor)


def _refusal(event: Any, problem: str) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, event.start_mark)


class _Loader(YamlLoader):
    """YAML 1.1 reads `8e-6` (no dot) as text; users mean a number. A key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # what it merges may be written anew
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                break  # which the loader refuses
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r:.200} is given twice", key_node.start_mark
                )
            keys.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_EXPONENT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789."))
