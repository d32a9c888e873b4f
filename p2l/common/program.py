"""Programs of several commands, and the flags of each: help that starts with examples, one line for a mistake.

Help shows each flag once; a mistyped flag or command is answered with the nearest one. Scripts complete both in shells.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from p2l.common.errors import InputError
from p2l.common.version import __version__

_PACKAGES = {"p2l": "p2l", "p2l-route": "route", "coeval": "coeval"}
_MISSING = "the following arguments are required: "  # as argparse begins it
_MAX_CHOICES_CHARS = 60  # of the values that the help lists in place of a flag's value


def shipped() -> Path:
    """Return the folder that holds the examples: a checkout, or what an installed package brings along."""
    import sysconfig  # for this alone, and 10 ms of every start

    root = Path(__file__).resolve().parents[2]
    # `pip install --target` puts data beside the packages, a virtual environment at its root.
    for folder in (root, root / "share" / "p2l", Path(sysconfig.get_path("data")) / "share" / "p2l"):
        if (folder / "examples" / "to_p2l.yaml").is_file():
            return folder
    raise InputError("the examples are not installed beside this package; take them from a checkout or the sdist")


def _examples_of(prog: str) -> list[str]:
    """Return the lines of a command, `p2l votes` say, in the file `examples.txt` of its program's package."""
    words = prog.split()
    package = words[2].partition(".")[0] if words[:2] == ["python", "-m"] else _PACKAGES.get(words[0])
    if package is None:
        return []
    from importlib import resources

    file = resources.files(package).joinpath("examples.txt")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []  # benchmarks have none
    return [line for line in lines if line.split()[: len(words)] == words]


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Show each flag in its first long spelling, its value once, and a default only where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or not action.option_strings:
            return action.help
        if isinstance(action.default, list | tuple):  # as it is typed
            return f"{action.help} (default: {' '.join(map(str, action.default))})" if action.default else action.help
        return super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(_shown_spellings(action))
        if action.nargs == 0:
            return names
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        """Return the last word of a flag's name: MS of --max-wait-ms."""
        return super()._get_default_metavar_for_optional(action).rpartition("_")[2]

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        choices = None if action.choices is None else ",".join(map(str, action.choices))
        if action.metavar is None and choices is not None and len(choices) > _MAX_CHOICES_CHARS:
            return lambda size: ("NAME",) * size
        return super()._metavar_formatter(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """A parser whose help starts with examples, and which ends with 2 and one line where a flag is mistyped."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        options = {"formatter_class": _HelpFormatter, "allow_abbrev": False, **options}
        super().__init__(**options)
        self.examples = tuple(examples)
        self._rare: list[argparse.Action] = []

    def format_usage(self) -> str:
        """Return the line of what a command cannot do without."""
        formatter = self._get_formatter()
        exclusive = [group for group in self._mutually_exclusive_groups if group.required]
        grouped = {id(action) for group in exclusive for action in group._group_actions}
        words = [
            "(" + " | ".join(_typed(formatter, action) for action in group._group_actions) + ")" for group in exclusive
        ]
        for action in self._actions:
            if id(action) not in grouped and (action.required or not action.option_strings):
                words.append(_typed(formatter, action))
        return _filled(" ".join(["usage:", self.prog, *words, "[FLAGS]"]), indent=7) + "\n"

    def format_help(self) -> str:
        """Return the help: examples, usage, what the command does, and its flags by group."""
        shown = {action: action.help for action in self._rare}
        for action in self._rare:
            action.help = argparse.SUPPRESS
        try:
            return self.format_full_help()
        finally:
            for action, text in shown.items():
                action.help = text

    def format_full_help(self) -> str:
        """Return the help with the flags that `hide_rare` leaves out of the usual one."""
        self.usage = self.format_usage().removeprefix("usage: ").rstrip("\n").replace("%", "%%")
        examples = list(self.examples)
        if not examples:
            examples, words = _examples_of(self.prog), len(self.prog.split())
            if self._subparsers:  # of two subcommands one each
                examples = list({line.split()[words]: line for line in reversed(examples)}.values())[::-1]
        lines = "".join(f"  {line}\n" for line in (self.examples or examples[:2]))
        return f"examples:\n{lines}\n{super().format_help()}" if lines else super().format_help()

    def hide_rare(self, *names: str) -> None:
        """Leave flags out of `--help`; `--help-all`, which this adds, shows them too."""
        self._rare += [self._option_string_actions[name] for name in names]
        if "--help-all" not in self._option_string_actions:
            self.add_argument(
                "--help-all",
                action=_HelpAll,
                nargs=0,
                dest=argparse.SUPPRESS,  # no option of the command's
                default=argparse.SUPPRESS,
                help="show rarely needed flags too, and exit",
            )

    def arrange(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Show flags that were added without a group under titles: {title: names of flags}."""
        for title, names in groups.items():
            group = self.add_argument_group(title)
            for name in names:
                action = self._option_string_actions[name]
                self._optionals._group_actions.remove(action)
                group._group_actions.append(action)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, once every flag is known: a mistyped one is told before what is missing without it."""
        words = list(sys.argv[1:] if args is None else args)
        end_of_flags = words.index("--") if "--" in words else len(words)
        words = [*map(self._with_hyphens, words[:end_of_flags]), *words[end_of_flags:]]
        self._check_names(words)
        return super().parse_known_args(words, namespace)

    def _with_hyphens(self, word: str) -> str:
        """Return a flag that was typed with underscores, as `--model_path`, in its spelling with hyphens."""
        name, equals, value = word.partition("=")
        hyphened = name.replace("_", "-")
        is_other_spelling = name not in self._option_string_actions and hyphened in self._option_string_actions
        return hyphened + equals + value if name.startswith("--") and is_other_spelling else word

    def _check_names(self, words: Iterable[str]) -> None:
        for word in words:
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break  # what follows is not a flag, or a subcommand's
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in self._option_string_actions:
                names = [spelling for action in self._actions for spelling in _spellings(action.option_strings)]
                self.error(f"unknown flag {name}{_hint(name, names)}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError:
            if action.type not in (int, float):  # another says itself what it takes
                raise
            kind = "whole number" if action.type is int else "number"
            raise argparse.ArgumentError(action, f"must be a {kind}, got {text!r}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        hint = f"{value!r}{_hint(str(value), map(str, action.choices))}; use one of {_choices(action)}"
        if action.option_strings:
            raise argparse.ArgumentError(action, f"no {hint}")
        raise argparse.ArgumentError(None, f"unknown {_kind(action)} {hint}")

    def _with_choices(self, message: str) -> str:
        """Return argparse's message, or, where an argument that has choices is missing, these."""
        for action in self._actions:
            is_told = message == f"{_MISSING}{argparse._get_action_name(action)}"
            if is_told and action.choices is not None and not action.option_strings:
                return f"no {_kind(action)} is given; use one of {_choices(action)}"
        return message

    def error(self, message: str) -> NoReturn:
        """End with 2 and one line."""
        message = self._with_choices(message)
        self.exit(2, f"error: {' '.join(message.split())}; see {self.prog} --help\n")


class _HelpAll(argparse.Action):
    """Print the help with all flags, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_full_help(), sys.stdout)
        parser.exit()


def _hint(name: str, names: Iterable[str]) -> str:
    spelled = {spelling.replace("_", "-"): spelling for spelling in names}
    matches = difflib.get_close_matches(name.replace("_", "-"), spelled, n=1)
    return f" (did you mean {spelled[matches[0]]!r}?)" if matches else ""


def _kind(action: argparse.Action) -> str:
    """Return the word for an argument without a flag; argparse's is often one that users have not seen."""
    return "command" if isinstance(action, argparse._SubParsersAction) else action.dest


def _choices(action: argparse.Action) -> str:
    return ", ".join(map(str, action.choices or ()))


def _filled(text: str, indent: int) -> str:
    """Return a text in lines that fit the terminal, those after the first indented."""
    width = shutil.get_terminal_size().columns - 2  # as argparse does
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _typed(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    if not action.option_strings:
        text = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
        return "COMMAND" if isinstance(action, argparse._SubParsersAction) else text
    name = next((long for long in action.option_strings if long.startswith("--")), action.option_strings[0])
    if action.nargs == 0:
        return name
    return f"{name} {formatter._format_args(action, formatter._get_default_metavar_for_optional(action))}"


def _shown_spellings(action: argparse.Action) -> list[str]:
    """Return short names, the first long one and its opposite; older spellings are accepted, but not shown."""
    short = [name for name in action.option_strings if not name.startswith("--")]
    long = [name for name in action.option_strings if name.startswith("--")]
    return [*short, *long[:1], *(name for name in long[1:] if name == f"--no-{long[0].removeprefix('--')}")]


def _spellings(names: Sequence[str]) -> list[str]:
    """Return names of one flag, short ones first, without those that differ only in dashes and underscores."""
    unique = {name.replace("_", "-"): name for name in reversed(names)}
    return sorted((name for name in names if name in unique.values()), key=lambda name: name.startswith("--"))


Commands = Mapping[str, tuple[str, str]]
"""Name: (its function as "module", whose `main` it is, or "module:NAME_main"; a sentence)."""
_COMPLETION = ("completion", "print what your shell needs to complete commands and flags")


def dispatch(program: str, about: str, groups: Mapping[str, Commands], argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names. `groups` has the commands by purpose."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {name: entry for group in groups.values() for name, entry in group.items()}
    if not words or words[0] in {"-h", "--help"}:
        print(_usage(program, about, groups))
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        print(f"{program} {__version__}")
        return 0
    if words[0] == _COMPLETION[0]:
        _complete(program, about, commands, words[1:])
        return 0
    if words[0] not in commands:
        near = _hint(words[0], [*commands, _COMPLETION[0]])
        print(f"error: no command {words[0]!r}{near}; see {program} --help", file=sys.stderr)
        return 2
    module, _, function = commands[words[0]][0].partition(":")
    code: int | None = getattr(importlib.import_module(module), function or "main")(words[1:])
    return code


def parser_of(entry: str) -> Parser:
    """Return the parser of a command: `build_parser` of its module, or `NAME_parser` beside `NAME_main`."""
    module, _, function = entry.partition(":")
    build = function.replace("main", "parser") if function not in {"", "main"} else "build_parser"
    built: Parser = getattr(importlib.import_module(module), build)()
    return built


def _complete(program: str, about: str, commands: Commands, argv: Sequence[str]) -> None:
    """Print the completion script of a shell."""
    import shtab

    flags = Parser(
        prog=f"{program} completion", description="Print what your shell needs to complete commands and flags."
    )
    flags.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete in")
    shell = flags.parse_args(argv).shell
    root = Parser(prog=program, description=about)
    subparsers = root.add_subparsers()
    parsers = {name: (parser_of(entry), what) for name, (entry, what) in commands.items()}
    for name, (command, what) in {**parsers, _COMPLETION[0]: (flags, _COMPLETION[1])}.items():
        subparsers.add_parser(name, help=what)
        subparsers.choices[name] = command
        command.description = what  # which zsh shows beside the name
        _mark_arguments(command)
    print(shtab.complete(root, shell))


def _mark_arguments(flags: Parser) -> None:
    """Mark the arguments that are files or folders, and those that are one of a few words."""
    import shtab

    for action in flags._actions:
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                _mark_arguments(command)
        elif isinstance(action.metavar, str) and "|" in action.metavar:
            action.choices = action.metavar.split("|")
        elif action.metavar in {"FILE", "PATH", "VOTES", "TABLE", "DATA"}:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in {"DIR", "MODEL", "RUN"}:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _usage(program: str, about: str, groups: Mapping[str, Commands]) -> str:
    """Return the text of `PROGRAM --help`."""
    first = [_examples_of(f"{program} {name}")[0] for name in list(next(iter(groups.values())))[:2]]
    lines = [
        "examples:",
        *(f"  {line}" for line in first),
        "",
        f"usage: {program} COMMAND [FLAGS]",
        "",
        _filled(about, 0),
    ]
    groups = {**groups, "shell": {_COMPLETION[0]: ("", _COMPLETION[1])}}
    width = max(len(name) for group in groups.values() for name in group)
    for title, group in groups.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {what}" for name, (_, what) in group.items())]
    return "\n".join([*lines, "", f"`{program} COMMAND --help` explains the flags of one."])
