"""Workbooks (Office Open XML) of large tables, written as text.

A cell's text is made once for each value that its column has, and rows are joined from these: 3 us a row, where an
object for each cell takes 300. Cells and rows follow each other without references (`A1`), which the format leaves to
the writer: they would be nine tenths of the packed file.

Shapes: N rows, V different values of a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_ROWS", "Sheet", "SheetColumn", "column_of", "write_sheets"]

MOST_ROWS = 1_048_575
"""Of a sheet, below its head."""
_AT_ONCE = 5000  # rows that are text at once
_WIDEST = 40
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_COUNT, _NUMBER, _HEAD = 1, 2, 3
_STYLES = f"""{_XML}<styleSheet {_MAIN}><numFmts count="1"><numFmt numFmtId="164" formatCode="0.0000"/></numFmts>\
<fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>\
<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>\
<fills count="2"><fill><patternFill patternType="none"/></fill>\
<fill><patternFill patternType="gray125"/></fill></fills>\
<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>\
<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>\
<cellXfs count="4"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>\
<xf numFmtId="3" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>\
<xf numFmtId="164" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>\
<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>\
<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>"""
"""Plain; counts; numbers; heads."""


@dataclass(frozen=True)
class SheetColumn:
    """A column by its different values."""

    title: str
    values: Sequence[Any]
    """(V,) text, numbers, booleans, or None for an empty cell."""
    place: npt.NDArray[Any]
    """(N,) which of them each row has."""


@dataclass(frozen=True)
class Sheet:
    """A table with a head that stays in sight and filters."""

    name: str
    columns: Sequence[SheetColumn]

    @property
    def rows(self) -> int:
        """Below the head."""
        return len(self.columns[0].place)


def column_of(title: str, values: Iterable[Any]) -> SheetColumn:
    """A column of plain values."""
    different: dict[Any, int] = {}
    place = np.array([different.setdefault(value, len(different)) for value in values], dtype=np.int64)
    return SheetColumn(title, list(different), place)


def write_sheets(path: Path, sheets: Sequence[Sheet], *, title: str, about: str) -> None:
    """Write a workbook.

    Raises:
        OSError: the file cannot be written.
    """
    texts: dict[str, int] = {}
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=6) as book:
        for number, sheet in enumerate(sheets, 1):
            with book.open(f"xl/worksheets/sheet{number}.xml", "w") as file:
                for text in _sheet(sheet, texts):
                    file.write(text.encode("utf-8"))
        book.writestr("xl/sharedStrings.xml", _shared(texts))
        for name, text in _parts([sheet.name for sheet in sheets], title, about).items():
            book.writestr(name, text)


def _sheet(sheet: Sheet, texts: dict[str, int]) -> Iterator[str]:
    """The file of a sheet, a part at a time; texts that it holds are put among those of the book."""
    widths = "".join(
        f'<col min="{place}" max="{place}" width="{_width(column)}" customWidth="1"/>'
        for place, column in enumerate(sheet.columns, 1)
    )
    heads = "".join(f'<c t="s" s="{_HEAD}"><v>{_text(column.title, texts)}</v></c>' for column in sheet.columns)
    yield (
        f'{_XML}<worksheet {_MAIN}><sheetViews><sheetView workbookViewId="0"><pane ySplit="1" topLeftCell="A2" '
        f'activePane="bottomLeft" state="frozen"/></sheetView></sheetViews><cols>{widths}</cols>'
        f"<sheetData><row>{heads}</row>"
    )
    rows = _rows(sheet, texts)
    while text := "".join(islice(rows, _AT_ONCE)):
        yield text
    yield f'</sheetData><autoFilter ref="A1:{_letters(len(sheet.columns) - 1)}{sheet.rows + 1}"/></worksheet>'


def _rows(sheet: Sheet, texts: dict[str, int]) -> Iterator[str]:
    parts = []
    for column in sheet.columns:
        different = np.array([*(_cell(value, texts) for value in column.values), ""], dtype=object)
        parts.append(different[column.place].tolist())
    for cells in zip(*parts, strict=True):
        yield f"<row>{''.join(cells)}</row>"


def _cell(value: Any, texts: dict[str, int]) -> str:
    """A cell; text is text, even where it begins like a formula."""
    if value is None:
        return "<c/>"
    if isinstance(value, (bool, str)):
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        return f'<c t="s"><v>{_text(text, texts)}</v></c>'
    return f'<c s="{_NUMBER if isinstance(value, float) else _COUNT}"><v>{value!r}</v></c>'


def _text(text: str, texts: dict[str, int]) -> int:
    """Its number among the texts of the book."""
    return texts.setdefault(_clean(text), len(texts))


def _clean(text: str) -> str:
    """Without characters that a workbook cannot hold."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)[:32000]


def _letters(place: int) -> str:
    """The name of a column: A to Z, AA, ..."""
    rest, last = divmod(place, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("A") + last)


def _width(column: SheetColumn) -> int:
    longest = max((len(value) + 2 for value in column.values if isinstance(value, str)), default=0)
    return min(_WIDEST, max(9, len(column.title) + 4, longest))


def _shared(texts: Iterable[str]) -> str:
    items = "".join(f'<si><t xml:space="preserve">{escape(text)}</t></si>' for text in texts)
    return f"{_XML}<sst {_MAIN}>{items}</sst>"


def _parts(names: Sequence[str], title: str, about: str) -> Mapping[str, str]:
    """The files of a workbook beside its sheets and texts."""
    numbers = range(1, len(names) + 1)
    kinds = {f"/xl/worksheets/sheet{number}.xml": f"{_TYPE}.worksheet+xml" for number in numbers}
    kinds |= {"/xl/workbook.xml": f"{_TYPE}.sheet.main+xml", "/xl/styles.xml": f"{_TYPE}.styles+xml"}
    kinds |= {"/xl/sharedStrings.xml": f"{_TYPE}.sharedStrings+xml"}
    kinds |= {"/docProps/core.xml": "application/vnd.openxmlformats-package.core-properties+xml"}
    overrides = "".join(f'<Override PartName="{part}" ContentType="{kind}"/>' for part, kind in kinds.items())
    sheets = "".join(
        f'<sheet name="{escape(name)}" sheetId="{number}" r:id="rId{number}"/>' for number, name in enumerate(names, 1)
    )
    inner = [*((f"{_OFFICE}/worksheet", f"worksheets/sheet{number}.xml") for number in numbers)]
    inner += [(f"{_OFFICE}/styles", "styles.xml"), (f"{_OFFICE}/sharedStrings", "sharedStrings.xml")]
    core = f"{_PACKAGE}/relationships/metadata/core-properties"
    return {
        "[Content_Types].xml": f'{_XML}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>{overrides}</Types>',
        "_rels/.rels": _links([(f"{_OFFICE}/officeDocument", "xl/workbook.xml"), (core, "docProps/core.xml")]),
        "xl/_rels/workbook.xml.rels": _links(inner),
        "xl/workbook.xml": f'{_XML}<workbook {_MAIN} xmlns:r="{_OFFICE}"><sheets>{sheets}</sheets></workbook>',
        "xl/styles.xml": _STYLES,
        "docProps/core.xml": f'{_XML}<cp:coreProperties xmlns:cp="{_PACKAGE}/metadata/core-properties" '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{escape(_clean(title))}</dc:title>'
        f"<dc:description>{escape(_clean(about))}</dc:description></cp:coreProperties>",
    }


def _links(targets: Iterable[tuple[str, str]]) -> str:
    found = "".join(
        f'<Relationship Id="rId{number}" Type="{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets, 1)
    )
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{found}</Relationships>'
