"""Write votes in the format that a file's ending names: whole or not at all, a batch at a time.

In CSV, which has no lists, a prompt is the JSON text of its turns, and other lists and objects are JSON text too; an
empty field is null. JSON lines hold null for NaN.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.command import atomic_path
from p2l.votes.sources import file_kind
from p2l.votes.spool import conform

__all__ = ["as_text", "no_nan", "open_writer", "write_votes"]

Write = Callable[[Any], None]

_GZIP_LEVEL = 5  # a third of the time of the default, for files a twentieth larger


def write_votes(batches: Iterable[Any], schema: Any, path: str | Path) -> int:
    """Write Arrow batches to `path`; returns the number of rows.

    Raises:
        VoteError: the ending of `path` names no format.
        InputError: the file cannot be written.
    """
    count = 0
    with open_writer(path, schema) as write:
        for batch in batches:
            write(batch)
            count += len(batch)
    return count


@contextlib.contextmanager
def open_writer(path: str | Path, schema: Any = None) -> Iterator[Write]:
    """A function that appends batches to `path`, each brought to `schema` first; see `write_votes`.

    Without a schema it is that of the first batch, and there must be one.
    """
    make = _WRITERS[file_kind(path)]
    with atomic_path(path) as temporary, contextlib.ExitStack() as files:
        writer = None if schema is None else files.enter_context(make(schema, temporary))

        def write(batch: Any) -> None:
            nonlocal writer, schema
            if writer is None:
                schema = batch.schema
                writer = files.enter_context(make(schema, temporary))
            if len(batch):
                writer(conform(batch, schema))

        yield write


@contextlib.contextmanager
def _parquet(schema: Any, path: Path) -> Iterator[Write]:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _jsonl(_: Any, path: Path, *, compress: bool = False) -> Iterator[Write]:
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("wb"))
        if compress:
            # Neither name nor time inside, so that the same votes give the same bytes.
            file = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        yield lambda batch: file.writelines(_lines(batch))


def _lines(batch: Any) -> Iterator[bytes]:
    for row in batch.to_pylist():
        try:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=as_text)
        except ValueError:
            text = json.dumps(no_nan(row), ensure_ascii=False, default=as_text)
        yield text.encode() + b"\n"


def no_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place, at any depth."""
    if isinstance(value, dict):
        return {key: no_nan(part) for key, part in value.items()}
    if isinstance(value, list):
        return [no_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _csv(schema: Any, path: Path) -> Iterator[Write]:
    import pyarrow.csv as pc_csv

    fields = [(field.name, pa.string() if _needs_text(field.type) else field.type) for field in schema]
    with pc_csv.CSVWriter(path, pa.schema(fields)) as writer:
        yield lambda batch: writer.write_batch(_flat(batch, pa.schema(fields)))


def _needs_text(kind: Any) -> bool:
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _flat(batch: Any, schema: Any) -> Any:
    arrays = [_text(column) if _needs_text(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(column: Any) -> Any:
    if pa.types.is_nested(column.type):
        dump = json.JSONEncoder(ensure_ascii=False, default=as_text).encode
        return pa.array([None if value is None else dump(value) for value in column.to_pylist()], pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # bytes, lengths of time
        return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def as_text(value: Any) -> str:
    """What neither JSON nor CSV has: bytes as base64, times and the like as Python writes them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_WRITERS: dict[str, Callable[[Any, Path], contextlib.AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".jsonl.gz": lambda schema, path: _jsonl(schema, path, compress=True),
    ".csv": _csv,
}
