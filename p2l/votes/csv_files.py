"""CSV files as Arrow batches.

A CSV file has no types, so a first pass over it finds for every column beyond the vote schema the narrowest kind that
all its values have: true/false, integer, float, JSON (objects or lists), else text. An id such as 007 is text. Columns
of the schema are read as text and converted by the schema. An empty field is null, a quoted empty field is the empty
text. Row 1 is the header.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from p2l.common.errors import VoteError, first_line
from p2l.common.files import parse_json
from p2l.common.spreadsheets import of_cells
from p2l.votes.containers import TableFile
from p2l.votes.json_lines import has_too_many_keys
from p2l.votes.rows import RawBatch, Source, is_valid

_BLOCK_BYTES = 16 << 20  # also the longest record
_MAX_HEADER_CHARS = 1 << 20
_TEXT_COLUMNS = frozenset({"prompt", "model_a", "model_b", "winner", "labels", "question_id"})
_PATTERNS = {
    "bool": r"^(?i:true|false)$",
    "int": r"^-?(0|[1-9]\d{0,17})$",
    "float": r"^-?((0|[1-9]\d{0,17})(\.\d*)?|\.\d+)([eE][+-]?\d+)?$|^(?i:-?inf|nan)$",
    "json": r"(?s)^\s*[\[{].*[\]}]\s*$",
}
"""The kinds of values, the narrowest first."""


def open_csv(path: TableFile) -> Source:
    """Open a CSV file; VoteError for a header that names no columns."""
    try:
        # Bytes that are not UTF-8 may lie in the rows that are read ahead; these are checked one by one later.
        with path.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            text = io.StringIO(file.read(_MAX_HEADER_CHARS), newline="")
        names = next(csv.reader(text, delimiter=path.separator), [])
        if text.tell() == _MAX_HEADER_CHARS:
            raise csv.Error(f"it is longer than {_MAX_HEADER_CHARS >> 20} MiB")
    except csv.Error as error:
        raise VoteError(f"{path}: row 1: the header cannot be read: {error}") from error
    if not any(names) or names.count("") > 1:
        raise VoteError(f"{path}: row 1: leaves columns without a name; the first row must name them all")
    if any(mark in name for name in names for mark in "\0\ufffd"):
        raise VoteError(f"{path}: row 1: the header is not UTF-8 text; save the file as UTF-8")
    read, texts = partial(_read, path, names), partial(_read_texts, path, names)
    return Source(str(path), names, read, text_lists=True, texts=texts)


def _read_texts(
    path: TableFile, names: list[str], columns: Sequence[str] | None, batch_size: int
) -> Iterator[RawBatch]:
    """Yield the rows as they stand: every field as text."""
    row = 2
    for block in _text_batches(path, names, names if columns is None else list(columns)):
        for start in range(0, len(block), batch_size):
            yield RawBatch(block.slice(start, batch_size), row)
            row += len(block.slice(start, batch_size))


def _read(path: TableFile, names: list[str], columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    """Yield the rows, extra columns converted to the kinds that all their values have."""
    chosen = names if columns is None else list(columns)
    kinds = _kinds(path, names, chosen)
    row = 2
    for block in _text_batches(path, names, chosen):
        for start in range(0, len(block), batch_size):
            batch = block.slice(start, batch_size)
            arrays = [_convert(name, batch.column(name), kinds[name]) for name in batch.schema.names]
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=batch.schema.names), row)
            row += len(batch)


def _text_batches(path: TableFile, names: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
    """Yield all fields as text, not yet checked for UTF-8: the caller knows the row numbers."""
    convert = pc_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )
    parse = pc_csv.ParseOptions(delimiter=path.separator, newlines_in_values=True)
    read = pc_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
    try:
        with pc_csv.open_csv(str(path.path), read, parse, convert) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error) or not names:
            raise VoteError(f"{path}: holds no rows") from error
        if "straddles two block boundaries" in str(error):
            raise VoteError(
                f"{path}: row {_long_row(path)}: is longer than {_BLOCK_BYTES >> 20} MiB; cut its prompt, or close the "
                "quotation mark that it lacks"
            ) from error
        raise VoteError(f"{path}: is not CSV as it should be: {first_line(error)}") from error


def _long_row(path: TableFile) -> int:
    """Return the number of the first row with a field that is longer than a row may be."""
    number = 1
    limit = csv.field_size_limit(_BLOCK_BYTES // 2)  # a row is too long that holds a whole block
    try:
        with path.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            for _ in csv.reader(file, delimiter=path.separator):
                number += 1
    except csv.Error:
        pass
    finally:
        csv.field_size_limit(limit)
    return number


def _kinds(path: TableFile, names: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Return the narrowest kind of every column."""
    candidates = {name: [] if name in _TEXT_COLUMNS else list(_PATTERNS) for name in columns}
    filled: set[str] = set()
    if any(candidates.values()):
        for batch in _text_batches(path, names, [name for name in columns if candidates[name]]):
            for name in batch.schema.names:
                values = batch.column(name).drop_null()
                candidates[name] = [kind for kind in candidates[name] if _all_are(values, kind)]
                filled.update([name] if len(values) else [])
    return {name: kinds[0] if kinds and name in filled else "text" for name, kinds in candidates.items()}


def _all_are(values: Any, kind: str) -> bool:
    if not is_valid(values) or pc.all(pc.match_substring_regex(values, _PATTERNS[kind])).as_py() is False:
        return False
    if kind == "json":
        texts = values.to_pylist()
        try:
            for text in texts:
                parse_json(text)
        except ValueError:
            return False
        return not has_too_many_keys(texts)
    return True


def _convert(name: str, cells: Any, kind: str) -> Any:
    # A prompt is never quoted, and may begin like a cell that is.
    column = cells if name == "prompt" else of_cells(cells)
    if kind == "json":
        try:
            return pa.array([None if text is None else parse_json(text) for text in column.to_pylist()])
        except (
            pa.ArrowException,
            OverflowError,
            UnicodeEncodeError,
        ):  # lists of several types stay text, as do halves of letters
            return column.cast(pa.string())
    if kind == "bool":
        return pc.equal(pc.utf8_lower(column), "true")
    return column.cast({"int": pa.int64(), "float": pa.float64(), "text": pa.string()}[kind])
