"""How long votes take to open, to read at random and to translate to another model list: a promise of seconds.

python -m benchmarks.votes [--votes 1500000]

The baseline of the translation is what a user would write first: a dictionary and a loop over the votes.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tables import table
from p2l.simulate import write_arena
from p2l.simulation.arena import simulate
from p2l.simulation.config import SimulationConfig
from p2l.votes import open_votes, translate_labels


def seconds(work: Callable[[], object], repeat: int = 5) -> float:
    """Median wall time of `work`."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--votes", type=int, default=1_500_000)
    return flags


def main() -> None:
    """Print the table."""
    args = build_parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes.parquet"
        write_arena(simulate(SimulationConfig(votes=args.votes, models=100)), path)
        print(f"{args.votes:,} simulated votes on 100 models, {path.stat().st_size / 1e6:.0f} MB of Parquet")
        start = time.perf_counter()
        with open_votes(str(path)) as votes:
            rows = [["check, spool and map all votes", f"{time.perf_counter() - start:.1f} s"]]
            ids = np.random.default_rng(0).integers(0, len(votes), 512)
            rows.append(["512 prompts at random", f"{1000 * seconds(lambda: votes.prompts(ids)):.1f} ms"])
            labels, names = votes.labels(), votes.model_list
    other = [*reversed(names), "a-newcomer"]
    fast = seconds(lambda: translate_labels(labels, names, other))
    slow = seconds(lambda: _loop(labels, names, other), repeat=1)
    rows.append(["labels to another model list", f"{fast:.2f} s (a loop over the votes: {slow:.2f} s)"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(["most memory, labels and the loop over them included", f"{peak:.0f} MB"])
    print(f"\n{table(['', ''], rows)}")


def _loop(labels: np.ndarray, names: list[str], other: list[str]) -> list[list[int]]:
    place = {name: index for index, name in enumerate(other)}
    return [[place[names[winner]], place[names[loser]], tie] for winner, loser, tie in labels.tolist()]


if __name__ == "__main__":
    main()
