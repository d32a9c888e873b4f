"""Components of pages: tables of rows, heat maps, stacks of levels, lines over time, and the head of every page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coeval.analysis.distribution import DistributionRow, DriftRow
from coeval.analysis.tables import Shown, shown_fields
from coeval.analysis.units import Header
from coeval.analysis.variance import MissingRow
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text

# Tables.

_LEAST_P_SHOWN = 1e-4


@dataclass(frozen=True)
class Computed:
    """A column of cells that are computed from a row; those of `barred` columns hold bars from zero."""

    column: Column
    cell: Callable[[Any], Value]
    barred: bool = False


def table(
    rows: Iterable[Any], header: Header, columns: Sequence[str | Computed] | None = None, **changes: Shown
) -> Table | None:
    """Return rows, dataclasses of one kind, as a table; None where there are none.

    `columns` are names of fields and computed columns, in order (None: every field that is shown); `changes` say how
    fields are shown in this table instead.
    """
    rows = list(rows)
    if not rows:
        return None
    fields = {**shown_fields(type(rows[0])), **changes}
    columns_of_cells = []
    for source in columns or list(fields):
        if isinstance(source, Computed):
            column, cells = source.column, [source.cell(row) for row in rows]
            barred, zero = source.barred, 0.0 if source.barred else None
        else:
            style = fields[source]
            cells = [_cell(row, source, style, header) for row in rows]
            is_text = style.is_text or bool(style.kind)
            column = Column(style.title, style.digits, style.note, number=not is_text, wide=style.wide)
            barred, zero = style.bar, 0.0 if style.zero else None
        # Bars share the range of all cells of their column.
        ends = [end for cell in cells if isinstance(cell, Cell) and cell.bar for end in cell.bar]
        if barred and ends:
            column = replace(column, scale=Scale.around(ends, zero))
        columns_of_cells.append((column, cells))
    return Table.of(*columns_of_cells)


def missing_table(rows: Iterable[MissingRow], header: Header) -> Table | None:
    """Return whose answers lack scores or verdicts as a table; None where nobody's do."""
    judge = Computed(Column("judge", number=False), lambda row: row.judge or Cell("all together", ""))
    return table(rows, header, (judge, "student", "answers", "missing", "elsewhere", "p_value"))


def _cell(row: Any, name: str, style: Shown, header: Header) -> Value:
    value: Value = getattr(row, name)
    if style.kind and isinstance(value, str):
        return name_cell(header, style.kind, value)
    if style.ends is not None:
        lower, upper = (getattr(row, f"{style.ends}{end}") for end in ("lower", "upper"))
        cell = estimate(getattr(row, name), lower, upper, style.digits)
        return replace(cell, tone="bad") if cell and style.tone and (lower > 0 or upper < 0) else cell
    if style.bar:
        return amount(getattr(row, name), style.digits)
    if isinstance(value, bool):
        return yes_no(value)
    if name == "p_value" and isinstance(value, float) and value < _LEAST_P_SHOWN:
        return Cell(f"< {_LEAST_P_SHOWN:.4f}", value)
    return None if value == "" else value


def name_cell(header: Header, kind: str, name: str) -> Cell:
    """Return the name of a model, a task or another value of a dimension, with its description as the note."""
    note = describe(header, kind, name)
    return Cell(name, name.casefold(), note=f"{name}: {note}" if note else name)


def estimate(value: float | None, lower: float | None, upper: float | None, digits: int | None = 3) -> Cell | None:
    """Return a number with the limits of its interval as a bar and a note."""
    if value is None or math.isnan(value):
        return None
    if lower is None or upper is None or math.isnan(lower) or math.isnan(upper):
        return Cell(number_text(value, digits), value, bar=(math.nan, value, math.nan))
    ends = f"95 %: {number_text(lower, digits)} to {number_text(upper, digits)}"
    return Cell(number_text(value, digits), value, note=ends, bar=(lower, value, upper))


def amount(value: float | None, digits: int | None = 4) -> Cell | None:
    """Return a number with a bar from zero."""
    if value is None or math.isnan(value):
        return None
    return Cell(number_text(value, digits), value, bar=(0.0, value, value))


