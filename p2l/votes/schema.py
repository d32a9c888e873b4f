"""The vote schema: what each column means, and how the spellings of the sources become one form.

| column | form here | also read |
|---|---|---|
| prompt | list of text: the user's turns | text (one turn); in CSV a JSON (or Python) list of texts |
| model_a, model_b | text | dictionary-encoded text |
| winner | one of WINNERS | |
| labels | used where model names or winner are absent, else checked | lists of three, text such as "[ 1 2 0]" |
| weight, propensity, tstamp | kept as they are, read as float64 by `numbers` | numbers as text; dates and times |

Labels are positions in a model list and mean nothing without it. So where a row has model_a, model_b and winner, these
decide and its labels are only checked against them; where names or winner are absent, the list must be stated.
"""

from __future__ import annotations

import ast
import json
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.errors import VoteError
from p2l.votes.codes import IntArray
from p2l.votes.stream import RawBatch, Source

__all__ = [
    "NUMBER_COLUMNS",
    "TEXT_COLUMNS",
    "Labels",
    "check_utf8",
    "hash_turns",
    "is_one_text",
    "normalise",
    "numbers",
    "parse_labels",
]

TEXT_COLUMNS = ("model_a", "model_b", "winner")
NUMBER_COLUMNS = ("weight", "tstamp", "propensity")
_LABEL = r"^\s*[\[(]\s*(?P<i>\d{1,9})\s*[\s,]\s*(?P<j>\d{1,9})\s*[\s,]\s*(?P<t>\d{1,9})\s*[\])]\s*$"


def normalise(source: Source, raw: RawBatch) -> Any:
    """Bring prompt, model names and winner of a batch into the form of the schema; every other column stays.

    Raises:
        VoteError: a column has a type that cannot be that column, or text that is no UTF-8.
    """
    arrays = []
    for name, column in zip(raw.batch.schema.names, raw.batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        check_utf8(source, raw.first_row, name, column)
        if name == "prompt":
            column = _turns(source, column)
        elif name in TEXT_COLUMNS:
            column = _text(source, name, column)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=raw.batch.schema.names)


def check_utf8(source: Source, first_row: int, name: str, column: Any) -> None:
    """Refuse text that is no UTF-8.

    Raises:
        VoteError: naming the row.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        row = next((row for row in range(len(column)) if not _is_valid(column.slice(row, 1))), 0)
        raise VoteError(f"{source.place(first_row + row)}: {name} is not UTF-8 text") from error


def _is_valid(column: Any) -> bool:
    try:
        pa.concat_arrays([column]).validate(full=True)
        column.to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _text(source: Source, name: str, column: Any) -> Any:
    if not (_is_text(column.type) or pa.types.is_null(column.type)):
        raise VoteError(f"{source.name}: column {name!r} holds {column.type}; it must hold text")
    return column.cast(pa.string())


def _turns(source: Source, column: Any) -> Any:
    kind = column.type
    if _is_text(kind) or pa.types.is_null(kind):
        return _one_turn(column.cast(pa.string()), lists_in_text=source.text_lists)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and (_is_text(kind.value_type) or pa.types.is_null(kind.value_type)):
        return column.cast(pa.list_(pa.string()))
    if is_list and pa.types.is_struct(kind.value_type):
        raise VoteError(f"{source.name}: column 'prompt' holds messages; `p2l votes import` turns them into user turns")
    raise VoteError(f"{source.name}: column 'prompt' holds {kind}; it must hold text or a list of the user's turns")


def _one_turn(column: Any, *, lists_in_text: bool) -> Any:
    """Each text as a list of one turn, without copying the text; in CSV a text may itself be a list."""
    if lists_in_text and pc.any(pc.match_substring_regex(column, r"(?s)^\s*\[.*\]\s*$")).as_py():
        return pa.array([_parse_turns(text) for text in column.to_pylist()], pa.list_(pa.string()))
    filled = column.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(filled)]).astype(np.int32)
    mask = pa.array(~filled) if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), column.drop_null(), mask=mask)


def is_one_text(raw: Any, turns: Any) -> bool:
    """Whether the source holds each of these prompts as one text, rather than a list or the text of one."""
    if pa.types.is_dictionary(raw.type):
        return _is_text(raw.type.value_type)
    if not _is_text(raw.type) or len(turns.flatten()) != len(raw) - raw.null_count:
        return False
    return pc.all(pc.equal(turns.flatten(), raw.drop_null().cast(pa.string()))).as_py() is not False


def _parse_turns(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if text.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            try:
                turns = parse(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
                return turns
    return [text]


class Labels(NamedTuple):
    """Label triples of a batch; `valid` is False where a row holds no three whole numbers."""

    triples: IntArray  # (N, 3) int64, zero where not valid
    valid: IntArray  # (N,) bool


def parse_labels(column: Any) -> Labels:
    """Read a `labels` column: lists of three integers, or text such as `[ 1 2 0]` or `[1, 2, 0]`."""
    if _is_text(column.type):
        found = pc.extract_regex(column, _LABEL)
        valid = found.is_valid().to_numpy(zero_copy_only=False)
        parts = [pc.struct_field(found, index) for index in range(3)]
        parts = [pc.if_else(found.is_valid(), part, "0").cast(pa.int64()) for part in parts]
        return Labels(np.stack([part.to_numpy(zero_copy_only=False) for part in parts], axis=1), valid)
    triples = np.zeros((len(column), 3), dtype=np.int64)
    if not hasattr(column.type, "value_type") or not pa.types.is_integer(column.type.value_type):
        return Labels(triples, np.zeros(len(column), dtype=bool))
    lists = column.cast(pa.list_(pa.int64()))
    valid = pc.equal(pc.list_value_length(lists), 3).fill_null(False).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(lists.filter(pa.array(valid)))
    triples[valid] = flat.fill_null(-1).to_numpy(zero_copy_only=False).reshape(-1, 3)
    return Labels(triples, valid)


def numbers(column: Any) -> IntArray:
    """A column of numbers, numbers as text, or times (to seconds since 1970, UTC where no zone is given) as float64.

    What is null or no number is NaN.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return _seconds(column)
    if _is_text(column.type):
        return _numbers_in_text(column)
    try:
        floats = column.cast(pa.float64())
    except pa.ArrowException:
        return np.full(len(column), np.nan)
    return np.asarray(floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def _seconds(column: Any) -> IntArray:
    micros = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
    return np.asarray(micros.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)) / 1e6


def _numbers_in_text(column: Any) -> IntArray:
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        pass
    try:
        return _seconds(column.cast(pa.timestamp("us")))
    except pa.ArrowInvalid:
        return np.array([_number(text) for text in column.to_pylist()])


def _number(text: str | None) -> float:
    try:
        return float(text) if text is not None else float("nan")
    except ValueError:
        return float("nan")


def hash_turns(turns: list[str], seed: int = 0) -> int:
    """A 64-bit hash of a prompt that is the same in every process and differs with the seed."""
    text = turns[0] if len(turns) == 1 else json.dumps(turns)
    return int.from_bytes(blake2b(text.encode(), digest_size=8, key=f"{len(turns)},{seed}".encode()).digest(), "little")
