"""Command: `p2l skill`, which command serves which wish, for an agent: printed, or installed where agents look."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import parser, run
from p2l.common.errors import InputError
from p2l.common.files import atomic_path

_SKILL = Path(__file__).parent / "SKILL.md"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l skill`."""
    flags = parser("p2l skill", "Print the skill for agents: which command serves which wish, with what it prints.")
    flags.add_argument(
        "--install",
        metavar="DIR",
        help="write it to DIR/p2l/SKILL.md, where agents look for skills (such as .claude/skills or .agents/skills)",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the skill, or write it; refuse to replace another text."""
    args = build_parser().parse_args(argv)
    text = _SKILL.read_text(encoding="utf-8")
    if args.install is None:
        print(text, end="")
        return
    target = Path(args.install).expanduser() / "p2l" / "SKILL.md"
    if target.exists() and target.read_text(encoding="utf-8") != text:
        raise InputError(f"{target}: is there and differs; remove it first, or choose another folder")
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    run(main)
