"""Help and mistakes of every command of the three programs: examples that can be typed, flags in groups and once."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from coeval.cli import COMMANDS as COEVAL
from coeval.cli import dispatch as dispatch_coeval
from coeval.commands.analyze import FORWARDED
from p2l.cli import COMMANDS
from p2l.cli import dispatch as dispatch_p2l
from p2l.common.program import Parser, parser_of
from route.cli import COMMANDS as ROUTE
from route.cli import dispatch as dispatch_route
from tests.conftest import ROOT, Command, free_port
from tests.p2l.serving_models import tiny

MOST = 8  # flags that a person reads without a title over them


def with_subcommands(parser: Parser) -> Iterator[Parser]:
    """A parser, and those of its subcommands; not those that are commands of their own."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (one for name, one in action.choices.items() if name not in FORWARDED)


def every_parser() -> list[Parser]:
    entries = [entry for commands in (COMMANDS, ROUTE, COEVAL, FORWARDED) for entry, _ in commands.values()]
    mocks = [importlib.import_module(name).build_parser() for name in ("route.providers.mock", "coeval.mock.server")]
    return [one for parser in [*map(parser_of, entries), *mocks] for one in with_subcommands(parser)]


PARSERS = every_parser()
EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)


@EACH
def test_help_starts_with_two_examples_that_the_command_takes(parser: Parser) -> None:
    head, *lines = parser.format_help().split("\n\n")[0].splitlines()
    assert head == "examples:"
    assert len(lines) == 2
    words = parser.prog.split()
    for line in lines:
        typed = shlex.split(line)
        assert typed[: len(words)] == words
        parser.parse_args(typed[len(words) :])


