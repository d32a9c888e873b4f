"""Votes out of JSON lines, plain or gzipped, and of JSON values that hold rows, as Arrow batches.

Blocks of whole lines go through Arrow's parser. A block that it cannot take as it is (a column of texts and lists, a
blank line, a faulty line) goes through Python's, which is ten times slower and names the line.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from p2l.common.errors import VoteError
from p2l.common.files import DEEPEST_JSON, MAX_LINE_BYTES, bounded_lines, json_reason, no_object, parse_json
from p2l.votes.containers import TableFile, TemporaryFile, head_of
from p2l.votes.kinds.kind import read_document
from p2l.votes.kinds.texts import RowError, has_surrogate, prompt_turns
from p2l.votes.rows import MODEL_COLUMNS, RawBatch, Source

_ROW_KEYS = ("data", "rows", "items", "votes", "annotations", "results", "examples", "events", "runs")
"""Keys under which exports hold their rows, beside keys that describe them."""
_ROW_MARKS = frozenset({"model", "model_a", "model_1", "prompt", "question"})  # columns of which one is in most tables
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096
_BLOCK_BYTES = 8 << 20
_SAMPLE_BYTES = 64 << 20
_SAMPLE_LINES = 1_000
_TOO_LONG = f"is longer than {MAX_LINE_BYTES >> 20} MiB; leave it out, or cut its prompt"
_MAX_CELLS = 50_000_000  # keys by objects of a block: Arrow has a place for each
# A text without escaped quotes, and whether it is a key; one without an end reaches to the end of its line.
_STRING = re.compile(rb'"([^"]*)(?:"(\s*:)?)?')
_BRACKET = re.compile(rb"[\[\]{}]")
_LEVELS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def open_jsonl(path: TableFile) -> Source:
    """Open JSON lines; the columns are the keys of the first thousand lines."""
    names: dict[str, None] = {}
    first_fault = ""
    with _open_text(path) as file:
        for number, (line, length) in enumerate(islice(bounded_lines(file), _SAMPLE_LINES), 1):
            try:
                if length > MAX_LINE_BYTES:
                    raise RowError(_TOO_LONG)
                if line.strip():
                    names.update(dict.fromkeys(_parse(line)))
            except RowError as error:
                first_fault = first_fault or f"line {number}: {error}"
            if file.tell() > _SAMPLE_BYTES:
                break
    if first_fault and not names:
        raise VoteError(
            f"{path}: none of its first lines is an object ({first_fault}), so --drop-bad would keep nothing; leave "
            "the file out"
        )
    odd = _OddValues({}, {})
    read = partial(_read, path, odd)
    return Source(str(path), list(names), read, unit="line", faults=odd.faults, loose=odd.loose)


class _OddValues(NamedTuple):
    """Values that are not as others of their column; see `Source`."""

    faults: dict[int, str]
    loose: dict[str, set[int]]


def _read(path: TableFile, odd: _OddValues, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    """Yield the rows; a line with a value that cannot be read is null there, and a fault."""
    parser = _ArrowParser(path)
    for line, block in _blocks(path, odd.faults):
        for batch, first in parser.parse(block, line) or _parse_with_python(odd, block, line, columns):
            if columns is not None:
                batch = batch.select([name for name in columns if name in batch.schema.names])
            starts = range(0, len(batch), batch_size)
            yield from (RawBatch(batch.slice(start, batch_size), first + start) for start in starts)


def _open_text(path: TableFile) -> IO[bytes]:
    return gzip.open(path.path) if head_of(path.path, 2) == _GZIP else path.open()  # type: ignore[return-value]


def begins_object(path: TableFile) -> bool:
    """Return whether a file that is packed by gzip begins like lines of JSON, or is damaged, which its reader tells."""
    if head_of(path.path, 2) != _GZIP:
        return False
    try:
        with _open_text(path) as file:
            return file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"
    except (OSError, EOFError, zlib.error):
        return True


def _blocks(path: TableFile, faults: dict[int, str]) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each ending in a line feed, with the number of their first line.

    A line that is too long is a fault, and stands there as an object without keys.
    """
    line = 1
    try:
        with _open_text(path) as file:
            while block := file.read(_BLOCK_BYTES):
                end = file.readline(MAX_LINE_BYTES + 1)
                start = block.rfind(b"\n") + 1  # of the line that goes on in `end`
                if end and len(block) - start + len(end) > MAX_LINE_BYTES:
                    while end and not end.endswith(b"\n"):
                        end = file.readline(_BLOCK_BYTES)
                    faults[line + block.count(b"\n")] = _TOO_LONG
                    block, end = block[:start], b"{}\n"
                block += end
                yield line, block if block.endswith(b"\n") else block + b"\n"
                line += block.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error


