"""Rows of CSV files within bounds, cells that a spreadsheet would take for formulas, and workbooks (XLSX)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from p2l.common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from xlsxwriter.worksheet import Worksheet

# A spreadsheet runs a model called `=HYPERLINK(...)`, or a note that begins with `@`, where it should show it. A quote
# mark before it, which is left out in reading, makes it text. A cell that begins with quote marks and then like a
# formula gets one more, so that what is read is what was written. Numbers stay numbers, negative ones too.
# Arrow takes both patterns as well; its regular expressions look neither ahead nor back.
_FORMULA = "^'*(?:[\\x00-\\x20\\x7f-\xa0\u200b\u3000\ufeff]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
_HARMLESS = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)?(?:[eE][+-]?[0-9]+)?%?"
_formula, _harmless = re.compile(_FORMULA), re.compile(_HARMLESS)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may run a text, or would without the quote marks before it."""
    return bool(_formula.match(text)) and not _harmless.fullmatch(text)


def to_cell(entry: Any) -> Any:
    """Return the cell of an entry: a text that a spreadsheet would run is quoted, everything else stays."""
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
    """Return which entries (N,) of an Arrow array of text are formulas, as `is_formula` does."""
    import pyarrow.compute as pc

    begins_formula = pc.match_substring_regex(texts, _FORMULA)
    return pc.and_not(begins_formula, pc.match_substring_regex(texts, f"^(?:{_HARMLESS})$"))


def frame_to_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table, its header too, as `to_cell` writes each entry."""
    cells: pd.DataFrame = frame.map(to_cell).rename(columns=to_cell)
    return cells


MOST_COLUMNS = 1_000  # of a table that somebody hands in
_MAX_ROW_CHARS = 16 << 20  # a cell has at most 131,072 by the csv module


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
        while line := self._file.readline(_MAX_ROW_CHARS + 1):
            self._size += len(line)
            if self._size > _MAX_ROW_CHARS:
                raise csv.Error(f"the row after line {self._reader.line_num} is longer than {_MAX_ROW_CHARS >> 20} MiB")
            yield line


# Workbooks: sheets of large tables, a row at a time. Shapes: N rows, V distinct values of a column.

MOST_ROWS = 1_048_575  # of a sheet, below its head
_MAX_COLUMN_WIDTH = 40  # characters
_MAX_CELL_CHARS = 32_000  # Excel takes 767 more
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# A text that begins like a formula or an address must stay a text.
_OPTIONS = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
_Write: TypeAlias = "Callable[[int, int, Any], object]"


@dataclass(frozen=True)
class SheetColumn:
    """A column by its different values; `form` is Excel's format of numbers, such as `0.0%`."""

    title: str
    values: Sequence[Any]  # (V,) text, numbers, booleans, or None for an empty cell
    places: Sequence[int]  # (N,) which of them each row has
    form: str = ""

    @property
    def shown_as(self) -> str:
        """The format of its numbers, by default with thousands, or with four decimals."""
        return self.form or ("0.0000" if any(isinstance(value, float) for value in self.values) else "#,##0")


@dataclass(frozen=True)
class Sheet:
    """A table with filters, and a head that stays in sight."""

    name: str
    columns: Sequence[SheetColumn]

    @property
    def rows(self) -> int:
        """The number of rows below the head."""
        return len(self.columns[0].places)


def column_of(title: str, values: Iterable[Any], form: str = "") -> SheetColumn:
    """Return a column of plain values; NaN becomes an empty cell."""
    different: dict[Any, int] = {}
    # NaN alone is not equal to itself; math.isnan would refuse text.
    places = [different.setdefault(None if value != value else value, len(different)) for value in values]
    return SheetColumn(title, list(different), places, form)


def missing_package() -> str:
    """Return why no workbook can be written here; empty where one can."""
    return "" if find_spec("xlsxwriter") else "xlsxwriter is not installed; pip install xlsxwriter"


def write_sheets(path: Path, sheets: Sequence[Sheet], *, title: str, about: str) -> None:
    """Write a workbook, a row at a time. Raise OSError if it cannot be written, InputError without xlsxwriter."""
    if why := missing_package():
        raise InputError(f"{path}: {why}")
    from xlsxwriter import Workbook
    from xlsxwriter.exceptions import FileCreateError

    buffer = io.BytesIO()  # a file that the disk had no room for would be tried once more as the process ends
    book = Workbook(buffer, _OPTIONS)
    book.set_properties({"title": _allowed(title), "comments": _allowed(about)})
    head = book.add_format({"bold": True})
    forms = {column.shown_as for sheet in sheets for column in sheet.columns}
    formats = {form: book.add_format({"num_format": form}) for form in sorted(forms)}
    for sheet in sheets:
        page = book.add_worksheet(sheet.name)
        page.freeze_panes(1, 0)
        page.autofilter(0, 0, sheet.rows, len(sheet.columns) - 1)
        for place, column in enumerate(sheet.columns):
            longest = max((len(value) + 2 for value in column.values if isinstance(value, str)), default=0)
            width = min(_MAX_COLUMN_WIDTH, max(9, len(column.title) + 4, longest))
            page.set_column(place, place, width, formats[column.shown_as])
        for place, column in enumerate(sheet.columns):
            page.write_string(0, place, _allowed(column.title), head)
        cells = [_cells(page, column) for column in sheet.columns]
        for row, places in enumerate(zip(*(column.places for column in sheet.columns), strict=True), 1):
            for place, (writers, value) in enumerate(zip(cells, places, strict=True)):
                write, content = writers[value]
                write(row, place, content)
    try:
        book.close()
    except FileCreateError as error:
        raise error.args[0] from None
    path.write_bytes(buffer.getbuffer())


def _cells(page: Worksheet, column: SheetColumn) -> list[tuple[_Write, Any]]:
    """Return a method of the page and its argument for each value of a column."""
    writers: list[tuple[_Write, Any]] = []
    for value in column.values:
        content = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        if content is None:
            writers.append((page.write_blank, None))
        elif isinstance(content, str):
            writers.append((page.write_string, _allowed(content)))
        else:
            writers.append((page.write_number, content))
    return writers


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)[:_MAX_CELL_CHARS]
