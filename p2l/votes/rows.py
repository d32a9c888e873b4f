"""A source of rows as it holds them, and the guard at its door: bounds on columns and text, names, and UTF-8.

A source yields Arrow record batches together with the number of their first row as the user sees it: the line of a JSON
lines file, the record of a CSV file counting its header as row 1 (as a spreadsheet does), the row of anything else, all
from 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.common.cli import listed, nearest
from p2l.common.errors import VoteError
from p2l.common.files import MAX_LINE_BYTES
from p2l.common.spreadsheets import MOST_COLUMNS
from p2l.votes.kinds.texts import has_surrogate, holds_turns, unquoted

MODEL_COLUMNS = frozenset({"model", "model_a", "model_b"})
_ESCAPE = r"\\u[dD]"  # how JSON writes each half of a surrogate pair
_ESCAPES = (rb"\ud", rb"\uD")
_MAX_COLUMN_BYTES = 1 << 30  # text of one column of a batch


class RawBatch(NamedTuple):
    """Consecutive rows as the source holds them."""

    batch: Any  # pyarrow.RecordBatch
    first_row: int


Read = Callable[[Sequence[str] | None, int], Iterator[RawBatch]]


@dataclass(frozen=True)
class Source:
    """A place votes are read from, any number of times; VoteError where it has too many columns, or one twice."""

    name: str  # name in messages: the path, the hub id, or `table`
    columns: list[str]  # column names; for JSON lines those of the first lines
    read: Read
    """(columns or None for all, rows per batch) -> batches in order, as they come; `stream` is what to read by."""
    unit: str = "row"  # word for a row: `line` for JSON lines, else `row`
    rows: int | None = None  # number of rows, where it is known before reading
    text_lists: bool = False  # whether text may stand for a list, as in CSV
    version: str | None = None  # fingerprint of the rows, where the source keeps one (files do not)
    kind: str = ""  # name of the kind of file, where another tool's rows are translated
    about: str = ""  # what the file was taken for and how its fields are read
    gives: str = "votes"  # `scores` where the rows are graded answers
    is_own_form: bool = False  # whether its columns are those that the documentation asks for: nothing is to be said
    notes: Sequence[str] = ()  # how the file was read where that is not plain from its name
    texts: Read | None = None  # reads all cells as text, where the types of columns are guessed from these
    places: Callable[[int], str] | None = None  # (row) -> words that name it, where rows are translated
    faults: dict[int, str] = field(default_factory=dict)  # row -> why it cannot be read; known once it is streamed
    loose: dict[str, set[int]] = field(default_factory=dict)
    """Column -> rows whose value is no text, where values of other rows are: there it stands as JSON."""
    left_out: Counter[str] = field(default_factory=Counter)  # what held nothing and is no row, counted while streaming
    spellings: dict[str, str] = field(default_factory=dict)  # names of models as they stood -> as they are read

    @property
    def repeats(self) -> bool:
        """Whether a model may have answered a question several times, as harnesses ask; else that is a mistake."""
        return self.kind not in ("", "score-table")

    def __post_init__(self) -> None:
        check_number_of_columns(self.name, len(self.columns))
        doubled = sorted(name for name, count in Counter(self.columns).items() if count > 1)
        if doubled:
            raise VoteError(f"{self.name}: column {doubled[0]!r} occurs twice")

    def place(self, row: int) -> str:
        """Return the words that name one row: `votes.jsonl: line 7`."""
        return f"{self.name}: {self.unit} {row}" if self.places is None else self.places(row)

    def faults_of(self, raw: RawBatch) -> dict[int, str]:
        """Return, by position in a batch that was streamed, why rows cannot be read."""
        rows = range(raw.first_row, raw.first_row + len(raw.batch)) if self.faults else ()
        return {row - raw.first_row: self.faults[row] for row in rows if row in self.faults}

    def loose_of(self, raw: RawBatch) -> dict[str, list[int]]:
        """Return, by column, the positions in a batch that was streamed of values that stand there as JSON."""
        rows = range(raw.first_row, raw.first_row + len(raw.batch))
        columns = {name: self.loose[name] for name in raw.batch.schema.names if name in self.loose}
        return {name: [row - raw.first_row for row in rows if row in loose] for name, loose in columns.items()}

    def stream(
        self, columns: Sequence[str] | None, batch_size: int, *, as_texts: bool = False, with_faults: bool = False
    ) -> Iterator[RawBatch]:
        """Yield batches in order, without dictionaries; VoteError where text is too much, or a row cannot be read.

        With `as_texts` the cells of CSV stay text, which takes one pass over the file rather than two. With
        `with_faults` rows that cannot be read are not refused: what they lack is null, and `faults` says why.
        """
        read = self.texts if as_texts and self.texts is not None else self.read
        for raw in read(columns, batch_size):
            names = raw.batch.schema.names
            arrays = []
            for name, column in zip(names, raw.batch.columns, strict=True):
                if pa.types.is_dictionary(column.type):
                    # A text that is stored once may be referred to by every row.
                    size = 0
                    if is_text(column.type.value_type):
                        size = pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
                    if size > _MAX_COLUMN_BYTES:
                        raise VoteError(
                            f"{self.place(raw.first_row)}: {name}: this and the next {len(column):,} rows hold "
                            f"{size / 1e9:,.1f} GB of text, which votes do not; leave out what repeats"
                        )
                    column = column.dictionary_decode()
                if not is_valid(column):
                    valid = [is_valid(pa.concat_arrays([column.slice(row, 1)])) for row in range(len(column))]
                    wrong = [row for row, is_text in enumerate(valid, raw.first_row) if not is_text]
                    self.faults.update(
                        dict.fromkeys(
                            wrong, f"{name} is not UTF-8 text (is the file in another encoding? save it as UTF-8)"
                        )
                    )
                    column = pc.if_else(pa.array(valid), column, pa.scalar(None, column.type))
                self.faults.update({raw.first_row + place: why for place, why in _texts_faults(name, column)})
                arrays.append(column)
            if not with_faults:
                for position, why in self.faults_of(raw).items():
                    raise VoteError(f"{self.place(raw.first_row + position)}: {why}")
            yield RawBatch(pa.RecordBatch.from_arrays(arrays, names=names), raw.first_row)


def _texts_faults(name: str, column: Any) -> Iterator[tuple[int, str]]:
    """Yield the positions of texts that no prompt or answer can be, and what to say: too long, half of a letter."""
    if not is_text(column.type) or not len(column):
        return
    texts = _bytes_of(column)
    if len(texts) > MAX_LINE_BYTES:
        for place in pc.indices_nonzero(pc.greater(pc.binary_length(column), MAX_LINE_BYTES)).to_pylist():
            yield place, f"{name} is longer than {MAX_LINE_BYTES >> 20} MiB; leave it out, or cut it"
    if not any(escape in texts for escape in _ESCAPES):
        return
    may = pc.match_substring_regex(column, _ESCAPE)
    for place in pc.indices_nonzero(may).to_pylist():
        parsed = unquoted(column[place].as_py())
        if holds_turns(parsed) and has_surrogate(parsed):
            yield place, f"{name} holds half of a surrogate pair, which is not text"


def _bytes_of(column: Any) -> bytes:
    """Return the bytes of all texts of a column, which are searched sooner than the texts one by one."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    _, offsets, data = column.buffers()
    if data is None:
        return b""
    width = np.dtype(np.int64 if pa.types.is_large_string(column.type) else np.int32)
    ends = np.frombuffer(offsets, width)[[column.offset, column.offset + len(column)]]
    return bytes(memoryview(data)[int(ends[0]) : int(ends[1])])


def numbered(batches: Iterable[Any]) -> Iterator[RawBatch]:
    """Yield batches, without any row left out between them, with the number of their first row."""
    row = 1
    for batch in batches:
        yield RawBatch(batch, row)
        row += len(batch)


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text of any width."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_valid(column: Any) -> bool:
    """Return whether all text of a column is UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_number_of_columns(name: str, number: int) -> None:
    """Raise VoteError where a source has more columns than any votes."""
    if number > MOST_COLUMNS:
        raise VoteError(f"{name}: has {number:,} columns, of at most {MOST_COLUMNS:,}; keep those that are needed")


def missing_column(source: Source, name: str, *, because: str = "", hint: bool = True) -> VoteError:
    """Return the error for a column that is not there: it lists those that are, and with `hint` names the nearest."""
    columns = listed(source.columns) or "none"
    near = nearest(name, source.columns) if hint else ""
    return VoteError(f"{source.name}: no column {name!r}{because}{near}; columns: {columns}")
