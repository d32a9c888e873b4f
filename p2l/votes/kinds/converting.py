"""What the records of a kind become: votes or graded answers in the form of the schema, a batch at a time.

Rows of flat tables are converted as columns where their kind says how, all others one by one. A record that cannot be
read is a fault, by its position; one that says nothing (an error, a chat without a vote) is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.files import parse_json
from p2l.votes.kinds.flat import Columns, FlatBatch, OddBatchError
from p2l.votes.kinds.kind import Kind, Record, Row
from p2l.votes.kinds.texts import HOLDS_NUL, RowError, has_surrogate
from p2l.votes.kinds.values import MEASURES, NoVerdictError, grade, identifier, seconds, voter_and_source

_TEXT, _INTEGER, _NUMBER = pa.string(), pa.int64(), pa.float64()
TYPES = {
    "votes": {
        "prompt": pa.list_(_TEXT),
        **dict.fromkeys(
            (
                *("model_a", "model_b", "winner", "question_id", "category", "language", "source", "voter"),
                *("network", "battle"),
            ),
            _TEXT,
        ),
        **dict.fromkeys(("tstamp", "weight", "propensity"), _NUMBER),
        "turn": _INTEGER,
        **{f"{measure}_{side}": _INTEGER for side in "ab" for measure in MEASURES},
    },
    "scores": {
        **dict.fromkeys(("question_id", "category", "prompt", "model"), _TEXT),
        **dict.fromkeys(("score", "cost", "output_chars"), _NUMBER),
    },
}
"""The columns that kinds give, in their order."""
_LARGEST = 2**62  # count
_KEPT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("question_id", "category", "language", "source", "voter", "network"), identifier),
    "tstamp": seconds,
    **dict.fromkeys(("weight", "propensity"), lambda value: None if value is None else grade(value, "weight")),
}
"""Columns that tables of any kind of votes may have beside those of their kind, called as the schema calls them."""
NEEDED = {"votes": ("model_a", "model_b", "winner"), "scores": ("model", "score")}


class Converted(NamedTuple):
    """A vote or graded answer, or why a record became none."""

    place: str
    content: Row
    fault: str


@dataclass(frozen=True)
class Piece:
    """What consecutive records become."""

    batch: Any  # with all columns that the kind may give
    faults: Mapping[int, str]  # position -> why the record cannot be read
    place: Callable[[int], str]  # position -> words that name the record


def converted(kind: Kind, records: Iterable[Record], left_out: Counter[str]) -> Iterator[Converted]:
    """Yield what records become; what holds no verdict is counted in `left_out`."""
    for place, content, fault in records:
        if fault:
            yield Converted(place, {}, fault)
            continue
        try:
            kept = _kept(kind, content)
            for row in kind.convert(content):
                row = kept | row
                yield Converted(place, _checked(kind, row), "")
        except NoVerdictError as reason:
            left_out[str(reason)] += 1
        except RowError as error:
            yield Converted(place, {}, str(error))
        # A field of another type than its tool writes: one row is refused, not the program ended.
        except (AttributeError, KeyError, TypeError, IndexError, ValueError):
            yield Converted(place, {}, f"a field is missing or of another type than in {kind.about}")


def _kept(kind: Kind, content: Row) -> Row:
    """Return the columns of the schema that a record of votes has, whatever its kind is."""
    if kind.gives != "votes":
        return {}
    kept = {name: convert(content[name]) for name, convert in _KEPT.items() if content.get(name) is not None}
    return voter_and_source(content.get("judge")) | kept


def _kept_columns(kind: Kind, flat: FlatBatch) -> Columns:
    """Return what `_kept` gives of each row of a flat table."""
    if kind.gives != "votes":
        return {}
    columns: Columns = {}
    if "judge" in flat.columns:
        for name in ("source", "voter"):
            columns[name] = flat.mapped(partial(_of_judge, name), _TEXT, "judge")
    for name, convert in _KEPT.items():
        if name in flat.columns:
            is_text = TYPES["votes"][name] == _TEXT
            column = flat.texts(name) if is_text else flat.each(convert, _NUMBER, name, needed=False)
            columns[name] = pc.coalesce(column, columns[name]) if name in columns else column
    return columns


def _of_judge(name: str, judge: Any) -> str | None:
    return voter_and_source(judge).get(name)


def _checked(kind: Kind, row: Row) -> Row:
    """Return a row whose values are of the types of the schema; RowError where one is not, or lacks."""
    if _is_no_text(row):
        raise RowError("holds half of a surrogate pair, which is not text")
    if isinstance(row.get("prompt"), str) and "\0" in row["prompt"]:
        raise RowError(HOLDS_NUL)
    lacking = next((name for name in NEEDED[kind.gives] if row.get(name) is None), None)
    if lacking:
        raise RowError(f"has no {lacking}")
    types = TYPES[kind.gives]
    checked = {}
    for name, value in row.items():
        is_number = types[name] in (_INTEGER, _NUMBER)
        if is_number and value is not None and type(value) not in (int, float):  # text as CSV has it, true
            value = grade(value, name)
        if types[name] == _TEXT and not isinstance(value, str | None):
            raise RowError(f"{name} is not text")
        if types[name] == _INTEGER and value is not None and not -_LARGEST <= value <= _LARGEST:
            raise RowError(f"{name} is {value}, which is no count")
        checked[name] = value
    return checked


def _is_no_text(row: Row) -> bool:
    """Return whether a value of a converted row, which are texts, lists of texts and numbers, has half a surrogate."""
    return any(has_surrogate(value) for value in row.values() if isinstance(value, str | list))


def _as_batch(kind: Kind, rows: Sequence[Row]) -> Any:
    types = TYPES[kind.gives]
    arrays = [pa.array([row.get(name) for row in rows], types[name]) for name in types]
    return pa.RecordBatch.from_arrays(arrays, names=list(types))


def converted_piece(kind: Kind, rows: Sequence[Converted]) -> Piece:
    """Return rows that were converted one by one as a batch."""
    faults = {position: row.fault for position, row in enumerate(rows) if row.fault}
    places = [row.place for row in rows]
    return Piece(_as_batch(kind, [row.content for row in rows]), faults, places.__getitem__)


@dataclass(frozen=True)
class FlatRows:
    """A batch of a flat table."""

    batch: Any
    faults: Mapping[int, str]  # position -> why the row cannot be read
    loose: Mapping[str, Sequence[int]]  # column -> positions of values that are no text, and stand there as JSON
    place: Callable[[int], str]  # position -> words that name the row


def as_rows(batch: Any, loose: Mapping[str, Sequence[int]]) -> list[Row]:
    """Return the rows of a batch, with the values that stand there as JSON as they were."""
    rows: list[Row] = batch.to_pylist()
    for name, positions in loose.items():
        for position in positions:
            rows[position][name] = parse_json(rows[position][name])
    return rows


def converted_batch(kind: Kind, table: FlatRows, left_out: Counter[str]) -> Piece:
    """Return what a batch of a flat table becomes: most rows as columns, odd ones one by one, in the file's order."""
    flat = FlatBatch(table.batch)
    flat.is_odd[[*table.faults, *chain(*table.loose.values())]] = True
    try:
        kept = _kept_columns(kind, flat)
        answers = [] if kind.convert_batch is None else [kept | row for row in kind.convert_batch(flat)]
    except OddBatchError:
        answers = []
        flat.leave(np.ones(len(flat), dtype=bool))
    batches, origins = [], []  # of each row, the position in the table's batch of what it was made of
    for columns in answers:
        batch, is_answer = _answers_of(kind, columns, flat)
        batches.append(batch.filter(pa.array(is_answer)))
        origins.append(np.flatnonzero(is_answer))
    odd = np.flatnonzero(flat.is_odd)
    rows: list[Converted] = []
    places = {position: row for row, position in enumerate(odd.tolist())}
    loose = {name: [places[position] for position in positions] for name, positions in table.loose.items()}
    contents = as_rows(table.batch.take(pa.array(odd)), loose)
    for position, content in zip(odd.tolist(), contents, strict=True):
        record = Record(table.place(position), content, table.faults.get(position, ""))
        of_row = list(converted(kind, [record], left_out))
        rows += of_row
        origins.append(np.full(len(of_row), position))
    batches.append(_as_batch(kind, [row.content for row in rows]))
    origin = np.concatenate([*origins, np.zeros(0, dtype=np.int64)])
    order = np.argsort(origin, kind="stable")
    batch = pa.concat_batches(batches).take(pa.array(order))
    reasons = [""] * (len(order) - len(rows)) + [row.fault for row in rows]
    faulty = {position: reasons[row] for position, row in enumerate(order.tolist()) if reasons[row]}
    return Piece(batch, faulty, lambda position: table.place(int(origin[order[position]])))


def _answers_of(kind: Kind, columns: Columns, flat: FlatBatch) -> tuple[Any, Any]:
    """Return columns as a batch of all that the kind may give, and which of its rows (N,) are votes or answers."""
    types = TYPES[kind.gives]
    arrays = [
        columns[name].cast(kind_of_value) if name in columns else pa.nulls(len(flat), kind_of_value)
        for name, kind_of_value in types.items()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(types))
    is_answer = ~flat.is_odd
    for name in NEEDED[kind.gives]:
        is_answer &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    return batch, is_answer
