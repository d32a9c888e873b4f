"""Commands of benchmarks, which few pages run: each exists, takes the flags of the pages, and imports what is there."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from benchmarks.all import benchmarks
from tests.conftest import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
COMMANDS = sorted({(page.name, one.command) for page in PAGES for one in benchmarks(page.read_text(encoding="utf-8"))})


def test_the_pages_name_benchmarks() -> None:
    assert {page for page, _ in COMMANDS} >= {"RESULTS.md", "LOG.md", "online.md", "scaling.md"}


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[" ".join(one) for one in COMMANDS])
def test_a_command_of_a_benchmark_is_understood(page: str, command: str) -> None:
    _, *words = shlex.split(re.sub(r"[][]", "", command), comments=True)
    if words[0] == "-m":
        del words[0]
    module = importlib.import_module(words[0].removesuffix(".py").replace("/", "."))
    if not hasattr(module, "build_parser"):
        module = importlib.import_module(f"{module.__name__}.__main__")
    parser: argparse.ArgumentParser = module.build_parser()
    try:
        parser.parse_args(words[1:])
    except SystemExit as stop:
        pytest.fail(f"{page}: `{command}` ends with {stop.code}")


def test_what_benchmarks_import_of_us_exists() -> None:
    """Also within functions, which a parser does not reach; files are read, since importing all takes seconds."""
    lacking = [
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (place := ours(str(node.module))) is not None
        for alias in node.names
        if alias.name not in names_of(place) and not (place.parent / f"{alias.name}.py").is_file()
    ]
    assert lacking == []


def ours(module: str) -> Path | None:
    """The file of a module of this checkout."""
    place = ROOT / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@cache
def names_of(file: Path) -> set[str]:
    """The names that a module has, also those that it takes from others."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # a package that imports its names when they are asked for lists them
    return names
