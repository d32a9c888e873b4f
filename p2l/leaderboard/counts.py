"""Counts of votes that add up: of a lake, of files, of several machines.

A count is the number of votes of a group (a value of a column, or all votes; of a period, or of all time) on a pair of
models with an outcome, and the sums of their weights and of these squared: all that a leaderboard needs of votes. A
lake keeps the counts of its files, so that votes that come cost what they are.

Shapes: N votes of a batch, M models, U distinct (group, model a, model b, winner).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.errors import InputError, VoteError
from p2l.common.files import atomic_path, parse_json
from p2l.leaderboard.history import Over, parse_over
from p2l.leaderboard.pair_tables import VoteCounter
from p2l.votes.lake import DAY, NO_DAY, Lake, Part
from p2l.votes.schema import WINNERS, check_number_of_models, name_lookup, numbers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NO_PERIOD = -(2**31)
"""The period of counts of all time."""
_KEY = b"p2l_counts"
_VERSION = 1
_BATCH_ROWS = 1 << 22
_DENSE_CELLS = 1 << 23
"""So many cells are counted in an array; more are sorted."""
_KEPT = "_counts"


class Group(NamedTuple):
    """Whose votes are counted together."""

    by: str = ""
    """A column, or "" for all votes."""
    value: str = ""
    period: int = NO_PERIOD


@dataclass
class Counts:
    """Votes counted by group; groups and models are numbered as they come."""

    over: str | None = None
    """Which periods are told apart; None: groups are of all time."""
    counter: VoteCounter = field(default_factory=VoteCounter)
    groups: dict[Group, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def code(self, group: Group) -> int:
        """Return the number of a group, which may be new."""
        return self.groups.setdefault(group, len(self.groups))

    def codes_of(self, names: Sequence[str]) -> Ints:
        """Return the numbers of models, which may be new."""
        codes = [self.names.setdefault(name, len(self.names)) for name in names]
        check_number_of_models("the votes", len(self.names))
        return np.array(codes, dtype=np.int64)

    def table(self) -> Any:
        """Return all counts as an Arrow table."""
        groups, names = list(self.groups), list(self.names)
        rows: list[list[Any]] = [[] for _ in range(6)]
        for code in range(len(groups)):
            a, b, winner, sums = self.counter.cells(code)
            for place, column in enumerate((np.full(len(a), code), a, b, winner)):
                rows[place].append(column)
            rows[4].append(sums)
        group, a, b, winner = (np.concatenate(column) if column else np.empty(0, np.int64) for column in rows[:4])
        sums = np.concatenate(rows[4], axis=1) if rows[4] else np.empty((3, 0))

        def texts(values: list[str], codes: Ints) -> Any:
            return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, pa.string()))

        periods = np.array([each.period for each in groups], dtype=np.int32)
        columns = {
            "by": texts([each.by for each in groups], group),
            "value": texts([each.value for each in groups], group),
            "period": pa.array(periods[group] if len(groups) else np.empty(0, np.int32)),
            "model_a": texts(names, a),
            "model_b": texts(names, b),
            "winner": pa.array(winner.astype(np.int8)),
            **{name: pa.array(row) for name, row in zip(("votes", "weights", "squares"), sums, strict=True)},
        }
        return pa.table(columns)

    def add_table(self, table: Any, source: str) -> None:
        """Add counts of a table as `table` returns it; raise VoteError for any other."""
        try:
            columns = {name: table.column(name).combine_chunks() for name in _COLUMNS}
            texts = {name: columns[name].dictionary_encode() for name in ("by", "value", "model_a", "model_b")}
            sums = np.stack([columns[name].to_numpy().astype(np.float64) for name in ("votes", "weights", "squares")])
            winner = columns["winner"].to_numpy().astype(np.int64)
            period = columns["period"].to_numpy().astype(np.int64)
            by, value = (texts[name].indices.to_numpy().astype(np.int64) for name in ("by", "value"))
        except (KeyError, pa.ArrowException, ValueError, AttributeError) as error:
            raise VoteError(
                f"{source}: holds no counts of votes; `p2l leaderboard --counts-only` writes them"
            ) from error
        if len(table) and not (np.isfinite(sums).all() and (sums >= 0).all() and ((winner >= 0) & (winner < 4)).all()):
            raise VoteError(f"{source}: holds counts that no votes have")
        if not len(table):
            return
        keys, place = np.unique(np.stack([by, value, period]), axis=1, return_inverse=True)
        by_names, value_names = (texts[name].dictionary.to_pylist() for name in ("by", "value"))
        codes = [self.code(Group(by_names[one], value_names[two], int(three))) for one, two, three in keys.T.tolist()]
        first, second = (
            self.codes_of(texts[name].dictionary.to_pylist())[texts[name].indices.to_numpy()]
            for name in ("model_a", "model_b")
        )
        if (first == second).any():
            raise VoteError(f"{source}: holds counts of a model that meets itself")
        group = np.array(codes, dtype=np.int64)[place.reshape(-1)]
        self.counter.add_cells(group, first, second, winner, sums)


_COLUMNS = ("by", "value", "period", "model_a", "model_b", "winner", "votes", "weights", "squares")


def write_counts(counts: Counts, path: str | Path) -> None:
    """Write counts to a Parquet file."""
    import pyarrow.parquet as pq

    if not str(path).endswith(".parquet"):
        raise InputError(f"{path}: counts are written as .parquet")
    with atomic_path(path) as temporary:
        pq.write_table(_marked(counts.table(), {"over": counts.over}), temporary, compression="zstd")


def read_counts(paths: Sequence[str | Path]) -> Counts:
    """Add up the counts of files; raise VoteError for a file that holds none, or periods of another kind."""
    import pyarrow.parquet as pq

    counts: Counts | None = None
    for path in paths:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise VoteError(f"{path}: cannot be read: {(str(error).splitlines() or ['?'])[0]}") from error
        over = _mark_of(table, str(path)).get("over")
        if counts is None:
            counts = Counts(over)
        elif counts.over != over:
            raise VoteError(f"{path}: counts by {over or 'no period'}, {paths[0]} by {counts.over or 'none'}")
        counts.add_table(table, str(path))
    assert counts is not None
    return counts


def _marked(table: Any, about: dict[str, Any]) -> Any:
    return table.replace_schema_metadata({_KEY: json.dumps({"version": _VERSION, **about})})


def _mark_of(table: Any, source: str) -> dict[str, Any]:
    try:
        about = parse_json((table.schema.metadata or {})[_KEY])
    except (KeyError, ValueError) as error:
        raise _no_counts(source) from error
    if not isinstance(about, dict) or about.get("version") != _VERSION:
        raise VoteError(f"{source}: holds counts of another version; count the votes again")
    return about


def _no_counts(source: str) -> VoteError:
    return VoteError(f"{source}: holds no counts of votes; `p2l leaderboard --counts-only` writes them")


class Spec(NamedTuple):
    """What is counted: a column, or all votes, by period or not."""

    by: str = ""
    over: str | None = None
    weighted: bool = False

    @property
    def file(self) -> str:
        """The file of a lake that keeps it."""
        digest = hashlib.sha256(json.dumps([_VERSION, *self]).encode()).hexdigest()[:16]
        return f"{_KEPT}/{digest}.parquet"


def lake_counts(
    lake: Lake, specs: Sequence[Spec], *, each: Callable[[Sequence[Part]], Any] = iter, keep: bool = True
) -> list[Counts]:
    """Count the votes of a lake in one pass over the files whose counts are not kept yet, and keep them.

    Args:
        lake: the lake.
        specs: what to count; its columns hold one text each.
        each: goes through the files that are read; a progress bar.
        keep: whether the lake keeps the counts; one that cannot be written does not.
    """
    parts = lake.parts
    paths = {part.path for part in parts}
    kept = [_kept(lake, spec, paths) for spec in specs]
    for part in each([part for part in parts if any(part.path not in of for _, of in kept)]):
        lacking = zip(specs, kept, strict=True)
        _count_part(lake, part, [(spec, counts) for spec, (counts, of) in lacking if part.path not in of])
    for spec, (counts, of) in zip(specs, kept, strict=True):
        if keep and of != paths:
            _keep(lake, spec, counts, sorted(paths))
    return [counts for counts, _ in kept]


def _count_part(lake: Lake, part: Part, counted: Sequence[tuple[Spec, Counts]]) -> None:
    """Add the votes of one file to counts."""
    texts = {"model_a", "model_b", "winner"} | {spec.by for spec, _ in counted if spec.by}
    columns = texts | ({"weight"} if any(spec.weighted for spec, _ in counted) else set())
    tallies = [_Tally(counts, spec, part.day) for spec, counts in counted]
    for batch in _ahead(lake.batches(part, sorted(columns), _BATCH_ROWS, read_dictionary=sorted(texts))):
        for tally in tallies:
            tally.add(batch, lake.name)
    for tally in tallies:
        tally.finish()


def _kept(lake: Lake, spec: Spec, paths: set[str]) -> tuple[Counts, set[str]]:
    """Return counts that the lake keeps, and of which files; those of a file that is gone cannot be used."""
    import pyarrow.parquet as pq

    counts = Counts(spec.over)
    if not lake.files.get_file_info(f"{lake.root}/{spec.file}").is_file:
        return counts, set()
    try:
        table = pq.read_table(f"{lake.root}/{spec.file}", filesystem=lake.files)
        of = set(_mark_of(table, spec.file)["parts"])
        if not of <= paths:
            return counts, set()
        counts.add_table(table, f"{lake.name}/{spec.file}")
    except (VoteError, OSError, KeyError, TypeError, pa.ArrowException):
        return Counts(spec.over), set()  # it is made anew
    return counts, of


def _keep(lake: Lake, spec: Spec, counts: Counts, paths: list[str]) -> None:
    import pyarrow.parquet as pq

    try:
        with lake.output(spec.file) as file:
            pq.write_table(_marked(counts.table(), {"parts": paths, "over": spec.over}), file, compression="zstd")
    except (OSError, pa.ArrowException):
        return  # a lake that is read alone


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Read the next batch while one is counted."""
    with ThreadPoolExecutor(1, thread_name_prefix="p2l-lake") as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


