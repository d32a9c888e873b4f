"""What reports are made of beside tables: heat maps and stacks of levels. Nothing is computed from records here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from coeval.analysis.results import Header
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text

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


# Cells and columns that several reports share.

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


# What every report shares: its head (id, status, counts), what was left out, and what names mean.

_CODES = {
    "PARSE_ERROR_P3": "an item that is no JSON record",
    "PARSE_ERROR_P4": "an answer that is no JSON record",
    "PARSE_ERROR_P5": "an evaluation that is no JSON record",
    "MISSING_RESPONSE": "an evaluation of an answer that is not there",
    "MISSING_DATAPOINT": "an answer to an item that is not there",
    "INCOMPLETE_SCORES": "an evaluation without all factors that its judge should score",
    "INVALID_SCORE_VALUE": "a score that is neither a level nor a number in [0, 1]",
    "FAILED_P3": "an item that could not be made",
    "FAILED_P4": "an answer that did not come",
    "FAILED_P5": "an evaluation that did not come",
    "DUPLICATE_P3": "an item stored twice",
    "DUPLICATE_P4": "an answer stored twice",
    "DUPLICATE_P5": "an evaluation stored twice",
    "STALE_P4": "an answer to another prompt than its item has now",
    "STALE_P5": "scores of another answer than is there now",
    "STALE_PAIR": "a verdict on other answers than are there now",
    "PARSE_ERROR_PAIR": "a verdict on a pair that is no JSON record, or lacks a key",
    "FAILED_PAIR": "a verdict on a pair that did not come",
    "INVALID_WINNER_PAIR": "a verdict that names none of the four winners",
    "MISMATCHED_PAIR": "a verdict on a model or an item other than of its answers, or on one model twice",
    "MISSING_RESPONSE_PAIR": "a verdict on an answer that is not there",
    "MISSING_DATAPOINT_PAIR": "a verdict on answers to an item that is not there",
    "DUPLICATE_PAIR": "a verdict stored twice",
}


@dataclass(frozen=True)
class Place:
    """A page among the others: links to them as (target, text, whether it is this one)."""

    links: Sequence[tuple[str, str, bool]] = ()


def frame(header: Header, title: str, about: str, place: Place) -> dict[str, Any]:
    """What `report.html` needs for the head of a page and its foot."""
    return {
        "title": f"{title}: {header.experiment_id}",
        "about": about,
        "links": place.links,
        "banner": _banner(header),
        "facts": _facts(header),
        "skipped": _skipped(header) if header.skipped else None,
        "skipped_count": sum(one.count for one in header.skipped),
        "words": _words(header),
        "own": len({*header.teachers, *header.students, *header.judges})
        < len(header.teachers) + len(header.students) + len(header.judges),
    }


def _banner(header: Header) -> str:
    if not header.partial:
        return ""
    return f"Partial results: the run's status is {header.status or 'unknown'}, so every number below may still change."


def _facts(header: Header) -> list[tuple[str, str]]:
    valid = f"{header.evaluations:,} ({header.valid_evaluations:,} valid)"
    return [
        ("run", header.experiment_id),
        ("status", header.status or "unknown"),
        ("created", header.created_at or "unknown"),
        *((kind, f"{len(getattr(header, kind)):,}") for kind in ("tasks", "teachers", "students", "judges", "factors")),
        ("items", f"{header.datapoints:,}"),
        ("answers", f"{header.responses:,}"),
        ("evaluations", valid),
        ("scores", f"{header.units:,}"),
        *([("verdicts on pairs", f"{header.verdicts:,}")] if header.verdicts else []),
        ("self-judging", _part(header.self_judging, header.units)),
        ("self-teaching", _part(header.self_teaching, header.units)),
    ]


def _part(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.0%})" if of else f"{count:,}"


def _skipped(header: Header) -> Table:
    columns = [
        Column("code", number=False),
        Column("records"),
        Column("meaning", number=False, wide=True),
        Column("for example", number=False, wide=True),
    ]
    rows: list[list[Value]] = [[one.code, one.count, _CODES.get(one.code, ""), one.example] for one in header.skipped]
    return Table(columns, rows)


def _words(header: Header) -> list[tuple[str, list[tuple[str, str]]]]:
    """Descriptions for readers who have no pointer to rest on a name."""
    attributes = [
        (f"{task}: {name}", ", ".join(values))
        for task, found in header.attribute_values.items()
        for name, values in found.items()
    ]
    kinds = [
        ("Tasks", list(header.task_descriptions.items())),
        ("How judges grade", list(header.grading.items())),
        ("Factors of the rubrics", _factors(header)),
        ("Attributes and their values", attributes),
    ]
    return [(kind, pairs) for kind, pairs in kinds if pairs]


def _factors(header: Header) -> list[tuple[str, str]]:
    """Each factor's description, with its weight where that is not 1."""
    found = []
    for key, text in header.factor_descriptions.items():
        task, _, factor = key.partition("/")
        weight = header.weights.get(task, {}).get(factor)
        found.append((key, text if weight is None else f"{text} (weight {weight:g})"))
    return found


def notes_of(header: Header) -> Callable[[str, str], str]:
    """`note_of` of this header."""
    return partial(note_of, header)


def note_of(header: Header, dimension: str, name: str) -> str:
    """What is known of a task, a factor, an attribute's value, or a model."""
    if dimension == "task":
        return header.task_descriptions.get(name, "")
    if dimension == "factor":
        found = {key.partition("/")[0]: text for key, text in header.factor_descriptions.items() if _is(key, name)}
        texts = dict.fromkeys(found.values())
        return next(iter(texts), "") if len(texts) < 2 else "\n".join(f"{task}: {text}" for task, text in found.items())
    if dimension == "attribute":
        attribute = name.partition("=")[0]
        values = dict.fromkeys(
            value for found in header.attribute_values.values() for value in found.get(attribute, ())
        )
        return f"one of {', '.join(values)}" if values else ""
    return _roles(header, name)


def _is(key: str, factor: str) -> bool:
    return key.partition("/")[2] == factor


def _roles(header: Header, name: str) -> str:
    roles = [role for role in ("teacher", "student", "judge") if name in getattr(header, f"{role}s")]
    return ", ".join(roles)
