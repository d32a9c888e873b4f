"""Reports as JSON and CSV: `report.json` holds all of one, and each of its tables is a CSV file of the table's name."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.analysis.compare import RunComparison
from coeval.analysis.results import Report
from coeval.storage.jsonl import write_json
from p2l.command import atomic_path

__all__ = ["plain", "tables_of", "write_tables"]


def plain(value: Any) -> Any:
    """Dataclasses as maps, tuples as lists; numbers that are no numbers as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tables_of(report: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The tables of a report that have rows, by name; those of a part of it too, but for its header."""
    for field in dataclasses.fields(report):
        value = getattr(report, field.name)
        if field.name == "header":
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from tables_of(value)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield field.name, value


def write_tables(report: Report | RunComparison, folder: Path) -> list[Path]:
    """Write `report.json` and the CSV files; returns their paths.

    Raises:
        InputError: the folder cannot be written.
    """
    write_json(folder / "report.json", plain(report))
    paths = [folder / "report.json"]
    for name, rows in tables_of(report):
        paths.append(folder / f"{name}.csv")
        _write_csv(paths[-1], rows)
    return paths


def _write_csv(path: Path, rows: tuple[Any, ...]) -> None:
    names = [field.name for field in dataclasses.fields(rows[0])]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if plain(value) is None else value
