"""The workbook: raw slices, combinations of models, and models in all their roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.columns import Columns
from coeval.analysis.results import CompleteReport, Header, ModelRow
from coeval.reports.sheets import MOST_ROWS, Sheet, SheetColumn, column_of, write_sheets
from p2l.command import atomic_path

__all__ = ["SHEETS", "write_workbook"]

SHEETS = ("Raw slices", "Aggregated", "Models")
_TITLES = {"v1": "V1", "s2": "S2", "r3": "R3", "spa": "SPA", "wpa": "WPA"}


def write_workbook(complete: CompleteReport, path: str | Path) -> Path:
    """Write the three sheets; what one has no room for goes on in others, `Raw slices 2` and so on.

    Raises:
        InputError: the file cannot be written.
    """
    raw, whole = complete.raw, complete.aggregated
    models = [one.name for one in fields(ModelRow)]
    sheets = [
        *_sheets(SHEETS[0], raw, list(raw.values)),
        *_sheets(SHEETS[1], whole, [name for name in whole.values if name != "factor"]),
        Sheet(SHEETS[2], [column_of(_title(name), (getattr(row, name) for row in complete.models)) for name in models]),
    ]
    with atomic_path(path) as temporary:
        write_sheets(temporary, sheets, title=complete.header.experiment_id, about=_about(complete.header))
    return Path(path)


def _about(header: Header) -> str:
    partial = " Partial: numbers may still change." if header.partial else ""
    return f"{header.units:,} scores of {header.evaluations:,} evaluations; status {header.status}.{partial}"


def _sheets(name: str, table: Columns[Any], columns: Sequence[str]) -> Iterator[Sheet]:
    """The table, on as many sheets as its rows need."""
    for start in range(0, max(len(table), 1), MOST_ROWS):
        part = table.where(np.arange(start, min(start + MOST_ROWS, len(table))))
        number = f" {start // MOST_ROWS + 1}" if start else ""
        yield Sheet(f"{name}{number}", [_column(part, column) for column in columns])


def _column(table: Columns[Any], name: str) -> SheetColumn:
    different, place = np.unique(table.values[name], return_inverse=True)
    values = different.tolist()
    if name in table.names:
        values = [table.names[name][code] for code in values]
    return SheetColumn(_title(name), [None if value != value else value for value in values], place)


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("is_", "").replace("_", " "))