def yes_no(flag: bool) -> Cell:
    """Return a cell that says yes in colour, or no; yes sorts first."""
    return Cell("yes", "0", "good") if flag else Cell("no", "1", "quiet")


def percent(part: float, of: float, least: float = 0.0) -> Cell | None:
    """Return a share, in colour below `least`; None of nothing."""
    return Cell(f"{part / of:.0%}", part / of, "bad" if part / of < least else "") if of else None


# Heat maps.

_MAX_FLAT_COLUMNS, _MAX_FLAT_LONG_COLUMNS = 8, 4  # columns, columns with long names
NOTHING = "There is nothing to show"
_LONG_NAME_LETTERS, _CUT_NAME_LETTERS = 14, 18  # letters of a long name, and of one that would be cut


@dataclass(frozen=True)
class _Head:
    """The name of a row or column, and what is shown when the pointer rests on it."""

    name: str
    note: str = ""

    @property
    def title(self) -> str:
        """The whole name, which may be cut on the page, and the note."""
        return f"{self.name}: {self.note}" if self.note else self.name


@dataclass(frozen=True)
class _GridCell:
    """One square: its text, its shade in [-1, 1] (below 0 in the other colour), a note, whether it is a model's own."""

    text: str
    share: float
    note: str
    is_self: bool = False


@dataclass(frozen=True)
class Grid:
    """A heat map; filters of the dimensions `row_kind` and `column_kind` hide its rows and columns."""

    row_kind: str
    column_kind: str
    rows: Sequence[_Head]
    columns: Sequence[_Head]
    cells: Mapping[tuple[str, str], _GridCell]
    empty: str

    @property
    def corner(self) -> str:
        """The head of the rows' names."""
        return f"{self.row_kind} \\ {self.column_kind}"

    @property
    def turned(self) -> bool:
        """Return whether the heads of columns stand upright, so that many or long names find room."""
        names = [head.name for head in self.columns]
        longest = max(map(len, names), default=0)
        return (
            len(names) > _MAX_FLAT_COLUMNS
            or longest > _CUT_NAME_LETTERS
            or (len(names) > _MAX_FLAT_LONG_COLUMNS and longest > _LONG_NAME_LETTERS)
        )

    def at(self, row: _Head, column: _Head) -> _GridCell | None:
        """Return the square where they meet, if there is one."""
        return self.cells.get((row.name, column.name))


def grid_of(
    header: Header,
    kinds: tuple[str, str],
    values: Iterable[tuple[str, str, float | None, str]],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    digits: int = 2,
    most: float | None = 1.0,
    deviation: bool = False,
    own: bool = False,
    empty: str = f"{NOTHING}: no valid scores.",
) -> Grid:
    """Return a heat map of (row, column, value, what it comes from); `kinds` are the dimensions of rows and columns.

    Args:
        rows, columns: names that come first, in this order; None: as in the header.
        most: the value of the deepest shade; None for the largest that there is.
        deviation: whether values are differences, written with their sign.
        own: whether a row and a column of one name are the same model.
        empty: what is shown where there are no values.
    """
    squares = [(row, column, value, origin) for row, column, value, origin in values if value is not None]
    top = most if most is not None else max((abs(value) for _, _, value, _ in squares), default=1.0) or 1.0
    write = signed_text if deviation else number_text
    cells = {
        (row, column): _GridCell(
            write(value, digits),
            max(-1.0, min(1.0, value / top)),
            f"{row}, {column}: {write(value, digits + 2)}{origin and ', ' + origin}",
            own and row == column,
        )
        for row, column, value, origin in squares
    }
    row_kind, column_kind = kinds
    return Grid(
        row_kind=row_kind,
        column_kind=column_kind,
        rows=_heads(header, row_kind, rows, (row for row, _ in cells)),
        columns=_heads(header, column_kind, columns, (column for _, column in cells)),
        cells=cells,
        empty=empty,
    )


def grid_across(
    header: Header, kind: str, across: str, cells: Iterable[Any], origin: str, value: str = "mean", **options: Any
) -> Grid:
    """Return a heat map of the cells of one dimension, `across`; `origin` is a template over a cell's fields."""
    name = options.pop("name", kind)
    values = [
        (getattr(cell, name), cell.value, getattr(cell, value), origin.format_map(vars(cell)))
        for cell in cells
        if cell.dimension == across
    ]
    return grid_of(header, (kind, across), values, **options)


