from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from openpyxl import load_workbook

from coeval.analysis.coverage import CompleteReport, complete_report
from coeval.analysis.units import Report, RobustSettings, load_run
from coeval.reports.findings import ranking_sentences
from coeval.reports.pages import SHEETS, cube, embedded, finding, write, write_all, write_workbook
from coeval.reports.pieces import grid_of, signed_text
from coeval.reports.registry import PAGES, REPORTS, ReportEntry, build, resolve
from p2l.common.report.tables import number_text
from tests.coeval.reports.helpers import HOSTILE, write_run
from tests.parsed_page import Page

SETTINGS = RobustSettings("top_half", "spa", "v1", 0.7, None, 0.5)
NETWORK = re.compile(r"https?://|//cdn|@import|url\(\s*['\"]?(?!#)", re.IGNORECASE)


@lru_cache(maxsize=1)
def reports() -> tuple[dict[str, Report], CompleteReport]:
    with TemporaryDirectory() as folder:
        loaded = load_run(write_run(Path(folder) / "small", items=2, pairs=True))
        results = {folder: build(page.name, loaded, SETTINGS) for folder, page in PAGES.items()}
        return results, complete_report(loaded)


@lru_cache(maxsize=1)
def pages() -> dict[str, str]:
    with TemporaryDirectory() as folder:
        write_all(*reports(), folder)
        found = {path.parent.name: path.read_text("utf-8") for path in Path(folder).glob("*/index.html")}
        return {**found, "portal": (Path(folder) / "index.html").read_text("utf-8")}


