"""Reports as text: for terminals, as JSON, and their tables as Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from p2l.common.files import atomic_path, no_nan
from p2l.common.report.charts import Chart
from p2l.common.report.heat import Heat
from p2l.common.report.reports import Figure, Fold, Forest, Links, MetricTable, Notes, Part, Prose, Report, Section
from p2l.common.report.tables import Table
from p2l.common.spreadsheets import to_cell
from p2l.common.text_table import align, markdown_table, text_table

# Pages have typographic signs, which programs that read a terminal's text take for no numbers.
_PLAIN = str.maketrans("−–", "--")


def report_text(report: Report, top: int | None = None) -> str:
    """Return a report as a terminal shows it: the verdict, then sections with the `top` rows of each table, and notes.

    Charts and heat maps, folded parts, and sections and columns that are `page_only` are left out.
    """
    lines = [report.verdict.sentence, *([report.verdict.reason] if report.verdict.reason else [])]
    for section in report.sections:
        lines += [] if section.page_only else ["", *section_text(section, top)]
    lines += ["", ", ".join(f"{name} {value}" for name, value in report.facts)] if report.facts else []
    return "\n".join([*lines, *notes_text(report.notes)])


def section_text(section: Section, top: int | None = None) -> list[str]:
    """Return the lines of a section, with the `top` rows of each table; None lists all."""
    lines = [section.title]
    for part in section.parts:
        text = list(_part_text(part, top))
        lines += ["", *text] if text else []
    return lines


def _part_text(part: Part, top: int | None) -> Iterator[str]:
    if isinstance(part, Table):
        yield from table_text(part, top)
    elif isinstance(part, Figure) and isinstance(part.picture, Forest):
        forest = part.picture
        cells = [[row.name, forest.value_text(row).translate(_PLAIN), row.note] for row in forest.rows]
        columns = 3 if any(row.note for row in forest.rows) else 2
        header = [forest.name, forest.unit, ""]
        yield part.title
        yield from text_table(header[:columns], [row[:columns] for row in cells], left={0, 2}, most=top)
    elif isinstance(part, MetricTable):
        rows = [[measure.name, measure.value, measure.interval] for measure in part.rows]
        yield from align(rows) if rows else []
    elif isinstance(part, Prose):
        yield part.text
    elif isinstance(part, Notes):
        yield from notes_text(part.sentences)
    elif isinstance(part, Links):
        yield from (f"{name}: {address} {beside}".rstrip() for address, name, beside in part.rows)
    elif isinstance(part, Fold) and part.is_open:
        yield part.title
        for inner in part.parts:
            yield from _part_text(inner, top)


def notes_text(notes: Sequence[str]) -> list[str]:
    """Return sentences that a reader must know, a line for each."""
    return [f"note: {note}" for note in notes]


def table_text(table: Table, top: int | None = None, flag: str = "--top") -> list[str]:
    """Return the lines of a table, with its `top` rows and the number of the others; None, or `flag` 0, lists all."""
    header, rows, left = _texts(table)
    caption = [table.caption] if table.caption else []
    return [*caption, *text_table(header, rows, left=left, most=top, flag=flag)]


def table_markdown(table: Table) -> list[str]:
    """Return the lines of a table as GitHub's Markdown."""
    header, rows, left = _texts(table)
    return markdown_table(header, rows, left=left)


def _texts(table: Table) -> tuple[list[str], list[list[str]], set[int]]:
    """Return the header, the cells and the places of the columns that are aligned to the left."""
    places = [place for place, column in enumerate(table.columns) if not column.page_only]
    columns = [table.columns[place] for place in places]
    rows = []
    for row in table.rows:
        texts = [column.cell(row[place]).text for place, column in zip(places, columns, strict=True)]
        # Names keep their dashes, which may be part of them.
        rows.append(
            [text.translate(_PLAIN) if column.number else text for text, column in zip(texts, columns, strict=True)]
        )
    left = {place for place, column in enumerate(columns) if not column.number}
    # Terminals have heads in lower case, as flags and columns of files are.
    titles = [column.title for column in columns]
    is_word = [title[1:2].islower() or title[1:2] == " " for title in titles]  # and no abbreviation, such as L1 or ECE
    header = [title[:1].lower() + title[1:] if lower else title for title, lower in zip(titles, is_word, strict=True)]
    return header, rows, left


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