def _heads(header: Header, kind: str, order: Sequence[str] | None, names: Iterable[str]) -> list[_Head]:
    first = getattr(header, f"{kind}s", ()) if order is None else order
    used = dict.fromkeys(names)
    ordered = [name for name in first if name in used] + [name for name in used if name not in set(first)]
    return [_Head(name, describe(header, kind, name)) for name in ordered]


def signed_text(value: float, digits: int | None = None) -> str:
    """Return a number with its sign."""
    text = number_text(value, digits)
    return text if value <= 0 or not any(digit in text for digit in "123456789") else f"+{text}"


# Stacks of levels.


@dataclass(frozen=True)
class _LevelRow:
    """A name with the counts of its levels; `numeric` counts scores that are numbers."""

    name: str
    note: str
    units: int
    mean: float
    high: int
    medium: int
    low: int
    numeric: int

    def share(self, count: int) -> float:
        """Return a count as a share of all scores."""
        return count / self.units

    def percent(self, count: int) -> str:
        """Return a count as a share of all scores, as text."""
        return f"{100 * self.share(count):.0f}%"


def levels_of(header: Header, kind: str, rows: Iterable[tuple[str, DistributionRow]]) -> list[_LevelRow]:
    """Return the sums of (name, row) by name, the best mean first."""
    groups: dict[str, list[DistributionRow]] = {}
    for name, row in rows:
        groups.setdefault(name, []).append(row)
    sums = []
    for name, group in groups.items():
        units = sum(row.units for row in group)
        sums.append(
            _LevelRow(
                name=name,
                note=describe(header, kind, name),
                units=units,
                # The mean of one row as it is: the sum and its quotient would round it.
                mean=group[0].mean if len(group) == 1 else sum(row.mean * row.units for row in group) / units,
                high=sum(row.high for row in group),
                medium=sum(row.medium for row in group),
                low=sum(row.low for row in group),
                numeric=sum(row.numeric for row in group),
            )
        )
    return sorted(sums, key=lambda row: -row.mean)


# Lines over time.


@dataclass(frozen=True)
class _Spark:
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


def drift_lines(rows: Iterable[DriftRow], field: str) -> list[_Spark]:
    """Return a line for each judge over its windows, of `mean` or `spa`; one value is a level line."""
    judges: dict[str, list[float | None]] = {}
    for row in rows:
        judges.setdefault(row.judge, []).append(getattr(row, field))
    lines, subject = [], "mean score" if field == "mean" else "agreement with peers"
    for name, values in judges.items():
        points_at = [(place, value) for place, value in enumerate(values) if value is not None]
        if not points_at:
            continue
        if len(points_at) == 1:  # a line needs two points
            points_at = [(0, points_at[0][1]), (1, points_at[0][1])]
        span = max(1, points_at[-1][0])
        points = tuple((round(100 * place / span, 2), round(20 * (1 - value), 2)) for place, value in points_at)
        title = f"{subject} of {name}, from {points_at[0][1]:.2f} to {points_at[-1][1]:.2f}"
        lines.append(_Spark(name, title, points, points_at[0][1], points_at[-1][1]))
    return lines


# The head of every page (id, status, counts, records left out), and what names mean.

_CODES = {
    "PARSE_ERROR_P3": "an item that is not a JSON record",
    "PARSE_ERROR_P4": "an answer that is not a JSON record",
    "PARSE_ERROR_P5": "an evaluation that is not a JSON record",
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
    "PARSE_ERROR_PAIR": "a verdict on a pair that is not a JSON record, or lacks a key",
    "FAILED_PAIR": "a verdict on a pair that did not come",
    "INVALID_WINNER_PAIR": "a verdict that names none of the four winners",
    "MISMATCHED_PAIR": "a verdict on a model or an item other than of its answers, or on one model twice",
    "MISSING_RESPONSE_PAIR": "a verdict on an answer that is not there",
    "MISSING_DATAPOINT_PAIR": "a verdict on answers to an item that is not there",
    "DUPLICATE_PAIR": "a verdict stored twice",
}


