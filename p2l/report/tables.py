"""Tables of a page: columns that sort by what they mean, cells that show a number, a text, or an interval as a bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Cell", "Column", "Scale", "Table", "Value", "number_text"]


@dataclass(frozen=True)
class Scale:
    """The range that all bars of a column share.

    Attributes:
        low, high: its ends.
        zero: where a line is drawn, if it lies within.
    """

    low: float
    high: float
    zero: float | None = None

    @classmethod
    def around(cls, values: Sequence[float], zero: float | None = None) -> Scale:
        """The range of the finite values among these (and `zero`), with a little room on both sides."""
        known = [float(value) for value in values if math.isfinite(value)] + ([] if zero is None else [zero])
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        room = 0.03 * (high - low) or 1.0
        return cls(low - room, high + room, zero)

    def place(self, value: float) -> float:
        """Where a value lies, in percent of the range."""
        return round(min(100.0, max(0.0, 100.0 * (value - self.low) / (self.high - self.low))), 2)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what it says.
        sort: what it sorts by; the text if None.
        tone: `good`, `bad` or `quiet`: its colour.
        note: shown when the pointer rests on it.
        bar: (lower, value, upper), drawn on the column's scale; ends that are NaN are not drawn.
        link: anchor on the page that it leads to.
    """

    text: str
    sort: float | str | None = None
    tone: str = ""
    note: str = ""
    bar: tuple[float, float, float] | None = None
    link: str = ""


Value: TypeAlias = "Cell | str | int | float | None"


@dataclass(frozen=True)
class Column:
    """One column: its title, the places after the point of its numbers, a note, and the scale of its bars.

    `wide` columns hold prose and wrap; numbers are set to the right.
    """

    title: str
    digits: int | None = None
    note: str = ""
    scale: Scale | None = None
    number: bool = True
    wide: bool = False

    def cell(self, value: Value) -> Cell:
        """A value as a cell; None and NaN are a dash that sorts last."""
        if isinstance(value, Cell):
            return value
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return Cell("–", "", "quiet")
        if isinstance(value, str):
            return Cell(value, value.casefold())
        return Cell(number_text(value, self.digits), float(value))


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        columns: their heads.
        rows: a value for each column; see `Column.cell`.
        shown: rows beyond this number are folded away at first (never in print).
        caption: a sentence above it.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    shown: int = 60
    caption: str = ""

    @property
    def limit(self) -> int:
        """How many rows are shown at first: all, where folding would hide but a few."""
        return len(self.rows) if len(self.rows) <= 1.25 * self.shown else self.shown


def number_text(value: float | None, digits: int | None = None) -> str:
    """A number for readers: thousands parted, a true minus, `digits` places after the point; a dash for none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if digits is None:
        digits = 0 if float(value).is_integer() else 4
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.replace("-", "")
