"""What a source of votes is: a name, its columns, and a stream of rows as it holds them.

A source streams Arrow record batches together with the number of their first row as the user sees it: the line of a
JSON lines file, the record of a CSV file counting its header as row 1 (as a spreadsheet does), the row of anything
else, all from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from p2l.command import nearest
from p2l.errors import VoteError

__all__ = ["RawBatch", "Source", "Stream", "missing_column"]


class RawBatch(NamedTuple):
    """Consecutive rows as the source holds them."""

    batch: Any  # pyarrow.RecordBatch
    first_row: int


Stream = Callable[[Sequence[str] | None, int], Iterator[RawBatch]]


@dataclass(frozen=True)
class Source:
    """A place votes are read from, any number of times."""

    name: str
    """How messages call it: the path, the hub id, or `table`."""
    columns: list[str]
    """Column names; for JSON lines those of the first lines."""
    stream: Stream
    """(columns or None for all, rows per batch) -> batches in order."""
    unit: str = "row"
    """What a row is called: `line` for JSON lines, else `row`."""
    rows: int | None = None
    """How many rows there are, where that is known beforehand."""
    text_lists: bool = False
    """Whether text may stand for a list, as in CSV."""
    version: str | None = None
    """What is another when the rows are, where the source keeps such a mark itself (files do not)."""

    def place(self, row: int) -> str:
        """The words that name one row: `votes.jsonl: line 7`."""
        return f"{self.name}: {self.unit} {row}"


def missing_column(source: Source, name: str, *, because: str = "") -> VoteError:
    """The error for a column that is not there: it lists those that are and points at the nearest."""
    there = ", ".join(source.columns) or "none"
    return VoteError(f"{source.name}: no column {name!r}{because}{nearest(name, source.columns)}; columns: {there}")
