"""Reports as JSON and CSV: `report.json` holds all of one, and each of its tables is a CSV file of the table's name.

A table of rows is a list of objects in JSON; `Columns` are an object with `names` and `columns`, which takes a large
run an eighth of the room.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.analysis.columns import Columns
from coeval.analysis.compare import RunComparison
from coeval.analysis.results import Report
from p2l.command import atomic_path

__all__ = ["plain", "tables_of", "write_tables"]

Rows: TypeAlias = "tuple[Any, ...] | Columns[Any]"


def plain(value: Any) -> Any:
    """Dataclasses as maps, tuples as lists; numbers that are no numbers as null."""
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
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    return value


def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def tables_of(report: Any) -> Iterator[tuple[str, Rows]]:
    """The tables of a report that have rows, by name; those of a part of it too, but for its header."""
    for name in _names(type(report)):
        value = getattr(report, name)
        if isinstance(value, Columns):
            if len(value):
                yield name, value
        elif name != "header" and dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from tables_of(value)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield name, value


def write_tables(report: Report | RunComparison, folder: Path) -> list[Path]:
    """Write `report.json` and the CSV files; returns their paths.

    Raises:
        InputError: the folder cannot be written.
    """
    text = json.dumps(plain(report), ensure_ascii=False, separators=(",", ":"))
    paths = [_write(folder / "report.json", text + "\n")]
    return paths + [_write(folder / f"{name}.csv", _csv(rows)) for name, rows in tables_of(report)]


def _write(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "replace"))
    return path


def _csv(rows: Rows) -> str:
    names = _names(rows.row if isinstance(rows, Columns) else type(rows[0]))
    if isinstance(rows, Columns):
        columns = [_texts(rows, name) for name in names]
        return "\r\n".join([",".join(names), *map(",".join, zip(*columns, strict=True)), ""])
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if plain(value) is None else value


def _texts(table: Columns[Any], name: str) -> list[str]:
    """A column as fields of CSV; each of its values is written out once."""
    column: npt.NDArray[Any] = table.values[name]
    different, place = np.unique(column, return_inverse=True)
    values = different.tolist()
    written = [_quoted(table.names[name][code]) for code in values] if name in table.names else map(_number, values)
    texts: list[str] = np.array([*written, ""], dtype=object)[place].tolist()
    return texts


def _quoted(text: str) -> str:
    return f'"{text.replace(chr(34), 2 * chr(34))}"' if set(text) & set(',"\r\n') else text


def _number(value: Any) -> str:
    return str(_cell(value))
