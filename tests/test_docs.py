"""The documentation is true of the code: commands, flags, keys, links, configurations, imports."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from coeval.cli import COMMANDS as COEVAL_COMMANDS
from coeval.commands.analyze import FORWARDED
from p2l.cli import COMMANDS
from p2l.common.program import parser_of
from p2l.model.tokenizer import resolve_template
from p2l.training.deepspeed_config import find_deepspeed_file, resolve_deepspeed
from p2l.training.train_config import TrainConfig, load_config
from route.cli import COMMANDS as ROUTE_COMMANDS
from route.config import ModelConfig, RouterConfig
from tests.conftest import ROOT, Command

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
CONFIGS = sorted((ROOT / "training_configs").glob("*.yaml"))
# Flags of other tools that the pages mention.
LAUNCHER = {"--hostfile", "--master_addr", "--master_port", "--module", "--no_ssh", "--node_rank", "--num_gpus"}
ELASTIC = {"--max-restarts", "--nnodes", "--rdzv-conf", "--rdzv-endpoint"}  # of torchrun
FOREIGN = {
    *LAUNCHER,
    *ELASTIC,
    "--extra",
    "--index-url",
    "--no-deps",
    "--check",
    "--strict",
    "--help",
    "--help-all",
    "--version",
}
NOT_IN_TABLES = {"--help", "--help-all", "--no-reload"}
TRAIN_MODULE = COMMANDS["train"][0]
ROUTE_MODULES = {module for module, _ in ROUTE_COMMANDS.values()}
COEVAL_MODULES = {"coeval.mock.server", *(one for one, _ in [*COEVAL_COMMANDS.values(), *FORWARDED.values()])}
MODULES = {module for module, _ in COMMANDS.values()}


class Fence(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def fences(language: str) -> list[Fence]:
    """All fenced blocks in one language."""
    found = [
        Fence(page.name, *match)
        for page in PAGES
        for match in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ]
    return [fence for fence in found if fence.language == language]


def test_shell_blocks_are_such_as_docs_run_runs() -> None:
    """`make docs-run` runs `bash` blocks, and lists those that it does not run with a reason."""
    assert [fence.page for name in ("sh", "shell", "console", "zsh") for fence in fences(name)] == []


def inline_code(page: Path) -> list[str]:
    """Code within lines, fenced blocks left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def command_lines() -> list[tuple[str, list[str]]]:
    """(where, words) of each line of the shell blocks, and of the commands that shipped configurations name."""
    lines = [
        (fence.page, line)
        for fence in fences("bash")
        for line in fence.text.replace("\\\n", " ").splitlines()
        if line.strip()
    ]
    for path in CONFIGS:
        text = path.read_text(encoding="utf-8")
        lines += [(path.name, line) for line in re.findall(r"^#\s+((?:deepspeed|python|p2l) .*)$", text, re.MULTILINE)]
    # A line may end in `&`: it runs while the next ones do.
    split = [(where, shlex.split(line.rstrip(" &"), comments=True)) for where, line in lines]
    return [(where, of_module(words) if words[:1] == ["torchrun"] else words) for where, words in split]


def of_module(words: list[str]) -> list[str]:
    """What each process runs that torchrun starts."""
    return ["python", *words[words.index("-m") :]]


def as_ours(words: list[str]) -> tuple[str, list[str]] | None:
    """(module, its arguments) when a command line is one of our commands."""
    match words:
        case ["p2l", name, *rest] if name in COMMANDS:
            return COMMANDS[name][0], rest
        case ["p2l-route", name, *rest] if name in ROUTE_COMMANDS:
            return ROUTE_COMMANDS[name][0], rest
        case ["coeval", "analyze", name, *rest] if name in FORWARDED:
            return FORWARDED[name][0], rest
        case ["coeval", name, *rest] if name in COEVAL_COMMANDS:
            return COEVAL_COMMANDS[name][0], rest
        case ["p2l" | "p2l-route" | "coeval", "completion", "bash" | "zsh" | "fish", *_]:
            return None
        case ["p2l" | "p2l-route" | "coeval", *_]:
            pytest.fail(f"no command: {' '.join(words)}")
        case ["python", "-m", module, *rest] if module.startswith("route."):
            return module, rest
        case ["python", "-m", module, *rest] if module.startswith("p2l."):
            return module, rest
        case ["deepspeed", *rest]:
            flags, script, arguments = split_launcher(rest)
            assert "--module" in flags or (ROOT / script).is_file(), f"{script} is not a file of the checkout"
            return script if script in MODULES else TRAIN_MODULE, arguments
    return None


def split_launcher(words: list[str]) -> tuple[list[str], str, list[str]]:
    """DeepSpeed's own flags, the script, and its arguments."""
    number = 0
    while words[number].startswith("--"):
        assert words[number].split("=")[0] in LAUNCHER, f"{words[number]} is not a flag of the launcher"
        number += 2 if words[number] in LAUNCHER - {"--module", "--no_ssh"} else 1
    return words[:number], words[number], words[number + 1 :]


OURS = [(where, *found) for where, words in command_lines() if (found := as_ours(words)) is not None]


def with_children(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from with_children(child)


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for one in with_children(parser) for action in one._actions for flag in action.option_strings}


def test_the_pages_hold_examples() -> None:
    assert {module for _, module, _ in OURS} >= {module for name, (module, _) in COMMANDS.items() if name != "demo"}


@pytest.mark.parametrize(
    ("where", "module", "words"),
    OURS,
    ids=[f"{where}-{module} {' '.join(words)}"[:70] for where, module, words in OURS],
)
def test_a_documented_command_line_is_understood(where: str, module: str, words: list[str]) -> None:
    assert exit_code(parser_of(module), words) == 0, f"{where}: {module} does not take: {' '.join(words)}"


