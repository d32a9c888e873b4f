"""Requests a second and latencies of the endpoint, beside a plain FastAPI handler around a transformers pipeline.

    python -m benchmarks.serving [--shape 135m] [--clients 1 8 32] [--sigmas 0.8 1.5] [--rounds 3] [-- ENDPOINT FLAGS]

Both servers hold a random model of the same shape and get the same prompts, all different (log-normal lengths, median
60 words), from a process of its own; they take turns, and rounds are repeated. The endpoint's cache is off, but for
the last line, which asks one prompt again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.serving.folders import prompts, write_folders, write_tfidf
from benchmarks.serving.load import Measured, bodies, drive
from benchmarks.shapes import SHAPES
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    sigma: float
    clients: int
    longest: int


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.serving", "Time the endpoint beside a plain handler.")
    flags.add_argument("--shape", choices=[*SHAPES, "tfidf"], default="135m", help="what the endpoint serves")
    flags.add_argument("--baseline", choices=SHAPES, help="what the plain handler serves (default: the same)")
    flags.add_argument("--clients", type=positive, nargs="+", default=[1, 8, 32])
    flags.add_argument("--sigmas", type=float, nargs="+", default=[0.8, 1.5], help="spread of the prompts' lengths")
    flags.add_argument("--longest", type=positive, default=2040, help="words of the longest prompt")
    flags.add_argument("--requests", type=positive, default=64, help="of the plain handler, in each cell")
    flags.add_argument("--more", type=positive, default=1, help="times as many requests for the endpoint")
    flags.add_argument("--rounds", type=positive, default=3)
    flags.add_argument("endpoint", nargs="*", help="further flags for the endpoint, after --")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        ours, plain = _folders(Path(name), flags)
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        endpoint = ["-m", "p2l.endpoint", "--model", str(ours), "--host", "127.0.0.1", *flags.endpoint]
        mine = stack.enter_context(serving([*endpoint, "--cache-size", "0", "--port"]))
        theirs = stack.enter_context(serving(["-m", "benchmarks.serving.baseline", str(plain)]))
        for port in (mine, theirs):
            pool.submit(drive, port, bodies(prompts(8, 0.8, 99)), 2).result()
        for cell in (Cell(sigma, clients, flags.longest) for sigma in flags.sigmas for clients in flags.clients):
            rounds = [
                (
                    _measured(pool, mine, cell, flags.requests * flags.more, number),
                    _measured(pool, theirs, cell, flags.requests, number),
                )
                for number in range(flags.rounds)
            ]
            rows.append(_row(cell, rounds))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    header = ["sigma", "clients", "requests/s", "of the handler", "times", "p50, ms", "of the handler", "p99, ms"]
    rows.append(_repeated(flags))
    print(f"{table([*header, 'of the handler', 'failures'], rows)}\n", flush=True)


def _repeated(flags: argparse.Namespace) -> list[str]:
    """Return the row of one client that asks the same prompt again and again."""
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        ours, _ = _folders(Path(name), flags)
        words = ["-m", "p2l.endpoint", "--model", str(ours), "--host", "127.0.0.1", *flags.endpoint, "--port"]
        with serving(words) as port:
            request = bodies(prompts(1, 0.8, 7))
            pool.submit(drive, port, request * 20, 1).result()
            cached = pool.submit(drive, port, request * 1000, 1).result()
    rate, median, p99 = cached.requests_per_second, cached.median * 1e3, cached.p99 * 1e3
    return ["cached", "1", f"{rate:,.0f}", "", "", f"{median:.2f}", "", f"{p99:.2f}", "", f"{cached.failures}"]


def _folders(root: Path, flags: argparse.Namespace) -> tuple[Path, Path]:
    ours, plain = write_folders(root, flags.baseline or ("135m" if flags.shape == "tfidf" else flags.shape))
    return (write_tfidf(root) if flags.shape == "tfidf" else ours), plain


@contextlib.contextmanager
def serving(words: Sequence[str]) -> Iterator[int]:
    """Run a server, the port last on its command line, until the block ends."""
    with started(words) as server:
        yield server.port


class Server(NamedTuple):
    """A server of a benchmark, in a process of its own."""

    port: int
    pid: int

    @property
    def seconds(self) -> float:
        """Return the processor's seconds that it has had, to the hundredth."""
        times = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(words: Sequence[str], checkout: Path | None = None) -> Iterator[Server]:
    """Run a server of this checkout or another one, the port last on its command line, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = os.environ if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)}
    process = subprocess.Popen([sys.executable, *words, str(port)], cwd=checkout, env=environment)
    try:
        _wait(process, port)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise SystemExit(f"a server ended with {process.returncode}")


def _measured(pool: ProcessPoolExecutor, port: int, cell: Cell, count: int, seed: int) -> Measured:
    requests = bodies(prompts(count, cell.sigma, seed, cell.longest))
    return pool.submit(drive, port, requests, cell.clients).result()


def _row(cell: Cell, rounds: Sequence[tuple[Measured, Measured]]) -> list[str]:
    ratios = sorted(mine.requests_per_second / theirs.requests_per_second for mine, theirs in rounds)
    mine, theirs = zip(*rounds, strict=True)
    failures = sum(one.failures for one in (*mine, *theirs))
    times = f"{np.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    rates, p50, p99 = (
        [f"{np.median([getattr(one, name) for one in side]) * scale:,.1f}" for side in (mine, theirs)]
        for name, scale in (("requests_per_second", 1), ("median", 1e3), ("p99", 1e3))
    )
    return [f"{cell.sigma:.1f}", f"{cell.clients}", *rates, times, *p50, *p99, f"{failures}"]


if __name__ == "__main__":
    run(main)
