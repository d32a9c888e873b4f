"""JSON lines, plain or gzipped, as Arrow batches.

Blocks of whole lines go through Arrow's parser. A block it cannot take as it is (a column that is text here and a list
there, a blank line, a faulty line) goes through Python's, which is ten times slower and names the line.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from p2l.errors import VoteError
from p2l.votes.stream import RawBatch

__all__ = ["jsonl_columns", "jsonl_stream"]

_BLOCK = 8 << 20  # bytes


def jsonl_columns(path: Path) -> list[str]:
    """Keys of the first lines (up to one thousand), in order of appearance."""
    names: dict[str, None] = {}
    with _open(path) as file:
        for number, line in zip(range(1000), file, strict=False):
            if line.strip():
                names.update(dict.fromkeys(_parse(path, number + 1, line)))
    return list(names)


def jsonl_stream(path: Path, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    """Stream the file; the first row of a batch is its line number."""
    line = 1
    for block in _blocks(path):
        count = block.count(b"\n")
        for raw in _fast(block, line, count) or _slow(path, block, line):
            for start in range(0, len(raw.batch), batch_size):
                part = raw.batch.slice(start, batch_size)
                yield RawBatch(_select(part, columns), raw.first_row + start)
        line += count


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _blocks(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines, each ending in a line feed."""
    try:
        with _open(path) as file:
            while block := file.read(_BLOCK):
                block += file.readline()
                yield block if block.endswith(b"\n") else block + b"\n"
    except (OSError, EOFError, zlib.error) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error


def _fast(block: bytes, line: int, count: int) -> list[RawBatch] | None:
    """The block through Arrow's parser, or None where its result would not be one row a line with the types of JSON."""
    import pyarrow.json as pj

    try:
        table = pj.read_json(
            io.BytesIO(block), read_options=pj.ReadOptions(use_threads=False, block_size=2 * len(block))
        )
    except pa.ArrowException:
        return None
    if len(table) != count or any(_holds_timestamp(kind) for kind in table.schema.types):
        return None
    return [RawBatch(table.combine_chunks().to_batches()[0], line)]


def _holds_timestamp(kind: Any) -> bool:
    """Whether the parser took text for a time somewhere: JSON has no times, so such text must stay text."""
    if pa.types.is_struct(kind):
        return any(_holds_timestamp(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _holds_timestamp(kind.value_type)
    return bool(pa.types.is_timestamp(kind))


def _slow(path: Path, block: bytes, line: int) -> Iterator[RawBatch]:
    """The block through Python's parser, one batch for each run of lines without a blank one between."""
    numbered = enumerate(block.split(b"\n")[:-1], line)
    for filled, run in groupby(numbered, lambda item: bool(item[1].strip())):
        if filled:
            lines = list(run)
            rows = [_parse(path, number, text) for number, text in lines]
            yield RawBatch(_to_batch(path, lines[0][0], rows), lines[0][0])


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise VoteError(f"{path}: line {number}: is not UTF-8 (byte {error.start + 1})") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        raise VoteError(f"{path}: line {number}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise VoteError(f"{path}: line {number}: holds a {type(value).__name__}; every line must be an object")
    return value


def _to_batch(path: Path, line: int, rows: list[dict[str, Any]]) -> Any:
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = [_to_array(path, line, name, [row.get(name) for row in rows]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _to_array(path: Path, line: int, name: str, values: list[Any]) -> Any:
    for row, value in enumerate(values):
        if _has_surrogate(value):
            raise VoteError(f"{path}: line {line + row}: {name} holds half of a surrogate pair, which is no text")
    if name == "prompt" and any(isinstance(value, list) for value in values):
        values = [[value] if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        # Kinds that do not go together stay readable as text.
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return True
        return False
    if isinstance(value, dict):
        return any(_has_surrogate(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_has_surrogate(part) for part in value)


def _select(batch: Any, columns: Sequence[str] | None) -> Any:
    if columns is None:
        return batch
    return batch.select([name for name in columns if name in batch.schema.names])
