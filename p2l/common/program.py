"""Several commands under the name of one program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from p2l.common.cli import nearest
from p2l.common.version import __version__


def dispatch(
    program: str, about: str, commands: Mapping[str, tuple[str, str]], argv: Sequence[str] | None = None
) -> int | None:
    """Run the command that `argv` names.

    `commands` has of each name its function ("module", whose `main` it is, or "module:function") and a sentence.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help"}:
        print(_usage(program, about, commands))
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        print(f"{program} {__version__}")
        return 0
    if words[0] not in commands:
        print(f"error: no command {words[0]!r}{nearest(words[0], commands)}; see {program} --help", file=sys.stderr)
        return 2
    module, _, function = commands[words[0]][0].partition(":")
    code: int | None = getattr(importlib.import_module(module), function or "main")(words[1:])
    return code


def _usage(program: str, about: str, commands: Mapping[str, tuple[str, str]]) -> str:
    """Return the text of `PROGRAM --help`."""
    lines = "\n".join(f"  {name:<12} {what}" for name, (_, what) in commands.items())
    head = f"usage: {program} COMMAND [FLAGS]\n\n{about}\n\ncommands:\n{lines}\n\n"
    return f"{head}`{program} COMMAND --help` explains the flags of one."
