"""Commands of benchmarks, which few pages run: each exists, and takes the flags that a page gives it."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex

import pytest

from benchmarks.all import benchmarks
from tests.conftest import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
COMMANDS = sorted({(page.name, one.command) for page in PAGES for one in benchmarks(page.read_text(encoding="utf-8"))})


def test_the_pages_name_benchmarks() -> None:
    assert {page for page, _ in COMMANDS} >= {"results.md", "experiments.md", "online.md", "scaling.md"}


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
