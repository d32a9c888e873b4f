"""Write votes in the format that a file's ending names, or into a lake: whole or not at all, a batch at a time.

In CSV, which has no lists, a prompt is the JSON text of its turns, and other lists and objects are JSON text too; an
empty field is null; a text that a spreadsheet would run is quoted (`p2l.common.spreadsheets`). JSON lines hold null for
NaN.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.errors import InputError, VoteError
from p2l.common.files import atomic_path, no_nan
from p2l.common.spreadsheets import formulas, to_cell, to_cells
from p2l.votes.lake import Commit, Lake
from p2l.votes.reading import open_vote_source, read_votes
from p2l.votes.rows import Source
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


# Add files of votes to a lake, each once. `p2l.online_training.router_votes` adds those of a router.

_CHUNK_BYTES = 1 << 24
_IDENTITY_DIGITS = 16


class Added(NamedTuple):
    """Number of votes that a run has added."""

    votes: int
    days: int
    dropped: int  # rows that are not votes, left out
    is_new: bool  # whether the source was not there before


def add_file(lake: Lake, name: str, *, drop_bad: bool = False, split: str = "train") -> Added:
    """Add the votes of a file or a data set, unless they are there; raise InputError for a file that has changed."""
    source = open_vote_source(name, split=split)
    place = str(Path(source.name).expanduser().absolute()) if Path(source.name).expanduser().exists() else source.name
    identity = _identity(source)
    for commit in lake.commits:
        if commit.identity == identity:
            return Added(votes=0, days=0, dropped=0, is_new=False)
        if commit.source == place:
            # Nobody can tell which of its votes are in the lake already.
            raise InputError(
                f"{name}: has changed since it was added to {lake.name}; write the votes that are new to another file"
            )
    dropped = 0

    def batches() -> Iterator[Any]:
        nonlocal dropped
        for batch in read_votes(source, need_prompt=False, drop_bad=drop_bad):
            dropped += batch.dropped
            if len(batch):
                yield batch.batch

    commit = lake.add(batches(), name=f"file-{identity}", source=place, identity=identity)
    return added_by(commit, dropped)


def added_by(commit: Commit, dropped: int = 0) -> Added:
    """Return the number of votes and days of a commit."""
    return Added(
        votes=sum(part.rows for part in commit.parts),
        days=len({part.day for part in commit.parts}),
        dropped=dropped,
        is_new=True,
    )


def _identity(source: Source) -> str:
    """Return a digest of the content of a file, or of the fingerprint of a data set."""
    digest = hashlib.sha256()
    path = Path(source.name).expanduser()
    if path.is_file():
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise VoteError(f"{source.name}: cannot be read: {error.strerror or error}") from error
    elif source.version is not None:
        digest.update(f"{source.name}\0{source.version}".encode())
    else:
        raise InputError(f"{source.name}: nothing tells whether its votes are in the lake; write them to a file")
    return digest.hexdigest()[:_IDENTITY_DIGITS]
