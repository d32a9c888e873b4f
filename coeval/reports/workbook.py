"""The workbook: raw slices, combinations of models, and models in all their roles."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.analysis.coverage import CompleteReport, ModelRow
from coeval.analysis.tables import Columns
from coeval.errors import RunInputError
from p2l.common.files import atomic_path

if TYPE_CHECKING:
    from xlsxwriter.worksheet import Worksheet


# Sheets of large tables. Shapes: N rows, V distinct values of a column.

MOST_ROWS = 1_048_575
"""Of a sheet, below its head."""
_WIDEST = 40
_LONGEST = 32_000  # characters of a text; a cell holds 767 more
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# A text that begins like a formula or an address must stay a text.
_OPTIONS = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
_Write: TypeAlias = "Callable[[int, int, Any], object]"


@dataclass(frozen=True)
class SheetColumn:
    """A column by its different values."""

    title: str
    values: Sequence[Any]  # (V,) text, numbers, booleans, or None for an empty cell
    place: npt.NDArray[Any]  # (N,) which of them each row has


@dataclass(frozen=True)
class Sheet:
    """A table with a head that stays in sight and filters."""

    name: str
    columns: Sequence[SheetColumn]

    @property
    def rows(self) -> int:
        """The number of rows below the head."""
        return len(self.columns[0].place)


def column_of(title: str, values: Iterable[Any]) -> SheetColumn:
    """Return a column of plain values."""
    different: dict[Any, int] = {}
    place = np.array([different.setdefault(value, len(different)) for value in values], dtype=np.int64)
    return SheetColumn(title, list(different), place)


def missing_package() -> str:
    """Return why no workbook can be written here; empty where one can."""
    return "" if find_spec("xlsxwriter") else "xlsxwriter is not installed; pip install xlsxwriter"


def write_sheets(path: Path, sheets: Sequence[Sheet], *, title: str, about: str) -> None:
    """Write a workbook, a row at a time. Raise OSError if it cannot be written, RunInputError without xlsxwriter."""
    if why := missing_package():
        raise RunInputError(f"{path}: {why}")
    from xlsxwriter import Workbook
    from xlsxwriter.exceptions import FileCreateError

    buffer = io.BytesIO()  # a file that the disk had no room for would be tried once more as the process ends
    book = Workbook(buffer, _OPTIONS)
    book.set_properties({"title": title, "comments": about})
    head, count, number = (
        book.add_format(form) for form in ({"bold": True}, {"num_format": "#,##0"}, {"num_format": "0.0000"})
    )
    for sheet in sheets:
        page = book.add_worksheet(sheet.name)
        page.freeze_panes(1, 0)
        page.autofilter(0, 0, sheet.rows, len(sheet.columns) - 1)
        for place, column in enumerate(sheet.columns):
            counts = not any(isinstance(value, float) for value in column.values)
            longest = max((len(value) + 2 for value in column.values if isinstance(value, str)), default=0)
            width = min(_WIDEST, max(9, len(column.title) + 4, longest))
            page.set_column(place, place, width, count if counts else number)
        page.write_row(0, 0, [column.title for column in sheet.columns], head)
        cells = [_cells(page, column) for column in sheet.columns]
        for row, places in enumerate(zip(*(column.place.tolist() for column in sheet.columns), strict=True), 1):
            for place, (writers, value) in enumerate(zip(cells, places, strict=True)):
                write, text = writers[value]
                write(row, place, text)
    try:
        book.close()
    except FileCreateError as error:
        raise error.args[0] from None
    path.write_bytes(buffer.getbuffer())


def _cells(page: Worksheet, column: SheetColumn) -> list[tuple[_Write, Any]]:
    """Return how each value of a column is written, and as what."""
    writers: list[tuple[_Write, Any]] = []
    for value in column.values:
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        if text is None:
            writers.append((page.write_blank, None))
        elif isinstance(text, str):
            writers.append((page.write_string, _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)[:_LONGEST]))
        else:
            writers.append((page.write_number, text))
    return writers


SHEETS = ("Raw slices", "Aggregated", "Models")
_TITLES = {"v1": "V1", "s2": "S2", "r3": "R3", "spa": "SPA", "wpa": "WPA"}


def write_workbook(complete: CompleteReport, path: str | Path) -> Path:
    """Write the three sheets, or `Raw slices 2` and so on if one has no room. Raise InputError if it fails."""
    raw, whole = complete.raw, complete.aggregated
    models = [one.name for one in fields(ModelRow)]
    sheets = [
        *_sheets(SHEETS[0], raw, list(raw.values)),
        *_sheets(SHEETS[1], whole, [name for name in whole.values if name != "factor"]),
        Sheet(SHEETS[2], [column_of(_title(name), (getattr(row, name) for row in complete.models)) for name in models]),
    ]
    header = complete.header
    about = f"{header.units:,} scores of {header.evaluations:,} evaluations; status {header.status}."
    about += " Partial: numbers may still change." if header.partial else ""
    with atomic_path(path) as temporary:
        write_sheets(temporary, sheets, title=header.experiment_id, about=about)
    return Path(path)


def _sheets(name: str, table: Columns[Any], columns: Sequence[str]) -> Iterator[Sheet]:
    """Yield the table, on as many sheets as its rows need."""
    for start in range(0, max(len(table), 1), MOST_ROWS):
        part = table.where(np.arange(start, min(start + MOST_ROWS, len(table))))
        number = f" {start // MOST_ROWS + 1}" if start else ""
        yield Sheet(f"{name}{number}", [_column(part, column) for column in columns])


def _column(table: Columns[Any], name: str) -> SheetColumn:
    different, place = np.unique(table.values[name], return_inverse=True)
    values = different.tolist()
    if name in table.names:
        values = [table.names[name][code] for code in values]
    # NaN, the one value that is not itself, becomes an empty cell.
    return SheetColumn(_title(name), [None if value != value else value for value in values], place)


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("is_", "").replace("_", " "))
