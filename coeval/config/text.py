"""A YAML file as it is written: its values, the line of each, and what is no YAML, or is written twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from coeval.config.problems import ConfigErrors, Problems, Where

__all__ = ["read_yaml"]

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
