"""A lake of votes: a folder, or a place of an object store, of Parquet files by day, which grows and is read in part.

    LAKE/day=2025-06-01/NAME-0.parquet     votes of a day (UTC) of one source; day=none: those without a time
    LAKE/_commits/NAME.json                what a source added: its files, and how far it was read

Files that no commit names are not part of the lake: a run that is killed leaves such files, and writes them again. So
each vote of a source is in the lake once. Columns are those of the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from p2l.common.errors import InputError, VoteError, first_line
from p2l.common.files import parse_json
from p2l.votes.rows import Source, numbered
from p2l.votes.schema import numbers

DAY = 86_400  # seconds
NO_DAY = -1  # of votes without a time
_MARK = "_lake.json"
_NEW = ".new"  # ends the name of a file until it is complete
_COMMITS = "_commits"
COUNTS = "_counts"
"""Folder of what leaderboards have counted, which follows from the votes."""
_WAITING_BYTES = 128 << 20  # of votes that wait to be written together
_GROUP_ROWS = 1 << 20
_MAX_COMMIT_BYTES = 64 << 20
_EARLIEST, _LATEST = 0, 2_932_896  # days from 1970 to 9999


class Part(NamedTuple):
    """One file of a day."""

    day: int  # since 1970, or NO_DAY
    path: str
    rows: int


@dataclass(frozen=True)
class Commit:
    """The votes that one run added from one source."""

    name: str
    source: str  # a path or a database, for messages
    identity: str  # a digest of the content of a file, or a name of the database, that tells sources apart
    cursor: list[Any] | None = None  # the place up to which a database was read
    parts: tuple[Part, ...] = ()
    columns: tuple[str, ...] = ()


def is_lake(location: str | Path) -> bool:
    """Return whether a folder, or a URI of an object store, holds a lake."""
    if "://" not in str(location):
        return (Path(location).expanduser() / _MARK).is_file()
    with contextlib.suppress(pa.ArrowException, OSError, ValueError):
        files, path = pafs.FileSystem.from_uri(str(location))
        return bool(files.get_file_info(f"{path.rstrip('/')}/{_MARK}").is_file)
    return False


class Lake:
    """Votes by day, as they are committed now."""

    def __init__(self, location: str | Path, *, create: bool = False) -> None:
        """Open a lake, or begin a new one with `create`; raise InputError for a place that holds no lake."""
        self.name = str(location)
        is_uri = "://" in self.name
        if is_uri:
            # A URI may carry keys of a store, which no message shows.
            parts = urlsplit(self.name)
            self.name = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        try:
            if is_uri:
                self.files, self.root = pafs.FileSystem.from_uri(str(location))
                self.root = self.root.rstrip("/")
            else:
                self.files, self.root = pafs.LocalFileSystem(), str(Path(location).expanduser().absolute())
            self._check(create=create)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{self.name}: cannot be used as a lake: {first_line(error)}") from error

    def _check(self, *, create: bool) -> None:
        if self.files.get_file_info(f"{self.root}/{_MARK}").is_file:
            version = json.loads(self.read(_MARK)).get("version")
            if version != 1:
                raise InputError(f"{self.name}: is a lake of version {version!r}, which this version does not know")
            return
        if not create:
            raise InputError(f"{self.name}: is not a lake of votes; `p2l votes lake` makes one")
        selector = pafs.FileSelector(self.root, allow_not_found=True)
        # The mark of a creation that was killed is written again.
        if any(file.base_name != _MARK + _NEW for file in self.files.get_file_info(selector)):
            raise InputError(f"{self.name}: holds other files; name a folder that is empty or new")
        self.files.create_dir(self.root)
        self.write(_MARK, json.dumps({"version": 1}).encode())

    @cached_property
    def commits(self) -> list[Commit]:
        """All commits at the first look, in the order of their names."""
        selector = pafs.FileSelector(f"{self.root}/{_COMMITS}", allow_not_found=True)
        files = self.files.get_file_info(selector)
        commits = []
        for name in sorted(file.base_name for file in files if file.base_name.endswith(".json")):
            try:
                about = parse_json(self.read(f"{_COMMITS}/{name}"))
                parts = tuple(Part(int(day), str(path), int(rows)) for day, path, rows in about.pop("parts"))
                columns = tuple(map(str, about.pop("columns")))
                commits.append(Commit(**about, parts=parts, columns=columns))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise VoteError(
                    f"{self.name}: {_COMMITS}/{name} is not a commit of a lake: {first_line(error)}"
                ) from error
        return commits

    @property
    def parts(self) -> list[Part]:
        """All files, by day."""
        return sorted(part for commit in self.commits for part in commit.parts)

    @property
    def columns(self) -> list[str]:
        """The columns that any vote has."""
        return list(dict.fromkeys(name for commit in self.commits for name in commit.columns))

    def types(self, column: str) -> set[Any]:
        """Return the types that a column has, in one file of each source."""
        import pyarrow.parquet as pq

        kinds = set()
        for commit in self.commits:
            if column in commit.columns and commit.parts:
                with self.files.open_input_file(f"{self.root}/{commit.parts[0].path}") as file:
                    schema = pq.read_schema(file)
                    kinds.update([schema.field(column).type] if column in schema.names else [])
        return kinds

    @property
    def rows(self) -> int:
        """The number of votes."""
        return sum(part.rows for part in self.parts)

    def read(self, path: str) -> bytes:
        """Return a small file."""
        with self.files.open_input_file(f"{self.root}/{path}") as file:
            if file.size() > _MAX_COMMIT_BYTES:
                raise VoteError(
                    f"{self.name}: {path} has {file.size() / 1e6:,.0f} MB, of at most {_MAX_COMMIT_BYTES >> 20} MiB"
                )
            return bytes(file.read())

    def write(self, path: str, content: bytes) -> None:
        """Write a small file whole or not at all."""
        with self.output(path) as file:
            file.write(content)

    @contextlib.contextmanager
    def output(self, path: str) -> Iterator[Any]:
        """Yield a file that has its name only when it is complete."""
        target = f"{self.root}/{path}"
        is_local = isinstance(self.files, pafs.LocalFileSystem)
        # An object of a store is there when its stream is closed, and cannot be moved cheaply.
        place = target + _NEW if is_local else target
        self.files.create_dir(target.rpartition("/")[0])
        with self.files.open_output_stream(place) as file:
            yield file
        if is_local:
            self.files.move(place, target)

    def batches(self, part: Part, columns: Sequence[str] | None, rows: int, **reading: Any) -> Iterator[Any]:
        """Yield the votes of a file, of those columns that it has."""
        import pyarrow.parquet as pq

        try:
            with (
                self.files.open_input_file(f"{self.root}/{part.path}") as file,
                pq.ParquetFile(file, **reading) as votes,
            ):
                names = votes.schema_arrow.names
                chosen = names if columns is None else [name for name in columns if name in names]
                for batch in votes.iter_batches(rows, columns=chosen):
                    yield _with_fields(batch, nullable=True)  # so that the votes of all files are of one schema
        except (OSError, pa.ArrowException) as error:
            raise VoteError(f"{self.name}: {part.path}: cannot be read: {first_line(error)}") from error

    def source(self) -> Source:
        """Return its votes as a source, the oldest days first."""

        def batches(columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
            for part in self.parts:
                for batch in self.batches(part, columns, rows):
                    if "weight" in (columns or self.columns) and "weight" not in batch.schema.names:
                        # Of a source without weights: each of its votes weighs as one.
                        batch = batch.append_column("weight", pa.array(np.ones(len(batch))))
                    yield batch

        return Source(
            name=self.name,
            columns=self.columns,
            read=lambda columns, rows: numbered(batches(columns, rows)),
            rows=self.rows,
            version=hashlib.sha256(repr(self.parts).encode()).hexdigest(),
        )

    def add(self, batches: Iterable[Any], *, name: str, source: str, identity: str, cursor: Any = None) -> Commit:
        """Write batches of votes and commit them under a name; a commit of the same name is replaced."""
        writer = _PartWriter(self, name)
        try:
            for batch in batches:
                writer.add(batch)
                cursor = getattr(batches, "cursor", cursor)
            writer.flush()
        except BaseException:
            for part in writer.parts:  # which will not be committed
                with contextlib.suppress(OSError, pa.ArrowException):
                    self.files.delete_file(f"{self.root}/{part.path}")
            raise
        commit = Commit(
            name=name,
            source=source,
            identity=identity,
            cursor=cursor,
            parts=tuple(writer.parts),
            columns=tuple(writer.columns),
        )
        content = json.dumps({**vars(commit), "parts": list(map(list, commit.parts))}, indent=1)
        self.write(f"{_COMMITS}/{name}.json", content.encode())
        self.__dict__.pop("commits", None)
        return commit


@dataclass
class _PartWriter:
    """Sorts votes into files by day, of which each has votes of one schema."""

    lake: Lake
    name: str
    columns: dict[str, None] = field(default_factory=dict)
    _waiting: defaultdict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    _bytes: int = 0
    parts: list[Part] = field(default_factory=list)
    _numbers: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, batch: Any) -> None:
        self.columns.update(dict.fromkeys(batch.schema.names))
        days = np.full(len(batch), NO_DAY, dtype=np.int64)
        if "tstamp" in batch.schema.names:
            with np.errstate(invalid="ignore"):  # a vote without a time
                day = np.floor(numbers(batch.column("tstamp")) / DAY)
                is_day = (day >= _EARLIEST) & (day <= _LATEST)
            days = np.where(is_day, day, NO_DAY).astype(np.int64)
        if len(days) and (days == days[0]).all():
            self._waiting[int(days[0])].append(batch)
        else:
            order = np.argsort(days, kind="stable")
            sorted_batch = batch.take(pa.array(order))
            numbers_of, starts = np.unique(days[order], return_index=True)
            for day, start, end in zip(numbers_of, starts, [*starts[1:], len(days)], strict=True):
                self._waiting[int(day)].append(sorted_batch.slice(int(start), int(end - start)))
        self._bytes += batch.nbytes
        if self._bytes > _WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits: one file for each day and schema."""
        import pyarrow.parquet as pq

        for day, batches in sorted(self._waiting.items()):
            date = "none" if day == NO_DAY else f"{datetime.fromtimestamp(day * DAY, timezone.utc):%Y-%m-%d}"
            for schema in dict.fromkeys(batch.schema for batch in batches):
                table = _with_fields(pa.Table.from_batches([batch for batch in batches if batch.schema == schema]))
                path = f"day={date}/{self.name}-{self._numbers[day]}.parquet"
                self._numbers[day] += 1
                with self.lake.output(path) as file:
                    pq.write_table(table, file, compression="zstd", row_group_size=_GROUP_ROWS)
                self.parts.append(Part(day, path, len(table)))
        self._waiting.clear()
        self._bytes = 0


def _with_fields(rows: Any, *, nullable: bool = False) -> Any:
    """Return a table or a batch with fields that may be null, or, without `nullable`, only where some are."""
    # Fields that may not be null are read twice as fast.
    fields = [
        kind.with_nullable(nullable or column.null_count > 0 or pa.types.is_nested(kind.type))
        for kind, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return type(rows).from_arrays(rows.columns, schema=pa.schema(fields, rows.schema.metadata))