@EACH
def test_flags_stand_in_groups_and_once(parser: Parser) -> None:
    assert len([one for one in parser._optionals._group_actions if one.dest not in {"help", "help_all"}]) <= MOST
    listed = [
        re.split(r" {2,}", line.strip())[0] for line in parser.format_help().splitlines() if re.match(r"  --?\w", line)
    ]
    names = [name.replace("_", "-") for line in listed for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    assert all(len(line) < 100 for line in listed)
    assert len(parser.format_usage()) < 160


@EACH
def test_a_mistyped_flag_is_one_line_with_the_nearest(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    name = max((name for action in parser._actions for name in action.option_strings), key=len)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([name[:-1] + ("e" if name[-1] != "e" else "x")])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"did you mean {name!r}?" in error or f"did you mean {name.replace('_', '-')!r}?" in error
    assert error.endswith(f"; see {parser.prog} --help\n")


@pytest.mark.parametrize(
    ("module", "typed", "meant"),
    [("route.openai_server", "--confg", "--config"), ("p2l.endpoint", "--modl-path", "--model-path")],
)
def test_a_module_that_is_run_tells_a_mistyped_flag_before_a_missing_one(
    module: str, typed: str, meant: str, command: Command
) -> None:
    done = command("python", "-m", module, typed, "x")
    assert done.returncode == 2
    assert f"error: unknown flag {typed} (did you mean {meant!r}?)" in done.stderr


def test_a_flag_that_lacks_its_value_and_a_command_that_lacks_a_flag_are_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, text in ((["split"], "required"), (["chek", "votes.csv"], "did you mean 'check'?")):
        with pytest.raises(SystemExit) as caught:
            parser_of(COMMANDS["votes"][0]).parse_args(words)
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert text in error


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("p2l votes", [], "no command is given; use one of check, import, "),
        ("p2l votes", ["chek"], "unknown command 'chek' (did you mean 'check'?); use one of check, import, "),
        ("p2l buffer", [], "no command is given; use one of geometric, replay; "),
        ("p2l-route keys", [], "no command is given; use one of add, list, limit, revoke; "),
        ("p2l completion", [], "no shell is given; use one of bash, zsh, fish; "),
        ("p2l completion", ["bsh"], "unknown shell 'bsh' (did you mean 'bash'?); use one of bash, zsh, fish; "),
        ("coeval analyze", ["alll"], "unknown command 'alll' (did you mean 'all'?); use one of "),
    ],
)
def test_a_missing_or_misspelt_command_lists_those_that_there_are(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, name = command.split()
    with pytest.raises(SystemExit) as caught:
        {"p2l": dispatch_p2l, "p2l-route": dispatch_route, "coeval": dispatch_coeval}[program]([name, *words])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.endswith(f"; see {command} --help\n")


@pytest.mark.parametrize("program", ["p2l", "p2l-route", "coeval"])
def test_programs_list_their_commands_by_purpose(program: str, command: Command) -> None:
    module, commands = {"p2l": ("p2l", COMMANDS), "p2l-route": ("route", ROUTE), "coeval": ("coeval", COEVAL)}[program]
    done = command("python", "-m", f"{module}.cli", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("examples:\n  ")
    assert f"usage: {program} COMMAND [FLAGS]" in done.stdout
    listed = re.findall(r"^  ([\w-]+)  +\w", done.stdout.split("usage:")[1], re.MULTILINE)
    assert listed == [*commands, "completion"]


WITHOUT_EXTRAS = (
    "import sys; from p2l.common import cli; sys.modules.update(dict.fromkeys(cli._EXTRAS)); "
    "from {program}.cli import main; main()"
)


@pytest.mark.parametrize("program", ["p2l", "route", "coeval"])
def test_help_and_completion_need_no_extra(program: str, command: Command) -> None:
    """A script of all commands asks each for its flags."""
    done = command("python", "-c", WITHOUT_EXTRAS.format(program=program), "completion", "bash")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made, tokenizer = tiny(folder, "tfidf")
    made.save_pretrained(folder / "saved")
    tokenizer.save_pretrained(folder / "saved")
    return folder / "saved"


def not_installed(package: str, extra: str) -> str:
    install = f"pip install 'p2l[{extra}]' (with the constraints of docs/start/install.md)"
    return f"error: this needs {package}, which is not installed; {install}"


MISSING = "import sys; sys.modules[{package!r}] = None; from {program}.cli import main; main()"


@pytest.mark.parametrize(
    ("program", "package", "words", "extra"),
    [
        ("p2l", "torch", ["demo"], "train"),
        ("p2l", "torch", ["train", "--votes", "{votes}"], "train"),
        ("p2l", "torch", ["leaderboard", "--model", "{folder}", "a prompt"], "serve"),
        ("p2l", "uvicorn", ["endpoint", "--model", "{folder}", "--port", "{port}"], "serve"),
        (
            "route",
            "uvicorn",
            ["serve", "-c", "examples/router_mocks.yaml", "--router-type", "random", "--port", "{port}"],
            "route",
        ),
        ("p2l", "pyarrow", ["init", "--votes", "{votes}", "--output", "{folder}-new"], "train"),
        ("coeval", "aiohttp", ["run", "--config", "{config}"], "coeval"),
        ("coeval", "scipy", ["view", "--run", "{folder}"], "coeval"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_package_is_one_line_with_the_extra_of_this_command(
    program: str,
    package: str,
    words: list[str],
    extra: str,
    command: Command,
    votes_file: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    config = tmp_path / "experiment.yaml"
    text = (ROOT / "examples/to_p2l.yaml").read_text(encoding="utf-8")
    config.write_text(text.replace("benchmark/runs", str(tmp_path)), encoding="utf-8")
    words = [word.format(votes=votes_file, folder=model, config=config, port=free_port()) for word in words]
    done = command("python", "-c", MISSING.format(package=package, program=program), *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == not_installed(package, extra)


ONLY_ROUTE = (
    "import sys; from p2l.common import cli; "
    "sys.modules.update({name: None for name, extras in cli._EXTRAS.items() if 'route' not in extras}); "
    "from p2l.cli import main; main()"
)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ("leaderboard --model m prompt", "torch", "serve"),
        ("leaderboard --votes v.jsonl --plot b.png", "matplotlib", "plot"),
        ("explain --model m --prompts v.jsonl", "torch", "serve"),
        ("add-model --model m --name a --votes v.jsonl --output o", "torch", "serve"),
        ("probes --model m --prompts v.jsonl --output o.jsonl", "torch", "serve"),
        ("drift m m --prompts v.jsonl", "torch", "serve"),
        ("auto-evals --model_repo m --output_dir o --report r", "torch", "serve"),
        ("eval-routing --table t.parquet --output o", "matplotlib", "plot"),
        ("visualize --eval-folder m --output-file f", "pyarrow", "data,plot"),
        ("timestamps --chrono-train-data v.jsonl --output-file t.json", "pyarrow", "data"),
        ("buffer geometric --input v.jsonl --output o.jsonl", "pyarrow", "data"),
    ],
)
def test_beside_the_router_a_command_names_at_once_what_brings_all_it_needs(
    words: str, package: str, extra: str, command: Command
) -> None:
    done = command("python", "-c", ONLY_ROUTE, *words.split())
    assert (done.returncode, done.stderr.splitlines()) == (2, [not_installed(package, extra)])


@pytest.mark.parametrize(
    "words",
    [
        "visualize --eval-folder {folder} --output-file figures",
        "report {folder}",
        "explain --answers {folder}",
        "drift --votes {folder} --before 2024-01-01",
        "drift --follow {folder} --stop-when-idle 0",
    ],
)
def test_what_reads_votes_answers_and_records_alone_needs_no_torch(
    words: str, command: Command, tmp_path: Path
) -> None:
    line = [word.format(folder=tmp_path) for word in words.split()]
    done = command("python", "-c", MISSING.format(package="torch", program="p2l"), *line)
    assert done.returncode == 2
    assert "torch" not in done.stderr
    assert str(tmp_path) in done.stderr  # the folder holds no such thing


def parser_with_a_rare_flag() -> Parser:
    parser = Parser(prog="p2l try", examples=("p2l try",))
    parser.add_argument("--max-length", type=int, help="tokens per prompt")
    parser.add_argument("--local-rank", type=int, help="set by the launcher")
    parser.hide_rare("--local-rank")
    return parser


def test_rare_flags_stand_in_the_whole_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_with_a_rare_flag()
    assert "--local-rank" not in parser.format_help()
    assert "--help-all" in parser.format_help()
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args(["--help-all"])
    assert "set by the launcher" in capsys.readouterr().out
    assert parser.parse_args(["--local-rank", "1"]).local_rank == 1


def test_flags_may_be_typed_with_underscores() -> None:
    parser = parser_with_a_rare_flag()
    assert parser.parse_args(["--max_length=7", "--local_rank", "1"]).max_length == 7
    parser.add_argument("text")
    assert parser.parse_args(["--", "--max_length"]).text == "--max_length"


OF_A_MODEL = {
    "p2l.endpoint": ("model_path", []),
    "p2l.eval": ("model", ["--dataset", "prompts.jsonl"]),
}
"""Modules of commands that take a trained model: where its name is kept, and what else they need."""


@pytest.mark.parametrize("module", OF_A_MODEL)
@pytest.mark.parametrize(
    "flag", ["--model", "-m", "--model-path", "--model_path", "--model-repo", "--model_repo", "--checkpoint"]
)
def test_the_model_is_the_same_flag_everywhere_and_older_spellings_are_accepted(module: str, flag: str) -> None:
    parser, (kept_as, needed) = parser_of(module), OF_A_MODEL[module]
    assert getattr(parser.parse_args([flag, "outputs/birds", *needed]), kept_as) == "outputs/birds"
    assert "-m, --model MODEL " in parser.format_help()


@pytest.mark.parametrize(
    ("words", "device"), [([], None), (["--cuda"], "cuda"), (["--no-cuda"], "cpu"), (["--device", "cuda:1"], "cuda:1")]
)
def test_the_endpoint_computes_on_a_device_in_either_spelling(words: list[str], device: str | None) -> None:
    assert parser_of("p2l.endpoint").parse_args(words).device == device
