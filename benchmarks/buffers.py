"""What the buffers cost: seconds to schedule a stream of votes on one core, and the memory that the schedule takes.

python -m benchmarks.buffers [--votes 1500000] [--baseline-votes 200000] [--memory-votes 10000000]

The baseline is what a user would write first: for every vote a draw, and a walk past full batches; for replay, a list
of past votes to sample from. Seconds are those of the one core that works, whatever else the machine does. Memory is
measured in a fresh process for each buffer, fed 65,536 votes at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from p2l.online_training.buffer import NewVotes
from p2l.online_training.buffers import BufferSettings, make_buffer

GEOMETRIC = {"type": "geometric", "gamma": 0.995, "epsilon": 0.001}
BUFFERS: dict[str, dict[str, Any]] = {
    "none": {"type": "none"},
    "geometric .995, .001": GEOMETRIC,
    "geometric .9995, .0005": {"type": "geometric", "gamma": 0.9995, "epsilon": 0.0005},
    "replay .2": {"type": "replay"},
    "replay .2, limit 100,000": {"type": "replay", "limit": 100_000},
    "replay .2 on geometric": {"type": "replay", "on": GEOMETRIC},
}
SIZE = 512
CHUNK = 1 << 16
MODELS, ALIVE = 130, 40


def stream(count: int) -> Iterator[NewVotes]:
    """Votes between the models of their time: of 130, each is there for 40 releases of others."""
    generator = np.random.default_rng(0)
    for start in range(0, count, CHUNK):
        ids = np.arange(start, min(start + CHUNK, count))
        oldest = (MODELS - ALIVE) * ids // count
        first = generator.integers(0, ALIVE, len(ids))
        second = (first + generator.integers(1, ALIVE, len(ids))) % ALIVE
        pair = (oldest + first).astype(np.int32), (oldest + second).astype(np.int32)
        yield NewVotes(ids, *pair, 30.0 * ids)


def schedule(settings: dict[str, Any], votes: list[NewVotes]) -> float:
    """Seconds from the first vote to the end of the drain."""
    buffer = make_buffer(BufferSettings(**settings), SIZE, seed=1)
    start = time.process_time()
    for part in votes:
        buffer.add(part)
    buffer.drain()
    return time.process_time() - start


def plain_geometric(votes: list[NewVotes], gamma: float = 0.995, epsilon: float = 0.001) -> float:
    """Seconds of the definition, vote by vote."""
    start = time.process_time()
    seen: Counter[int] = Counter()
    batches: defaultdict[int, list[int]] = defaultdict(list)
    current = 0
    for part in votes:
        for vote, a, b in zip(part.ids.tolist(), part.model_a.tolist(), part.model_b.tolist(), strict=True):
            p = max(epsilon, gamma ** min(seen[a], seen[b]))
            place = current
            while random.random() >= p:
                place += 1
            while len(batches[place]) == SIZE:
                place += 1
            batches[place].append(vote)
            seen[a] += 1
            seen[b] += 1
            while len(batches[current]) == SIZE:
                current += 1
    return time.process_time() - start


def plain_replay(votes: list[NewVotes]) -> float:
    """Seconds of replay with a list, which takes a vote out by moving all behind it."""
    start = time.process_time()
    pool: list[int] = []
    batch: list[int] = []
    for part in votes:
        for vote in part.ids.tolist():
            batch.append(vote)
            if len(batch) == SIZE:
                for _ in range(min(SIZE // 4, len(pool))):
                    pool.pop(random.randrange(len(pool)))
                pool += batch
                batch = []
    return time.process_time() - start


def _peak() -> float:
    """MB; not of `getrusage`, where a process starts with the peak of the one that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _memory(settings: dict[str, Any], count: int, answer: Any) -> None:
    buffer = make_buffer(BufferSettings(**settings), SIZE, seed=1)
    before = _peak()
    start, given_out = time.process_time(), 0
    for part in stream(count):
        given_out += sum(map(len, buffer.add(part)))
    lag = buffer.lag
    given_out += sum(map(len, buffer.drain()))
    answer.put((time.process_time() - start, _peak() - before, lag.most_waiting, given_out))


def memory(settings: dict[str, Any], count: int) -> tuple[float, float, int, int]:
    """Seconds, MB above those of an empty buffer, most votes that waited, votes given out; in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer: Any = context.SimpleQueue()
    process = context.Process(target=_memory, args=(settings, count, answer))
    process.start()
    process.join()
    found: tuple[float, float, int, int] = answer.get()
    return found


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--votes", type=int, default=1_500_000)
    flags.add_argument("--baseline-votes", type=int, default=200_000, help="the plain loops take minutes with more")
    flags.add_argument("--memory-votes", type=int, default=10_000_000)
    return flags


def main() -> None:
    """Print one line per buffer and measurement."""
    args = build_parser().parse_args()
    votes = list(stream(args.votes))
    print(f"{args.votes:,} votes on {MODELS} models in batches of {SIZE}, median of three:")
    for name, settings in BUFFERS.items():
        print(f"  {name:26} {np.median([schedule(settings, votes) for _ in range(3)]):8.2f} s", flush=True)
    few = list(stream(args.baseline_votes))
    print(f"{args.baseline_votes:,} votes, this against a plain loop:")
    plain: dict[str, Callable[[list[NewVotes]], float]] = {
        "geometric .995, .001": plain_geometric,
        "replay .2": plain_replay,
    }
    for name, loop in plain.items():
        fast, slow = float(np.median([schedule(BUFFERS[name], few) for _ in range(3)])), loop(few)
        print(f"  {name:26} {fast:8.2f} s {slow:10.2f} s, {slow / fast:.0f} times as long", flush=True)
    print(f"{args.memory_votes:,} votes, streamed (seconds with the making of the votes):")
    for name, settings in BUFFERS.items():
        took, peak, waiting, given_out = memory(settings, args.memory_votes)
        print(
            f"  {name:26} {took:8.1f} s {peak:8.0f} MB; {waiting:,} waited at most, {given_out:,} given out", flush=True
        )


if __name__ == "__main__":
    main()
