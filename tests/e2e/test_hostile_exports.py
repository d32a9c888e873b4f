"""Names and texts of others in files and on terminals: spreadsheets, LaTeX, Markdown show them as text."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from openpyxl import load_workbook

from coeval.reports.paper import Cell, PaperTable, latex, markdown
from p2l.chrono.matrix import Matrix
from p2l.chrono.results import write_results as write_slices
from p2l.common.display import printable
from p2l.common.report.tables import Column, Table
from p2l.common.report.text import table_markdown, write_csv
from p2l.leaderboard.report.files import write_leaderboards
from p2l.votes import read_votes
from route.evaluation.report import write_results as write_routing
from tests.browser.test_reports import routing_results
from tests.coeval.helpers import coeval
from tests.coeval.reports.helpers import write_run
from tests.conftest import Command, vote_rows, write_votes
from tests.p2l.leaderboard.page_boards import leaderboards

FORMULAS = (
    "=1+1", '=HYPERLINK("http://evil.example/","x")', "+1+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)",
    " =1+1", "＝1+1", "'=1+1", '"=1+1', "=cmd|' /C x'!A1,=2",
)  # fmt: skip
MARKS = (
    "[x](javascript:alert(1))", "![x](http://evil.example/x.png)", "<script>alert(1)</script>", "a | b | c", "# head",
    "`code`", "https://evil.example/", "- item", "7. item", "&lt;b&gt;", "<http://evil.example>", "***strong***",
    "~~gone~~", "www.evil.example", "me@evil.example", "> quote", "a\\|b", "$$x$$", "---",
)  # fmt: skip
COMMANDS = (
    "\\input{/etc/passwd}", "\\write18{id}", "$\\alpha$", "a & b \\\\ c", "% comment", "^^5cinput", "[1em]x", "*[9cm]",
    "{open", "shut}", "a_b#c~d",
)  # fmt: skip
ESCAPES = (
    "\x1b]0;owned\x07name", "\x1b[2Jname", "\x9b31mname", "left\u202eright", "a\rb", "a\nforged  1", "wo\u200brd",
    "\x1b[A\x1b[Kname", "a\u2028b", "\x7fname", "\U000e0041name",
)  # fmt: skip
TEXTS = (*FORMULAS, *MARKS, *COMMANDS, *ESCAPES)
ALL = " ".join(TEXTS)
NAMES = list(dict.fromkeys(TEXTS))


def in_one_line(text: str) -> str:
    return " ".join(printable(text).split())


def leaderboard_files(folder: Path) -> list[Path]:
    boards = leaderboards(NAMES, {"group": [*NAMES[:3], ALL]})
    for kind in ("csv", "md", "xlsx"):
        write_leaderboards(boards, str(folder / f"board.{kind}"), kind)
    return sorted(folder.glob("board.*"))


def routing_files(folder: Path) -> list[Path]:
    for number, name in enumerate(NAMES):
        (folder / str(number)).mkdir(parents=True)
        write_routing(routing_results([name, "ant", "bee"], name), folder / str(number), has_figures=False)
    return sorted(folder.rglob("results.md"))


def slice_files(folder: Path) -> list[Path]:
    numbers = [128, 256]
    later = np.array([[True, True], [False, True]])
    runs = [
        Matrix(name.replace("/", "_"), "Loss", numbers, numbers, np.ones((2, 2)), np.full((2, 2), 200.0), later)
        for name in NAMES
    ]
    write_slices(runs, folder, has_figures=False)
    return sorted(folder.rglob("*.csv"))


def table_files(folder: Path) -> list[Path]:
    table = Table.of((Column("Name", number=False), NAMES), (Column(ALL), [1.0] * len(NAMES)))
    (folder / "table.md").write_text("\n".join(table_markdown(table)), "utf-8", newline="")
    return [write_csv(table, folder / "table.csv"), folder / "table.md"]


def paper_files(folder: Path) -> list[Path]:
    rows = tuple((Cell(name), Cell("0.5", 0.4, 0.6, number == 0, "dagger")) for number, name in enumerate(NAMES))
    table = PaperTable("students", "Students.", ("", *NAMES[:1]), rows)
    (folder / "table.tex").write_text(latex(table), "utf-8", newline="")
    (folder / "table.md").write_text(markdown(table), "utf-8", newline="")
    return [folder / "table.tex", folder / "table.md"]


def votes_files(folder: Path) -> list[Path]:
    from p2l.commands.votes import main

    rows = vote_rows(len(NAMES) * 4)
    for number, row in enumerate(rows):
        row |= {"model_a": NAMES[number % len(NAMES)], "model_b": "ant", "prompt": NAMES[-1 - number % len(NAMES)]}
        row |= {"response_a": ALL, "voter": NAMES[number // 4]}
    source = write_votes(folder / "votes.jsonl", rows)
    main(["import", str(source), "--output", str(folder / "votes.csv"), "--quiet"])
    back = [name for batch in read_votes(folder / "votes.csv") for name in batch.batch.column("model_a").to_pylist()]
    assert {*map(in_one_line, back)} == {*map(in_one_line, NAMES)}, "what is read is what was written"
    return [folder / "votes.csv"]


def coeval_files(folder: Path) -> list[Path]:
    """What is told of a run that somebody handed on: its tables, those for a paper, its workbook, its units."""
    from tests.browser.hostile_pages import rewrite_run

    students = [f"student{number:02}x" for number in range(len(NAMES))]
    run = write_run(folder / "run", students=students, teachers=["teacherx"], judges=["judgex", "owl"], items=3)
    rewrite_run(run, dict(zip(students, NAMES, strict=True)) | {"judgex": FORMULAS[0], "teacherx": ALL}, ALL)
    assert coeval("analyze", "all", "--run", run, "--out", folder / "reports") == 0
    for form, ending in (("md", "md"), ("latex", "tex")):
        out = folder / f"tables.{ending}"
        assert coeval("analyze", "tables", "--run", run, "--format", form, "--out", out) == 0
    assert coeval("analyze", "export-units", "--run", run, "--out", folder / "units.csv") == 0
    assert coeval("calibrate", "--run", run, "--out", folder / "people") == 0
    return sorted(path for ending in ("csv", "md", "tex", "xlsx") for path in folder.rglob(f"*.{ending}"))


EXPORTS: dict[str, Callable[[Path], list[Path]]] = {
    "leaderboards": leaderboard_files,
    "routing": routing_files,
    "slices": slice_files,
    "tables": table_files,
    "papers": paper_files,
    "votes": votes_files,
    "coeval": coeval_files,
}


def check_csv(path: Path) -> set[str]:
    """No cell begins as a formula does; its texts."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = {cell for row in csv.reader(file) for cell in row}
    for cell in cells:
        begun = cell.lstrip("\x00\x1b\x7f\u200b\ufeff\u2028 \t\r\n")
        is_number = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)?(e[-+]?\d+)?%?", cell)
        assert is_number or not begun.startswith(tuple("=+-@＝＋－＠")), (path, cell)
    return {cell.removeprefix("'") for cell in cells}


