"""How long a million simulated votes take, with what peak memory: the promise is a minute on two cores.

python -m benchmarks.simulate [--votes 1000000] [--models 100] [--topics 12]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.tables import table
from p2l.simulate import write_arena
from p2l.simulation.arena import simulate
from p2l.simulation.config import SimulationConfig

PROMISE = 60.0  # seconds per million votes


def measure(config: SimulationConfig, name: str, *, truth: bool) -> tuple[float, float]:
    """Seconds to write the votes (and the truth), and megabytes on disk."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        write_arena(simulate(config), Path(folder) / name, truth=Path(folder) / "truth" if truth else None)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return seconds, size / 1e6


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--votes", type=int, default=1_000_000)
    flags.add_argument("--models", type=int, default=100)
    flags.add_argument("--topics", type=int, default=12)
    return flags


def main() -> None:
    """Print the table."""
    args = build_parser().parse_args()
    config = SimulationConfig(votes=args.votes, models=args.models, topics=args.topics)
    promise = PROMISE * args.votes / 1e6
    print(f"{args.votes:,} votes, {args.models} models, {args.topics} topics; promise: {promise:.0f} s")
    rows = []
    for label, name, truth in (
        ("Parquet", "votes.parquet", False),
        ("Parquet, and the truth", "votes.parquet", True),
        ("CSV", "votes.csv", False),
        ("JSON lines", "votes.jsonl", False),
    ):
        seconds, megabytes = measure(config, name, truth=truth)
        rows.append([label, f"{seconds:.1f}", f"{megabytes:.0f}"])
    rows.append(["most memory of all", "", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"])
    print(f"\n{table(['output', 'seconds', 'MB'], rows)}")


if __name__ == "__main__":
    main()
