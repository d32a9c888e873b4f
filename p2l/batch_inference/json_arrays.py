"""JSON arrays of records, as `p2l eval` writes them, read a few records at a time and without their hidden states."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from p2l.batch_inference.output import json_array
from p2l.common.errors import VoteError, first_line
from p2l.common.files import DEEPEST_JSON, is_deeper
from p2l.votes.rows import RawBatch, Source, check_number_of_columns

HIDDEN = "last_hidden_state"  # `p2l eval --no-drop-hidden` adds it: far larger than all other columns together
_CHARACTERS_PER_READ = 1 << 22
_LONGEST_RECORD = 1 << 28  # characters
_RECORDS_PER_BATCH = 512
_RECORDS_THAT_NAME_COLUMNS = 100
_SEPARATORS = re.compile(r"[ \t\r\n,]*")


def open_json_array(path: Path) -> Source:
    """Open the records of a JSON array, without their hidden states; VoteError for anything else.

    One batch of records is in memory at a time.
    """
    if not path.is_file():
        raise VoteError(f"{path}: no such file")
    first = itertools.islice(records_of(path), _RECORDS_THAT_NAME_COLUMNS)
    names = dict.fromkeys(name for record in first for name in record if name != HIDDEN)
    if not names:
        raise VoteError(f"{path}: holds no record")
    return Source(str(path), list(names), partial(_stream, path), unit="record")


def remove_hidden(path: Path) -> bool:
    """Rewrite the file without hidden states, if a record has one; return whether it did."""
    if not any(HIDDEN in record for record in records_of(path)):
        return False
    with json_array(path) as write:
        for record in records_of(path):
            record.pop(HIDDEN, None)
            write("    " + json.dumps(record, indent=4, ensure_ascii=False).replace("\n", "\n    "))
    return True


def _stream(path: Path, columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
    records, number = records_of(path), 1
    while rows := list(itertools.islice(records, min(batch_size, _RECORDS_PER_BATCH))):
        keys = dict.fromkeys(name for row in rows for name in row if name != HIDDEN)
        check_number_of_columns(str(path), len(keys))
        names = [name for name in keys if columns is None or name in columns]
        arrays = [_column(path, name, [row.get(name) for row in rows]) for name in names]
        yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=names), number)
        number += len(rows)


def _column(path: Path, name: str, values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except UnicodeEncodeError as error:
        raise VoteError(f"{path}: {name} holds half of a surrogate pair, which is not text") from error
    except (pa.ArrowException, OverflowError) as error:
        if name in ("coefs", "betas", "eta", "gamma"):
            raise VoteError(f"{path}: {name} must be numbers in every record: {first_line(error)}") from error
        # Kinds that do not go together stay readable as text.
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON array; VoteError for anything else."""
    number = 0
    try:
        for value in _values(path):
            number += 1
            if not isinstance(value, dict):
                raise VoteError(f"{path}: record {number} is a {type(value).__name__}; every record must be an object")
            yield value
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise VoteError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise VoteError(f"{path}: record {number + 1} is not JSON: {getattr(error, 'msg', error)}") from error


def _values(path: Path) -> Iterator[Any]:
    """Yield the elements of the array, decoded as the file is read."""
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_CHARACTERS_PER_READ).lstrip()
        if text[:1] != "[":
            raise VoteError(f"{path}: is not a JSON array of records, as p2l eval writes it; JSON lines end in .jsonl")
        place = 1
        while True:
            place = _SEPARATORS.match(text, place).end()  # type: ignore[union-attr]  # an empty match at least
            if text[place : place + 1] == "]":
                return
            try:
                value, place = json.JSONDecoder().raw_decode(text, place)
            except json.JSONDecodeError:
                # What is not whole is decoded again from its beginning: twice as much each time.
                more = file.read(max(_CHARACTERS_PER_READ, len(text) - place))
                if not more:
                    raise
                text, place = text[place:] + more, 0
                if len(text) > _LONGEST_RECORD:
                    raise ValueError(f"it is longer than {_LONGEST_RECORD:,} characters") from None
            else:
                if is_deeper(value, DEEPEST_JSON):
                    raise ValueError(f"is nested deeper than {DEEPEST_JSON} levels")
                yield value
