"""Reports: what is on the page and in which order, numbers of figures, what charts draw, and the policy."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from p2l.common.report.charts import Axes, Chart, Series, chart_svg, keys_of, percent, short_number, smoothed, thinned
from p2l.common.report.heat import Heat
from p2l.common.report.images import draw, save_picture
from p2l.common.report.reports import (
    Figure,
    Fold,
    Forest,
    ForestRow,
    Links,
    Measure,
    MetricTable,
    Notes,
    Prose,
    Report,
    Section,
    Verdict,
    report_page,
)
from p2l.common.report.tables import Cell, Column, Table
from p2l.common.report.text import report_json, report_text, table_markdown, write_csv
from tests.p2l.evaluation.evaluation_results import EVIL

LINE = Series("a line", [1.0, 2.0, 3.0], [0.5, math.nan, 0.7])
AXES = Axes("step", "loss")


def page_of(*sections: Section, **more: object) -> str:
    values: dict[str, object] = {"picture": None, "facts": (("models", "3"),)} | more
    return report_page(
        Report(EVIL, EVIL, EVIL, date(2026, 7, 30), Verdict(EVIL, "good", EVIL), sections=sections, **values)
    )  # type: ignore[arg-type]


def test_figures_are_numbered_in_the_order_of_the_page_wherever_they_lie() -> None:
    titles = [f"title {number}" for number in range(4)]
    figures = [Figure.of([LINE], AXES, title) for title in titles]
    forest = Figure(Forest([ForestRow("a", -1.0, 1.0, 3.0)], "model", "points"), "title 4")
    page = page_of(
        Section("One", [figures[1], Fold("more", [figures[2]])]),
        Section("Two", [figures[3], forest]),
        picture=figures[0],
    )
    assert re.findall(r"<strong>Figure (\d)\. (title \d)\.</strong>", page) == [
        (str(number + 1), f"title {number}") for number in range(5)
    ]


def test_whatever_is_shown_is_escaped() -> None:
    table = Table([Column(EVIL, note=EVIL)], [[Cell(EVIL, note=EVIL, heat=-0.3)]], caption=EVIL)
    series = [Series(EVIL, [1.0], [1.0], labels=[EVIL], has_dots=True), Series(EVIL, [1.0], [2.0])]
    figure = Figure.of(
        series, Axes(EVIL, EVIL), EVIL, EVIL, numbers=[table], panels=[(EVIL, chart_svg(series, AXES, EVIL))]
    )
    forest = Figure(Forest([ForestRow(EVIL, 0.0, 1.0, 2.0, "bad", EVIL)], EVIL, EVIL), EVIL)
    parts = [table, figure, forest, MetricTable([Measure(EVIL, EVIL, EVIL, EVIL)]), Prose(EVIL, "quiet"), Notes([EVIL])]
    parts += [Fold(EVIL, [Links([(EVIL, EVIL, EVIL)])], EVIL, "key"), None]
    page = page_of(Section(EVIL, parts, EVIL), facts=((EVIL, EVIL),), notes=(EVIL,), home=(EVIL, EVIL))
    assert "<script>alert" not in page
    assert page.count("<script>") == 1


def test_a_browser_is_let_run_the_one_script_of_the_page_and_load_nothing() -> None:
    page = page_of(Section("One", [Prose("text")]))
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    sources = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert (sources["default-src"], sources["script-src"]) == ("'none'", f"'sha256-{digest}'")
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert not re.search(r"https?://|@import", page)


def test_the_title_has_subject_data_and_date() -> None:
    report = Report("Drift", "a to b", "prompts.parquet", date(2026, 7, 3), Verdict("x"), None, [])
    assert report.title == "a to b on prompts.parquet, 3 July 2026"
    assert '<time datetime="2026-07-03">3 July 2026</time>' in report_page(report)


def test_a_line_is_broken_where_a_number_is_missing() -> None:
    svg = chart_svg([LINE], AXES, "t")
    assert [len(points.split()) for points in re.findall(r'<polyline [^>]*points="([^"]*)"', svg)] == [1, 1]
    assert "nan" not in svg


def test_series_differ_by_more_than_colour() -> None:
    series = [Series(f"s{number}", [1.0], [1.0], has_dots=True) for number in range(3)]
    classes = re.findall(r'class="line (c\d)"', chart_svg(series, AXES, "t"))
    assert classes == ["c0", "c1", "c2"]  # each has a dash of its own in the style
    assert [name for _, name in keys_of(series)] == ["s0", "s1", "s2"]
    assert keys_of(series[:1]) == []
    svg = chart_svg(series, AXES, "t")
    assert svg.count("<circle") == 2
    assert svg.count("<rect") == 1


def test_a_chart_of_nothing_or_one_point_is_drawn() -> None:
    for series in ([], [Series("s", [math.nan], [math.nan])], [Series("s", [5.0], [0.1])]):
        for is_log in (False, True):
            svg = chart_svg(series, Axes("x", "y", is_log=is_log), "t")
            assert svg.startswith("<svg")
            assert "nan" not in svg
            assert "inf" not in svg


def test_points_that_a_logarithm_lacks_are_left_out() -> None:
    svg = chart_svg([Series("s", [0.0, 1.0, 10.0], [1.0, 2.0, 3.0], has_dots=True)], Axes("x", "y", is_log=True), "t")
    assert svg.count("<circle") == 2
    assert "nan" not in svg


def test_many_points_become_means_with_their_range() -> None:
    thin = thinned(list(range(1000)), [float(n % 2) for n in range(1000)], most=100)
    assert len(thin.x) == 100
    assert set(thin.y) == {0.5}
    assert (set(thin.lower), set(thin.upper)) == ({0.0}, {1.0})
    assert thinned([1.0, 2.0], [3.0, 4.0]).lower == ()


def test_a_mean_over_the_last_points_has_their_range_and_ends_at_the_newest() -> None:
    line = smoothed(range(4), [1.0, 3.0, 5.0, 7.0], 2)
    assert (line.y, line.lower, line.upper) == ([1.0, 2.0, 4.0, 6.0], [1.0, 1.0, 3.0, 5.0], [1.0, 3.0, 5.0, 7.0])
    long = smoothed(range(1000), [float(n % 2) for n in range(1000)], 2, most=10)
    assert (len(long.x), long.x[-1], set(long.y)) == (10, 999, {0.5})
    holes = smoothed(range(3), [math.nan, 2.0, math.nan], 1)
    assert math.isnan(holes.y[0])
    assert holes.y[1] == 2.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1000.0, "1,000"), (20_000.0, "20k"), (-0.25, "−0.25"), (1e-5, "1e-05"), (3e6, "3M")],
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


def test_shares_are_percentages() -> None:
    assert (percent(0.07), percent(0.481, 1), percent(-0.02, 1)) == ("7%", "48.1%", "−2.0%")


def test_a_forest_has_every_interval_on_one_scale() -> None:
    forest = Forest(
        [ForestRow("a", -1.0, 1.0, 3.0), ForestRow("b", math.nan, 5.0, math.nan)], "m", "u", lambda n: f"{n:g}"
    )
    assert forest.scale.low < -1.0
    assert forest.scale.high > 5.0
    assert forest.value_text(forest.rows[0]) == "1 (-1 to 3)"
    assert forest.value_text(forest.rows[1]) == "5"
    assert "whisker" in forest.row_svg(forest.rows[0])
    assert "whisker" not in forest.row_svg(forest.rows[1])


@pytest.mark.parametrize(("heat", "name"), [(1.0, "r5"), (0.01, "r1"), (-0.5, "f3"), (-7.0, "f5")])
def test_heat_has_five_steps_each_way(heat: float, name: str) -> None:
    assert Cell("x", heat=heat).heat_class == name


TABLE = Table(
    [Column("Model", number=False, key="model"), Column("Loss", 3), Column("Bar", page_only=True)],
    [["=a–b", -0.25, 1], ["b", math.nan, Cell("2nd", 2.0)], ["c", Cell("0.5", 0.512), "x"]],
    caption="Lower is better.",
)
HEAT = Heat(
    ["a", "b"], np.array([[math.nan, 0.75], [0.25, math.nan]]), "who beats whom", labels=[["", "75"], ["25", ""]]
)


def a_report() -> Report:
    figure = Figure.of([LINE, Series("b", [1.0, 2.0, 3.0], [0.4, 0.5, 0.6], has_dots=True)], AXES, "Curves")
    forest = Figure(Forest([ForestRow("a", -1.0, 1.0, 3.0, note="most")], "Model", "points"), "Scores")
    sections = [
        Section("Models", [TABLE, Notes(["few votes"])]),
        Section("More", [forest, Fold("details", [Prose("hidden")]), None]),
        Section("Curves", [figure, Figure(HEAT, "Heat")], page_only=True),
    ]
    verdict = Verdict("It wins.", "good", "By far.")
    return Report("Test", "a", "votes", date(2026, 7, 3), verdict, figure, sections, [("models", "3")], ["Mind it."])


def test_a_report_is_a_text_with_the_first_rows_of_its_tables() -> None:
    lines = report_text(a_report(), top=2).splitlines()
    assert lines[:5] == ["It wins.", "By far.", "", "Models", ""]
    assert lines[5:11] == [
        "Lower is better.",
        "model    loss",
        "-----  ------",
        "=a–b   -0.250",
        "b           -",
        "... and 1 more (--top 0 lists all)",
    ]
    assert {"note: few votes", "note: Mind it.", "models 3"} <= set(lines)
    assert any(re.fullmatch(r"a +1 \(-1 to 3\) +most", line) for line in lines)
    assert not {"hidden", "Curves", "details"} & set(lines)
    assert table_markdown(TABLE)[2] == "| =a–b | -0.250 |"


def test_a_report_is_an_object_with_the_numbers_of_its_tables_and_figures() -> None:
    content = json.loads(json.dumps(report_json(a_report()), allow_nan=False))
    assert content["verdict"] == {"sentence": "It wins.", "reason": "By far.", "tone": "good"}
    table, notes = content["sections"][0]["parts"]
    assert table["rows"][:2] == [{"model": "=a–b", "loss": -0.25, "bar": 1}, {"model": "b", "loss": None, "bar": 2.0}]
    assert notes["sentences"] == ["few votes"]
    forest, fold = content["sections"][1]["parts"]
    assert forest["panels"][0]["rows"][0]["value"] == 1.0
    assert fold["parts"] == [{"kind": "prose", "text": "hidden"}]
    assert content["picture"]["panels"][0]["series"][0]["y"] == [0.5, None, 0.7]
    assert content["facts"] == {"models": "3"}


def test_a_table_is_a_file_whose_texts_no_spreadsheet_runs(tmp_path: Path) -> None:
    path = write_csv(TABLE, tmp_path / "table.csv")
    assert path.read_text() == "model,loss,bar\n'=a–b,-0.25,1\nb,,2.0\nc,0.512,x\n"


def test_a_picture_draws_the_figures_of_the_page(tmp_path: Path) -> None:
    report = a_report()
    figures = [part for section in report.sections for part in section.parts if isinstance(part, Figure)]
    panels = Figure(
        "", "Both", panels=[("one", Chart([LINE], AXES)), ("two", Chart([LINE], Axes("x", "y", is_log=True)))]
    )
    save_picture([tmp_path / "all.png", tmp_path / "all.svg"], *figures, panels)
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "all.svg").read_text()
    assert all(f">{word}</text>" in text for word in ("Scores", "Curves", "one", "two", "75", "a line", "a (most)"))
    named = Series("s", [1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5], ["p", "q"], has_line=False, has_dots=True)
    save_picture(tmp_path / "dots.svg", Figure.of([named], Axes("x", "y", has_diagonal=True, level=1.5), "Dots"))
    assert ">q</text>" in (tmp_path / "dots.svg").read_text()
    with pytest.raises(ValueError, match="no data to draw"):
        draw(Figure("<svg/>", "Only a page shows it"))
