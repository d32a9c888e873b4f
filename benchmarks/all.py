"""Every benchmark of docs/results.md, in its order: `make bench-all`, or `python -m benchmarks.all --data DATA_DIR`.

The commands are read from the page, so that none is forgotten. Each writes what it prints to OUTPUT/NAME.txt, under the
command, the seconds that it took, the commit and the machine; blocks of the page that stand under a comment
`<!-- measured: COMMAND -->` are replaced by what the command printed. One that fails is listed at the end, and the next
one runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
_COMMAND = re.compile(r"`(python -m benchmarks\.[^`]+)`|^(python benchmarks/[^\n]+)$", re.MULTILINE)
_MEASURED = re.compile(r"(<!-- measured: (.+?) -->\n```text\n)(.*?)(^```)", re.DOTALL | re.MULTILINE)
_DATA = "DATA_DIR"
_BEFORE = "../before"


class Benchmark(NamedTuple):
    """A command as the page prints it."""

    command: str

    @property
    def name(self) -> str:
        """Return the name of its output file."""
        return re.sub(r"[^\w]+", "-", self.command.removeprefix("python ").removeprefix("-m benchmarks.")).strip("-")

    def missing(self, data: str | None) -> str | None:
        """Return what it needs that is not there, or None."""
        if _DATA in self.command and data is None:
            return "needs real data: --data DATA_DIR"
        if _BEFORE in self.command:
            return "compares with a worktree of an earlier commit"
        return None

    def words(self, data: str | None) -> list[str]:
        """Return the command line, run by this Python."""
        return [sys.executable, *shlex.split(self.command.replace(_DATA, data or ""))[1:]]


def benchmarks(page: str) -> list[Benchmark]:
    """Return the commands of the page in order, each once."""
    found = [(match[1] or match[2]).replace("\n", " ") for match in _COMMAND.finditer(page)]
    return [
        Benchmark(command) for command in dict.fromkeys(found) if not command.startswith("python -m benchmarks.all")
    ]


def included(page: str, command: str, printed: str) -> str:
    """Return the page with the block of this command replaced by what it printed."""
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip().splitlines())
    return _MEASURED.sub(lambda match: f"{match[1]}{text}{match[4]}" if match[2] == command else match[0], page)


def measure(one: Benchmark, data: str | None, output: Path) -> float | None:
    """Run a benchmark, write what it printed, update the page; return its seconds, or None if it failed."""
    started = time.monotonic()
    done = subprocess.run(
        one.words(data), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = time.monotonic() - started
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = (
        f"$ {one.command}\n{seconds:.0f} seconds, exit code {done.returncode}, {commit.stdout.strip()}, {machine}\n\n"
    )
    (output / f"{one.name}.txt").write_text(head + done.stdout, encoding="utf-8")
    if done.returncode:
        return None
    PAGE.write_text(included(PAGE.read_text(encoding="utf-8"), one.command, done.stdout), encoding="utf-8")
    return seconds


def main() -> int:
    """Run those that were asked for."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__.split("\n")[0])
    flags.add_argument("--data", metavar="DATA_DIR", help="folder of real votes and scores")
    flags.add_argument("--only", default="", metavar="TEXT", help="only commands with this text in them")
    flags.add_argument("--list", action="store_true", help="print the commands, run nothing")
    flags.add_argument(
        "--output", type=Path, default=ROOT / "build" / "measured", metavar="DIR", help="for what they print"
    )
    arguments = flags.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for one in benchmarks(PAGE.read_text(encoding="utf-8")):
        missing = one.missing(arguments.data)
        if arguments.only not in one.command:
            continue
        if arguments.list or missing:
            print(f"{'':>8}  {one.command}" + (f"   ({missing})" if missing else ""), flush=True)
            continue
        seconds = measure(one, arguments.data, arguments.output)
        failed += seconds is None
        print(f"{'failed' if seconds is None else f'{seconds:.0f} s':>8}  {one.command}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
