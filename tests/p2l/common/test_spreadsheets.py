"""What a spreadsheet would run is written as text, and read back as it was."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import load_workbook

from p2l.common.spreadsheets import (
    CellReader,
    Sheet,
    column_of,
    frame_to_cells,
    of_cell,
    of_cells,
    to_cell,
    to_cells,
    write_sheets,
)

texts = st.text(st.sampled_from("\x00\x1b=+-@'\t\r\n 1.5eEx\"%,＝\ufeff") | st.characters(codec="utf-8"), max_size=8)


@pytest.mark.parametrize(
    "text",
    [
        "=1+1", "+1+1", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1+1", "＝1+1", "\x00=1",
        "\ufeff=1",
        '=HYPERLINK("http://127.0.0.1/","x")', "'=1+1", "''@x", "-ant", "@cf/meta/llama",
    ],
)  # fmt: skip
def test_a_cell_that_begins_a_formula_is_text(text: str) -> None:
    assert to_cell(text) == f"'{text}"
    assert of_cell(to_cell(text)) == text


@pytest.mark.parametrize("entry", ["ant", "-5", "+3.25", "-1e-9", "-", "12%", "a=b", "'q'", "", -5, -0.5, None])
def test_everything_else_is_as_it_was(entry: object) -> None:
    assert to_cell(entry) is entry
    assert of_cell(entry) is entry


@given(st.lists(texts, min_size=1, max_size=5))
def test_what_is_read_is_what_was_written(entries: list[str]) -> None:
    cells = [to_cell(entry) for entry in entries]
    assert [of_cell(cell) for cell in cells] == entries
    assert to_cells(pa.array(entries, pa.string())).to_pylist() == cells
    assert of_cells(pa.array(cells, pa.string())).to_pylist() == entries
    frame = pd.DataFrame({"=name": entries, "number": range(len(entries))})
    assert frame_to_cells(frame).map(of_cell).rename(columns=of_cell).equals(frame)
    file = io.StringIO(newline="")
    csv.writer(file).writerows([cell] for cell in cells)
    read = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert [of_cell(row[0]) if row else "" for row in read] == entries


def test_missing_text_stays_missing() -> None:
    assert to_cells(pa.array([None, "=1"], pa.string())).to_pylist() == [None, "'=1"]
    assert of_cells(pa.array([None, "'=1"], pa.string())).to_pylist() == [None, "=1"]


def test_rows_come_one_by_one_with_the_names_of_the_first() -> None:
    file = io.StringIO('name,note\nant,\'=1\n\nbee\ncat,x,y\n"d\ne",z\n', newline="")
    rows = CellReader(file)
    assert rows.names == ["name", "note"]
    assert [(rows.line, *row.values()) for row in rows] == [
        (2, "ant", "=1"),
        (4, "bee", None),
        (5, "cat", "x"),
        (7, "d\ne", "z"),
    ]
    assert CellReader(io.StringIO("")).names == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",".join("abc" * 7000) + "\n", "it has 21,000 columns, of at most 1,000"),
        ("name\n" + "a," * (9 << 20), "the row after line 1 is longer than 16 MiB"),
        ("name\nant\n" + '"a\n",' * (4 << 20), "the row after line .* is longer than 16 MiB"),
        ("a" * (17 << 20), "the row after line 0 is longer than 16 MiB"),
    ],
)
def test_a_table_that_asks_for_too_much_is_refused(text: str, message: str) -> None:
    with pytest.raises(csv.Error, match=message):
        for _ in CellReader(io.StringIO(text, newline="")):
            pass


def test_a_workbook_holds_numbers_as_numbers_and_formulas_as_text(tmp_path: Path) -> None:
    columns = [
        column_of("=1+2", ["=1+1\x07", "https://example.org", "x" * 40_000]),
        column_of("share", [0.25, math.nan, None], "0.0%"),
        column_of("sure", [True, False, True]),
        column_of("votes", [1200, 3, 3]),
    ]
    write_sheets(tmp_path / "a.xlsx", [Sheet("one", columns)], title="a title", about="what it is")
    book = load_workbook(tmp_path / "a.xlsx")
    rows = [[cell.value for cell in row] for row in book["one"].iter_rows()]
    assert rows[0] == ["=1+2", "share", "sure", "votes"]
    assert rows[1] == ["=1+1\N{REPLACEMENT CHARACTER}", 0.25, "yes", 1200]
    assert rows[2] == ["https://example.org", None, "no", 3]
    assert len(rows[3][0]) == 32_000
    assert {cell.data_type for row in book["one"].iter_rows() for cell in row} == {"s", "n"}
    assert [book["one"].cell(2, place).number_format for place in (2, 4)] == ["0.0%", "#,##0"]
    assert book.properties.title == "a title"


def test_a_workbook_that_the_disk_has_no_room_for_is_an_error_and_nothing_else() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        write_sheets(Path("/dev/full"), [Sheet("a", [column_of("b", ["c"])])], title="", about="")