def constant(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def rows_of(constant: Any) -> list[list[Any]]:
    """[task, teacher, student, judge, factor, scores, total, High, Medium, Low] from runs of places in the cube."""
    sizes = [len(names) for names in constant["names"].values()]
    runs = zip(constant["runs"][::2], constant["runs"][1::2], strict=True)
    places = [start + step for start, length in runs for step in range(length)]
    where = np.stack(np.unravel_index(places, sizes), axis=1).tolist()
    return [[*at, *constant["sums"][sum_]] for at, sum_ in zip(where, constant["sum"], strict=True)]


@pytest.mark.parametrize("entry", REPORTS.values(), ids=list(REPORTS))
def test_an_entry_of_the_registry_names_functions(entry: ReportEntry) -> None:
    assert callable(resolve(entry.build))
    assert not entry.context or callable(resolve(entry.context))


def test_every_report_has_a_page_and_the_portal_leads_to_it() -> None:
    assert set(pages()) == {*PAGES, "portal"}
    links = {attributes.get("href") for tag, attributes in Page(pages()["portal"]).tags if tag == "a"}
    assert {f"{name}/index.html" for name in PAGES} | {"complete_report.xlsx"} <= links


@pytest.mark.parametrize("name", [*PAGES, "portal"])
def test_a_page_needs_no_network_and_takes_names_as_text(name: str) -> None:
    text = pages()[name]
    page = Page(text)
    assert not NETWORK.search(text)
    assert not [attributes for _, attributes in page.tags if attributes.get("src")]
    assert page.count("script") == (1 if name == "portal" else 3)
    assert HOSTILE in page.text  # in the words at the foot
    assert not any("alert" in key for _, attributes in page.tags for key in attributes)


@pytest.mark.parametrize("name", list(PAGES))
def test_the_head_tells_id_status_and_counts(name: str) -> None:
    header = reports()[0][name].header
    shown = Page(pages()[name]).texts
    for expected in ("small", "completed", f"{header.units:,}", f"{header.datapoints:,}", f"{header.responses:,}"):
        assert expected in shown
    assert any(text.startswith(f"{header.self_judging:,} (") for text in shown)
    assert any(text.startswith(f"{header.self_teaching:,} (") for text in shown)
    assert "Partial results" not in pages()[name]


def test_a_run_that_is_not_finished_says_so_on_the_page(tmp_path: Path) -> None:
    result = reports()[0]["student_report"]
    header = replace(result.header, partial=True, status="in_progress")
    path = write("student_report", replace(result, header=header), tmp_path)
    assert "Partial results: the run's status is in_progress" in Page(path.read_text("utf-8")).text


def test_numbers_on_the_page_are_those_of_the_results() -> None:
    results, _ = reports()
    shown = {name: set(Page(text).texts) for name, text in pages().items()}
    students: Any = results["student_report"]
    for row in students.students:
        assert {row.student, number_text(row.mean, 3), number_text(row.macro, 3)} <= shown["student_report"]
    teachers: Any = results["teacher_report"]
    for row in teachers.teachers:
        assert {number_text(row.v1, 4), number_text(row.s2, 4), number_text(row.r3, 4)} <= shown["teacher_report"]
    judges: Any = results["judge_report"]
    for row in judges.judges:
        assert {number_text(row.weighted_spa, 3), number_text(row.kappa, 3)} <= shown["judge_report"]
    for flip in judges.bias.flips:
        assert number_text(flip.flip_rate, 3) in shown["judge_report"]
    matrix: Any = results["interaction_matrix"]
    for cell in matrix.cells:
        assert {number_text(cell.mean, 2), signed_text(cell.deviation, 2)} <= shown["interaction_matrix"]
    robust: Any = results["robust_summary"]
    for student in robust.students:
        assert {number_text(student.robust, 3), signed_text(student.delta, 3)} <= shown["robust_summary"]


def test_squares_of_a_model_with_itself_are_marked() -> None:
    matrix: Any = reports()[0]["interaction_matrix"]
    own = sum(cell.is_self for cell in matrix.cells)
    marked = [
        tag
        for tag, attributes in Page(pages()["interaction_matrix"]).tags
        if "self" in (attributes.get("class") or "").split()
    ]
    assert own
    assert len(marked) == 2 * own  # means and deviations


def test_the_constant_adds_up_to_all_scores_and_keeps_descriptions() -> None:
    header = reports()[1].header
    found = constant(pages()["summary"])
    rows = rows_of(found)
    assert sum(row[5] for row in rows) == header.units
    assert all(row[5] == row[7] + row[8] + row[9] for row in rows)
    assert len(found["sums"]) < len(rows)
    assert HOSTILE in found["notes"]["factor"]["accuracy"]
    assert set(found["ranks"]) == set(header.students)


def test_the_constant_gives_each_student_the_mean_of_the_report() -> None:
    students: Any = reports()[0]["student_report"]
    found = constant(pages()["student_report"])
    for row in students.students:
        place = found["names"]["student"].index(row.student)
        mine = [one for one in rows_of(found) if one[2] == place]
        assert sum(one[6] for one in mine) / sum(one[5] for one in mine) == pytest.approx(row.mean, abs=1e-9)


def test_nothing_in_a_constant_ends_its_element() -> None:
    text = embedded({HOSTILE: "<!-- <script> -->"})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {HOSTILE: "<!-- <script> -->"}


def test_names_of_models_are_escaped_too(tmp_path: Path) -> None:
    results, complete = reports()
    hostile: Any = results["student_report"]
    rows = (replace(hostile.students[0], student=HOSTILE), *hostile.students[1:])
    slices = replace(complete.raw, names={**complete.raw.names, "student": (HOSTILE,) * 4})
    text = write("student_report", replace(hostile, students=rows), tmp_path, slices).read_text("utf-8")
    assert HOSTILE in Page(text).text
    assert Page(text).count("script") == 3
    assert set(constant(text)["names"]["student"]) == {HOSTILE}


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_begins_with_what_it_found_and_ends_with_the_run(name: str) -> None:
    text, sentences = pages()[name], finding(name, reports()[0][name])
    assert sentences
    assert all(sentence.endswith(".") for sentence in sentences)
    places = [text.index(str(escape(sentence))) for sentence in sentences]
    places += [
        text.index("<section"),
        text.index("<table"),
        text.index('<section id="about">'),
        text.index("created</dt>"),
    ]
    assert places == sorted(places)


def test_a_page_with_nothing_to_show_is_not_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "empty", failures=1.0, items=1, students=["ant"], judges=["jay"])
    loaded, out = load_run(run), tmp_path / "out"
    results = {folder: build(page.name, loaded, SETTINGS) for folder, page in PAGES.items()}
    (out / "pairs").mkdir(parents=True)
    (out / "pairs/index.html").write_text("of a run before")
    write_all(results, complete_report(loaded), out)
    assert [path.parent.name for path in out.glob("*/index.html")] == ["coverage_summary"]
    assert write("student_report", results["student_report"], tmp_path / "one") is None
    assert not (tmp_path / "one").exists()
    portal = Page((out / "index.html").read_text("utf-8"))
    assert "nothing to show there: Summary, Students, Pairs" in portal.text
    links = [attributes["href"] for tag, attributes in portal.tags if tag == "a" and "html" in str(attributes["href"])]
    assert links == ["coverage_summary/index.html"]


