"""Counts of a lake: one pass over the files that were not counted yet, and what is kept beside them.

    LAKE/_counts/DIGEST.parquet         the counts of one column, or of periods, and of which files they are
    LAKE/_counts/DIGEST-new.parquet     those of the files that came since, while they are few: a day writes a day
    LAKE/_counts/DIGEST.json            coefficients of the last leaderboards, where the next fits begin

Votes that come cost what they are, and a lake that cannot be written is counted anew each time. A file is read in
batches by one thread while another counts: the votes of a group in an array of all pairs while these are few enough,
else sorted. Votes without weights are one number a cell.

Shapes: N votes of a batch, M models, U distinct (group, model a, model b, winner).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import VoteError
from p2l.leaderboard.counts import NO_PERIOD, Counts, Floats, Group, Ints, digest_of, mark_of, marked
from p2l.leaderboard.history import parse_over
from p2l.leaderboard.pair_tables import are_keys, every_sum, regrouped, split_keys
from p2l.votes.lake import COUNTS, DAY, NO_DAY, Lake, Part
from p2l.votes.schema import WINNERS, name_lookup, numbers

# Arrays of a batch stay in the cache, and the allocator keeps their pages.
_BATCH_ROWS = 1 << 18
_PIECE_ROWS = 1 << 16
_DENSE_CELLS = 1 << 23
"""Up to this number of cells they are counted in an array; more are sorted."""
_CELLS_PER_VOTE = 8  # from which votes are added one by one: to go through all cells would take longer
_OLD_CELLS_PER_NEW = 4  # from which newer counts have a file of their own, so that a day writes a day
_VERSION = 2


class Spec(NamedTuple):
    """What is counted: a column, or all votes, by period or not."""

    by: str = ""
    over: str | None = None
    weighted: bool = False

    @property
    def file(self) -> str:
        """The file of a lake that keeps it."""
        return f"{COUNTS}/{digest_of([_VERSION, *self])}.parquet"

    @property
    def new_file(self) -> str:
        """The file that keeps what came since the other was written."""
        return self.file.replace(".parquet", "-new.parquet")


def lake_counts(
    lake: Lake, specs: Sequence[Spec], *, each: Callable[[Sequence[Part]], Any] = iter, keep: bool = True
) -> list[Counts]:
    """Count the votes of a lake in one pass over the files whose counts are not kept yet, and keep them.

    All counts number models alike, so that they can absorb each other.

    Args:
        lake: the lake.
        specs: what to count; its columns hold one text each.
        each: goes through the files that are read; a progress bar.
        keep: whether the lake keeps the counts; one that cannot be written does not.
    """
    parts = lake.parts
    paths, names = {part.path for part in parts}, dict[str, int]()
    kept = [_Kept.read(lake, spec, paths, names) for spec in specs]
    tallies = [_Tally(counts.new, counts.spec, counts.of | counts.of_new) for counts in kept]
    lacking = [part for part in parts if any(part.path not in tally.kept for tally in tallies)]
    if lacking:
        _count(lake, lacking, tallies, names, each)
    finished = [counts.finish(lake, paths, keep=keep) for counts in kept]
    pa.default_memory_pool().release_unused()
    return finished


def _count(
    lake: Lake, parts: Sequence[Part], tallies: Sequence[_Tally], names: dict[str, int], each: Callable[..., Any]
) -> None:
    texts = {"model_a", "model_b", "winner"} | {tally.spec.by for tally in tallies if tally.spec.by}
    columns = texts | ({"weight"} if any(tally.spec.weighted for tally in tallies) else set())

    def batches() -> Iterator[Any]:
        for part in parts:
            yield from lake.batches(part, sorted(columns), _BATCH_ROWS, read_dictionary=sorted(texts))
            yield None  # behind each file

    # One thread reads the next batch while this one counts.
    with ThreadPoolExecutor(1, thread_name_prefix="p2l-lake") as thread:
        stream = batches()
        coming = thread.submit(next, stream, None)
        for part in each(parts):
            active = [tally for tally in tallies if part.path not in tally.kept]
            for tally in active:
                tally.enter(part.day)
            while (batch := coming.result()) is not None:
                coming = thread.submit(next, stream, None)
                coded = _CodedVotes(batch, names, lake.name)
                for tally in active:
                    tally.add(coded)
            coming = thread.submit(next, stream, None)
    for tally in tallies:
        tally.finish()


@dataclass
class _Kept:
    """What a lake keeps of one spec: the counts of most files, and of those that came since."""

    spec: Spec
    counts: Counts
    of: set[str]
    """The files of the counts."""
    new: Counts
    of_new: set[str]

    @classmethod
    def read(cls, lake: Lake, spec: Spec, paths: set[str], names: dict[str, int]) -> _Kept:
        """Read what can be used: all of it is of files that are there, and of each once."""
        counts, of = _read(lake, spec.file, Counts(spec.over, names=names), paths)
        return cls(spec, counts, of, *_read(lake, spec.new_file, Counts(spec.over, names=names), paths - of))

    def finish(self, lake: Lake, paths: set[str], *, keep: bool) -> Counts:
        """Return the counts of all files, after keeping what was counted."""
        weighted, was_kept = self.spec.weighted, self.of | self.of_new == paths
        size, new = (len(counts.counter.every_cell()[0]) for counts in (self.counts, self.new))
        if keep and not was_kept and new * _OLD_CELLS_PER_NEW <= size:
            _write(lake, self.spec.new_file, self.new, sorted(paths - self.of), weighted=weighted)
            keep = False
        self.counts.absorb(self.new)
        if keep and not was_kept and _write(lake, self.spec.file, self.counts, sorted(paths), weighted=weighted):
            # It is of files that the other one is of, and would be passed over.
            with contextlib.suppress(OSError, pa.ArrowException):
                lake.files.delete_file(f"{lake.root}/{self.spec.new_file}")
        return self.counts


def _read(lake: Lake, file: str, counts: Counts, paths: set[str]) -> tuple[Counts, set[str]]:
    """Return counts that are kept in a file, and of which files they are; none where these are not among `paths`."""
    import pyarrow.parquet as pq

    if not lake.files.get_file_info(f"{lake.root}/{file}").is_file:
        return counts, set()
    try:
        with pq.ParquetFile(f"{lake.root}/{file}", filesystem=lake.files) as table:
            about = mark_of(table.schema_arrow, file)
            of = set(about["parts"])
            if not of <= paths:
                return counts, set()
            _unpack(table, about, counts)
    except (VoteError, OSError, KeyError, TypeError, ValueError, IndexError, pa.ArrowException):
        return Counts(counts.over, names=counts.names), set()  # it is made anew
    return counts, of


def _write(lake: Lake, file: str, counts: Counts, paths: list[str], *, weighted: bool) -> bool:
    """Keep counts, unless the lake cannot be written; return whether it was."""
    import pyarrow.parquet as pq

    about = {"parts": paths, "over": counts.over, "models": list(counts.names), "groups": len(counts.groups)}
    try:
        with lake.output(file) as output:
            # Sorted keys lie close to each other, and counts are small.
            packed = {"column_encoding": {"key": "DELTA_BINARY_PACKED", "votes": "DELTA_BINARY_PACKED"}}
            table = marked(_packed(counts, weighted=weighted), about)
            pq.write_table(table, output, compression="zstd", use_dictionary=["by", "value"], **packed)
    except (OSError, pa.ArrowException):
        return False  # a lake that is read alone
    return True


def _packed(counts: Counts, *, weighted: bool) -> Any:
    """Return counts as they are kept: a row for each cell, and the groups in the first rows."""
    keys, sums = counts.counter.every_cell()
    columns = {"key": pa.array(keys), "votes": pa.array(sums[0].astype(np.int64))}
    if weighted:
        _, weights, squares = every_sum(sums)
        columns |= {"weights": pa.array(weights), "squares": pa.array(squares)}
    if len(counts.groups) > len(keys):  # one of a value whose votes are all of another lake
        raise pa.ArrowInvalid("more groups than cells")
    rest = len(keys) - len(counts.groups)
    fields = (("by", pa.string()), ("value", pa.string()), ("period", pa.int32()))
    for place, (name, kind) in enumerate(fields):
        values = pa.array([group[place] for group in counts.groups], kind)
        columns[name] = pa.chunked_array([values, pa.nulls(rest, kind)])
    return pa.table(columns)


def _unpack(table: Any, about: dict[str, Any], counts: Counts) -> None:
    """Add counts that are kept; raise VoteError, or ValueError, for what cannot be counts."""
    names = ["votes", "weights", "squares"] if "weights" in table.schema_arrow.names else ["votes"]
    rows = table.metadata.num_rows
    keys, sums = np.empty(rows, dtype=np.int64), np.empty((len(names), rows))
    # The groups are in the first rows; the other rows have none, and are not read.
    number, groups = about["groups"], list[Group]()
    fields = ["by", "value", "period"]
    for batch in table.iter_batches(max(1, number), columns=fields) if number else ():
        columns = (batch.column(field).slice(0, number - len(groups)).to_pylist() for field in fields)
        groups += [Group(by, value, period) for by, value, period in zip(*columns, strict=True)]
        if len(groups) >= number:
            break
    group_codes = np.array([counts.code(group) for group in groups], dtype=np.int64)
    models = counts.codes_of(about["models"])
    start, scratch = 0, np.empty((2, _PIECE_ROWS), dtype=np.int64)
    # In small pieces, whose memory comes back: fresh pages cost more than what is read into them.
    for batch in table.iter_batches(_PIECE_ROWS, columns=["key", *names]):
        here = slice(start, start + len(batch))
        keys[here], start = batch.column("key").to_numpy(), here.stop
        for name, row in zip(names, sums, strict=True):
            row[here] = batch.column(name).to_numpy()
        is_sound = sums[:, here].min() >= 0 and sums[:, here].max() < np.inf
        if not is_sound or not are_keys(keys[here], len(group_codes), len(models), scratch):
            raise VoteError("holds counts that no votes have")
    if (models == np.arange(len(models))).all():
        counts.counter.add_keys(regrouped(keys, group_codes), sums)
    else:
        group, a, b, winner = split_keys(keys)
        counts.counter.add_cells(group_codes[group], models[a], models[b], winner, sums)


class _CodedVotes:
    """Votes as codes: of models, of winners, and of cells of an array of all pairs where these are few enough."""

    def __init__(self, batch: Any, names: dict[str, int], source: str) -> None:
        self.batch, self._names = batch, names
        columns = [batch.column(name) for name in ("model_a", "model_b", "winner")]
        if any(column.null_count for column in columns):
            raise VoteError(f"{source}: holds votes without a model or a winner; write it anew")
        texts = [column.dictionary.to_pylist() for column in columns]
        for name in (*texts[0], *texts[1]):
            names.setdefault(name, len(names))
        self._lookups = [np.array([names[name] for name in each], dtype=np.int32) for each in texts[:2]]
        self._lookups.append(name_lookup(texts[2], list(WINNERS)).astype(np.int32))
        self._indices = [column.indices.to_numpy(zero_copy_only=False) for column in columns]
        if (self._lookups[2] < 0).any() and (self._lookups[2][self._indices[2]] < 0).any():
            raise VoteError(f"{source}: holds votes with a winner that is none of {', '.join(WINNERS)}; write it anew")
        self.models = len(names)

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def codes(self) -> list[npt.NDArray[np.int32]]:
        """Models a and b, and the winner (N,)."""
        pairs = zip(self._lookups, self._indices, strict=True)
        return [lookup[indices] if len(lookup) else indices.astype(np.int32) for lookup, indices in pairs]

    @cached_property
    def cells(self) -> npt.NDArray[np.int32]:
        """Place (N,) in an array (M, M, 4)."""
        scaled = (lookup * scale for lookup, scale in zip(self._lookups, (self.models * 4, 4, 1), strict=True))
        a, b, winner = (lookup.take(at, mode="clip") for lookup, at in zip(scaled, self._indices, strict=True))
        a += b
        a += winner
        return np.asarray(a)

    @cached_property
    def histogram(self) -> Ints:
        """Number of votes (M M 4,) in each cell."""
        return np.bincount(self.cells, minlength=self.models**2 * 4)


class _Tally:
    """The counts of files for one spec."""

    def __init__(self, counts: Counts, spec: Spec, kept: set[str]) -> None:
        self._counts, self.spec, self.kept = counts, spec, kept
        self._period = NO_PERIOD
        self._over = None if spec.over is None else parse_over(spec.over)
        self._skips = False
        self._dense: Ints | None = None
        self._waiting: Ints = np.empty(0, dtype=np.int64)  # cells of votes that are counted together
        self._number = 0
        self._shape = (0, 0)
        self._values: dict[Any, int] = {}

    def enter(self, day: int) -> None:
        """Go on with the votes of a day."""
        if self._over is None:
            return
        self._skips = day == NO_DAY
        period = NO_PERIOD if self._skips else int(self._over.index(np.array([float(day * DAY)]))[0])
        if period != self._period:
            self.finish()
            self._period = period

    def add(self, votes: _CodedVotes) -> None:
        """Count a batch."""
        if self._skips or not len(votes) or (self.spec.by and self.spec.by not in votes.batch.schema.names):
            return
        group, rows = self._groups(votes.batch) if self.spec.by else (None, None)
        groups = max(1, len(self._values))
        if self.spec.weighted or groups * votes.models**2 * 4 > _DENSE_CELLS:
            self._sparse(votes, group, rows)
            return
        if self._shape != (groups, votes.models):
            self.finish()
            self._shape = (groups, votes.models)
            self._dense = np.zeros(groups * votes.models**2 * 4, dtype=np.int64)
            self._waiting = np.empty(max(len(self._dense), _BATCH_ROWS) if self.spec.by else 0, dtype=np.int64)
        assert self._dense is not None
        if group is None:
            self._dense += votes.histogram
            return
        cells = votes.cells if rows is None else votes.cells[rows]
        group *= np.int32(votes.models**2 * 4)
        group += cells
        if self._number + len(group) > len(self._waiting):
            self._count_waiting()
        self._waiting[self._number : self._number + len(group)] = group
        self._number += len(group)

    def _count_waiting(self) -> None:
        """Count as many votes at once as the array has cells, since all of it is gone through each time."""
        assert self._dense is not None
        keys, self._number = self._waiting[: self._number], 0
        if len(keys) * _CELLS_PER_VOTE < len(self._dense):
            np.add.at(self._dense, keys, 1)
        else:
            self._dense += np.bincount(keys, minlength=len(self._dense))

    def _groups(self, batch: Any) -> tuple[npt.NDArray[np.int32], Any]:
        """Return places in `_values` (N,) and the rows that have one, None for all."""
        column = batch.column(self.spec.by)
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        texts = column.dictionary.to_pylist()
        lookup = np.array([self._values.setdefault(text, len(self._values)) for text in texts], dtype=np.int32)
        if not column.indices.null_count:
            return lookup.take(column.indices.to_numpy(zero_copy_only=False), mode="clip"), None
        rows = np.flatnonzero(column.indices.is_valid().to_numpy(zero_copy_only=False))
        return lookup[column.indices.drop_null().to_numpy(zero_copy_only=False)], rows

    def _group_codes(self, group: Any) -> Ints:
        """Return the numbers (N,) of the groups of votes; one for all, where there is no column."""
        if group is None or not self.spec.by:
            return np.array([self._counts.code(Group("", "", self._period))], dtype=np.int64)
        texts, codes = list(self._values), np.full(len(self._values), -1, dtype=np.int64)
        for place in np.flatnonzero(np.bincount(group, minlength=len(texts))):
            codes[place] = self._counts.code(Group(self.spec.by, texts[place], self._period))
        return np.asarray(codes[group])

    def _sparse(self, votes: _CodedVotes, group: Any, rows: Any) -> None:
        self.finish()
        a, b, winner = (column.astype(np.int64) for column in votes.codes)
        has_weights = self.spec.weighted and "weight" in votes.batch.schema.names
        weights: Floats = numbers(votes.batch.column("weight")) if has_weights else np.ones(len(votes))
        if rows is not None:
            a, b, winner, weights = a[rows], b[rows], winner[rows], weights[rows]
        codes = np.broadcast_to(self._group_codes(group), a.shape)
        self._counts.counter.add(codes, a, b, winner, weights)

    def finish(self) -> None:
        """Add what was counted in the array to the counts."""
        if self._dense is None:
            return
        self._count_waiting()
        keys = np.flatnonzero(self._dense)
        votes = self._dense[keys].astype(np.float64)
        _, models = self._shape
        rest, winner = np.divmod(keys, 4)
        rest, b = np.divmod(rest, models)
        group, a = np.divmod(rest, models)
        codes = np.broadcast_to(self._group_codes(group), a.shape)
        self._counts.counter.add_cells(codes, a, b, winner, votes[None])
        self._dense = None
        self._shape = (0, 0)
