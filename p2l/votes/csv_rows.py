"""CSV as Arrow batches.

A CSV file has no types, so a first pass over it finds for every column beyond the vote schema the narrowest kind that
all its values have: true/false, integer, float, JSON (objects or lists), else text. An id such as 007 is text.
Columns of the schema are read as text and converted by the schema. An empty field is null, a quoted empty field is the
empty text. Row 1 is the header.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from p2l.errors import VoteError
from p2l.votes.stream import RawBatch

__all__ = ["csv_columns", "csv_stream"]

_BLOCK = 8 << 20  # bytes; also the longest record
_TEXT = frozenset({"prompt", "model_a", "model_b", "winner", "labels", "question_id"})
_PATTERNS = {
    "bool": r"^(?i:true|false)$",
    "int": r"^-?(0|[1-9]\d{0,17})$",
    "float": r"^-?((0|[1-9]\d{0,17})(\.\d*)?|\.\d+)([eE][+-]?\d+)?$|^(?i:-?inf|nan)$",
    "json": r"(?s)^\s*[\[{].*[\]}]\s*$",
}


def csv_columns(path: Path) -> list[str]:
    """Names in the header.

    Raises:
        VoteError: the header is no UTF-8, is separated by something else than commas, or a name occurs twice.
    """
    try:
        # Bytes that are no UTF-8 may lie anywhere in what is read ahead; the rows are checked one by one later.
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            names = next(csv.reader(file), [])
    except csv.Error as error:
        raise VoteError(f"{path}: row 1: the header cannot be read: {error}") from error
    if any(mark in name for name in names for mark in "\0\ufffd"):
        raise VoteError(f"{path}: row 1: the header is not UTF-8 text; save the file as UTF-8")
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise VoteError(f"{path}: row 1: {names[0][:60]!r} is one column; separate columns by commas")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise VoteError(f"{path}: row 1: column {doubled[0]!r} occurs twice")
    return names


def csv_stream(path: Path, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    """Stream the file, extra columns converted to the kinds all their values have."""
    kinds = _kinds(path, columns)
    row = 2
    for batch in _text_batches(path, columns):
        for start in range(0, len(batch), batch_size):
            part = batch.slice(start, batch_size)
            arrays = [_convert(part.column(name), kinds[name]) for name in part.schema.names]
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=part.schema.names), row)
            row += len(part)


def _text_batches(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    """All fields as text, unchecked: whoever knows the row number checks them."""
    names = csv_columns(path)
    convert = pc_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=None if columns is None else list(columns),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )
    read = pc_csv.ReadOptions(block_size=_BLOCK, use_threads=False)
    try:
        with pc_csv.open_csv(path, read, pc_csv.ParseOptions(newlines_in_values=True), convert) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if str(error).startswith("Empty CSV file") or not names:
            raise VoteError(f"{path}: is empty") from error
        raise VoteError(f"{path}: is not CSV as it should be: {str(error).splitlines()[0]}") from error


def _kinds(path: Path, columns: Sequence[str] | None) -> dict[str, str]:
    """The narrowest kind of every column."""
    names = csv_columns(path) if columns is None else columns
    left = {name: [] if name in _TEXT else list(_PATTERNS) for name in names}
    seen: set[str] = set()
    if any(left.values()):
        for batch in _text_batches(path, [name for name in names if left[name]]):
            for name in batch.schema.names:
                values = batch.column(name).drop_null()
                left[name] = [kind for kind in left[name] if _all_are(values, kind)]
                seen.update([name] if len(values) else [])
    return {name: kinds[0] if kinds and name in seen else "text" for name, kinds in left.items()}


def _all_are(values: Any, kind: str) -> bool:
    if not _is_utf8(values) or pc.all(pc.match_substring_regex(values, _PATTERNS[kind])).as_py() is False:
        return False
    if kind == "json":
        try:
            for text in values.to_pylist():
                json.loads(text)
        except ValueError:
            return False
    return True


def _is_utf8(values: Any) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _convert(column: Any, kind: str) -> Any:
    if kind == "json":
        try:
            return pa.array([None if text is None else json.loads(text) for text in column.to_pylist()])
        except (pa.ArrowException, OverflowError):  # lists of this and that stay text
            return column.cast(pa.string())
    if kind == "bool":
        return pc.equal(pc.utf8_lower(column), "true")
    return column.cast({"int": pa.int64(), "float": pa.float64(), "text": pa.string()}[kind])