def _scores_facts(header: Header) -> Iterator[tuple[str, str]]:
    """Yield what is to be known of scores, where any were meant."""
    yield "evaluations", f"{header.evaluations:,} ({header.valid_evaluations:,} valid)"
    yield "scores", f"{header.units:,}"
    yield "self-judging", _count_text(header.self_judging, header.units)
    yield "self-teaching", _count_text(header.self_teaching, header.units)


def frame(header: Header, title: str, about: str, links: Sequence[tuple[str, str, bool]] = ()) -> dict[str, Any]:
    """Return the context of `report.html` for the head and the foot of a page.

    `links` lead to other pages: (target, text, whether it is this one).
    """
    roles = (header.teachers, header.students, header.judges)
    meaning = Computed(Column("meaning", number=False, wide=True), lambda row: _CODES.get(row.code, ""))
    status = header.status or "unknown"
    warning = f"Partial results: the run's status is {status}, so every number below may still change."
    return {
        "title": f"{title}: {header.experiment_id}",
        "about": about,
        "links": links,
        "banner": warning if header.partial else "",
        "repeats": repeats_text(header),
        "facts": [
            ("run", header.experiment_id),
            ("status", status),
            ("created", header.created_at or "unknown"),
            *(
                (kind, f"{len(getattr(header, kind)):,}")
                for kind in ("tasks", "teachers", "students", "judges", "factors")
                if kind != "factors" or header.units or not header.verdicts  # of pairs no factor is scored
            ),
            ("items", f"{header.datapoints:,}"),
            *([("distinct prompts", f"{header.prompts:,}")] if header.prompts < header.datapoints else []),
            ("answers", f"{header.responses:,}"),
            *(_scores_facts(header) if header.evaluations or not header.verdicts else ()),
            *([("verdicts on pairs", f"{header.verdicts:,}")] if header.verdicts else []),
        ],
        "skipped": table(header.skipped, header, ("code", "count", meaning, "example")),
        "skipped_count": sum(row.count for row in header.skipped),
        "words": _words(header),
        "own": len({name for names in roles for name in names}) < sum(map(len, roles)),
    }


def repeats_text(header: Header) -> str:
    """Return a warning where items repeat each other's prompts; empty where none does."""
    more = header.datapoints - header.prompts
    if more <= 0:
        return ""
    return (
        f"{more:,} of {header.datapoints:,} items repeat the prompt of another, exactly or nearly: "
        f"intervals and tests count {header.prompts:,} distinct prompts."
    )


def _count_text(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.0%})" if total else f"{count:,}"


def _words(header: Header) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return all descriptions, for readers who have no pointer to rest on a name."""
    attributes = [
        (f"{task}: {name}", ", ".join(values))
        for task, declared in header.attribute_values.items()
        for name, values in declared.items()
    ]
    factors = []
    for key, text in header.factor_descriptions.items():
        task, _, factor = key.partition("/")
        weight = header.weights.get(task, {}).get(factor)
        factors.append((key, text if weight is None else f"{text} (weight {weight:g})"))
    kinds = [
        ("Tasks", list(header.task_descriptions.items())),
        ("How judges grade", list(header.grading.items())),
        ("Factors of the rubrics", factors),
        ("Attributes and their values", attributes),
    ]
    return [(kind, pairs) for kind, pairs in kinds if pairs]


def describe(header: Header, dimension: str, name: str) -> str:
    """Return the description of a task, a factor or an attribute's value, or the roles of a model."""
    if dimension == "task":
        return header.task_descriptions.get(name, "")
    if dimension == "factor":
        keys = ((key.partition("/"), text) for key, text in header.factor_descriptions.items())
        texts = {task: text for (task, _, factor), text in keys if factor == name}
        if len(set(texts.values())) < 2:
            return next(iter(texts.values()), "")
        return "\n".join(f"{task}: {text}" for task, text in texts.items())
    if dimension == "attribute":
        attribute = name.partition("=")[0]
        tasks = header.attribute_values.values()
        values = dict.fromkeys(value for declared in tasks for value in declared.get(attribute, ()))
        return f"one of {', '.join(values)}" if values else ""
    return ", ".join(role for role in ("teacher", "student", "judge") if name in getattr(header, f"{role}s"))