def test_two_models_make_pages_without_a_crowd(tmp_path: Path) -> None:
    run = write_run(tmp_path / "two", items=1, students=["ant"], teachers=["ant"], judges=["ant"], tasks=["mail"])
    loaded = load_run(run)
    for folder, page in PAGES.items():
        written = write(folder, build(page.name, loaded, SETTINGS), tmp_path / folder)
        assert (written is None) == (folder == "pairs")


@pytest.mark.parametrize(
    ("alpha", "words"),
    [(0.81, "agree well:"), (0.7, "tentative conclusions:"), (0.5, "agree only in part:"), (0.1, "hardly agree:")],
)
def test_alpha_is_said_in_words(alpha: float, words: str, tmp_path: Path) -> None:
    report: Any = reports()[0]["student_report"]
    reliability = replace(report.reliability, alpha_interval=alpha, alpha_lower=alpha - 0.05, alpha_upper=alpha + 0.05)
    text = Page(write("student_report", replace(report, reliability=reliability), tmp_path).read_text("utf-8")).text
    figure = f"{alpha:.2f} [{alpha - 0.05:.2f}, {alpha + 0.05:.2f}]"
    assert f"{words} Krippendorff's α of 4 judges is {figure}." in text


def test_a_lead_that_may_be_chance_is_said_to_be() -> None:
    report: Any = reports()[0]["student_report"]
    names = [row.student for row in report.students]
    pairs = [replace(report.pairs[0], better=names[0], worse=name, significant=False) for name in names[1:]]
    none, some = pairs, [pairs[0], replace(pairs[1], significant=True), pairs[2]]
    every = [replace(pair, significant=True) for pair in pairs]
    texts = [" ".join(ranking_sentences(report.students, these)) for these in (none, some, every)]
    assert texts[0].endswith(f"; its lead on {names[1]}, {names[2]} and {names[3]} may be chance.")
    assert texts[1].endswith(
        f"ahead of 1 of 3 others beyond chance. Its lead on {names[1]} and {names[3]} may be chance."
    )
    assert texts[2].endswith("ahead of all others beyond chance.")


def test_heads_of_many_or_long_columns_stand_upright() -> None:
    header = reports()[1].header
    few = grid_of(header, ("judge", "task"), [("jay", name, 0.5, "") for name in "abc"])
    many = grid_of(header, ("judge", "task"), [("jay", name, 0.5, "") for name in "abcdefghi"])
    long = grid_of(header, ("judge", "task"), [("jay", f"a-rather-long-name-{place}", 0.5, "") for place in range(5)])
    assert [one.turned for one in (few, many, long)] == [False, True, True]


def test_the_workbook_has_three_sheets_with_every_row(tmp_path: Path) -> None:
    complete = reports()[1]
    book = load_workbook(write_workbook(complete, tmp_path / "all.xlsx"))
    assert tuple(book.sheetnames) == SHEETS
    raw, aggregated, models = (list(sheet.iter_rows(values_only=True)) for sheet in book)
    assert [len(raw), len(aggregated), len(models)] == [
        len(rows) + 1 for rows in (complete.raw, complete.aggregated, complete.models)
    ]
    first = complete.raw[0]
    assert raw[1][:8] == (
        first.task, first.teacher, first.student, first.judge, first.factor, first.total, first.valid, first.invalid,
    )  # fmt: skip
    assert raw[1][-2:] == tuple("yes" if flag else "no" for flag in (first.is_self_judging, first.is_self_teaching))
    assert "factor" not in aggregated[0]
    assert models[0][0] == "model"


