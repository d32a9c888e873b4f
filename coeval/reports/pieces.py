"""What reports are made of beside tables: heat maps and stacks of levels. Nothing is computed from records here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from p2l.report import number_text

__all__ = ["Grid", "GridCell", "Head", "LevelRow", "Levels", "grid_of", "levels_of", "signed_text"]

_MANY, _SOME = 8, 4  # columns, columns with long names
_LONG, _CUT = 14, 18  # letters of a long name, and of one that would be cut


@dataclass(frozen=True)
class Head:
    """The name of a row or column, and what is shown when the pointer rests on it."""

    name: str
    note: str = ""

    @property
    def title(self) -> str:
        """The whole name, which may be cut on the page, and the note."""
        return f"{self.name}: {self.note}" if self.note else self.name


@dataclass(frozen=True)
class GridCell:
    """One square: its text, its shade in [-1, 1] (below 0 in the other colour), a note, whether it is a model's own."""

    text: str
    share: float
    note: str
    is_self: bool = False


@dataclass(frozen=True)
class Grid:
    """A heat map; `row_kind` and `column_kind` are the dimensions whose filters hide rows and columns."""

    row_kind: str
    column_kind: str
    rows: Sequence[Head]
    columns: Sequence[Head]
    cells: Mapping[tuple[str, str], GridCell]
    caption: str = ""
    empty: str = "There is nothing to show: no valid scores."
    corner: str = ""

    @property
    def turned(self) -> bool:
        """Whether the heads of columns stand upright, so that many or long names find room."""
        names = [head.name for head in self.columns]
        longest = max(map(len, names), default=0)
        return len(names) > _MANY or longest > _CUT or (len(names) > _SOME and longest > _LONG)

    def at(self, row: Head, column: Head) -> GridCell | None:
        """The square where they meet, if there is one."""
        return self.cells.get((row.name, column.name))


def grid_of(
    kinds: tuple[str, str],
    values: Iterable[tuple[str, str, float | None, str]],
    *,
    notes: Callable[[str, str], str] = lambda _kind, _name: "",
    digits: int = 2,
    most: float | None = 1.0,
    deviation: bool = False,
    own: bool = False,
    caption: str = "",
    empty: str = "There is nothing to show: no valid scores.",
    order: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Grid:
    """A heat map of (row, column, value, what it comes from).

    Args:
        notes: what is said of a name of a dimension.
        most: the value of the deepest shade; None for the largest that there is.
        deviation: whether values are differences, written with their sign.
        own: whether a row and a column of one name are the same model.
        order: names of rows and of columns that come first, in this order.
    """
    known = [(row, column, value, origin) for row, column, value, origin in values if value is not None]
    top = most if most is not None else max((abs(value) for _, _, value, _ in known), default=1.0) or 1.0
    write = signed_text if deviation else number_text
    cells = {
        (row, column): GridCell(
            write(value, digits),
            max(-1.0, min(1.0, value / top)),
            f"{row}, {column}: {write(value, digits + 2)}{origin and ', ' + origin}",
            own and row == column,
        )
        for row, column, value, origin in known
    }
    rows = _ordered(order[0], (row for row, _ in cells))
    columns = _ordered(order[1], (column for _, column in cells))
    heads = (
        [Head(name, notes(kinds[0], name)) for name in rows],
        [Head(name, notes(kinds[1], name)) for name in columns],
    )
    return Grid(*kinds, *heads, cells, caption, empty, f"{kinds[0]} \\ {kinds[1]}")


def _ordered(first: Sequence[str], names: Iterable[str]) -> list[str]:
    found = dict.fromkeys(names)
    return [name for name in first if name in found] + [name for name in found if name not in set(first)]


def signed_text(value: float, digits: int | None = None) -> str:
    """A number with its sign."""
    text = number_text(value, digits)
    return text if value <= 0 or not any(digit in text for digit in "123456789") else f"+{text}"


class Levels(Protocol):
    """What has counts of levels."""

    @property
    def high(self) -> int:
        """Scores High."""
        ...

    @property
    def medium(self) -> int:
        """Scores Medium."""
        ...

    @property
    def low(self) -> int:
        """Scores Low."""
        ...


@dataclass(frozen=True)
class LevelRow:
    """A name with the counts of its levels."""

    name: str
    note: str
    units: int
    mean: float
    high: int
    medium: int
    low: int
    numeric: int = field(default=0)

    def share(self, count: int) -> float:
        """A count as a share of all scores."""
        return count / self.units if self.units else 0.0

    def percent(self, count: int) -> str:
        """The same, as text."""
        return f"{100 * self.share(count):.0f}%"


def levels_of(
    rows: Iterable[tuple[str, int, float, Levels, int]], kind: str, notes: Callable[[str, str], str]
) -> list[LevelRow]:
    """Rows of (name, scores, mean, levels, numbers of metrics), the best first."""
    made = [
        LevelRow(name, notes(kind, name), units, mean, levels.high, levels.medium, levels.low, numeric)
        for name, units, mean, levels, numeric in rows
        if units
    ]
    return sorted(made, key=lambda row: -row.mean)
