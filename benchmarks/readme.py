"""How long does each block of the README take, run as printed in an empty folder?

python -m benchmarks.readme
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import table
from p2l.common.cli import parser, run
from p2l.common.errors import InputError
from tools.run_docs import Block, runnable

README = Path(__file__).resolve().parents[1] / "README.md"
_TIMED = re.compile(r"^ +(?P<seconds>[\d.]+) s, +(?P<busy>[\d.]+) s of a core  README\.md:(?P<line>\d+)$")


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark: none."""
    return parser("python -m benchmarks.readme", "Time each block of the README, as `make docs-run` runs them.")


def main(argv: Sequence[str] | None = None) -> None:
    """Print one row per block, and the sum."""
    build_parser().parse_args(argv)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = [sys.executable, "-m", "tools.run_docs", str(README)]
    done = subprocess.run(
        line, cwd=README.parent, env={**os.environ, "PATH": programs}, stdout=subprocess.PIPE, text=True, check=False
    )
    sys.stderr.write(done.stdout)
    if done.returncode:
        raise InputError("a block of README.md failed; its last lines are above")
    headings = _headings()
    blocks = {block.line: block for block in runnable(README)}
    timed = [match for text in done.stdout.splitlines() if (match := _TIMED.match(text))]
    rows = [
        [headings[int(match["line"]) - 1], _begins(blocks[int(match["line"])]), match["seconds"], match["busy"]]
        for match in timed
    ]
    sums = [f"{sum(float(match[name]) for match in timed):.1f}" for name in ("seconds", "busy")]
    print(table(["section", "block begins with", "seconds", "of a core"], [*rows, ["all", "", *sums]]))


def _headings() -> list[str]:
    """Return the section that each line of the README is in."""
    section, sections = "", []
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        sections.append(section or "first screen")
    return sections


def _begins(block: Block) -> str:
    """Return the first words of a block."""
    lines = (block.text if block.language == "python" else block.script or "").splitlines()
    first = next(line for line in lines if line.strip())
    return f"`{' '.join(first.partition('#')[0].split()[:3])}`"


if __name__ == "__main__":
    run(main)
