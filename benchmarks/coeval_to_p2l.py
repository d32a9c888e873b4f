"""What a P2L learns from the verdicts of CoEval's judges on four scripted students: the README's commands, timed.

    python -m benchmarks.coeval_to_p2l

Each student is the best at another kind of prompt, so one leaderboard for all prompts must forecast worse than a model
that tells the kinds apart. Both are measured on prompts that neither was fitted to.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import share, table
from p2l.common.cli import parser, run

ROOT = Path(__file__).resolve().parents[1]
RUN = "benchmark/runs/to-p2l"
COMMANDS = {
    "coeval run": f"-m coeval run --config {ROOT / 'examples/to_p2l.yaml'}",
    "coeval analyze": f"-m coeval analyze export-preferences --run {RUN} --format parquet --out votes",
    "p2l train": "-m p2l.cli train --votes votes/train.parquet --val votes/val.parquet --size tiny --output model",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark: none."""
    return parser("python -m benchmarks.coeval_to_p2l", "Train on the verdicts of scripted judges, and compare.")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the forecasts of held-out verdicts, and the seconds of each command."""
    build_parser().parse_args(argv)
    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        for what, words in COMMANDS.items():
            started = time.monotonic()
            subprocess.run([sys.executable, *words.split()], cwd=name, check=True, stdout=sys.stderr)
            seconds[what] = time.monotonic() - started
        measured = json.loads((Path(name) / "model" / "comparison.json").read_text(encoding="utf-8"))
    sides = {"one leaderboard for all prompts": "one_leaderboard", "P2L, a tiny transformer": "model"}
    rows = [
        [what, f"{measured[side]['Loss']:.4f}", share(measured[side]["Accuracy"], 1)] for what, side in sides.items()
    ]
    print(f"{measured['votes']} held-out verdicts on {measured['prompts']} prompts\n")
    print(f"{table(['forecast', 'loss', 'accuracy'], rows)}\n")
    print("; ".join(f"`{what}` {taken:.0f} s" for what, taken in seconds.items()))


if __name__ == "__main__":
    run(main)