def check_xlsx(path: Path) -> set[str]:
    """No cell is a formula or a link; its texts."""
    cells = [cell for sheet in load_workbook(path) for row in sheet.iter_rows() for cell in row]
    assert [cell.value for cell in cells if cell.data_type == "f" or cell.hyperlink is not None] == [], path
    # A workbook holds no control characters: each is a sign of its own there.
    return {str(cell.value).replace("\ufffd", "") for cell in cells}


def check_markdown(path: Path) -> set[str]:
    """Nothing is markup but tables, headings, lists and what the program set in bold; the texts."""
    text = path.read_text("utf-8")
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    shown = set()
    for block in parser.parse(text):
        assert block.type not in ("html_block", "code_block", "fence", "blockquote_open", "hr"), (path, block)
        for part in block.children or ():
            assert part.type in ("text", "strong_open", "strong_close", "softbreak"), (path, part, block.content)
        shown.add("".join(part.content for part in block.children or ()))
    assert not re.search(r"(?<!\\)://|www\.", text), "GitHub makes links of what looks like one"
    return shown


LATEX_SIGNS = (
    r"\\textbackslash\{\}|\\textasciitilde\{\}|\\textasciicircum\{\}|\\[&%$#_{}]|\\textbf\{[-+.\d]+\}|\$-\$"
    r"|\$\^\{(?:\\dagger|\*)\}\$|\{\\scriptsize \[[-\d.]*, [-\d.]*\]\}|\{[\[*]\}"
)


def check_latex(path: Path) -> set[str]:
    """Nothing is a command but what the program wrote: each table has one number of cells in each of its rows."""
    text = path.read_text("utf-8")
    assert text.count(r"\midrule") > 0
    for table in text.split(r"\toprule")[1:]:
        rows = table.partition(r"\bottomrule")[0].replace(r"\midrule", "").strip().splitlines()
        bare = [re.sub(LATEX_SIGNS, "x", row.removesuffix(r" \\")) for row in rows if row]
        assert len({row.count("&") for row in bare}) == 1, path
        for row in bare:
            assert not re.search(r"[\\%$#_{}~^]", row), (path, row)
            assert not re.match(r"\s*[\[*]", row), "an argument of the row above"
    return {text}


CHECKS = {".csv": check_csv, ".xlsx": check_xlsx, ".md": check_markdown, ".tex": check_latex}


@pytest.mark.parametrize("name", EXPORTS)
def test_texts_of_others_are_text_in_every_file(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    paths = EXPORTS[name](folder)
    assert paths
    shown: dict[str, set[str]] = {}
    for path in paths:
        shown.setdefault(path.suffix, set()).update(CHECKS[path.suffix](path))
    for ending, texts in shown.items():
        if ending != ".tex":  # which writes signs by their names
            lines = {in_one_line(text) for text in texts}
            names = [each.replace("/", "_") if name == "slices" else each for each in NAMES]  # those of files
            lost = [each for each in names if not any(in_one_line(each) in line for line in lines)]
            assert lost == [], ending


@pytest.mark.parametrize("words", [["leaderboard", "--votes"], ["votes", "check"]], ids=" ".join)
def test_no_command_writes_an_escape_sequence(command: Command, tmp_path: Path, words: list[str]) -> None:
    rows = vote_rows(len(NAMES) * 4)
    for number, row in enumerate(rows):
        row |= {"model_a": NAMES[number % len(NAMES)], "model_b": "ant", "voter": NAMES[number // 4]}
    source = write_votes(tmp_path / "\x1b[2J\u202ename.jsonl", rows)
    done = command("p2l", *words, source)
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, done.stderr):
        assert all(line == printable(line, keep="\t") for line in text.split("\n")), "forged or moved"
    bad = command("p2l", *words, tmp_path / "\x1b[2Jnone\r\nerror: forged.jsonl")
    assert bad.returncode == 2
    assert len(bad.stderr.splitlines()) == 1
    assert bad.stderr.strip() == printable(bad.stderr.strip())
