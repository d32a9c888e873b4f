"""The workbook: raw slices, combinations of models, and models in all their roles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from coeval.analysis.results import CompleteReport, Header, ModelRow, SliceRow
from p2l.command import atomic_path

__all__ = ["SHEETS", "write_workbook"]

SHEETS = ("Raw slices", "Aggregated", "Models")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NUMBER, _COUNT = "0.0000", "#,##0"
_TITLES = {
    "valid": "valid",
    "sd": "sd",
    "v1": "V1",
    "s2": "S2",
    "r3": "R3",
    "spa": "SPA",
    "wpa": "WPA",
    "kappa": "kappa",
}
_WIDEST = 40


def write_workbook(complete: CompleteReport, path: str | Path) -> Path:
    """Write the three sheets, row by row: a large run takes little memory.

    Raises:
        InputError: the file cannot be written.
    """
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    slices = [one.name for one in fields(SliceRow)]
    _fill(book.create_sheet(SHEETS[0]), slices, complete.raw)
    _fill(book.create_sheet(SHEETS[1]), [name for name in slices if name != "factor"], complete.aggregated)
    _fill(book.create_sheet(SHEETS[2]), [one.name for one in fields(ModelRow)], complete.models)
    book.properties.title = _clean(complete.header.experiment_id)
    book.properties.description = _about(complete.header)
    with atomic_path(path) as temporary:
        book.save(temporary)
    return Path(path)


def _about(header: Header) -> str:
    partial = " Partial: numbers may still change." if header.partial else ""
    return f"{header.units:,} scores of {header.evaluations:,} evaluations; status {header.status}.{partial}"


def _fill(sheet: Any, names: Sequence[str], rows: Sequence[Any]) -> None:
    """A head that stays in sight and filters, then the rows."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter

    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(names))}{len(rows) + 1}"
    for place, width in enumerate(_widths(names, rows), 1):
        sheet.column_dimensions[get_column_letter(place)].width = width
    head = []
    for name in names:
        cell = WriteOnlyCell(sheet, value=_title(name))
        cell.font = Font(bold=True)
        head.append(cell)
    sheet.append(head)
    for row in rows:
        sheet.append([_cell(sheet, getattr(row, name)) for name in names])


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("is_", "").replace("_", " "))


def _widths(names: Sequence[str], rows: Sequence[Any]) -> Iterable[int]:
    for name in names:
        texts = {value for row in rows if isinstance(value := getattr(row, name), str)}
        yield min(
            _WIDEST,
            max(9, len(_title(name)) + 4, *(len(text) + 2 for text in texts))
            if texts
            else max(9, len(_title(name)) + 4),
        )


def _cell(sheet: Any, value: Any) -> Any:
    """A value with its format; text is text, even where it begins like a formula."""
    from openpyxl.cell import WriteOnlyCell

    if value is None or isinstance(value, bool):
        return {None: None, True: "yes", False: "no"}[value]
    cell = WriteOnlyCell(sheet, value=_clean(value) if isinstance(value, str) else value)
    if isinstance(value, str):
        cell.data_type = "s"
    else:
        cell.number_format = _NUMBER if isinstance(value, float) else _COUNT
    return cell


def _clean(text: str) -> str:
    """Without characters that a workbook cannot hold."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)[:32000]
