"""Groups of rows by a column: a text, a flag, a list, or a tag nested in another column; and clusters of votes.

`language` groups by value; `is_code` gives the groups `true` and `false`; `tags` (a list) puts a row into the group
of each of its elements; `category_tag.math_v0.1.math` follows the keys of a nested column, which a CSV file holds as
JSON text. Keys may contain dots themselves: the longest key that fits is taken.

Shapes: N rows of a batch, E (row, group) pairs; a row belongs to no group, to one, or, by a list column, to several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import listed, nearest
from p2l.common.errors import VoteError
from p2l.common.files import parse_json
from p2l.leaderboard.intervals import Units, units_of
from p2l.leaderboard.pair_tables import PairTable
from p2l.votes.reading import VoteBatch
from p2l.votes.rows import Source, is_text
from p2l.votes.schema import hash_turns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Members(NamedTuple):
    """Which rows are in which group: `names[group[e]]` holds row `row[e]`."""

    names: list[str]
    group: Ints  # (E,)
    row: Ints  # (E,)


def base_column(path: str, columns: Sequence[str], source: str) -> str:
    """Return the column that a path such as `category_tag.math_v0.1.math` starts in."""
    base = _first_key(path, columns)
    if base is None:
        raise VoteError(f"{source}: no column {path!r}{nearest(path, columns)}; columns: {listed(columns)}")
    return base


def _first_key(path: str, keys: Sequence[str]) -> str | None:
    fitting = [key for key in keys if path == key or path.startswith(f"{key}.")]
    return max(fitting, key=len, default=None)


def group_rows(column: Any, path: str, name: str, source: str) -> Members:
    """Return the groups of the rows of a column (N,) by `path`: its name, or `name.key.key...`; rows may be in none."""
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
        key, kind = path, values.type
        inside = f"keys {', '.join(field.name for field in kind)}" if pa.types.is_struct(kind) else str(kind)
        while pa.types.is_struct(kind) and kind.num_fields:
            key, kind = f"{key}.{kind[0].name}", kind[0].type
        raise VoteError(f"{source}: column {path!r} holds {inside}; name one, as in {key!r}")
    try:
        encoded = (values if is_text(values.type) else values.cast(pa.string())).dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        raise VoteError(f"values of type {values.type} cannot name groups") from error
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    has_value = codes >= 0
    return Members(encoded.dictionary.to_pylist(), codes[has_value], row[has_value])


def _walk(column: Any, rest: str, path: str, source: str) -> Any:
    """Follow keys into a struct, or into JSON text."""
    if is_text(column.type):
        return _walk_text(column, rest, path, source)
    while rest:
        keys = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        key = _first_key(rest, keys)
        if key is None:
            there = f"; keys: {', '.join(keys)}" if keys else ""
            raise VoteError(f"{source}: {path!r} leads nowhere: no key {rest!r}{nearest(rest, keys)}{there}")
        column, rest = pc.struct_field(column, key), rest[len(key) + 1 :]
    return column


def _walk_text(column: Any, rest: str, path: str, source: str) -> Any:
    values = []
    for text in column.to_pylist():
        try:
            content: Any = None if text is None else parse_json(text)
        except ValueError as error:
            raise VoteError(f"{source}: {path!r} needs JSON in the column, not {text[:40]!r}") from error
        keys = rest
        while keys:
            key = _first_key(keys, list(content)) if isinstance(content, dict) else None
            content, keys = (None, "") if key is None else (content[key], keys[len(key) + 1 :])
        values.append(content)
    if values and all(value is None for value in values):
        raise VoteError(f"{source}: {path!r} leads nowhere: no row has the key {rest!r}")
    return pa.array([json.dumps(value) if isinstance(value, bool) else value for value in values])


ALL = ("", "all")
_ALL_OF = ("", "")  # in counts


class Groups:
    """Codes for (column, value), in order of appearance; 0 is everything."""

    def __init__(self, source: Source, paths: Sequence[str]) -> None:
        self.source = source
        self.bases = {path: base_column(path, source.columns, source.name) for path in paths}
        self.codes: dict[tuple[str, str], int] = {ALL: 0}

    @classmethod
    def of(cls, codes: dict[tuple[str, str], int]) -> Groups:
        """Return the groups of votes that are counted; raise VoteError without any votes."""
        if _ALL_OF not in codes:
            raise VoteError("there are no votes to count")
        groups = cls.__new__(cls)
        groups.codes = {ALL: codes[_ALL_OF], **{key: code for key, code in codes.items() if key != _ALL_OF}}
        groups.bases = {path: path for path, _ in groups.codes if path}
        return groups

    def members(self, batch: VoteBatch) -> Iterator[tuple[Ints, Ints]]:
        """Yield (group codes, rows) of a batch, for everything and for each column."""
        yield np.zeros(len(batch), dtype=np.int64), np.arange(len(batch))
        for path, base in self.bases.items():
            members = group_rows(batch.batch.column(base), path, base, self.source.name)
            codes = [self.codes.setdefault((path, name), len(self.codes)) for name in members.names]
            yield np.array(codes, dtype=np.int64)[members.group], members.row

    def ordered(self, sizes: dict[int, int]) -> list[tuple[str, str, int]]:
        """Return (column, value, code) in the order of the columns, the largest groups first."""
        places = {path: place for place, path in enumerate(("", *self.bases))}
        items = [(by, name, code) for (by, name), code in self.codes.items()]
        return sorted(items, key=lambda item: (places[item[0]], -sizes.get(item[2], 0), item[1]))


# Votes that were not cast independently: those of one person, or on one prompt.
#
# Shapes: N votes of a batch.
#
# Intervals need to know which votes belong together, so every vote stays in memory here, with 29 bytes for each group
# that it is in; without clusters a leaderboard keeps counts alone.

# Group, two models, winner, weight, cluster: the narrowest types that hold them.
_KINDS = ["<i8", "<i4", "<i4", "i1", "<f8", "<i4"]


class ClusteredVotes:
    """The votes of each group with their clusters; add batches, then ask for `units`."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._numbers: dict[Any, int] = {}
        self._parts: list[list[npt.NDArray[Any]]] = []
        self._joined: list[npt.NDArray[Any]] | None = None

    def number(self, values: Any) -> Ints:
        """Number (N,) of the cluster that each value of an Arrow column names; a vote without one stands alone."""
        if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
            keys = [None if turns is None else hash_turns(turns) for turns in values.to_pylist()]
        elif pa.types.is_nested(values.type):
            raise VoteError(f"column {self.column!r} holds {values.type}, which cannot name clusters")
        else:
            keys = values.to_pylist()
        fresh = (self._numbers.setdefault(object() if key is None else key, len(self._numbers)) for key in keys)
        return np.fromiter(fresh, dtype=np.int64, count=len(keys))

    def add(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, weights: Floats, cluster: Ints) -> None:
        """Keep a batch of votes, all (N,)."""
        columns = (group, model_a, model_b, winner, weights, cluster)
        self._parts.append([column.astype(kind) for column, kind in zip(columns, _KINDS, strict=True)])

    def units(self, group: int, table: PairTable, recode: Ints) -> Units:
        """Return the votes of one group as units of its table; `recode` is the position there of each model code."""
        if self._joined is None:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            order = np.argsort(joined[0], kind="stable")
            self._joined, self._parts = [column[order] for column in joined], []
        start, end = np.searchsorted(self._joined[0], [group, group + 1])
        _, a, b, winner, weights, cluster = (column[start:end] for column in self._joined)
        return units_of(table, recode[a], recode[b], winner, weights, cluster)
