"""JSON arrays of records, as batch inference writes them, as a source of votes; one record in memory at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.command import atomic_path
from p2l.errors import VoteError
from p2l.votes.stream import RawBatch, Source

__all__ = ["HIDDEN", "open_json_array", "remove_hidden"]

HIDDEN = "last_hidden_state"
_CHUNK = 1 << 22  # characters
_RECORDS = 512  # as one batch
_SAMPLE = 100  # records that name the columns


def open_json_array(path: Path) -> Source:
    """A source of the records of a JSON array, without their hidden states.

    Raises:
        VoteError: the file cannot be read, is no JSON array of objects, or holds none.
    """
    if not path.is_file():
        raise VoteError(f"{path}: no such file")
    first = itertools.islice(_records(path), _SAMPLE)
    names = dict.fromkeys(name for record in first for name in record if name != HIDDEN)
    if not names:
        raise VoteError(f"{path}: holds no record")
    return Source(str(path), list(names), partial(_stream, path), unit="record")


def remove_hidden(path: Path) -> bool:
    """Write the file anew without hidden states, if any record has one; says whether.

    Raises:
        InputError: the file cannot be read or written.
    """
    if not any(HIDDEN in record for record in _records(path)):
        return False
    between = "[\n"
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for record in _records(path):
            record.pop(HIDDEN, None)
            text = json.dumps(record, indent=4, ensure_ascii=False)
            file.write(between + "    " + text.replace("\n", "\n    "))
            between = ",\n"
        file.write("\n]\n")
    return True


def _stream(path: Path, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    records, number = _records(path), 1
    while rows := list(itertools.islice(records, min(batch_size, _RECORDS))):
        there = dict.fromkeys(name for row in rows for name in row if name != HIDDEN)
        names = [name for name in there if columns is None or name in columns]
        arrays = [_column(path, name, [row.get(name) for row in rows]) for name in names]
        yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=names), number)
        number += len(rows)


def _column(path: Path, name: str, values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except UnicodeEncodeError as error:
        raise VoteError(f"{path}: {name} holds half of a surrogate pair, which is no text") from error
    except (pa.ArrowException, OverflowError) as error:
        if name in ("coefs", "betas", "eta", "gamma"):
            raise VoteError(f"{path}: {name} must be numbers in every record: {str(error).splitlines()[0]}") from error
        # Kinds that do not go together stay readable as text.
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def _records(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        for value in _values(path):
            number += 1
            if not isinstance(value, dict):
                raise VoteError(f"{path}: record {number} is a {type(value).__name__}; every record must be an object")
            yield value
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise VoteError(f"{path}: record {number + 1} is not JSON: {error.msg}") from error


def _values(path: Path) -> Iterator[Any]:
    """The elements of the array, decoded as the file is read."""
    decode = json.JSONDecoder().raw_decode
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_CHUNK).lstrip()
        if text[:1] != "[":
            raise VoteError(f"{path}: is no JSON array of records; give JSON lines with --eval_path, ending in .jsonl")
        text = text[1:]
        while True:
            text = text.lstrip(" \t\r\n,")
            if text[:1] == "]":
                return
            place = 0
            try:
                while True:
                    value, place = decode(text, _start(text, place))
                    yield value
            except json.JSONDecodeError:
                rest = text[_start(text, place) :]
                if rest[:1] == "]":
                    return
                more = file.read(_CHUNK)
                if not more:
                    raise
                text = rest + more


def _start(text: str, place: int) -> int:
    """Where the next value starts."""
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place
