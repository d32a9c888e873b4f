"""Leaderboards as files for people, and on stdout: what a program reads there is what a file would hold."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from openpyxl import load_workbook

from p2l.commands.leaderboard import main
from tests.p2l.commands.test_leaderboard_command import with_times

HOSTILE = "=cmd|' /C x'!A1 <b>[x](javascript:1)</b> `|` *y* https://example.org\x1b[31m"


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "votes.parquet"
    frame = with_times(400).replace({"ant": HOSTILE})
    frame.to_parquet(path)
    return path


def run(votes: Path, *flags: str) -> None:
    main(["--votes", str(votes), "--quiet", *flags])


@pytest.mark.parametrize("kind", ["csv", "json", "md"])
def test_stdout_gets_what_a_file_would_hold_and_no_tables(
    kind: str, votes: Path, tmp_path: Path, capsysbinary: Any
) -> None:
    run(votes, "--by", "language", "--output", str(tmp_path / f"out.{kind}"))
    assert b"beats the field" in capsysbinary.readouterr().out
    run(votes, "--by", "language", "--output", "-", "--format", kind)
    out, err = capsysbinary.readouterr()
    assert out == (tmp_path / f"out.{kind}").read_bytes()
    assert err == b""
    if kind == "json":
        assert {board["group"] for board in json.loads(out)} == {"all", "English", "German", "Greek"}


def test_stdout_is_csv_unless_another_format_is_named(votes: Path, capsysbinary: Any) -> None:
    run(votes, "--output", "-")
    frame = pd.read_csv(io.BytesIO(capsysbinary.readouterr().out))
    assert list(frame["rank"]) == [1, 2, 3, 4]
    run(votes, "--output", "-", "--format", "parquet")
    assert len(pd.read_parquet(io.BytesIO(capsysbinary.readouterr().out))) == 4


def test_the_format_overrides_the_ending(votes: Path, tmp_path: Path) -> None:
    run(votes, "--output", str(tmp_path / "board.txt"), "--format", "json")
    assert len(json.loads((tmp_path / "board.txt").read_text("utf-8"))[0]["models"]) == 4


def test_markdown_holds_groups_and_history_and_shows_names_as_they_are(votes: Path, tmp_path: Path) -> None:
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    path = tmp_path / "board.md"
    named = tmp_path / "A *board*.parquet"
    named.write_bytes(votes.read_bytes())
    run(named, "--by", "language", "--over", "month", "--output", str(path))
    text = path.read_text("utf-8")
    html = parser.render(text)
    headings = re.findall(r"<h[12]>(.*?)</h[12]>", html)
    assert headings[:3] == ["Leaderboard of A *board*.parquet", "all", "language = English"]
    assert headings[-1] == "over month (cumulative), 2025-01 to 2025-03"
    shown = "=cmd|' /C x'!A1 &lt;b&gt;[x](javascript:1)&lt;/b&gt; `|` *y* https://example.org[31m"
    assert html.count(f">{shown}</td>") == 5
    assert not re.search(r"<(a|b|em|code)\b", html)
    assert len(re.findall(r"<tr>", html)) == 5 * 5
    assert "https\\://" in text  # GitHub makes a link of what looks like one


def test_a_workbook_holds_groups_beside_each_other_and_the_history(votes: Path, tmp_path: Path) -> None:
    path = tmp_path / "board.xlsx"
    run(votes, "--by", "language", "--over", "month", "--control", "side", "--output", str(path))
    book = load_workbook(path)
    assert book.sheetnames == ["Leaderboards", "Side by side", "History", "Covariates", "About"]
    sheets = {sheet.title: [[cell.value for cell in row] for row in sheet.iter_rows()] for sheet in book}
    board = pd.DataFrame(sheets["Leaderboards"][1:], columns=sheets["Leaderboards"][0])
    run(votes, "--by", "language", "--control", "side", "--output", str(tmp_path / "board.csv"))
    frame = pd.read_csv(tmp_path / "board.csv")
    pd.testing.assert_series_equal(board["coef"], frame["coef"])
    names = [HOSTILE.replace("\x1b", ""), "bee", "cat", "dog"]  # names are read without control characters
    assert sheets["Side by side"][0] == ["model", "all", *(f"language = {n}" for n in ("English", "German", "Greek"))]
    assert {row[0] for row in sheets["Side by side"][1:]} == set(names)
    scores = board[board["group"] == "Greek"].set_index("model")["score"]
    assert {row[0]: row[4] for row in sheets["Side by side"][1:]} == pytest.approx(dict(scores))
    assert {row[0] for row in sheets["History"][1:]} == {"2025-01", "2025-02", "2025-03"}
    assert [row[1] for row in sheets["Covariates"][1:]] == ["side"] * 5
    assert sheets["About"][1][0] == "all"
    assert not any(cell.data_type == "f" for sheet in book for row in sheet.iter_rows() for cell in row)


def test_by_and_over_print_the_groups_and_then_the_history(votes: Path, capsys: Any) -> None:
    run(votes, "--by", "language", "--over", "month", "--verbose")
    printed = capsys.readouterr().out
    headings = [line for line in printed.splitlines() if "likelihood" in line]
    assert headings[0].startswith("all: 400 votes")
    assert headings[-1].startswith("over month (cumulative), 2025-01 to 2025-03")
    assert len(headings) == 5


def test_a_terminal_is_shown_no_escape_sequences_and_no_bytes(votes: Path, monkeypatch: Any) -> None:
    from p2l.common.cli import run as run_command

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(SystemExit, match="0"):
        run_command(main, ["--votes", str(votes), "--quiet", "--output", "-"])
    assert "https://example.org[31m" in terminal.getvalue()
    with pytest.raises(SystemExit, match="2"):
        run_command(main, ["--votes", str(votes), "--quiet", "--output", "-", "--format", "xlsx"])
