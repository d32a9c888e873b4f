"""Which votes belong to a category such as `math`, `language=Chinese`, `is_code=False` or `tag.key=value`.

A key is the name of a column, a path into a nested one (`category_tag.math_v0.1.math`), or the last part of such a path
where only one ends so (`math`). Alone it means true; `key=value` compares, and a list column has every value it lists.
`hard` without a column of that name means at least 6 true criteria under a key that starts with `criteria`.

Shapes: N rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, VoteError
from p2l.leaderboard.sources import base_column, group_rows

Mask = npt.NDArray[np.bool_]
HARD_CRITERIA = 6
_WORDS = {"true": "true", "yes": "true", "1": "true", "false": "false", "no": "false", "0": "false"}
_SHOWN = 8  # values that a message lists


class UnknownCategoryError(VoteError):
    """The rows have nothing of this name."""


class EmptyCategoryError(VoteError):
    """No row has this value."""


@dataclass(frozen=True)
class Category:
    """A category as the user wrote it: `text` is `key` or `key=value`."""

    text: str
    key: str
    value: str | None


ALL = Category("all", "all", None)


def parse(text: str) -> Category:
    """Read `key` or `key=value`.

    Raises:
        ConfigError: there is no key or no value.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or (equals and not value):
        raise ConfigError(f"category {text!r} cannot be read; write key or key=value, as in math or language=Chinese")
    return Category(text, key, value if equals else None)


def readable_tags(table: Any) -> Any:
    """The table with tags that are JSON text, as in a CSV file, as nested columns."""
    for place, field in enumerate(table.schema):
        if field.name == "category_tag" and _is_text(field.type):
            try:
                parsed = pa.array(
                    [None if text is None else json.loads(text) for text in table.column(place).to_pylist()]
                )
            except (ValueError, pa.ArrowException):
                continue
            table = table.set_column(place, field.name, parsed)
    return table


def select(category: Category, table: Any, source: str) -> Mask:
    """The rows (N,) of a table that are of a category.

    Raises:
        UnknownCategoryError: no column or tag of that name; the message names the nearest.
        EmptyCategoryError: no row has that value.
        VoteError: a key that needs a value, or one that several tags have.
    """
    if category.key == "all" and category.value is None:
        return np.ones(len(table), dtype=bool)
    chosen = _chosen(category, table, source)
    if not chosen.any():
        raise EmptyCategoryError(f"no vote of category {category.text}")
    return chosen


def _chosen(category: Category, table: Any, source: str) -> Mask:
    paths = _paths(category.key, table)
    if not paths and category.key == "hard":
        return _hard(category, table, source)
    if not paths:
        columns = _known(table)
        raise UnknownCategoryError(
            f"{source}: no column or tag {category.key!r} for category "
            f"{category.text}{nearest(category.key, columns)}; "
            f"there are {', '.join(columns) or 'none'}"
        )
    if len(paths) > 1:
        raise VoteError(f"{source}: category {category.key} may mean {' or '.join(paths)}; write the path you mean")
    return _equal(category, _column(table, paths[0]), paths[0], source)


def _paths(key: str, table: Any) -> list[str]:
    """Columns or paths that a key stands for; a column comes before tags."""
    try:
        base = base_column(key, table.column_names, "")
        return [key] if base == key or pa.types.is_struct(table.schema.field(base).type) else []
    except VoteError:
        tags = (tag for field in table.schema for tag in _tags(field))
        return [tag.path for tag in tags if tag.name == key and not pa.types.is_struct(tag.kind)]


class _Tag(NamedTuple):
    path: str
    name: str
    kind: Any


def _tags(field: Any, above: str = "") -> Iterator[_Tag]:
    """A column and all that is nested in it."""
    path = f"{above}.{field.name}" if above else field.name
    yield _Tag(path, field.name, field.type)
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _tags(inner, path)


def _known(table: Any) -> list[str]:
    """Names that categories can have here."""
    tags = [tag for field in table.schema for tag in _tags(field) if not pa.types.is_struct(tag.kind)]
    return list(dict.fromkeys(["all", *(tag.name for tag in tags)]))


def _column(table: Any, path: str) -> tuple[str, Any]:
    base = base_column(path, table.column_names, "")
    column = table.column(base).combine_chunks()
    return base, column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _equal(category: Category, column: tuple[str, Any], path: str, source: str) -> Mask:
    base, values = column
    members = group_rows(values, path, base, source)
    names = [name.lower() for name in members.names]
    flags = set(names) <= {"true", "false"}
    if category.value is None and not flags:
        raise VoteError(
            f"{source}: category {category.key} needs a value, as in {_example(category.key, members.names)}"
        )
    text = _WORDS.get((category.value or "true").lower(), category.value) if flags else category.value
    places = [place for place, name in enumerate(names if flags else members.names) if name == text]
    if not places:
        hint = nearest(str(text), members.names) or f"; values: {', '.join(members.names[:_SHOWN]) or 'none'}"
        raise EmptyCategoryError(f"no vote of category {category.text}{hint}")
    mask = np.zeros(len(values), dtype=bool)
    mask[members.row[np.isin(members.group, places)]] = True
    return mask


def _example(key: str, names: list[str]) -> str:
    return ", ".join(f"{key}={name}" for name in names[:3])


def _hard(category: Category, table: Any, source: str) -> Mask:
    """Rows with at least 6 true criteria, or, for a negative value, with fewer."""
    path = next((tag.path for field in table.schema for tag in _tags(field) if _holds_criteria(tag)), None)
    if path is None:
        raise UnknownCategoryError(f"{source}: category hard counts true criteria, and there are no criteria tags")
    base, values = _column(table, path)
    kind = next(tag.kind for field in table.schema for tag in _tags(field) if tag.path == path)
    counts, has_tag = np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    for field in kind:
        members = group_rows(values, f"{path}.{field.name}", base, source)
        has_tag[members.row] = True
        counts[members.row[[members.names[group].lower() == "true" for group in members.group]]] += 1
    word = (category.value or "true").lower()
    if word not in _WORDS:
        raise EmptyCategoryError(f"no vote of category {category.text}; values: true, false")
    is_hard = _WORDS[word] == "true"
    return np.asarray(has_tag & ((counts >= HARD_CRITERIA) == is_hard))


def _holds_criteria(tag: _Tag) -> bool:
    return tag.name.startswith("criteria") and pa.types.is_struct(tag.kind)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