class _Tally:
    """The counts of one file for one spec."""

    def __init__(self, counts: Counts, spec: Spec, day: int) -> None:
        self._counts, self._spec = counts, spec
        self._period = NO_PERIOD
        if spec.over is not None:
            over: Over = parse_over(spec.over)
            self._period = NO_PERIOD if day == NO_DAY else int(over.index(np.array([float(day * DAY)]))[0])
        self._skip = spec.over is not None and day == NO_DAY
        self._dense: Floats | None = None
        self._shape = (0, 0)
        self._values: list[str] = []

    def add(self, batch: Any, source: str) -> None:
        """Count a batch."""
        if self._skip or not len(batch):
            return
        a, b = (self._models(batch.column(name)) for name in ("model_a", "model_b"))
        winner = _codes(batch.column("winner"), list(WINNERS), source)
        group, rows = self._groups(batch)
        if rows is not None:
            a, b, winner = a[rows], b[rows], winner[rows]
        if self._spec.weighted:
            has_weights = "weight" in batch.schema.names
            weights = numbers(batch.column("weight")) if has_weights else np.ones(len(batch))
            weights = weights if rows is None else weights[rows]
            self._sparse(group, a, b, winner, weights)
            return
        models, groups = len(self._counts.names), max(1, len(self._values))
        if groups * models * models * 4 > _DENSE_CELLS:
            self._sparse(group, a, b, winner, np.ones(len(a)))
            return
        if self._shape != (groups, models):
            self._move()
            self._shape = (groups, models)
            self._dense = np.zeros(groups * models * models * 4)
        keys = a.astype(np.int32)
        keys *= models
        keys += b
        keys *= 4
        keys += winner
        if group is not None:
            keys += (group * (models * models * 4)).astype(np.int32)
        assert self._dense is not None
        self._dense += np.bincount(keys, minlength=len(self._dense))

    def _models(self, column: Any) -> npt.NDArray[np.int32]:
        codes = self._counts.codes_of(column.dictionary.to_pylist())
        return np.asarray(codes.astype(np.int32)[column.indices.to_numpy(zero_copy_only=False)])

    def _groups(self, batch: Any) -> tuple[npt.NDArray[np.int32] | None, Any]:
        """Return places in `_values` (N,) and the rows that have one, None for all."""
        if not self._spec.by:
            return None, None
        if self._spec.by not in batch.schema.names:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        column = batch.column(self._spec.by)
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        place = {value: number for number, value in enumerate(self._values)}
        for value in column.dictionary.to_pylist():
            if place.setdefault(value, len(place)) == len(self._values):
                self._values.append(value)
        lookup = name_lookup(column.dictionary.to_pylist(), self._values)
        if not column.indices.null_count:
            return lookup[column.indices.to_numpy(zero_copy_only=False)], None
        rows = np.flatnonzero(column.indices.is_valid().to_numpy(zero_copy_only=False))
        return lookup[column.indices.drop_null().to_numpy(zero_copy_only=False)], rows

    def _group_codes(self) -> Ints:
        by, period = self._spec.by, self._period
        groups = [Group(by, value, period) for value in self._values] if by else [Group("", "", period)]
        return np.array([self._counts.code(group) for group in groups], dtype=np.int64)

    def _sparse(self, group: Any, a: Any, b: Any, winner: Any, weights: Floats) -> None:
        self._move()
        codes = self._group_codes()
        numbers = np.full(len(a), codes[0]) if group is None else codes[group]
        self._counts.counter.add(numbers, a.astype(np.int64), b.astype(np.int64), winner.astype(np.int64), weights)

    def _move(self) -> None:
        """Add what was counted in the array to the counts."""
        if self._dense is None:
            return
        keys = np.flatnonzero(self._dense)
        votes = self._dense[keys]
        _, models = self._shape
        rest, winner = np.divmod(keys, 4)
        rest, b = np.divmod(rest, models)
        group, a = np.divmod(rest, models)
        self._counts.counter.add_cells(self._group_codes()[group], a, b, winner, np.stack([votes, votes, votes]))
        self._dense = None
        self._shape = (0, 0)

    def finish(self) -> None:
        """Add everything to the counts."""
        self._move()


def _codes(column: Any, names: list[str], source: str) -> npt.NDArray[np.int32]:
    lookup = name_lookup(column.dictionary.to_pylist(), names)
    codes: npt.NDArray[np.int32] = lookup[column.indices.to_numpy(zero_copy_only=False)]
    if pc.any(column.indices.is_null()).as_py() or (codes < 0).any():
        raise VoteError(f"{source}: holds votes with a winner that is none of {', '.join(names)}; write it anew")
    return codes
