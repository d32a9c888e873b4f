"""What a spreadsheet would run is written as text, and read back as it was."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.spreadsheets import frame_of_cells, frame_to_cells, of_cell, of_cells, to_cell, to_cells

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
    assert frame_of_cells(frame_to_cells(frame)).equals(frame)
    file = io.StringIO(newline="")
    csv.writer(file).writerows([cell] for cell in cells)
    read = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert [of_cell(row[0]) if row else "" for row in read] == entries


def test_missing_text_stays_missing() -> None:
    assert to_cells(pa.array([None, "=1"], pa.string())).to_pylist() == [None, "'=1"]
    assert of_cells(pa.array([None, "'=1"], pa.string())).to_pylist() == [None, "=1"]
