"""All benchmarks in a row: the commands are those of the page, and what they print gets into it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from benchmarks import all as bench_all
from benchmarks.all import PAGE, Benchmark, OtherTablesError, benchmarks, included, stamps

PAGE_OF_ONE = """# Results

`python -m benchmarks.quick` says, as `python -m benchmarks.quick` did:

<!-- measured: python -m benchmarks.quick -->
```text
the old figure
```

`python -m benchmarks.votes DATA_DIR`.
"""


def test_the_commands_of_the_page_are_there() -> None:
    commands = benchmarks(PAGE.read_text(encoding="utf-8"))
    assert len(commands) > 20
    for one in commands:
        words = one.words("data")[1:]
        module = words[1] if words[0] == "-m" else words[0].removesuffix(".py").replace("/", ".")
        assert importlib.util.find_spec(module) is not None, one.command
    assert len({one.name for one in commands}) == len(commands)


def test_what_is_printed_replaces_the_block_of_its_command_alone() -> None:
    page = included(PAGE_OF_ONE, "python -m benchmarks.quick", "\nthe new figure   \n")
    assert page == PAGE_OF_ONE.replace("the old figure", "the new figure")
    assert included(PAGE_OF_ONE, "python -m benchmarks.other", "x") == PAGE_OF_ONE


PAGE_OF_TABLES = """`python -m benchmarks.two`:

<!-- measured: python -m benchmarks.two -->

| a |
|---|
| old |

Words between them.

<!-- measured: python -m benchmarks.two (commit 1, 2 s, 0.1 cores at other work) -->

| b |
|---|
| old |

| by hand |
|---|
| stays |
"""


def test_tables_that_are_printed_replace_those_of_the_command_in_their_order() -> None:
    printed = "two cores\n\n| a |\n|---|\n| 1 |\n\nand\n\n| b |\n|---|\n| 2 |\n| 3 |\n"
    page = included(PAGE_OF_TABLES, "python -m benchmarks.two", printed, "commit 2, 3 s, 0.2 cores at other work")
    about = "<!-- measured: python -m benchmarks.two (commit 2, 3 s, 0.2 cores at other work) -->\n\n"
    expected = PAGE_OF_TABLES.replace("| old |", "| 1 |", 1).replace("| old |", "| 2 |\n| 3 |")
    expected = expected.replace("<!-- measured: python -m benchmarks.two -->\n\n", about)
    assert page == expected.replace(
        about.replace("2, 3 s, 0.2 cores at other work", "1, 2 s, 0.1 cores at other work"), about
    )
    assert included(page, "python -m benchmarks.two", printed, "commit 2, 3 s, 0.2 cores at other work") == page
    assert stamps(page) == {"python -m benchmarks.two": "commit 2, 3 s, 0.2 cores at other work"}
    assert stamps(PAGE_OF_TABLES) == {"python -m benchmarks.two": ""}  # one of its tables was copied by hand
    one = "| a |\n|---|\n| 1 |\n"
    for count in (1, 3):
        with pytest.raises(OtherTablesError, match=rf"benchmarks\.two printed {count} tables, \S+ has 2 of it"):
            included(page, "python -m benchmarks.two", "\n".join([one] * count))


def test_what_the_page_takes_in_is_of_commands_that_it_names() -> None:
    text = PAGE.read_text(encoding="utf-8")
    taken = stamps(text)
    assert set(taken) <= {one.command for one in benchmarks(text)}
    assert text.count("<!-- measured: ") >= len(taken)
    blocks = text.split("<!-- measured: ")[1:]
    assert all(re.match(r"[^\n]+ -->\n(\n\||```text\n)", block) for block in blocks)


def test_each_runs_once_and_a_failure_is_told_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    page.write_text(PAGE_OF_ONE + "\n`python -m benchmarks.broken`\n", encoding="utf-8")
    codes = {"quick": "print('the new figure')", "broken": "raise SystemExit('no')"}
    monkeypatch.setattr(bench_all, "PAGE", page)
    monkeypatch.setattr(Benchmark, "words", lambda self, _: [sys.executable, "-c", codes[self.name]])
    monkeypatch.setattr(sys, "argv", ["all", "--output", str(tmp_path / "measured")])
    assert bench_all.main() == 1
    assert "the new figure" in page.read_text(encoding="utf-8")
    assert "$ python -m benchmarks.quick" in (tmp_path / "measured/quick.txt").read_text(encoding="utf-8")
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r" *\d+ s  python -m benchmarks\.quick", lines[0])
    assert any("needs real data" in line for line in lines)
    assert lines[-1].split()[0] == "failed"
