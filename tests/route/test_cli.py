"""The commands of the router under one name, and their command lines as the pages print them."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator

import pytest

from route.cli import COMMANDS, dispatch
from tests.conftest import ROOT, Command


def documented() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of each line of a shell block that runs a command of the router."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.rstrip(" &"), comments=True)
                if words[:1] == ["p2l-route"]:
                    yield page.name, words[1:]


@pytest.mark.parametrize(("page", "words"), list(documented()), ids=lambda value: " ".join(value)[:60])
def test_a_documented_command_line_is_understood(page: str, words: list[str]) -> None:
    assert words[0] in COMMANDS, page
    parser_of(words[0]).parse_args(words[1:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_flag(name: str) -> None:
    parser = parser_of(name)
    assert parser.format_help()
    assert [action.dest for action in parser._actions if not action.help] == []


def parser_of(name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = importlib.import_module(COMMANDS[name][0]).build_parser()
    return parser


def test_commands_are_found_under_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)
    assert dispatch([]) == 2
    assert dispatch(["--version"]) == 0
    assert dispatch(["cost"]) == 2
    assert "did you mean 'costs'" in capsys.readouterr().err


def test_what_keeps_the_books_imports_nothing_heavy(command: Command) -> None:
    names = (
        "route.cli, route.keep.ledger, route.keep.feedback, route.keep.conversations, "
        "route.observability.logs, route.costs, p2l.commands.votes"
    )
    heavy = ("torch", "scipy", "cvxpy", "openai", "anthropic", "pandas", "pyarrow", "numpy", "transformers", "fastapi")
    done = command("python", "-c", f"import sys, {names}; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_help_waits_for_neither_the_service_nor_its_libraries(command: Command) -> None:
    heavy = (
        "starlette",
        "pydantic",
        "numpy",
        "aiohttp",
        "prometheus_client",
        "route.config",
        "route.application.service",
    )
    script = f"import sys, route.openai_server; print([name for name in {heavy} if name in sys.modules])"
    done = command("python", "-c", script)
    assert done.stdout.strip() == "[]", done.stderr
