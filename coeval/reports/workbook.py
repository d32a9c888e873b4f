"""The workbook: raw slices, combinations of models, and models in all their roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.coverage import CompleteReport, ModelRow
from coeval.analysis.tables import Columns
from p2l.common.files import atomic_path
from p2l.common.spreadsheets import MOST_ROWS, Sheet, SheetColumn, column_of, write_sheets

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
    return SheetColumn(_title(name), [None if value != value else value for value in values], place.tolist())


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("is_", "").replace("_", " "))