def test_the_workbook_takes_names_that_look_like_formulas_as_text(tmp_path: Path) -> None:
    complete = reports()[1]
    raw = replace(complete.raw, names={**complete.raw.names, "student": ("=1+1\x07",) * 4})
    sheet = load_workbook(write_workbook(replace(complete, raw=raw), tmp_path / "all.xlsx"))[SHEETS[0]]
    assert sheet["C2"].value == "=1+1\N{REPLACEMENT CHARACTER}"
    assert sheet["C2"].data_type != "f"


def test_a_constant_holds_only_what_has_scores() -> None:
    complete = reports()[1]
    raw = complete.raw
    valid = np.where(raw.values["judge"] == 0, 0, raw.values["valid"])
    shown = cube(complete.header, replace(raw, values={**raw.values, "valid": valid}))
    assert raw.names["judge"][0] not in json.loads(shown)["names"]["judge"]
    assert raw.names["judge"][1] in json.loads(shown)["names"]["judge"]


def test_the_portal_begins_with_the_best_student() -> None:
    students: Any = reports()[0]["student_report"]
    first = re.search(r'<div class="finding">\s*<p>(.*?)</p>', pages()["portal"])
    assert first
    assert first[1].startswith(f"{students.students[0].student} answers best")


def test_a_judge_without_peers_is_not_said_to_lack_scores(tmp_path: Path) -> None:
    report: Any = reports()[0]["judge_report"]
    alone, few = (replace(row, rank=None) for row in report.judges[:2])
    rows = (alone, replace(few, coverage=0.05), *report.judges[2:])
    text = write("judge_report", replace(report, judges=rows), tmp_path).read_text("utf-8")
    assert f"Not ranked, for want of scores: {few.judge}." in text
    assert re.search(f"Not ranked, since no other judge .*: {alone.judge}\\.", text)


def test_a_slice_without_a_mean_is_left_out_of_a_constant() -> None:
    complete = reports()[1]
    mean = np.where(complete.raw.values["task"] == 0, np.nan, complete.raw.values["mean"])
    shown = cube(complete.header, replace(complete.raw, values={**complete.raw.values, "mean": mean}))
    assert complete.raw.names["task"][0] not in json.loads(shown)["names"]["task"]


def test_a_page_that_computes_nothing_holds_no_sums() -> None:
    found = constant(pages()["judge_report"])
    assert set(found) == {"names", "notes"}


def test_the_page_of_pairs_ranks_as_the_leaderboards_do(tmp_path: Path) -> None:
    report: Any = reports()[0]["pairs"]
    overall = [row for row in report.rows if row.task == "overall"]
    assert {row.task for row in report.rows} == {"overall", *report.header.tasks}
    assert [row.rank for row in overall] == [1, 2, 3, 4]
    assert report.native
    assert report.flips
    assert not report.why_none
    shown = Page(pages()["pairs"]).texts
    for row in overall:
        assert {row.student, number_text(row.score, 0), number_text(row.win_rate, 3)} <= set(shown)
    lone = write_run(tmp_path / "lone", items=1, students=["ant"], teachers=["owl"], judges=["jay"], tasks=["mail"])
    none: Any = build("pairs", load_run(lone), SETTINGS)
    assert none.rows == ()
    assert none.why_none.startswith("no preferences")
    assert write("pairs", none, tmp_path / "none") is None


def test_two_judges_are_not_ranked_in_words_and_one_that_was_chosen_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "two", items=1, students=["ant", "bee"], teachers=["fox"], judges=["owl", "jay"])
    loaded, names = load_run(run), ("judge-report", "robust-summary")
    results = {REPORTS[name].folder: build(name, loaded, replace(SETTINGS, agreement_threshold=0.0)) for name in names}
    write_all(results, complete_report(loaded), tmp_path / "out")
    judges, robust = (
        (tmp_path / "out" / name / "index.html").read_text("utf-8") for name in ("judge_report", "robust_summary")
    )
    assert re.search(r"Only (owl|jay) was chosen\..*--judge-selection all", robust)
    assert re.search(r"owl gave equal scores to \d+% of|jay gave equal scores to \d+% of", judges)
    assert "Peers agree most" not in judges
