"""Every benchmark of benchmarks/RESULTS.md, in its order: `python -m benchmarks.all --data DATA_DIR`.

The commands are read from the page, so that none is forgotten. Each writes what it prints to OUTPUT/NAME.txt, under the
command, the seconds that it took, the commit and the machine, and its progress to OUTPUT/NAME.log. What stands on the
page under a comment
`<!-- measured: COMMAND -->` is replaced: a block of text by all that the command printed, Markdown tables by those that
it printed, in their order. The comment then names commit, seconds and how many cores other work kept busy meanwhile;
one that names none stands above figures that were copied by hand, as all figures without such a comment were (`--list`
says which). One that fails, or misses a bar, is listed as failed, and the next one runs.
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
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_PATH = "benchmarks/RESULTS.md"
PAGE = ROOT / _PATH
_NAMED = r"python (?:-m benchmarks\.|benchmarks/)"
_COMMAND = re.compile(rf"`({_NAMED}[^`]+)`|^({_NAMED}[^`\n]+)$", re.MULTILINE)
_MEASURED = re.compile(
    r"<!-- measured: (?P<command>python [^(]+?)(?: \((?P<stamp>[^)]*)\))? -->\n\n?"
    r"(?:```text\n(?P<text>.*?)^```\n|(?P<table>(?:^\|[^\n]*\n)+))",
    re.DOTALL | re.MULTILINE,
)
_TABLE = re.compile(r"(?:^\|[^\n]*\n)+", re.MULTILINE)
_DATA = "DATA_DIR"


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


class OtherTablesError(ValueError):
    """A command printed more or fewer tables than the page has of it."""


def included(page: str, command: str, printed: str, stamp: str = "", *, is_whole: bool = True) -> str:
    """Return the page with this command's block or tables replaced by what it printed.

    stamp: what the comment above them says of the run. is_whole: false for a command that failed, whose text may
    break off: its block stays, its tables are counted.

    Raises:
        OtherTablesError: the page has more tables of the command than it printed, or fewer.
    """
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip().splitlines())
    printed_tables = _TABLE.findall(text)
    places = sum(match["command"] == command and match["table"] is not None for match in _MEASURED.finditer(page))
    if places and places != len(printed_tables):
        raise OtherTablesError(f"{command} printed {len(printed_tables)} tables, {PAGE.name} has {places} of it")
    tables = iter(printed_tables)
    about = f"<!-- measured: {command}{f' ({stamp})' if stamp else ''} -->\n"

    def replaced(match: re.Match[str]) -> str:
        if match["command"] != command:
            return match[0]
        if match["table"] is None:
            if not is_whole:
                return match[0]
            return f"{about}```text\n{text}```\n"
        return f"{about}\n{next(tables)}"

    return _MEASURED.sub(replaced, page)


def stamps(page: str) -> dict[str, str]:
    """Return, for each command whose output the page takes in, what it says of the last run; empty before the first.

    A command of which one table was copied by hand counts as not run.
    """
    latest = dict[str, str]()
    for match in _MEASURED.finditer(page):
        stamp = match["stamp"] or ""
        latest[match["command"]] = stamp if latest.get(match["command"], stamp) else ""
    return latest


@cache
def _commit() -> str:
    """Return the commit that is measured, `-dirty` if anything differs from it but the page that this writes."""
    name = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    others = [".", f":(exclude){_PATH}"]
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *others], cwd=ROOT, check=False).returncode
    return name.strip() + ("-dirty" if changed else "")


def _busy_seconds() -> tuple[float, float]:
    """Return the seconds of a core that this machine has worked since it started, and those of our commands."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8])
    own = os.times()
    machine = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return machine, own.user + own.system + own.children_user + own.children_system


def measure(one: Benchmark, data: str | None, output: Path) -> float | None:
    """Run a benchmark, write what it printed, update the page; return its seconds, or None if it failed.

    One that misses a bar ends with another code than 0: it has failed, but the page gets its tables.
    """
    started, (machine_before, own_before) = time.monotonic(), _busy_seconds()
    with (output / f"{one.name}.log").open("w", encoding="utf-8") as log:
        done = subprocess.run(
            one.words(data), cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8", check=False
        )
    seconds, (machine_after, own_after) = time.monotonic() - started, _busy_seconds()
    others = max(0.0, machine_after - machine_before - own_after + own_before) / seconds
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    head = f"$ {one.command}\n{seconds:.0f} seconds, exit code {done.returncode}, {_commit()}, {machine}\n\n"
    (output / f"{one.name}.txt").write_text(head + done.stdout, encoding="utf-8")
    stamp = f"commit {_commit()}, {seconds:.0f} s, {others:.1f} cores at other work"
    page = PAGE.read_text(encoding="utf-8")
    try:
        text = included(page, one.command, done.stdout, stamp, is_whole=not done.returncode)
        PAGE.write_text(text, encoding="utf-8")
    except OtherTablesError as error:
        print(f"{'':>8}  {error}", flush=True)
        return None
    return None if done.returncode else seconds


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
    text = PAGE.read_text(encoding="utf-8")
    written = stamps(text)
    for one in benchmarks(text):
        missing = one.missing(arguments.data)
        if arguments.only not in one.command:
            continue
        if arguments.list or missing:
            origin = f"measured: {written[one.command]}" if written.get(one.command) else "copied by hand"
            print(f"{'':>8}  {one.command}   ({'; '.join(filter(None, (origin, missing)))})", flush=True)
            continue
        seconds = measure(one, arguments.data, arguments.output)
        failed += seconds is None
        print(f"{'failed' if seconds is None else f'{seconds:.0f} s':>8}  {one.command}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
