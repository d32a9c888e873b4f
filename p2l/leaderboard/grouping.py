"""Groups of rows by a column: a text, a flag, a list, or a tag nested in another column.

Shapes: N rows of a batch, E (row, group) pairs; a row belongs to no group, to one, or, by a list column, to several.

`language` groups by value; `is_code` gives the groups `true` and `false`; `tags` (a list) puts a row into the group of
each of its elements; `category_tag.math_v0.1.math` follows the keys of a nested column, which a CSV file holds as JSON
text. Keys may contain dots themselves: the longest key that fits is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.command import nearest
from p2l.errors import VoteError

__all__ = ["Members", "base_column", "group_rows"]

Ints = npt.NDArray[np.int64]


class Members(NamedTuple):
    """Which rows are in which group: `names[group[e]]` holds row `row[e]`."""

    names: list[str]
    group: Ints  # (E,)
    row: Ints  # (E,)


def base_column(path: str, columns: Sequence[str], source: str) -> str:
    """The column that a path such as `category_tag.math_v0.1.math` starts in.

    Raises:
        VoteError: there is none; the message names those there are.
    """
    found = _first_key(path, columns)
    if found is None:
        raise VoteError(f"{source}: no column {path!r}{nearest(path, columns)}; columns: {', '.join(columns)}")
    return found


def _first_key(path: str, keys: Sequence[str]) -> str | None:
    fitting = [key for key in keys if path == key or path.startswith(f"{key}.")]
    return max(fitting, key=len, default=None)


def group_rows(column: Any, path: str, name: str, source: str) -> Members:
    """The groups of the rows of an Arrow column; rows without a value are in none.

    Args:
        column: (N,) the column `name`.
        path: `name`, or `name.key.key...`.
        name: the column's name.
        source: for messages.

    Raises:
        VoteError: the path leads nowhere, or to something that does not name groups.
    """
    rest = path[len(name) + 1 :]
    if rest:
        column = _walk(column, rest, path, source)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        row = np.asarray(pc.list_parent_indices(column), dtype=np.int64)
        values = pc.list_flatten(column)
    else:
        row, values = np.arange(len(column), dtype=np.int64), column
    if pa.types.is_nested(values.type):
        raise VoteError(
            f"{source}: column {path!r} holds {_inside(values.type)}; name one, as in {_example(path, values)}"
        )
    return _encode(values, row)


def _encode(values: Any, row: Ints) -> Members:
    try:
        text = values if _is_text(values.type) else values.cast(pa.string())
    except pa.ArrowNotImplementedError as error:
        raise VoteError(f"values of type {values.type} cannot name groups") from error
    encoded = text.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    kept = codes >= 0
    return Members(encoded.dictionary.to_pylist(), codes[kept], row[kept])


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _walk(column: Any, rest: str, path: str, source: str) -> Any:
    """Follow keys into a struct, or into JSON text."""
    if _is_text(column.type):
        return _walk_text(column, rest, path, source)
    while rest:
        keys = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        key = _first_key(rest, keys)
        if key is None:
            raise VoteError(f"{source}: {path!r} leads nowhere: no key {rest!r}{nearest(rest, keys)}{_there(keys)}")
        column, rest = pc.struct_field(column, key), rest[len(key) + 1 :]
    return column


def _walk_text(column: Any, rest: str, path: str, source: str) -> Any:
    values = []
    for text in column.to_pylist():
        try:
            found = None if text is None else json.loads(text)
        except ValueError as error:
            raise VoteError(f"{source}: {path!r} needs JSON in the column, not {text[:40]!r}") from error
        values.append(_follow(found, rest))
    if values and all(value is None for value in values):
        raise VoteError(f"{source}: {path!r} leads nowhere: no row has the key {rest!r}")
    return pa.array([json.dumps(value) if isinstance(value, bool) else value for value in values])


def _follow(value: Any, rest: str) -> Any:
    while rest:
        key = _first_key(rest, list(value)) if isinstance(value, dict) else None
        if key is None:
            return None
        value, rest = value[key], rest[len(key) + 1 :]
    return value


def _there(keys: Sequence[str]) -> str:
    return f"; keys: {', '.join(keys)}" if keys else ""


def _inside(kind: Any) -> str:
    return f"keys {', '.join(field.name for field in kind)}" if pa.types.is_struct(kind) else str(kind)


def _example(path: str, values: Any) -> str:
    key, kind = path, values.type
    while pa.types.is_struct(kind) and kind.num_fields:
        key, kind = f"{key}.{kind[0].name}", kind[0].type
    return repr(key)
