"""Import two million rows of CSV as `p2l votes import` does: seconds, and the most memory that the process held.

    python -m benchmarks.import_votes [--rows 2000000]

Three tables of the same votes: plain votes, Kaggle's table with an outcome in three columns and two answers, and graded
answers that become a table of scores. Beside each the same import with rows converted one by one, which is how kinds of
nested records are read, and as the floor the file read by Arrow's CSV reader alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pc_csv

from p2l.common.cli import parser, positive, run

__all__ = ["main"]

_MODELS = 100
_WORDS = (
    "which",
    "of",
    "these",
    "two",
    "plans",
    "for",
    "a",
    "small",
    "garden",
    "costs",
    "less",
    "in",
    "a",
    "dry",
    "year",
)
_KAGGLE = "id,model_a,model_b,prompt,response_a,response_b,winner_model_a,winner_model_b,winner_tie\n"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.import_votes", "Time imports of large CSV files of votes and scores.")
    flags.add_argument("--rows", type=positive, default=2_000_000)
    flags.add_argument("--phase", nargs=3, metavar=("WAY", "FILE", "OUTPUT"), help="what the benchmark runs for itself")
    return flags


def _battles(rows: int) -> Iterator[tuple[int, str, str, str, int]]:
    """Yield number, prompt, both models and the outcome of each row."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, _MODELS, rows)
    second = (first + rng.integers(1, _MODELS, rows)) % _MODELS
    outcome = rng.integers(0, 3, rows)
    for row in range(rows):
        prompt = " ".join(_WORDS[row % 5 : row % 5 + 10]) + f" {row}"
        yield row, prompt, f"model-{first[row]}", f"model-{second[row]}", int(outcome[row])


def _plain(rows: int) -> Iterator[str]:
    yield "prompt,model_a,model_b,winner,tstamp,language\n"
    for row, prompt, first, second, outcome in _battles(rows):
        yield f"{prompt},{first},{second},{('model_a', 'model_b', 'tie')[outcome]},{1_700_000_000 + row},English\n"


def _kaggle(rows: int) -> Iterator[str]:
    yield _KAGGLE
    for row, prompt, first, second, outcome in _battles(rows):
        marks = ",".join(str(int(outcome == place)) for place in range(3))
        yield f'{row},{first},{second},"[""{prompt}""]","[""**Less**: the first.""]","[""The second.""]",{marks}\n'


def _scores(rows: int) -> Iterator[str]:
    yield "question,model,correct,subject\n"
    for row, prompt, first, _, outcome in _battles(rows):
        yield f"{prompt},{first},{('true', 'false', 'true')[outcome]},subject {row % 9}\n"


_WAYS = ("as columns", "one by one")
_TABLES: dict[str, Callable[[int], Iterator[str]]] = {
    "plain votes": _plain,
    "Kaggle's table": _kaggle,
    "scores": _scores,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or one import in a process of its own."""
    args = build_parser().parse_args(argv)
    if args.phase:
        _import(*args.phase)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in _TABLES.items():
            path = Path(folder) / "rows.csv"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(lines(args.rows))
            size = path.stat().st_size / 1e6
            start = time.perf_counter()
            pc_csv.read_csv(path)
            floor = time.perf_counter() - start
            results = [_measured(way, str(path), f"{folder}/out.parquet") for way in _WAYS]
            print(
                f"{name:15} {args.rows:,} rows, {size:,.0f} MB: {', '.join(results)}; "
                f"Arrow's reader alone {floor:.1f} s",
                flush=True,
            )


def _measured(way: str, path: str, output: str) -> str:
    """Return what an import in a process of its own says of its time and memory."""
    command = [sys.executable, "-m", "benchmarks.import_votes", "--phase", way, path, output]
    return f"{way} {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"


def _import(way: str, path: str, output: str) -> None:
    from p2l.votes.importing import import_votes
    from p2l.votes.kinds.registry import KINDS, register

    if way == "one by one":
        for kind in [*KINDS.values()]:
            register(replace(kind, convert_batch=None))
    start = time.perf_counter()
    import_votes([path], output)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{seconds:.1f} s, {memory:.2f} GB")


if __name__ == "__main__":
    run(main)
