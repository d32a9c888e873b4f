"""Pages stand alone and escape what they show; tables, cells and scales."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateNotFound, UndefinedError

from p2l.common.report.tables import (
    Cell,
    Column,
    Scale,
    Table,
    _environment,
    anchor,
    number_text,
    render,
    write_page,
)
from tests.p2l.evaluation.evaluation_results import EVIL


def test_a_page_escapes_text_and_loads_nothing():
    page = render("base.html", title=EVIL + "\x00")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "\x00" not in page
    assert not re.search(r"https?://", page)
    assert page.startswith("<!doctype html>")


def test_what_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("base.html")
    with pytest.raises(TemplateNotFound):
        render("p2l.common.report/none.html")
    with pytest.raises(TemplateNotFound):
        render("no_such_package/page.html")


def test_cells_say_how_they_sort():
    column = Column("loss", 2)
    assert column.cell(1.234) == Cell("1.23", 1.234)
    assert column.cell(None) == column.cell(math.nan) == Cell("–", "", "quiet")
    assert column.cell("Ärger") == Cell("Ärger", "ärger")
    assert column.cell(Cell("x")) == Cell("x")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234567, None, "1,234,567"),
        (-0.5, 2, "−0.50"),
        (-0.0001, 2, "0.00"),
        (None, 1, "–"),
        (-math.inf, 1, "−∞"),
        (0.25, None, "0.2500"),
    ],
)
def test_numbers_read_well(value, digits, text):
    assert number_text(value, digits) == text


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=8), st.none() | st.floats(-10, 10))
def test_a_scale_holds_all_its_values(values, zero):
    scale = Scale.around(values, zero)
    places = [scale.place(value) for value in values if math.isfinite(value)]
    assert all(0 <= place <= 100 for place in places)
    assert scale.low < scale.high


def test_a_table_folds_rows_beyond_those_shown_and_escapes_cells():
    scale = Scale(0.0, 10.0, 5.0)
    table = Table(
        [Column("model", number=False), Column("score", 1, note=EVIL, scale=scale)],
        [
            [EVIL, Cell("5.0", 5.0, bar=(4.0, 5.0, 6.0))],
            ["b", Cell("1", 1.0, bar=(math.nan, 1.0, math.nan))],
            ["c", None],
        ],
        shown=2,
    )
    page = _environment().from_string('{% from "parts.html" import table %}{{ table(data) }}').render(data=table)
    assert "<script>" not in page
    assert page.count('class="more"') == 1
    assert "Show all 3 rows" in page
    assert page.count('class="range"') == 1
    assert 'style="left:40.0%;width:20.0%"' in page


def test_a_table_that_can_be_filtered_names_the_column_of_names():
    table = Table.of((Column("#", 0), [1, 2]), (Column("model", number=False), ["a", EVIL]), filter="models")
    page = _environment().from_string('{% from "parts.html" import table %}{{ table(data) }}').render(data=table)
    assert table.rows == [[1, "a"], [2, EVIL]]
    assert 'data-column="1"' in page
    assert "Filter models" in page
    assert "<script>" not in page


def test_cells_of_a_map_are_centred_and_coloured_where_they_say_something():
    table = Table([Column("a", is_map=True)], [[Cell("1")], [Cell("2", heat=0.5)], [None]])
    page = _environment().from_string('{% from "parts.html" import table %}{{ table(data) }}').render(data=table)
    assert page.count('class="number heat"') == 1
    assert page.count('class="number heat r3"') == 1


def test_anchors_are_ids():
    assert anchor("Größe & Maß", 2) == "s-grösse-mass-2"
    assert anchor("") == "s-"


def test_a_name_of_marks_without_end_has_an_anchor_at_once():
    """Normalising takes the square of a run of marks: minutes for these."""
    assert anchor("a" + "\u0301\u0316" * 200_000 + "b").startswith("s-á")


def test_writing_is_whole_or_nothing(tmp_path):
    path = write_page("<p>old</p>", tmp_path / "new" / "index.html")
    assert path.read_text(encoding="utf-8") == "<p>old</p>"
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
