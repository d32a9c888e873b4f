"""Votes on disk: rows as Arrow batches and numbers as fixed records, both memory-mapped; what others' files unpack to.

The files have no name: they are deleted while open (in TMPDIR, else the system's folder for temporary files), so that
their space is free again at `close`, at exit, and after a kill. Each batch is written with its own schema, as JSON
lines may change their columns as they go; what is read is brought to the common type.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from p2l.common.errors import VoteError


class SpoolFile:
    """A file without a name that is appended to, then mapped."""

    def __init__(self, file: Any = None) -> None:
        """Create an empty file, or take over one that another process has written."""
        self.file = file
        if file is None:
            self.file = _new_file()

    def __del__(self) -> None:
        self.close()

    def write(self, content: Any) -> None:
        """Write bytes at the end."""
        try:
            self.file.write(content)
            self.file.flush()
        except OSError as error:
            raise disk_full(error) from error

    def mapping(self) -> mmap.mmap | bytes:
        """Map what is written; the map outlives the file object, and the space is free when both are gone."""
        try:
            number = self.file.fileno()
            return mmap.mmap(number, 0, access=mmap.ACCESS_READ) if os.fstat(number).st_size else b""
        except OSError as error:
            raise disk_full(error) from error

    def close(self) -> None:
        """Close the file; its space is freed when nothing mapped is in use."""
        with contextlib.suppress(OSError):  # what could not be written is not needed any more
            if self.file is not None:
                self.file.close()


def _new_file() -> Any:
    try:
        return tempfile.TemporaryFile(prefix="p2l-votes-")
    except OSError as error:
        if tempfile.tempdir is None:  # no folder for temporary files can be written to; the message lists them
            raise VoteError(f"votes cannot be spooled: {error.strerror}; set TMPDIR to a folder with room") from error
        raise disk_full(error) from error


def disk_full(error: OSError) -> VoteError:
    """Return the error for temporary files that cannot be written."""
    return VoteError(
        f"{tempfile.gettempdir()}: votes cannot be spooled there: {error.strerror or error}; "
        "set TMPDIR to a folder with more room"
    )


class RecordFile(SpoolFile):
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


class RowFile(SpoolFile):
    """Rows as Arrow batches: append all, then take any."""

    def __init__(self, file: Any = None, offsets: Sequence[int] = (), starts: Sequence[int] = (0,)) -> None:
        self.offsets = list(offsets)
        """First byte of each batch."""
        self.starts = list(starts)
        """First row of each batch, and the number of rows."""
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
        """Number of the batch that holds a row, and its position there."""
        number = bisect_right(self.starts, row) - 1
        return number, row - self.starts[number]

    def take(self, rows: np.ndarray[Any, Any], schema: Any) -> Any:
        """Return the rows in any order as one batch in the form of a schema that all fit."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        numbers = np.searchsorted(self.starts, ordered, side="right") - 1
        parts = [pa.RecordBatch.from_pylist([], schema)]  # what is taken has columns even without rows
        for number in np.unique(numbers).tolist():
            within = ordered[numbers == number] - self.starts[number]
            parts.append(conform(self.batch(number).take(pa.array(within)), schema))
        back = pa.array(np.argsort(order))
        columns = zip(*(part.columns for part in parts), strict=True)
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


# Arrow files of others. Their buffers may be compressed, and are unpacked whole when a batch is read; so the sizes that
# stand before the buffers are added up first. Messages are flatbuffers, of which four tables are read here:
# https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc

_HEADERS_WITH_BUFFERS = {2: 1, 3: None}
"""Kind of a message -> the field in which a dictionary has its batch; a batch itself has none."""
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_UNCOMPRESSED = -1
_ROW_BYTES = 8  # even where a column stores nothing
_SMALL_BYTES = 1 << 30  # what any machine can take
_MOST_PER_BYTE = 100  # bytes that one of the file may stand for beyond that: all of them come into memory


def check_unpacked(path: Path) -> None:
    """Raise VoteError where the batches of an Arrow stream unpack to far more than is stored."""
    try:
        stored = path.stat().st_size
        with pa.memory_map(str(path)) as file:
            messages = pa.ipc.MessageReader.open_stream(file)
            unpacked = sum(_message_size(message.metadata.to_pybytes(), message.body) for message in messages)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VoteError(f"{path}: cannot be read as an Arrow stream: {reason}") from error
    if unpacked > max(_SMALL_BYTES, _MOST_PER_BYTE * stored):
        raise VoteError(
            f"{path}: its {stored / 1e3:,.0f} kB unpack to some {unpacked / 1e9:,.1f} GB, which votes do not; "
            "write it anew without compression"
        )


def _message_size(metadata: bytes, body: Any) -> int:
    message = _Table(metadata, _number(metadata, 0, "<I"))
    kind = message.field(1)
    header = message.table(2)
    if kind is None or header is None or metadata[kind] not in _HEADERS_WITH_BUFFERS:
        return 0
    inner = _HEADERS_WITH_BUFFERS[metadata[kind]]
    batch = header if inner is None else header.table(inner)
    if batch is None:
        return 0
    length, buffers = batch.field(_LENGTH), batch.field(_BUFFERS)
    size = 0 if length is None else _ROW_BYTES * max(0, _number(metadata, length, "<q"))
    if buffers is None:
        return size
    start = buffers + _number(metadata, buffers, "<I")
    is_compressed = batch.field(_COMPRESSION) is not None
    for place in range(start + 4, start + 4 + 16 * _number(metadata, start, "<I"), 16):
        offset, stored = _number(metadata, place, "<q"), _number(metadata, place + 8, "<q")
        size += _buffer_size(body, offset, stored) if is_compressed else stored
    return size


def _buffer_size(body: Any, offset: int, length: int) -> int:
    """Return what a buffer unpacks to, which stands before it."""
    if length < 8:
        return length
    unpacked = _number(memoryview(body), offset, "<q")
    return length - 8 if unpacked == _UNCOMPRESSED else unpacked


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, buffer: bytes, start: int) -> None:
        self._buffer, self._start = buffer, start
        self._vtable = start - _number(buffer, start, "<i")

    def field(self, number: int) -> int | None:
        """Return where a field is; None for one that is left out."""
        place = 4 + 2 * number
        if place >= _number(self._buffer, self._vtable, "<H"):
            return None
        offset = _number(self._buffer, self._vtable + place, "<H")
        return self._start + offset if offset else None

    def table(self, number: int) -> _Table | None:
        """Return the table that a field refers to."""
        place = self.field(number)
        return None if place is None else _Table(self._buffer, place + _number(self._buffer, place, "<I"))


def _number(buffer: bytes | memoryview, place: int, form: str) -> int:
    if place < 0:
        raise ValueError("an offset before its beginning")
    return int(struct.unpack_from(form, buffer, place)[0])
