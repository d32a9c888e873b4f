"""What `p2l demo` shows: how much of what can be learned its models learned, and what its online runs forgot.

python -m benchmarks.demo [--votes 30000] [--keep DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.demo.online import Forgetting, forgetting
from p2l.demo.story import VOTES
from p2l.demo.tables import held_out, losses_and_gaps


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.demo", "Run the demo, and print what it learned and what it forgot.")
    flags.add_argument("--votes", type=positive, default=VOTES, help="training votes of the demo")
    flags.add_argument("--keep", metavar="DIR", help="leave the demo's folder here")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    flags = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(flags.keep or name) / "demo"
        line = [sys.executable, "-m", "p2l.cli", "demo", "--votes", str(flags.votes), "--output", str(folder)]
        started = time.monotonic()
        subprocess.run(line, check=True, stdout=sys.stderr)
        print(f"{(time.monotonic() - started) / 60:.1f} minutes\n")
        rows = [[what, f"{loss:.4f}", share(closed)] for what, loss, closed in losses_and_gaps(held_out(folder))]
        print(table(["forecast", "loss", "gap closed"], rows) + "\n")
        print(_forgotten(forgetting(folder)))


def _forgotten(runs: Sequence[Forgetting]) -> str:
    periods = len(runs[0].at_the_end)
    header = ["online run", *(f"period {number + 1}" for number in range(periods)), "change on past periods"]
    rows = []
    for one in runs:
        rows.append([f"{one.name}, when the period was the newest", *(f"{loss:.3f}" for loss in one.when_newest), ""])
        rows.append([f"{one.name}, at the end", *(f"{loss:.3f}" for loss in one.at_the_end), f"{one.change:+.3f}"])
    return table(header, rows)


if __name__ == "__main__":
    run(main)
