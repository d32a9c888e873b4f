"""Votes on disk: rows as Arrow batches and numbers as fixed records, both memory-mapped.

The files have no name: they are deleted while open (in TMPDIR, else the system's folder for temporary files), so that
their space is free again at `close`, at exit, and after a kill. Each batch is written with its own schema, as JSON
lines may change their columns as they go; what is read is brought to the common type.
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


class _SpoolFile:
    """A file without a name that is appended to, then mapped."""

    def __init__(self, file: Any = None) -> None:
        """Create an empty file, or take over one that another process has written."""
        self.file = file
        try:
            self.file = file or tempfile.TemporaryFile(prefix="p2l-votes-")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            if tempfile.tempdir is not None:
                raise _disk_full(error) from error
            # No folder for temporary files can be written to; the system's message lists them.
            raise VoteError(f"votes cannot be spooled: {error.strerror}; set TMPDIR to a folder with room") from error

    def __del__(self) -> None:
        self.close()

    def write(self, content: Any) -> None:
        """Write bytes at the end."""
        try:
            self.file.write(content)
            self.file.flush()
        except OSError as error:
            raise _disk_full(error) from error

    def mapping(self) -> mmap.mmap | bytes:
        """Map the content; the map outlives the file object, and the space is free when both are gone."""
        try:
            number = self.file.fileno()
            return mmap.mmap(number, 0, access=mmap.ACCESS_READ) if os.fstat(number).st_size else b""
        except OSError as error:
            raise _disk_full(error) from error

    def close(self) -> None:
        """Close the file; its space is freed when nothing mapped is in use."""
        with contextlib.suppress(OSError):  # what could not be written is not needed any more
            if self.file is not None:
                self.file.close()


def _disk_full(error: OSError) -> VoteError:
    """Return the error for temporary files that cannot be written."""
    return VoteError(
        f"{tempfile.gettempdir()}: votes cannot be spooled there: {error.strerror or error}; "
        "set TMPDIR to a folder with more room"
    )


class RecordFile(_SpoolFile):
    """An array of fixed records."""

    def __init__(self, dtype: np.dtype[Any], file: Any = None) -> None:
        super().__init__(file)
        self._dtype = dtype

    def append(self, records: np.ndarray[Any, Any]) -> None:
        """Write records of this file's dtype at the end."""
        self.write(records.tobytes())

    def mapped(self) -> np.ndarray[Any, Any]:
        """Return all records, mapped."""
        return np.frombuffer(self.mapping(), dtype=self._dtype)


class RowFile(_SpoolFile):
    """Rows as Arrow batches: append all, then take any."""

    def __init__(self, file: Any = None, offsets: Sequence[int] = (), starts: Sequence[int] = (0,)) -> None:
        self.offsets = list(offsets)  # first byte of each batch
        self.starts = list(starts)  # first row of each batch, and the number of rows
        self._buffer: Any = None
        self._cache: dict[int, Any] = {}
        super().__init__(file)

    def append(self, batch: Any) -> None:
        """Write a batch at the end."""
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        self.offsets.append(self.file.tell())
        self.starts.append(self.starts[-1] + len(batch))
        self.write(stream.getvalue())
        self._buffer = None

    def batch(self, number: int) -> Any:
        """Return one batch, mapped."""
        if number not in self._cache:
            if self._buffer is None:
                self._buffer = pa.py_buffer(self.mapping())
            self._cache[number] = pa.ipc.open_stream(self._buffer.slice(self.offsets[number])).read_next_batch()
        return self._cache[number]

    def batches(self) -> Iterator[Any]:
        """Yield all batches in order."""
        return (self.batch(number) for number in range(len(self.offsets)))

    def schema(self) -> Any:
        """Return the schema that all rows fit."""
        return common_schema(list(dict.fromkeys(batch.schema for batch in self.batches())))

    def locate(self, row: int) -> tuple[int, int]:
        """Return the number of the batch that holds a row, and its position there."""
        number = bisect_right(self.starts, row) - 1
        return number, row - self.starts[number]

    def take(self, rows: np.ndarray[Any, Any], schema: Any) -> Any:
        """Return the rows in any order as one batch in the form of a schema that all fit."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        numbers = np.searchsorted(self.starts, ordered, side="right") - 1
        pieces = [pa.RecordBatch.from_pylist([], schema)]  # the result has columns even without rows
        for number in np.unique(numbers).tolist():
            within = ordered[numbers == number] - self.starts[number]
            pieces.append(conform(self.batch(number).take(pa.array(within)), schema))
        back = pa.array(np.argsort(order))
        columns = zip(*(piece.columns for piece in pieces), strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(column).take(back) for column in columns], schema=schema)

    def close(self) -> None:
        """Close the file; its space is freed when no batch is in use."""
        self._cache.clear()
        self._buffer = None
        super().close()


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
    """Bring a batch into the form of a schema: cast its columns, fill those it lacks with null, drop others."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    arrays = [
        as_type(batch.column(field.name), field.type) if field.name in names else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
