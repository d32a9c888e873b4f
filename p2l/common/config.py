"""What the YAML configurations of p2l, route and coeval share: reading, numbers, the line and the model of each key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import yaml
from pydantic import BaseModel, BeforeValidator

from p2l.common.errors import ConfigError

Where: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value of a file."""


def lines_of(
    node: yaml.Node, where: Where = (), above: tuple[yaml.Node, ...] = ()
) -> Iterator[tuple[Where, int, bool]]:
    """Yield each value's place and line, and whether its key stands in the same mapping before.

    Raise ValueError where an anchor holds itself.
    """
    if any(node is other for other in above):
        raise ValueError(f"line {node.start_mark.line + 1} refers to itself")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield (*where, number), inner.start_mark.line + 1, False
            yield from lines_of(inner, (*where, number), above)
    elif isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, inner in node.value:
            name = str(key.value)
            yield (*where, name), key.start_mark.line + 1, name in keys
            keys.add(name)
            yield from lines_of(inner, (*where, name), above)


def line_at(lines: Mapping[Where, int], where: Where) -> int | None:
    """Return the line of a value, or of the innermost mapping or list around it that the file has."""
    ends = range(len(where), 0, -1)
    return next((lines[where[:end]] for end in ends if where[:end] in lines), None)


def owner_of(kind: type[BaseModel], where: Where) -> type[BaseModel]:
    """Return the pydantic model that the last key of `where` belongs to, starting from the model of the whole."""
    for part in where[:-1]:
        field = kind.model_fields.get(str(part))
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
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise ConfigError(f"{path}: {reason}") from error
    try:
        raw = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(_no_yaml(path, error)) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected 'key: value' lines, found {type(raw).__name__}")
    return {key: value for key, value in raw.items() if value is not None}


def _no_yaml(path: str | Path, error: Exception) -> str:
    """Return what is wrong, and where; not the text that is wrong, which may be a secret."""
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark is not None else f"{path}"
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    if problem is None:
        problem = "is nested too deeply" if isinstance(error, RecursionError) else "a value cannot be read"
    return f"{where}: not valid YAML: {' '.join(str(problem).split())}"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `8e-6` (no dot) as text; users mean a number. A key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


_EXPONENT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789."))
