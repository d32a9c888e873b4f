"""Votes on disk: rows as Arrow batches and numbers as fixed records, both memory-mapped.

The files have no name: they are deleted while open (in TMPDIR, else the system's folder for temporary files), so that
their space is free again at `close`, at exit, and after a kill. A batch whose columns differ from those before it (JSON
lines may change as they go) starts a new segment; what is read is brought to the common type.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from p2l.common.errors import VoteError


class RecordFile:
    """An array of fixed records that is appended to, then mapped."""

    def __init__(self, dtype: np.dtype[Any], file: Any = None) -> None:
        """Create an empty file, or take over one that another process has written."""
        self._file = file
        if file is None:
            self._file = _new_file()
        self._dtype = dtype

    def __del__(self) -> None:
        self.close()

    @property
    def file(self) -> Any:
        """The open file, until `close`."""
        return self._file

    def append(self, records: np.ndarray[Any, Any]) -> None:
        """Write records of this file's dtype at the end.

        Raises:
            VoteError: the disk is full.
        """
        try:
            self._file.write(records.tobytes())
        except OSError as error:
            raise disk_full(error) from error

    def finish(self) -> None:
        """End writing.

        Raises:
            VoteError: the disk is full.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise disk_full(error) from error

    def mapped(self) -> np.ndarray[Any, Any]:
        """End writing and map all records; the space is free when array and file go."""
        self.finish()
        try:
            empty = not os.fstat(self._file.fileno()).st_size
            return np.empty(0, dtype=self._dtype) if empty else np.frombuffer(_map(self._file), dtype=self._dtype)
        except OSError as error:
            raise disk_full(error) from error

    def close(self) -> None:
        """Close the file; its space is freed when no array is in use."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted
            if self._file is not None:
                self._file.close()


def _new_file() -> Any:
    try:
        return tempfile.TemporaryFile(prefix="p2l-votes-")
    except OSError as error:
        if tempfile.tempdir is None:  # no folder for temporary files can be written to; the message lists them
            raise VoteError(f"votes cannot be spooled: {error.strerror}; set TMPDIR to a folder with room") from error
        raise disk_full(error) from error


def _map(file: Any) -> mmap.mmap:
    """Map the whole of an open file; the map outlives the file object, and the space is free when the map goes."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class RowFile:
    """Rows as Arrow batches: append all, `finish`, then take any."""

    def __init__(self) -> None:
        self._segments: list[Any] = []  # pyarrow.ipc.RecordBatchFileReader, one for each schema
        self._writer: Any = None
        self._writer_schema: Any = None
        self._file: Any = None
        self._files: list[Any] = []  # those of finished segments, open so that other processes can be given them
        self._starts = [0]  # first row of each batch, and the number of rows
        self._where: list[tuple[int, int]] = []  # (segment, batch within it)
        self._cache: dict[int, Any] = {}
        self._count = 0

    @classmethod
    def of(cls, files: Sequence[Any]) -> RowFile:
        """Take over the rows that another process has written, from its open files."""
        rows = cls()
        for file in files:
            rows._add_segment(file)
            segment = rows._segments[-1]
            for within in range(segment.num_record_batches):
                rows._where.append((len(rows._segments) - 1, within))
                rows._starts.append(rows._starts[-1] + len(segment.get_batch(within)))
        return rows

    def __del__(self) -> None:
        self.close()

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def files(self) -> list[Any]:
        """The open files of all segments, until `close`."""
        return list(self._files)

    @property
    def schemas(self) -> list[Any]:
        """Schema of each segment."""
        return [segment.schema for segment in self._segments]

    def append(self, batch: Any) -> None:
        """Write a batch at the end.

        Raises:
            VoteError: the disk is full.
        """
        try:
            if self._writer is None or self._writer_schema != batch.schema:
                self._finish_segment()
                self._file = _new_file()
                self._writer_schema = batch.schema
                self._writer = pa.ipc.new_file(self._file, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise disk_full(error) from error
        self._where.append((len(self._segments), self._count))
        self._count += 1
        self._starts.append(self._starts[-1] + len(batch))

    def _finish_segment(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._file.flush()
        self._add_segment(self._file)
        self._writer, self._file, self._count = None, None, 0

    def _add_segment(self, file: Any) -> None:
        self._segments.append(pa.ipc.open_file(pa.BufferReader(pa.py_buffer(_map(file)))))
        self._files.append(file)

    def finish(self) -> None:
        """End writing."""
        try:
            self._finish_segment()
        except OSError as error:
            raise disk_full(error) from error

    def batch(self, number: int) -> Any:
        """Return one batch, mapped."""
        if number not in self._cache:
            segment, within = self._where[number]
            self._cache[number] = self._segments[segment].get_batch(within)
        return self._cache[number]

    def batches(self) -> Iterator[Any]:
        """Yield all batches in order."""
        return (self.batch(number) for number in range(len(self._where)))

    def locate(self, row: int) -> tuple[int, int]:
        """Number of the batch that holds a row, and its position there."""
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]

    def take(self, rows: np.ndarray[Any, Any], schema: Any) -> Any:
        """Return the rows in any order as one batch in the form of a schema that all fit."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        parts, begin = [pa.RecordBatch.from_pylist([], schema)], 0
        while begin < len(ordered):
            number, _ = self.locate(int(ordered[begin]))
            end = int(np.searchsorted(ordered, self._starts[number + 1]))
            part = self.batch(number).take(pa.array(ordered[begin:end] - self._starts[number]))
            parts.append(conform(part, schema))
            begin = end
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        columns = zip(*(part.columns for part in parts), strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column).take(pa.array(back)) for column in columns], schema=schema
        )

    def close(self) -> None:
        """Close the files; their space is freed when no batch is in use."""
        self._cache.clear()
        self._segments.clear()
        for file in [*self._files, self._file]:
            with contextlib.suppress(OSError):  # what could not be written is not wanted
                if file is not None:
                    file.close()
        self._files.clear()


def disk_full(error: OSError) -> VoteError:
    """Return the error for temporary files that cannot be written."""
    return VoteError(
        f"{tempfile.gettempdir()}: votes cannot be spooled there: {error.strerror or error}; "
        "set TMPDIR to a folder with more room"
    )


def common_schema(schemas: Sequence[Any]) -> Any:
    """Return one schema that holds the columns of all."""
    kinds: dict[str, list[Any]] = {}
    for schema in schemas:
        for field in schema:
            kinds.setdefault(field.name, []).append(field.type)
    return pa.schema([(name, common_type(types)) for name, types in kinds.items()])


def common_type(kinds: Sequence[Any]) -> Any:
    """Return a type that values of all `kinds` fit; text where nothing narrower does."""
    distinct = list(dict.fromkeys(kinds))
    if len(distinct) == 1:
        return distinct[0]
    try:
        schemas = [pa.schema([("column", kind)]) for kind in distinct]
        return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return pa.string()


def as_type(column: Any, kind: Any) -> Any:
    """Cast a column to a common type; what no cast takes becomes JSON text."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException:
        texts = [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in column.to_pylist()]
        return pa.array(texts, pa.string())


def conform(batch: Any, schema: Any) -> Any:
    """Bring a batch into the form of a schema: cast its columns, fill those it lacks with null."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    arrays = [
        as_type(batch.column(field.name), field.type) if field.name in names else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
