"""Reports as data: JSON of a whole report, CSV and rows of its tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from p2l.common.files import atomic_path, no_nan
from p2l.common.report.charts import Chart
from p2l.common.report.heat import Heat
from p2l.common.report.reports import Figure, Fold, Forest, Links, MetricTable, Notes, Part, Prose, Report
from p2l.common.report.tables import Table
from p2l.common.spreadsheets import to_cell


def report_json(report: Report) -> dict[str, Any]:
    """Return a report as an object of JSON: what its page says, with numbers in place of pictures."""
    return {
        "kind": report.kind,
        "subject": report.subject,
        "data": report.data,
        "date": report.made.isoformat(),
        "verdict": {"sentence": report.verdict.sentence, "reason": report.verdict.reason, "tone": report.verdict.tone},
        "picture": None if report.picture is None else part_json(report.picture),
        "sections": [
            {
                "title": section.title,
                "lead": section.lead,
                "parts": [part_json(part) for part in section.parts if part is not None],
            }
            for section in report.sections
        ],
        "facts": dict(report.facts),
        "notes": list(report.notes),
    }


def part_json(part: Part) -> dict[str, Any]:
    """Return a table, a figure or another part of a report as an object of JSON, with its `kind`."""
    assert part is not None
    content: dict[str, Any] = {"kind": part.kind}
    if isinstance(part, Table):
        content |= {"caption": part.caption, "rows": table_rows(part)}
    elif isinstance(part, Figure):
        panels = [{"panel": title, **_picture_json(picture)} for title, picture in part.pictures]
        content |= {"title": part.title, "caption": part.caption, "panels": panels}
    elif isinstance(part, MetricTable):
        content["rows"] = [vars(measure) for measure in part.rows]
    elif isinstance(part, Prose):
        content["text"] = part.text
    elif isinstance(part, Notes):
        content["sentences"] = list(part.sentences)
    elif isinstance(part, Links):
        content["rows"] = [{"address": address, "name": name, "about": about} for address, name, about in part.rows]
    elif isinstance(part, Fold):
        inner = [part_json(nested) for nested in part.parts if nested is not None]
        content |= {"title": part.title, "note": part.note, "parts": inner}
    return no_nan(content)  # type: ignore[no-any-return]


def _picture_json(picture: str | Chart | Forest | Heat) -> dict[str, Any]:
    if isinstance(picture, Chart):
        fields = ("name", "x", "y", "lower", "upper", "labels")
        series = [
            {field: getattr(line, field) for field in fields if len(getattr(line, field))} for line in picture.series
        ]
        return {"x": picture.axes.x, "y": picture.axes.y, "series": series}
    if isinstance(picture, Forest):
        rows = [
            {"name": row.name, "lower": row.lower, "value": row.value, "upper": row.upper, "note": row.note}
            for row in picture.rows
        ]
        return {"of": picture.name, "unit": picture.unit, "rows": rows}
    if isinstance(picture, Heat):
        return {"rows": list(picture.names), "columns": list(picture.across), "values": picture.values.tolist()}
    return {}


def table_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table as objects: numbers as they are, by the `key` of each column."""
    return [
        {column.field: column.data(value) for column, value in zip(table.columns, row, strict=True)}
        for row in table.rows
    ]


def write_csv(table: Table, path: str | Path) -> Path:
    """Write a table as CSV, whole or not at all: numbers as they are, by the `key` of each column; return its path."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        # A name such as =cmd() must not run where the file is opened in a spreadsheet.
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([to_cell(column.field) for column in table.columns])
        for row in table.rows:
            writer.writerow([to_cell(column.data(value)) for column, value in zip(table.columns, row, strict=True)])
    return Path(path)