class _ArrowParser:
    """Parses blocks with Arrow, where they give one row a line with the types of JSON."""

    def __init__(self, path: TableFile) -> None:
        self._path = path
        self._schema: Any = None
        self._fields = 0

    def parse(self, block: bytes, line: int) -> list[RawBatch] | None:
        """Return the rows of a block; None where it has to be parsed with Python. Raise VoteError for a bomb."""
        import pyarrow.json as pj

        read = pj.ReadOptions(use_threads=False, block_size=2 * len(block))
        lines, objects = block.count(b"\n"), block.count(b"{")
        table: Any = None
        if self._schema is not None and objects * self._fields <= _MAX_CELLS:
            options = pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="error")
            with contextlib.suppress(pa.ArrowException):
                table = pj.read_json(io.BytesIO(block), read, options)
        if table is None:
            # The block has other keys or deeper values than those before. They are counted only now, since that takes
            # as long as parsing: Arrow makes a column of every key, with a place for every object of the block, and
            # ends the process where values nest too deep.
            keys, is_object_per_line = _check_shape(self._path, block, line)
            if objects * keys > _MAX_CELLS:
                lines_of_block = f"lines {line} to {line + lines - 1}"
                raise VoteError(f"{self._path}: {lines_of_block}: hold {keys:,} different keys; write them as a list")
            if not is_object_per_line:
                return None
            try:
                table = pj.read_json(io.BytesIO(block), read)
                _decode_names(table.schema)
            except (pa.ArrowException, UnicodeDecodeError):
                return None
            if any(_holds_timestamp(kind) for kind in table.schema.types):
                return None
            self._schema = table.schema
            self._fields = keys
        # It reads lists of several nulls, and nothing else, with too few values. Rows without columns have no length.
        is_whole = len(table) == lines and table.num_columns > 0 and _is_sound(table)
        return [RawBatch(table.combine_chunks().to_batches()[0], line)] if is_whole else None


def _is_sound(table: Any) -> bool:
    try:
        table.validate()
    except pa.ArrowInvalid:
        return False
    return True


def _check_shape(path: TableFile, block: bytes, line: int) -> tuple[int, bool]:
    """Return the number of different keys of a block, at any depth, and whether each line may be a whole object.

    Raise VoteError where a line nests too deep.
    """
    # For Arrow, values may go on in the next line where not every line begins and ends an object, and nest deeper.
    keys = set[bytes]()
    is_object_per_line = True
    plain = _without_escapes(block)
    for number, text in enumerate(plain[:-1].split(b"\n"), line):
        is_object_per_line &= text[:1] == b"{" and text.endswith((b"}", b"}\r"))
        if text.count(b"[") + text.count(b"{") > DEEPEST_JSON:
            depth = np.cumsum([_LEVELS[sign] for sign in _BRACKET.findall(_STRING.sub(b"", text))])
            if depth.max(initial=0) > DEEPEST_JSON:
                raise VoteError(f"{path}: line {number}: is nested deeper than {DEEPEST_JSON} levels")
        keys.update(match[1] for match in _STRING.finditer(text) if match[2])
    return len(keys), is_object_per_line


def _without_escapes(text: bytes) -> bytes:
    return text.replace(rb"\\", b"").replace(rb"\"", b"")


def has_too_many_keys(texts: Sequence[str]) -> bool:
    """Return whether a column of these JSON texts would have too many keys by objects for Arrow."""
    keys = {match[1] for text in texts for match in _STRING.finditer(_without_escapes(text.encode())) if match[2]}
    return len(keys) * sum(text.count("{") for text in texts) > _MAX_CELLS


def _decode_names(fields: Iterable[Any]) -> None:
    """Raise UnicodeDecodeError for a key that is not UTF-8, at any depth: Arrow fails only where it is asked for."""
    for field in fields:
        str(field.name)
        if pa.types.is_struct(field.type):
            _decode_names(field.type)
        elif pa.types.is_list(field.type):
            _decode_names([field.type.value_field])


def _holds_timestamp(kind: Any) -> bool:
    """Return whether the parser took text for a time somewhere: JSON has no times, so such text must stay text."""
    if pa.types.is_struct(kind):
        return any(_holds_timestamp(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _holds_timestamp(kind.value_type)
    return bool(pa.types.is_timestamp(kind))


def _parse_with_python(odd: _OddValues, block: bytes, line: int, columns: Sequence[str] | None) -> Iterator[RawBatch]:
    """Parse the block with Python, one batch for each run of lines without a blank one between."""
    numbered = enumerate(block.split(b"\n")[:-1], line)
    for filled, run in groupby(numbered, lambda item: bool(item[1].strip())):
        if filled:
            lines = list(run)
            first = lines[0][0]
            rows = [_parsed(odd.faults, number, text) for number, text in lines]
            names = list(dict.fromkeys(name for row in rows for name in row if columns is None or name in columns))
            arrays = [_to_array(odd, first, name, [row.get(name) for row in rows]) for name in names]
            if not names:  # none of the columns that are asked for
                names, arrays = [""], [pa.nulls(len(rows))]
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=names), first)