def exit_code(parser: argparse.ArgumentParser, words: list[str]) -> object:
    """What parsing ends with: 0, or the code of an error."""
    try:
        parser.parse_args(words)
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_within_lines_exist(page: Path) -> None:
    known = FOREIGN.union(*(flags_of(parser_of(module)) for module in MODULES | ROUTE_MODULES | COEVAL_MODULES))
    for code in inline_code(page):
        flags = {flag.rstrip("-") for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
        is_checked_elsewhere = code.startswith("python -m benchmarks.")  # tests/docs/test_benchmark_commands.py
        assert is_checked_elsewhere or flags <= known, f"{page.name}: `{code}` names an unknown flag"
        words = code.split()
        is_command = words[0] == "p2l" and len(words) > 1 and words[1].islower() and not words[1].startswith("-")
        if is_command and words[1] != "completion":
            assert words[1] in COMMANDS, f"{page.name}: `{code}`"
            assert flags <= flags_of(parser_of(COMMANDS[words[1]][0])), f"{page.name}: `{code}`"
        if words[:2] == ["python", "-m"] and words[2].startswith(("p2l.", "benchmarks.")):
            place = ROOT / words[2].replace(".", "/")
            found = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
            assert found, f"{page.name}: `{code}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_flag(name: str) -> None:
    for parser in with_children(parser_of(COMMANDS[name][0])):
        assert parser.prog.startswith(f"p2l {name}")
        assert parser.description
        assert parser.format_help()
        silent = [action.dest for action in parser._actions if not action.help and action.dest != "command"]
        assert [dest for dest in silent if not has_metavar(parser, dest)] == []


def has_metavar(parser: argparse.ArgumentParser, dest: str) -> bool:
    """A subcommand explains itself in its own help."""
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions if action.dest == dest)


def test_the_program_lists_its_commands(command: Command) -> None:
    done = command("python", "-m", "p2l.cli", "--help")
    assert done.returncode == 0
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in COMMANDS)


def table_rows(page: str, heading: str) -> dict[str, list[str]]:
    """First cell: the other cells, of all tables in one section of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): [cell.strip().replace("\\|", "|") for cell in row[1:]] for row in rows}


def test_every_key_of_the_training_configuration_is_documented() -> None:
    assert set(table_rows("train/training.md", "## Configuration")) == set(TrainConfig.model_fields)


def test_documented_defaults_are_those_of_the_code() -> None:
    rows = table_rows("train/training.md", "## Configuration")
    for key, field in TrainConfig.model_fields.items():
        said = rows[key][0].strip("`")
        if field.is_required():
            assert said == "needed", key
        elif isinstance(field.default, bool | int | float | str):
            assert yaml.safe_load(said) == field.default, key
        elif isinstance(field.default, tuple):
            assert tuple(yaml.safe_load(said)) == field.default, key


def test_every_flag_of_training_is_documented() -> None:
    text = (ROOT / "docs" / "train" / "training.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`--[^|]+)\|", text, re.MULTILINE)
    documented = {flag for cell in cells for flag in re.findall(r"--[\w-]+", cell)}
    assert documented == flags_of(parser_of(TRAIN_MODULE)) - {"-h", "--help", "--help-all"}


def test_every_flag_and_key_of_the_router_is_documented() -> None:
    flags = {flag for row in table_rows("route/routing.md", "## Flags") for flag in re.findall(r"--[\w-]+", row)}
    assert flags == {flag for flag in flags_of(parser_of("route.openai_server")) if flag[:2] == "--"} - NOT_IN_TABLES
    rows = table_rows("route/routing.md", "## Configuration")
    keys = {key for row in rows for key in re.findall(r"\w+", row)}
    assert keys == {*RouterConfig.model_fields, *ModelConfig.model_fields}


def test_documented_defaults_of_the_router_are_those_of_the_code() -> None:
    rows = table_rows("route/routing.md", "## Configuration")
    for key, field in RouterConfig.model_fields.items():
        said = rows[key][0].strip("`")
        if field.is_required():
            assert said == "needed", key
        elif isinstance(field.default, bool | int | float | str):
            assert yaml.safe_load(said) == field.default, key


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_checkout_that_are_named_exist(page: Path) -> None:
    folders = "p2l|tests|docs|benchmarks|training_configs"
    named = [code for code in inline_code(page) if re.fullmatch(rf"({folders})/[\w./-]*", code)]
    assert [code for code in named if not (ROOT / code).exists()] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_sound(path: Path) -> None:
    config = load_config(path)
    file = find_deepspeed_file(config, path)
    resolve_deepspeed(config, file, world_size=8, on_gpu=True)
    assert resolve_template(config.chat_template)


@pytest.mark.parametrize("fence", fences("yaml"), ids=lambda fence: fence.page)
def test_a_documented_configuration_is_sound(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "config.yaml"
    path.write_text(fence.text, encoding="utf-8")
    config = load_config(path)
    resolve_deepspeed(config, find_deepspeed_file(config, path), world_size=2, on_gpu=False)


@pytest.mark.parametrize("fence", fences("python"), ids=lambda fence: fence.page)
def test_documented_python_imports_what_exists(fence: Fence) -> None:
    for node in ast.walk(ast.parse(fence.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [code.split()[1] for code in inline_code(page) if code.startswith("make ")]
    named += [words[1] for where, words in command_lines() if where == page.name and words[:1] == ["make"]]
    assert set(named) <= targets


def test_the_readme_has_two_hundred_lines_at_most() -> None:
    """The rest is documentation."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
