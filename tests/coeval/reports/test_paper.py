"""Tables for a paper."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from coeval.cli import with_exit_code
from coeval.commands.export import _TABLES, tables_main
from coeval.reports.paper import TABLES, Cell, PaperTable, latex, letters_of, markdown, paper_tables
from tests.coeval.analysis.runs import both, run_of

LEVELS = {"ant_1": "High", "bee": "Low", "cat": "High"}


def scores(n: int = 12) -> dict[tuple[str, str, str], dict[str, str]]:
    return {
        (f"{task}/ada/{number}", student, judge): both("Medium" if number % 4 == 0 else level)
        for task in ("mail", "poem")
        for number in range(n)
        for student, level in LEVELS.items()
        for judge in ("j1", "j2", "j3")
    }


def test_the_best_is_bold_and_those_not_told_from_it_are_marked(tmp_path: Path) -> None:
    students, differences, judges, teachers = paper_tables(run_of(tmp_path, scores()))
    assert students.head == ("Student", "Score", "mail", "poem", "Mean")
    rows = {cells[0].text: cells[1:] for cells in students.rows}
    assert rows["ant_1"][0].is_best
    assert rows["cat"][0].mark == "dagger"
    assert (rows["bee"][0].is_best, rows["bee"][0].mark) == (False, "")
    assert all(cell.lower is not None and cell.lower <= float(cell.text) <= (cell.upper or 1) for cell in rows["bee"])
    matrix = {cells[0].text: dict(zip(differences.head[1:], cells[1:], strict=True)) for cells in differences.rows}
    assert matrix["ant_1"]["bee"].mark == "star" == matrix["bee"]["ant_1"].mark
    assert float(matrix["ant_1"]["bee"].text) == -float(matrix["bee"]["ant_1"].text) > 0.5
    assert (matrix["ant_1"]["cat"].mark, matrix["ant_1"]["ant_1"].text) == ("", "")
    assert [len(table.rows) for table in (judges, teachers)] == [3, 1]


def test_names_are_escaped_and_tables_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, scores()).run.folder
    assert tables_main(["--run", str(run)]) == 0
    text = capsys.readouterr().out
    assert "| ant\\_1 | **" in text
    assert "not told from the best (Holm, 5 %)" in text
    widths = {row.count(" | ") for row in text.split("\n\n")[0].splitlines() if row.startswith("| ")}
    assert len(widths) == 1
    out = tmp_path / "tables.tex"
    assert tables_main(["--run", str(run), "--format", "latex", "--tables", "students", "--out", str(out)]) == 0
    lines = out.read_text().splitlines()
    assert any(line.startswith(r"ant\_1 & \textbf{") for line in lines)
    assert len({line.count("&") for line in lines if line.endswith(r"\\")}) == 1
    assert out.read_text().count(r"\begin{tabular}") == 1
    assert tuple(TABLES) == _TABLES


def test_every_sign_that_latex_or_markdown_reads_is_text() -> None:
    table = PaperTable("x", "c", ("", "a"), ((Cell("a&b_%$#{}~^\\"), Cell("-0.5")), (Cell("p|q*"), Cell(""))))
    assert r"a\&b\_\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & $-$0.5" in latex(table)
    assert r"| p\|q\* |" in markdown(table)
    assert not re.search(r"(?<!\\)[&%#]", latex(table).split(r"\midrule")[1].replace(" & ", ""))


@pytest.mark.parametrize("name", ["[1em]evil", "*[9cm]", "two\n\nlines", "left\u202eright", "bell\x07"])
def test_a_name_gives_no_argument_to_the_row_above_and_ends_no_paragraph(name: str) -> None:
    rows = ((Cell("first"), Cell("1")), (Cell(name), Cell("2")))
    text = latex(PaperTable("x", "c", ("", "a"), rows))
    assert not re.search(r"\\\\\s*[\[*]", text)
    assert text.isascii()
    assert "\n\n" not in text
    assert len(text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()) == 2


def test_tables_of_a_run_that_is_not_finished_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, scores()).run
    assert tables_main(["--run", str(run.folder)]) == 0
    assert capsys.readouterr().err == ""
    run.meta.write_text(run.meta.read_text().replace("completed", "in_progress"))
    assert tables_main(["--run", str(run.folder)]) == 0
    assert "is in_progress, not completed: all figures may change" in capsys.readouterr().err


def test_a_run_without_scores_has_no_tables(tmp_path: Path) -> None:
    from coeval.errors import RunInputError

    judge = {"name": "now", "interface": "openai", "roles": ["judge"], "parameters": {"model": "m"}}
    folder = run_of(tmp_path, {}, models=[judge]).run.folder
    with pytest.raises(RunInputError, match="has no scores to make tables of"):
        tables_main(["--run", str(folder)])


def test_letters_join_those_who_are_not_told_apart() -> None:
    names = ["a", "b", "c", "d"]
    assert letters_of(names, set()) == dict.fromkeys(names, "a")
    chain = {("a", "c"), ("a", "d"), ("b", "d")}
    letters = letters_of(names, chain)
    for first in names:
        for second in names:
            is_apart = (first, second) in chain or (second, first) in chain
            assert is_apart == (not {*letters[first]} & {*letters[second]})
    assert letters == {"a": "a", "b": "ab", "c": "bc", "d": "c"}


def test_the_ranking_is_a_figure_with_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, scores()).run.folder
    paths = [tmp_path / f"ranking.{kind}" for kind in ("svg", "pdf")]
    assert tables_main(["--run", str(run), "--plot", *map(str, paths), "--out", str(tmp_path / "t.md")]) == 0
    assert f"wrote {paths[0]}, {paths[1]}, {tmp_path / 'ranking.csv'}" in capsys.readouterr().err
    assert paths[1].read_bytes().startswith(b"%PDF")
    assert "<svg" in paths[0].read_text()
    with (tmp_path / "ranking.csv").open(newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["ant_1"]["letters"] == rows["cat"]["letters"] != rows["bee"]["letters"]
    assert float(rows["bee"]["fit_lower"]) <= float(rows["bee"]["fit"]) <= float(rows["bee"]["fit_upper"])
    assert with_exit_code(tables_main, ["--run", str(run), "--plot", str(tmp_path / "x.docx")]) == 1
    assert "must end in .svg, .pdf, .png" in capsys.readouterr().err
