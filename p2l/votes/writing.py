"""Write votes in the format that a file's ending names: whole or not at all, a batch at a time.

In CSV, which has no lists, a prompt is the JSON text of its turns, and other lists and objects are JSON text too; an
empty field is null; a text that a spreadsheet would run is quoted (`p2l.common.spreadsheets`). JSON lines hold null for
NaN.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.files import atomic_path, no_nan
from p2l.common.spreadsheets import formulas, to_cell, to_cells
from p2l.votes.sources import file_kind
from p2l.votes.spool import conform

Write = Callable[[Any], None]
_GZIP_LEVEL = 5  # a third of the time of the default, for files a twentieth larger


def write_votes(batches: Iterable[Any], schema: Any, path: str | Path) -> int:
    """Write Arrow batches to `path`; returns the number of rows."""
    count = 0
    with open_writer(path, schema) as write:
        for batch in batches:
            write(batch)
            count += len(batch)
    return count


def holds(path: str | Path, batch: Any) -> bool:
    """Return whether a file holds the very rows of an Arrow batch and nothing else, as `write_votes` writes them."""
    import pyarrow.parquet as pq

    kind = file_kind(path)
    try:
        if kind == ".parquet":  # bytes differ between versions of the writer
            return bool(pq.ParquetFile(path).read().equals(pa.Table.from_batches([batch])))
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / f"rows{kind}"
            write_votes([batch], batch.schema, written)
            contents = [Path(path).read_bytes(), written.read_bytes()]
            if kind.endswith(".gz"):
                contents = [gzip.decompress(content) for content in contents]
    except (pa.ArrowException, OSError, EOFError, zlib.error):
        return False
    return contents[0] == contents[1]


@contextlib.contextmanager
def open_writer(path: str | Path, schema: Any = None) -> Iterator[Write]:
    """Yield a function that appends batches to `path`, each brought to `schema` first; see `write_votes`.

    Without a schema it is that of the first batch, and there must be one.
    """
    open_format = _WRITERS[file_kind(path)]
    with atomic_path(path) as temporary, contextlib.ExitStack() as files:
        writer = None if schema is None else files.enter_context(open_format(schema, temporary))

        def write(batch: Any) -> None:
            nonlocal writer, schema
            if writer is None:
                schema = batch.schema
                writer = files.enter_context(open_format(schema, temporary))
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

        def write(batch: Any) -> None:
            for row in batch.to_pylist():
                try:
                    text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=as_text)
                except ValueError:  # NaN, which few rows have: to look for it in each takes as long as to write it
                    text = json.dumps(no_nan(row), ensure_ascii=False, default=as_text)
                file.write(text.encode() + b"\n")

        yield write


@contextlib.contextmanager
def _csv(schema: Any, path: Path) -> Iterator[Write]:
    import pyarrow.csv as pc_csv

    # An integer, a number and a truth value stay as they are.
    plain = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
    is_plain = [any(test(field.type) for test in plain) for field in schema]
    kinds = [field.type if stays else pa.string() for field, stays in zip(schema, is_plain, strict=True)]
    flat = pa.schema(list(zip(map(to_cell, schema.names), kinds, strict=True)))

    def write(batch: Any) -> None:
        columns = zip(schema.names, batch.columns, is_plain, strict=True)
        arrays = [column if stays else _cells(name, _text(column)) for name, column, stays in columns]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=flat))

    with pc_csv.CSVWriter(path, flat) as writer:
        yield write


def _cells(name: str, texts: Any) -> Any:
    """Return text of a column of which a spreadsheet runs nothing; a prompt that begins a formula becomes a list."""
    if name != "prompt":
        return to_cells(texts)
    begun = formulas(texts)
    if not pc.any(begun).as_py():
        return texts
    pairs = zip(texts.to_pylist(), begun.to_pylist(), strict=True)
    return pa.array(
        [json.dumps([text], ensure_ascii=False) if is_formula else text for text, is_formula in pairs], pa.string()
    )


def _text(column: Any) -> Any:
    if pa.types.is_nested(column.type):
        dump = json.JSONEncoder(ensure_ascii=False, default=as_text).encode
        return pa.array([None if value is None else dump(value) for value in column.to_pylist()], pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # bytes, lengths of time
        return pa.array([None if value is None else as_text(value) for value in column.to_pylist()], pa.string())


def as_text(value: Any) -> str:
    """Convert a value that JSON and CSV lack: bytes to base64, times and the like as Python writes them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_WRITERS: dict[str, Callable[[Any, Path], contextlib.AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".jsonl.gz": lambda schema, path: _jsonl(schema, path, compress=True),
    ".csv": _csv,
}
