"""docs/operate/threats.md: every line of the threat model names tests, and they exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODEL = (ROOT / "docs" / "operate" / "threats.md").read_text(encoding="utf-8")
LINES = [line for line in MODEL.splitlines() if "→" in line and not line.startswith("| from →")]
NAMED = re.compile(r"`(tests/[\w./-]+\.py)::(\w+)`")


@cache
def names_of_tests(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


def test_the_threat_model_covers_who_talks_to_whom() -> None:
    text = "\n".join(line.split("|")[1] for line in LINES)
    parties = ("client → endpoint", "client → router", "router → provider", "provider → router", "votes → trainer")
    for pair in (*parties, "model folder → serving", "names, prompts → pages", "student's answer → judge"):
        assert pair in text


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip())
def test_a_line_of_the_threat_model_names_tests_that_exist(line: str) -> None:
    *_, believed, doubted, shown, _ = re.split(r"(?<!\\)\|", line)
    assert believed.strip(), "a line says what is believed"
    assert doubted.strip(), "and what is not"
    named = NAMED.findall(shown)
    assert named, "and names a test that shows it"
    assert NAMED.sub("", shown).strip(" ,") == "", "which stands as `tests/path.py::name`"
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name in names_of_tests(ROOT / path), f"{path} has no {name}"