def _parsed(faults: dict[int, str], number: int, line: bytes) -> dict[str, Any]:
    """Return the object of a line; one that cannot be read is a fault, and has no keys."""
    try:
        return _parse(line)
    except RowError as error:
        faults[number] = str(error)
        return {}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except UnicodeDecodeError as error:
        raise RowError(f"is not UTF-8 (byte {error.start + 1})") from error
    except ValueError as error:  # a number of 5,000 digits is one too
        raise RowError(f"is not JSON: {json_reason(error)}") from error
    if not isinstance(value, dict):
        raise RowError(f"{no_object(value)}; every line must be an object")
    if any(has_surrogate(name) for name in value):
        raise RowError("a key holds half of a surrogate pair, which is not text")
    return value


def _to_array(odd: _OddValues, first: int, name: str, values: list[Any]) -> Any:
    """Return the values of a field in lines from `first` on; what is no text is a fault, and null."""
    faults = odd.faults
    for place, value in enumerate(values):
        if has_surrogate(value):
            faults[first + place] = f"{name} holds half of a surrogate pair, which is not text"
            values[place] = None
    if name in MODEL_COLUMNS and any(isinstance(value, str) for value in values):
        for place, value in enumerate(values):
            if not isinstance(value, str | None):
                faults[first + place] = f"{name} is not text"
                values[place] = None
    if name == "prompt" and any(isinstance(value, list) for value in values):
        values = [[value] if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        if name == "prompt" and any(isinstance(value, list) for value in values):
            return pa.array(_turns_of_messages(faults, first, values), pa.list_(pa.string()))
        # Values of several types stay readable as text.
        others = [place for place, value in enumerate(values) if not isinstance(value, str | None)]
        odd.loose.setdefault(name, set()).update(first + place for place in others)
        for place in others:
            values[place] = json.dumps(values[place])
        return pa.array(values)


def _turns_of_messages(faults: dict[int, str], first: int, prompts: Sequence[Any]) -> list[list[str] | None]:
    """Return the turns of prompts whose messages are of several types, as texts and parts are."""
    turns: list[list[str] | None] = []
    for line, prompt in enumerate(prompts, first):
        try:
            turns.append(None if prompt is None else prompt_turns(prompt))
        except RowError as error:
            turns.append(None)
            faults[line] = str(error)
    return turns


# A file that is one JSON value: it is parsed whole, and its rows are written as JSON lines into a temporary file.


def open_json(file: TableFile) -> Source:
    """Open a file that is one JSON value; its unit is `document` where it is one object and no list of rows."""
    value = read_document(file.path, file.name)
    rows = rows_of(value)
    unit = "row"
    if rows is None:
        if not isinstance(value, dict):
            raise VoteError(f"{file}: is a JSON value without rows; rows are objects in a list, or one on each line")
        rows, unit = [value], "document"
    if not rows:
        raise VoteError(f"{file}: holds no rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise VoteError(f"{file}: row {number} is not an object")
    return replace(open_rows(file, rows), unit=unit, rows=len(rows))


def open_rows(file: TableFile, rows: Iterable[Mapping[str, Any]]) -> Source:
    """Open the rows of a file, written as JSON lines into a temporary file; VoteError where there is none."""
    temporary = TemporaryFile()
    with temporary.path.open("w", encoding="ascii") as lines:
        lines.writelines(f"{json.dumps(row)}\n" for row in rows)
    if not temporary.path.stat().st_size:
        raise VoteError(f"{file}: holds no rows")
    return replace(open_jsonl(TableFile(temporary.path, file.name, temporary=temporary)), unit="row")


def rows_of(value: Any) -> list[Any] | None:
    """Return the rows of a JSON value; None where it is one object without rows."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return None
    for key in _ROW_KEYS:
        rows = value.get(key)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            continue
        if len(value) > 1 and key == "results":  # promptfoo and Terminal-Bench say beside them whose results these are
            continue
        # The viewer of data sets on the hub wraps each row.
        return [row["row"] if isinstance(row.get("row"), dict) and "row_idx" in row else row for row in rows]
    return _rows_of_columns(value)


def _rows_of_columns(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object as pandas writes it: {column: {index: value}}, {column: [values]}, or by rows."""
    columns = list(value.values())
    names, data = value.get("columns"), value.get("data")
    if isinstance(names, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):  # `split`
        return (
            [dict(zip(names, row, strict=True)) for row in data]
            if all(len(row) == len(names) for row in data)
            else None
        )
    if all(isinstance(row, dict) and _ROW_MARKS & row.keys() for row in columns):  # `index`
        return columns
    if len(columns) < 2 or not _ROW_MARKS & value.keys():
        return None
    if all(isinstance(column, dict) for column in columns):
        index = list(columns[0])
        if index and all(list(column) == index for column in columns):
            return [{name: column[key] for name, column in value.items()} for key in index]
    if all(isinstance(column, list) for column in columns) and len({len(column) for column in columns}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return None
