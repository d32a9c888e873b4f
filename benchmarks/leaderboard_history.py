"""How long the history of a leaderboard takes, beside fitting every period from scratch.

Promise: a hundred periods of 2.2 million votes between 130 models, with intervals, take seconds.

    python -m benchmarks.leaderboard_history [--votes 2200000] [--models 130] [--periods 100]

Votes are drawn from a known truth over time; models arrive one after the other. Both ways start from the same encoded
votes in memory and give the leaderboards of all votes up to the end of each period with sandwich intervals:

- history: `p2l.leaderboard.fit_history`, which counts each vote once and starts each fit from the last one
- from scratch: `p2l.leaderboard.fit` of the votes up to the end of each period

The command is `p2l leaderboard --votes FILE --over week` in a process of its own, reading the file included; beside it
stands what the same command without `--over` takes for the whole file, times the number of periods over two (the mean
period has half of the votes). Each measurement is the median of `--repeat` runs; both ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from p2l import likelihood as likelihoods
from p2l.common.cli import parser, positive, run
from p2l.leaderboard import History, fit, fit_history
from p2l.votes import WINNERS

WEEK = 604_800.0
START = 1_680_480_000.0  # Monday, 3 April 2023


@dataclass(frozen=True)
class Votes:
    """Encoded votes (N,) in order of time."""

    names: list[str]
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    winner: NDArray[np.int64]
    times: NDArray[np.float64]


def simulate(flags: argparse.Namespace) -> Votes:
    """Votes over `--periods` weeks; a fifth of the models is there from the start, the others arrive evenly."""
    rng = np.random.default_rng(flags.seed)
    truth = rng.normal(0.5, 0.8, flags.models)
    times = np.sort(START + WEEK * flags.periods * rng.random(flags.votes) * (1 - 1e-9))
    share = (times - START) / (WEEK * flags.periods)
    there = np.floor(flags.models * (0.2 + 0.8 * share)).astype(np.int64).clip(2)
    a = (rng.random(flags.votes) * there).astype(np.int64)
    b = (a + 1 + (rng.random(flags.votes) * (there - 1)).astype(np.int64)) % there
    probs = likelihoods.get("grk").probs(truth[a], truth[b], np.asarray(-0.5))
    winner = np.minimum((rng.random(flags.votes)[:, None] > probs.cumsum(axis=1)).sum(axis=1), 3)
    return Votes([f"model-{number:03d}" for number in range(flags.models)], a, b, winner, times)


def timed(ways: dict[str, Callable[[], Any]], repeat: int) -> dict[str, tuple[float, Any]]:
    """Median seconds and last result of each way; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(repeat):
        for name, way in ways.items():
            start = time.perf_counter()
            results[name] = way()
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name]), results[name]) for name in ways}


def history(votes: Votes, likelihood: str) -> History:
    return fit_history(
        votes.a, votes.b, votes.winner, votes.times, models=votes.names, over="week", likelihood=likelihood
    )


def from_scratch(votes: Votes, likelihood: str, periods: int) -> list[Any]:
    ends = np.searchsorted(votes.times, START + WEEK * np.arange(1, periods + 1))
    boards = []
    for end in ends:
        seen = int(max(votes.a[:end].max(), votes.b[:end].max())) + 1  # models arrive in the order of their codes
        columns = (votes.a[:end], votes.b[:end], votes.winner[:end])
        boards.append(fit(*columns, models=votes.names[:seen], likelihood=likelihood))
    return boards


def largest_difference(found: History, boards: list[Any]) -> float:
    """Of coefficients, in logits, after centring each period's where only differences count."""
    worst = 0.0
    for period, board in zip(found.periods, boards, strict=True):
        gap = period.board.coefs - board.coefs
        worst = max(worst, float(np.abs(gap - gap.mean()).max()))
    return worst


def write_votes(votes: Votes, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [pa.array(votes.names).take(pa.array(codes)) for codes in (votes.a, votes.b)]
    winner = pa.array(WINNERS).take(pa.array(votes.winner))
    pq.write_table(pa.table({"model_a": names[0], "model_b": names[1], "winner": winner, "tstamp": votes.times}), path)


def command(path: Path, *words: str) -> None:
    line = [sys.executable, "-m", "p2l.cli", "leaderboard", "--votes", str(path), "--quiet", *words]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.leaderboard_history", "Time the history of a leaderboard beside single fits.")
    flags.add_argument("--votes", type=positive, default=2_200_000, help="simulated votes")
    flags.add_argument("--models", type=positive, default=130, help="models at the end")
    flags.add_argument("--periods", type=positive, default=100, help="weeks")
    flags.add_argument("--repeat", type=positive, default=3, help="runs of each way")
    flags.add_argument("--seed", type=int, default=0, help="of the votes")
    return flags


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    args = build_parser().parse_args(argv)
    print(f"{args.votes:,} votes, {args.models} models, {args.periods} weeks; {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}; median of {args.repeat}\n")
    votes = simulate(args)
    rows = []
    for name in ("bt", "bt-tie", "grk"):
        ways = {
            "history": lambda name=name: history(votes, name),
            "scratch": lambda name=name: from_scratch(votes, name, args.periods),
        }
        found = timed(ways, args.repeat)
        (quick, ours), (slow, boards) = found["history"], found["scratch"]
        off = largest_difference(ours, boards)
        rows.append([name, f"{quick:.2f} s", f"{slow:.2f} s", f"{slow / quick:.1f}", f"{off:.1e}"])
    print(table(["likelihood", "history", "from scratch", "times", "largest difference (logits)"], rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes.parquet"
        write_votes(votes, path)
        ways = {"over": lambda: command(path, "--over", "week"), "once": lambda: command(path)}
        commands = timed(ways, args.repeat)
    over, once = commands["over"][0], commands["once"][0]
    lines = [["with `--over week`", f"{over:.1f} s"], ["without", f"{once:.1f} s"]]
    lines.append([f"without, once a week ({args.periods} times half of that)", f"{args.periods * once / 2:.0f} s"])
    print(f"\n{table(['`p2l leaderboard` of the file', 'seconds'], lines)}")


if __name__ == "__main__":
    run(main)
