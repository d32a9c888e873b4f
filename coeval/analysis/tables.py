"""Tables of reports, each declared once: the dataclass of its rows is what pages, CSV, JSON and the workbook follow.

    student: Annotated[str, named("student")]
    mean: Annotated[float, estimated("mean", "of all scores")]

CSV and JSON have every field by its name; pages show those with a `Shown`. A report is a dataclass of such tables:
`report.json` holds all of it, and each of its tables is a CSV file of the table's name.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from p2l.common.files import atomic_path
from p2l.common.spreadsheets import to_cell

Row = TypeVar("Row")
_SPECIAL = frozenset(',"\r\n')  # of CSV: fields that have one are quoted


@dataclass(frozen=True)
class Shown:
    """How pages show a field of a row."""

    title: str  # of its column
    note: str = ""  # shown when the pointer rests on the title
    digits: int | None = None  # places after the point
    kind: str = ""  # the dimension of which it names a value (task, student, ...): cells show that value's description
    ends: str | None = None  # of an estimate the prefix of the fields `lower` and `upper`, the limits of its interval
    bar: bool = False  # whether cells have bars on a shared scale: of an estimate its interval, else from zero
    tone: bool = False  # whether an estimate stands out whose interval leaves zero out
    zero: bool = False  # whether the scale has a line at zero
    wide: bool = False  # whether it holds prose, which wraps
    is_text: bool = (
        False  # whether cells are words, by the field's type (text, or yes and no): they are set to the left
    )


def named(kind: str, title: str = "") -> Shown:
    """Show the name of a task, a model or another value of a dimension."""
    return Shown(title or kind, kind=kind)


def estimated(
    title: str, note: str = "", ends: str = "", *, digits: int = 3, bar: bool = True, zero: bool = False
) -> Shown:
    """Show an estimate with the interval that the fields `{ends}lower` and `{ends}upper` hold."""
    return Shown(title, note, digits, ends=ends, bar=bar, zero=zero)


def toned(title: str, note: str = "") -> Shown:
    """Show an estimate that stands out where its interval leaves zero out."""
    return Shown(title, note, 3, ends="", bar=True, tone=True, zero=True)


def barred(title: str, note: str = "", digits: int = 4) -> Shown:
    """Show an amount with a bar from zero."""
    return Shown(title, note, digits, bar=True, zero=True)


TaskName: TypeAlias = Annotated[str, named("task")]
StudentName: TypeAlias = Annotated[str, named("student")]
TeacherName: TypeAlias = Annotated[str, named("teacher")]
JudgeName: TypeAlias = Annotated[str, named("judge")]
Rank: TypeAlias = Annotated[int, Shown("rank")]
ScoreCount: TypeAlias = Annotated[int, Shown("scores")]
ItemCount: TypeAlias = Annotated[int, Shown("items")]


def shown_fields(row: type) -> Mapping[str, Shown]:
    """Return the fields of a row that pages show, in order."""
    fields = {}
    for name, hint in get_type_hints(row, include_extras=True).items():
        for style in getattr(hint, "__metadata__", ()):
            if isinstance(style, Shown):
                fields[name] = dataclasses.replace(style, is_text=hint.__origin__ in (str, bool))
    return fields


@dataclass(frozen=True, eq=False)
class Columns(Generic[Row]):
    """A table by columns of N rows, for tables of a hundred thousand rows; iterating over it gives its rows."""

    row: type[Row]  # the dataclass that a row is; `values` are in the order of its fields
    names: Mapping[str, Sequence[str]]  # column of names -> what its codes stand for
    values: Mapping[str, npt.NDArray[Any]]  # column -> (N,): codes where it has names; NaN is None in a row

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def __iter__(self) -> Iterator[Row]:
        columns = [self.listed(name) for name in self.values]
        for row in zip(*columns, strict=True):
            yield self.row(**dict(zip(self.values, row, strict=True)))

    def __getitem__(self, place: int) -> Row:
        return next(iter(self.where(np.array([place]))))

    def where(self, rows: npt.NDArray[Any]) -> Columns[Row]:
        """Return the rows that a mask or indices choose."""
        return Columns(self.row, self.names, {name: column[rows] for name, column in self.values.items()})

    def listed(self, name: str) -> list[Any]:
        """Return a column as plain values, names in full."""
        names, values = self.names.get(name), self.values[name]
        return _plain_list(values) if names is None else [names[code] for code in values.tolist()]

    def plain(self) -> dict[str, Any]:
        """Return names and columns for JSON, an eighth of the size of a list of rows; columns of names hold codes."""
        columns = {name: _plain_list(column) for name, column in self.values.items()}
        return {"names": {name: list(names) for name, names in self.names.items()}, "columns": columns}


def _plain_list(column: npt.NDArray[Any]) -> list[Any]:
    """Return a column's values, None for NaN and infinity."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        return [value if math.isfinite(value) else None for value in values]
    return values


Rows: TypeAlias = "tuple[Any, ...] | Columns[Any]"


def plain(value: Any) -> Any:
    """Return a value for JSON: dataclasses as maps, tuples as lists, NaN and infinity as null."""
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Columns):
        return value.plain()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _field_names(type(value))}
    return value


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def _tables_of(report: Any) -> Iterator[tuple[str, Rows]]:
    """Yield name and rows of a report's tables, those of its members too, but not of its header."""
    for name in _field_names(type(report)):
        value = getattr(report, name)
        if isinstance(value, Columns):
            yield name, value
        elif name != "header" and dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _tables_of(value)
        elif isinstance(value, tuple) and (not value or dataclasses.is_dataclass(value[0])):
            yield name, value


def write_tables(report: object, folder: Path) -> list[Path]:
    """Write `report.json` and a CSV file for each table with rows, and return the paths. Raise InputError if it fails.

    A file that an earlier report left of a table without rows is removed.
    """
    text = json.dumps(plain(report), ensure_ascii=False, separators=(",", ":"))
    paths = [_write(folder / "report.json", text + "\n")]
    tables = list(_tables_of(report))
    for table in {name for name, _ in tables} - {name for name, rows in tables if len(rows)}:
        (folder / f"{table}.csv").unlink(missing_ok=True)
    for table, rows in tables:
        if not len(rows):
            continue
        names = _field_names(rows.row if isinstance(rows, Columns) else type(rows[0]))
        columns = [_texts(rows, name) for name in names]
        lines = [",".join(names), *map(",".join, zip(*columns, strict=True)), ""]
        paths.append(_write(folder / f"{table}.csv", "\r\n".join(lines)))
    return paths


def _write(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "replace"))  # replies may hold a lone surrogate
    return path


def _texts(rows: Rows, name: str) -> list[str]:
    if not isinstance(rows, Columns):
        return [_field(getattr(row, name)) for row in rows]
    # Hundreds of thousands of rows have few different values: to format each once takes a third of csv.writer's time.
    different, place = np.unique(rows.values[name], return_inverse=True)
    names = rows.names.get(name)
    texts = [_field(value if names is None else names[value]) for value in different.tolist()]
    return list(np.array(texts, dtype=object)[place])


def _field(value: Any) -> str:
    """Return a field as csv.writer has it, but with booleans as in JSON."""
    text = str(value).lower() if isinstance(value, bool) else "" if plain(value) is None else str(to_cell(value))
    return text if _SPECIAL.isdisjoint(text) else '"{}"'.format(text.replace('"', '""'))
