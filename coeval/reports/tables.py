"""Cells and columns that several reports share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from p2l.report import Cell, Column, Scale, Table, number_text

__all__ = ["Spark", "amount", "estimate", "name_cell", "named_table", "scaled", "sparks"]

Notes = Callable[[str, str], str]


def name_cell(kind: str, name: str, notes: Notes) -> Cell:
    """A name with what is known of it."""
    note = notes(kind, name)
    return Cell(name, name.casefold(), note=f"{name}: {note}" if note else name)


def estimate(value: float | None, lower: float | None, upper: float | None, digits: int = 3) -> Cell | None:
    """A number with the limits of its interval as a bar and a note."""
    if value is None or math.isnan(value):
        return None
    if lower is None or upper is None or math.isnan(lower) or math.isnan(upper):
        return Cell(number_text(value, digits), value, bar=(math.nan, value, math.nan))
    ends = f"95 %: {number_text(lower, digits)} to {number_text(upper, digits)}"
    return Cell(number_text(value, digits), value, note=ends, bar=(lower, value, upper))


def amount(value: float | None, digits: int = 4) -> Cell | None:
    """A number as a bar from zero."""
    if value is None or math.isnan(value):
        return None
    return Cell(number_text(value, digits), value, bar=(0.0, value, value))


def scaled(column: Column, rows: Sequence[Sequence[Any]], place: int, *, zero: float | None = None) -> Column:
    """A column whose bars share the range of its cells."""
    cells = [row[place] for row in rows if isinstance(row[place], Cell)]
    ends = [end for cell in cells if cell.bar for end in cell.bar]
    return Column(column.title, column.digits, column.note, Scale.around(ends, zero) if ends else None)


def named_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, barred: Iterable[int] = (), zero: float | None = None
) -> Table | None:
    """A table, or None where it would be empty; `barred` columns get the range of their cells."""
    if not rows:
        return None
    with_bars = set(barred)
    made = [
        scaled(column, rows, place, zero=zero) if place in with_bars else column for place, column in enumerate(columns)
    ]
    return Table(made, rows)


@dataclass(frozen=True)
class Spark:
    """A line over windows: points in a box of 100 by 20, values in [0, 1] upward."""

    name: str
    title: str
    points: tuple[tuple[float, float], ...]
    first: float
    last: float

    @property
    def change(self) -> float:
        """Last less first."""
        return self.last - self.first


def sparks(series: Iterable[tuple[str, Sequence[float | None]]], what: str) -> list[Spark]:
    """A line for each name that has values; one value is a level line."""
    made = []
    for name, values in series:
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        if not known:
            continue
        if len(known) == 1:
            known = [(0, known[0][1]), (1, known[0][1])]
        span = max(1, known[-1][0])
        points = tuple((round(100 * place / span, 2), round(20 * (1 - value), 2)) for place, value in known)
        title = f"{what} of {name}, from {known[0][1]:.2f} to {known[-1][1]:.2f}"
        made.append(Spark(name, title, points, known[0][1], known[-1][1]))
    return made
