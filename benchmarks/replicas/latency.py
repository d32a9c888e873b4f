"""What a router adds to a call with its state on PostgreSQL and Redis, beside SQLite, in one run.

    python -m benchmarks.replicas.latency [--requests 400] [--rounds 5]

Two routers before one mock provider, one with a SQLite file and one with PostgreSQL and Redis of the benchmark's own,
on this machine. One client with a key that has a day's budget and a rate asks the mock directly, one router, and the
other, in turns; scores are known after the first request. Medians over rounds of the median request, least and greatest
in brackets.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.route_overhead import Ports, body, routing
from benchmarks.serving.__main__ import serving
from benchmarks.serving.load import drive
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from tools.services import Servers

__all__ = ["main"]

_BAR = 1.5


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.replicas.latency", "Time a router on PostgreSQL and Redis beside SQLite.")
    flags.add_argument("--requests", type=positive, default=400, help="in each round")
    flags.add_argument("--rounds", type=positive, default=5, help="of each router")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if the bar is missed."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="p2l-latency-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        servers = Servers(folder / "servers")
        stack.callback(servers.stop)
        servers.start()
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        mock = stack.enter_context(serving(["-m", "route.providers.mock", "--port"]))
        mocks = Ports(mock, mock, mock, mock)
        shared = {"database": servers.postgres_url, "limits": servers.redis_url}
        ports = {"the mock alone": mock}
        for label, options in {"SQLite": {}, "PostgreSQL and Redis": shared}.items():
            place = folder / label.split()[0]
            place.mkdir()
            ports[label] = stack.enter_context(routing(place, "tfidf", mocks, **options)).router
        requests = [body("fast", "hello")] * args.requests
        medians: dict[str, list[float]] = {label: [] for label in ports}
        for round_number in range(args.rounds + 1):
            for label, port in ports.items():
                measured = pool.submit(drive, port, requests, 1).result()
                if measured.failures:
                    raise SystemExit(f"{label}: {measured.failures} requests failed")
                if round_number:  # the first one warms up
                    medians[label].append(measured.median * 1e3)
    direct = np.array(medians.pop("the mock alone"))
    added = {label: np.array(times) - direct for label, times in medians.items()}
    rows = [
        [f"a router on {label}", f"{np.median(times):.2f} ms [{times.min():.2f}, {times.max():.2f}]"]
        for label, times in added.items()
    ]
    ratio = float(np.median(added["PostgreSQL and Redis"]) / np.median(added["SQLite"]))
    rows.append([f"times (aim: at most {_BAR:g})", f"{ratio:.2f}"])
    print(table(["", "added"], rows))
    return 0 if ratio <= _BAR else 1


if __name__ == "__main__":
    run(main)
