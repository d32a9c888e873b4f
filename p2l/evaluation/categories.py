"""The votes that belong to a category such as `math`, `language=Chinese`, `is_code=False` or `tag.key=value`.

A key is the name of a column, a path into a nested one (`category_tag.math_v0.1.math`), or the last step of such a path
where only one path ends so (`math`). Alone it means true; `key=value` compares; a list column has each value it lists.
`hard` without a column of that name means at least 6 true criteria under a key that starts with `criteria`.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, VoteError
from p2l.common.files import parse_json
from p2l.leaderboard.groups import base_column, group_rows

Mask = npt.NDArray[np.bool_]
_HARD_CRITERIA = 6
_WORDS = {"true": "true", "yes": "true", "1": "true", "false": "false", "no": "false", "0": "false"}
_LISTED_VALUES = 8  # in a message


class UnknownCategoryError(VoteError):
    """The rows have no column or tag of this name."""


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
    """Parse `key` or `key=value`; ConfigError without key or value."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or (equals and not value):
        raise ConfigError(f"category {text!r} cannot be read; write key or key=value, as in math or language=Chinese")
    return Category(text, key, value if equals else None)


def readable_tags(table: Any) -> Any:
    """Return the table with tags that are JSON text, as in a CSV file, as nested columns."""
    place = table.schema.get_field_index("category_tag")
    if place < 0 or not (pa.types.is_string(kind := table.schema.field(place).type) or pa.types.is_large_string(kind)):
        return table
    try:
        tags = pa.array([None if text is None else parse_json(text) for text in table.column(place).to_pylist()])
    except (ValueError, pa.ArrowException):
        return table
    return table.set_column(place, "category_tag", tags)


def select(category: Category, table: Any, source: str) -> Mask:
    """Return which rows (N,) of a table belong to a category.

    Raise UnknownCategoryError, which names the nearest, EmptyCategoryError, or VoteError for an ambiguous category.
    """
    if category.key == "all" and category.value is None:
        return np.ones(len(table), dtype=bool)
    paths = _paths(category.key, table)
    if not paths and category.key != "hard":
        columns = list(dict.fromkeys(["all", *(tag.name for tag in _tags(table) if not pa.types.is_struct(tag.kind))]))
        raise UnknownCategoryError(
            f"{source}: no column or tag {category.key!r} for category "
            f"{category.text}{nearest(category.key, columns)}; "
            f"there are {', '.join(columns) or 'none'}"
        )
    if len(paths) > 1:
        raise VoteError(f"{source}: category {category.key} may mean {' or '.join(paths)}; write the path you mean")
    chosen = _equal(category, table, paths[0], source) if paths else _hard(category, table, source)
    if not chosen.any():
        raise EmptyCategoryError(f"no vote of category {category.text}")
    return chosen


def _paths(key: str, table: Any) -> list[str]:
    """Return the columns or paths that a key stands for; a column comes before tags."""
    try:
        base = base_column(key, table.column_names, "")
        return [key] if base == key or pa.types.is_struct(table.schema.field(base).type) else []
    except VoteError:
        return [tag.path for tag in _tags(table) if tag.name == key and not pa.types.is_struct(tag.kind)]


class _Tag(NamedTuple):
    path: str
    name: str
    kind: Any


def _tags(table: Any) -> Iterator[_Tag]:
    """Yield each column and everything nested in it."""
    fields = [(field, field.name) for field in reversed(list(table.schema))]
    while fields:
        field, path = fields.pop()
        yield _Tag(path, field.name, field.type)
        if pa.types.is_struct(field.type):
            fields += [(inner, f"{path}.{inner.name}") for inner in reversed(list(field.type))]


def _column(table: Any, path: str) -> tuple[str, Any]:
    base = base_column(path, table.column_names, "")
    column = table.column(base).combine_chunks()
    return base, column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _equal(category: Category, table: Any, path: str, source: str) -> Mask:
    base, values = _column(table, path)
    members = group_rows(values, path, base, source)
    names = [name.lower() for name in members.names]
    flags = set(names) <= {"true", "false"}
    if category.value is None and not flags:
        examples = ", ".join(f"{category.key}={name}" for name in members.names[:3])
        raise VoteError(f"{source}: category {category.key} needs a value, as in {examples}")
    text = _WORDS.get((category.value or "true").lower(), category.value) if flags else category.value
    places = [place for place, name in enumerate(names if flags else members.names) if name == text]
    if not places:
        hint = nearest(str(text), members.names) or f"; values: {', '.join(members.names[:_LISTED_VALUES]) or 'none'}"
        raise EmptyCategoryError(f"no vote of category {category.text}{hint}")
    mask = np.zeros(len(values), dtype=bool)
    mask[members.row[np.isin(members.group, places)]] = True
    return mask


def _hard(category: Category, table: Any, source: str) -> Mask:
    """Return the rows with at least 6 true criteria, or, for a negative value, with fewer."""
    tags = (tag for tag in _tags(table) if tag.name.startswith("criteria") and pa.types.is_struct(tag.kind))
    tag = next(tags, None)
    if tag is None:
        raise UnknownCategoryError(f"{source}: category hard counts true criteria, and there are no criteria tags")
    base, values = _column(table, tag.path)
    counts, has_tag = np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    for field in tag.kind:
        members = group_rows(values, f"{tag.path}.{field.name}", base, source)
        has_tag[members.row] = True
        counts[members.row[[members.names[group].lower() == "true" for group in members.group]]] += 1
    word = (category.value or "true").lower()
    if word not in _WORDS:
        raise EmptyCategoryError(f"no vote of category {category.text}; values: true, false")
    is_hard = _WORDS[word] == "true"
    return np.asarray(has_tag & ((counts >= _HARD_CRITERIA) == is_hard))
