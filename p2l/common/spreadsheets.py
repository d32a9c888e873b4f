"""Rows of CSV files within bounds, and cells that a spreadsheet would take for formulas.

Such cells are written with a quote mark before, and read without.

A model called `=HYPERLINK(...)`, or a note that begins with `@`, is run and not shown by whoever opens the file. A
quote mark before it makes it text. A cell that begins with quote marks and then like a formula gets one more, so that
what is read is what was written. Numbers stay numbers, negative ones too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Both patterns are also given to Arrow, whose regular expressions look neither ahead nor back.
_FORMULA = "^'*(?:[\\x00-\\x20\\x7f-\xa0\u200b\u3000\ufeff]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
_HARMLESS = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)?(?:[eE][+-]?[0-9]+)?%?"
_formula, _harmless = re.compile(_FORMULA), re.compile(_HARMLESS)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may run a text, or it looks like a quoted one that it would."""
    return bool(_formula.match(text)) and not _harmless.fullmatch(text)


def to_cell(entry: Any) -> Any:
    """Return what to write for an entry: a text that a spreadsheet would run is quoted, all else is as it is."""
    return f"'{entry}" if isinstance(entry, str) and is_formula(entry) else entry


def of_cell(cell: Any) -> Any:
    """Return the entry that `to_cell` wrote as this cell."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and is_formula(cell[1:]) else cell


def to_cells(texts: Any) -> Any:
    """Return an Arrow array of text as `to_cell` writes each."""
    import pyarrow.compute as pc

    quoted = formulas(texts)
    return pc.if_else(quoted, pc.binary_join_element_wise("'", texts, ""), texts) if pc.any(quoted).as_py() else texts


def of_cells(cells: Any) -> Any:
    """Return an Arrow array of text as `of_cell` reads each."""
    import pyarrow.compute as pc

    begun = pc.starts_with(cells, "'")
    if not pc.any(begun).as_py():  # most columns
        return cells
    bare = pc.binary_replace_slice(cells, 0, 1, "")
    quoted = pc.and_(begun, formulas(bare))
    return pc.if_else(quoted, bare, cells) if pc.any(quoted).as_py() else cells


def formulas(texts: Any) -> Any:
    """Return which entries of an Arrow array of text are formulas, as `is_formula` says of each."""
    import pyarrow.compute as pc

    is_one = pc.match_substring_regex(texts, _FORMULA)
    return pc.and_not(is_one, pc.match_substring_regex(texts, f"^(?:{_HARMLESS})$"))


def frame_to_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table, its header too, as `to_cell` writes each entry."""
    cells: pd.DataFrame = frame.map(to_cell).rename(columns=to_cell)
    return cells


MOST_COLUMNS = 1_000
"""Of a table that somebody hands in."""
_LONGEST_ROW = 16 << 20  # characters; a cell has at most 131,072 by the csv module


class CellReader:
    """Rows of a CSV file by the names in its first row, as `of_cell` reads them; one in memory at a time.

    Raises csv.Error, which says what is wrong, for more columns or a longer row than tables have.
    """

    def __init__(self, file: IO[str]) -> None:
        """Read the first row of a file that was opened with `newline=""`."""
        self._file = file
        self._size = 0  # of the row so far
        self._reader = csv.reader(self._lines())
        self.names: list[str] = next(self._reader, [])
        """Of the columns."""
        if len(self.names) > MOST_COLUMNS:
            raise csv.Error(f"it has {len(self.names):,} columns, of at most {MOST_COLUMNS:,}")

    @property
    def line(self) -> int:
        """Return the number, from 1, of the last line of the last row."""
        return self._reader.line_num

    def __iter__(self) -> Iterator[dict[str, str | None]]:
        """Yield the rows that hold anything; a cell that a row lacks is None, one without a name is left out."""
        self._size = 0
        for cells in self._reader:
            self._size = 0
            if cells:
                named = zip_longest(self.names, cells[: len(self.names)])
                yield {name: of_cell(cell) for name, cell in named}

    def _lines(self) -> Iterator[str]:
        while line := self._file.readline(_LONGEST_ROW + 1):
            self._size += len(line)
            if self._size > _LONGEST_ROW:
                raise csv.Error(f"the row after line {self._reader.line_num} is longer than {_LONGEST_ROW >> 20} MiB")
            yield line
