"""The rules of the house that a program can check: what imports what, what is public, how long things are."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import p2l
from tests.conftest import ROOT, Command

HEAVY = ("torch", "deepspeed", "datasets", "transformers", "fastapi", "matplotlib", "pandas")
LIGHT = ("p2l", "p2l.likelihood", "p2l.leaderboard", "p2l.metrics", "p2l.votes")
TORCH = {"torch", "deepspeed", "transformers", "safetensors"}
MODULES = sorted(["p2l", *(found.name for found in pkgutil.walk_packages(p2l.__path__, "p2l."))])
SOURCES = sorted((ROOT / "p2l").rglob("*.py"))
CODE = sorted(
    path for folder in ("p2l", "route", "coeval", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)

LONGEST_FUNCTION, LONGEST_FILE = 60, 500
MEDIAN_FUNCTION, LONG_FUNCTION = 10, 35


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_import_brings_nothing_heavy(command: Command, module: str) -> None:
    show = f"import sys, json, {module}; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = command("python", "-c", show)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_and_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert list(module.__all__) == sorted(module.__all__, key=constants_classes_functions)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def constants_classes_functions(name: str) -> tuple[int, str]:
    """The order that ruff gives `__all__`."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """Names of modules below a statement, types alone left out; `from p2l import heads` is p2l.heads."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}: relative imports hide where things come from"
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        inner = [name for name in whole if name in MODULES]
        yield from inner or [str(node.module)]
    for child in ast.iter_child_nodes(node):
        yield from imported(child, module)


def graph(*, within_functions: bool) -> dict[str, set[str]]:
    """Which modules each module imports."""
    edges = {}
    for path in SOURCES:
        body = tree_of(path).body
        nodes = [node for node in body if within_functions or not isinstance(node, ast.FunctionDef | ast.ClassDef)]
        edges[name_of(path)] = {name for node in nodes for name in imported(node, name_of(path))}
    return edges


def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    """Every module that `start` imports, directly or through others."""
    seen, waiting = {start}, [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def test_imports_go_in_no_circle() -> None:
    """Imports that wait inside a function count too."""
    edges = graph(within_functions=True)
    circles = [name for name in edges if any(name in reached(other, edges) for other in edges[name] - {name})]
    assert circles == []


@pytest.mark.parametrize("module", [name for name in LIGHT if name != "p2l"])
def test_mathematics_and_votes_do_not_know_torch(module: str) -> None:
    """Not at import, and not later either: no function of theirs imports it."""
    found = reached(module, graph(within_functions=True))
    assert {name.split(".")[0] for name in found} & TORCH == set()


def test_no_part_imports_a_command() -> None:
    """Commands are at the top; only other commands may start them. `p2l.simulate` is a library as well."""
    edges = graph(within_functions=True)
    commands = {name_of(path) for path in SOURCES if has_main(tree_of(path))}
    for name in sorted(edges.keys() - commands):
        assert edges[name] & (commands - {"p2l.simulate"}) == set(), name


def has_main(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)


def test_the_model_knows_nothing_of_routing_and_benchmarking() -> None:
    for name, others in graph(within_functions=True).items():
        assert {other.split(".")[0] for other in others} & {"route", "coeval", "benchmarks", "tests"} == set(), name


def lengths(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.name}", int(node.end_lineno or 0) - node.lineno + 1


def test_functions_and_files_are_short() -> None:
    functions = dict(pair for path in SOURCES for pair in lengths(path))
    assert {name: length for name, length in functions.items() if length > LONGEST_FUNCTION} == {}
    assert statistics.median(functions.values()) <= MEDIAN_FUNCTION
    assert statistics.quantiles(functions.values(), n=10)[-1] <= LONG_FUNCTION
    files = {path.name: path.read_text(encoding="utf-8").count("\n") for path in CODE}
    assert {name: lines for name, lines in files.items() if lines > LONGEST_FILE} == {}
