"""What the router adds to a call: latency, lost throughput, time to first token, cost of a chunk.

    python -m benchmarks.route_overhead [--requests 400] [--rounds 3] [--endpoints tfidf tiny 135m]

Everything runs on this machine: a mock provider, a P2L endpoint and the router (with keys, spend, metrics and its
database on), and clients in a process of their own. Every figure stands beside the same load sent straight to the mock
in the same round; medians over rounds, least and greatest in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import yaml

from benchmarks.serving.__main__ import serving
from benchmarks.serving.folders import prompts, write_folders, write_tfidf
from benchmarks.serving.load import Measured, drive
from benchmarks.shapes import SHAPES
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

KEY = "a-key-of-the-benchmark"
_KINDS = ("fast", "slow", "talking", "paced")
SLOW = 0.2
"""Seconds of the slow upstream."""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.route_overhead", "Time the router beside the provider that it calls.")
    flags.add_argument("--requests", type=positive, default=400, help="in each round of one client")
    flags.add_argument("--rounds", type=positive, default=3)
    flags.add_argument("--endpoints", nargs="*", choices=["tfidf", *SHAPES], default=["tfidf", "tiny", "135m"])
    return flags


@dataclass(frozen=True)
class Ports:
    """Where the mocks and the router listen."""

    fast: int
    slow: int
    talking: int
    paced: int
    router: int = 0


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        paces = ([], ["--latency", str(SLOW)], ["--tokens", "500"], ["--tokens", "20", "--token-seconds", "0.005"])
        mocks = Ports(
            *(stack.enter_context(serving(["-m", "route.providers.mock", *words, "--port"])) for words in paces)
        )
        for shape in flags.endpoints:
            with routing(Path(name), shape, mocks) as ports:
                if shape == flags.endpoints[0]:
                    _cached(pool, ports, flags)
                    _throughput(pool, ports, flags)
                    _streaming(pool, ports, flags)
                _uncached(pool, ports, flags, shape)
        with routing(Path(name), flags.endpoints[0], mocks, score_timeout_ms=1) as ports:
            _uncached(pool, ports, flags, f"{flags.endpoints[0]}, score_timeout_ms 1")


@contextlib.contextmanager
def routing(root: Path, shape: str, mocks: Ports, **options: object) -> Iterator[Ports]:
    """An endpoint of a random model of this shape and a router before it."""
    folder = root / f"{shape}-{len(list(root.iterdir()))}"
    folder.mkdir()
    ours = write_tfidf(folder) if shape == "tfidf" else write_folders(folder, shape)[0]
    models = {
        f"model-{number}": {"name": name, "type": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "cost": cost}
        | {"api_key": "none"}
        for number, (name, port, cost) in enumerate(
            [(kind, getattr(mocks, kind), cost) for cost, kind in enumerate(_KINDS, 1)]
        )
    }
    config = {"model_configs": models, "database": str(folder / "router.db"), **options}
    config["keys"] = [{"key": KEY, "name": "bench", "spend_per_day": 1e9, "requests_per_minute": 10_000_000}]
    (folder / "router.yaml").write_text(yaml.safe_dump(config))
    with serving(["-m", "p2l.endpoint", "-m", str(ours), "--host", "127.0.0.1", "--port"]) as endpoint:
        url = f"http://127.0.0.1:{endpoint}"
        words = ["-m", "route.openai_server", "-c", str(folder / "router.yaml"), "--router-type", "bt-endpoint"]
        words += ["--router-model-endpoint", url, "--router-api-key", "none", "--host", "127.0.0.1", "--port"]
        with serving(words) as port:
            yield replace(mocks, router=port)


def _cached(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> None:
    """One client, one prompt: its scores are known after the first request."""
    rounds = _rounds(pool, flags, ports.router, ports.fast, lambda _: [body("fast", "hello")] * flags.requests, 1)
    _print_added("scores cached, 1 client", rounds)


def _uncached(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace, what: str) -> None:
    """One client, every prompt new."""
    count = max(20, flags.requests // 8)

    def ask(number: int) -> list[bytes]:
        return [body("fast", prompt) for prompt in prompts(count, 0.8, number)]

    _print_added(f"scores by {what}, 1 client", _rounds(pool, flags, ports.router, ports.fast, ask, 1))


def _throughput(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> None:
    """Many clients on an upstream that takes its time."""
    for clients in (32, 128):
        rounds = _rounds(
            pool, flags, ports.router, ports.slow, lambda _, n=clients: [body("slow", "hello")] * (n * 12), clients
        )
        shares = sorted(ours.requests_per_second / direct.requests_per_second for ours, direct in rounds)
        print(
            f"{SLOW * 1e3:.0f} ms upstream, {clients} clients: {np.median(shares):.1%} of direct throughput "
            f"[{shares[0]:.1%}, {shares[-1]:.1%}]; {_failures(rounds)} failures",
            flush=True,
        )


def _streaming(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> None:
    """Time to the first of tokens that come every 5 ms, and what each of 500 costs that come as fast as they can."""
    count = max(10, flags.requests // 10)
    found: dict[str, list[tuple[float, float]]] = {}
    for kind, mock in (("paced", ports.paced), ("talking", ports.talking)):
        request = body(kind, "hello", stream=True)
        for _ in range(flags.rounds):
            ours, direct = (pool.submit(_stream, port, request, count).result() for port in (ports.router, mock))
            found.setdefault(kind, []).append((ours[0] - direct[0], ours[1] - direct[1]))
    first = np.median([first for first, _ in found["paced"]])
    chunk = np.median([chunk for _, chunk in found["talking"]])
    print(f"streaming: first token {first * 1e3:.2f} ms over direct, {chunk * 1e3:.3f} ms a chunk", flush=True)


def _rounds(
    pool: ProcessPoolExecutor,
    flags: argparse.Namespace,
    router: int,
    mock: int,
    ask: Callable[[int], list[bytes]],
    clients: int,
) -> list[tuple[Measured, Measured]]:
    """The same requests to the router and straight to the mock, in turns."""
    for port in (router, mock):
        pool.submit(drive, port, ask(10_000)[: 4 * clients], clients).result()
    return [
        (
            pool.submit(drive, router, ask(number), clients).result(),
            pool.submit(drive, mock, ask(number), clients).result(),
        )
        for number in range(flags.rounds)
    ]


def _print_added(what: str, rounds: Sequence[tuple[Measured, Measured]]) -> None:
    added = np.array([[ours.median - direct.median, ours.p99 - direct.p99] for ours, direct in rounds]) * 1e3
    p50, p99 = np.median(added, axis=0)
    direct = np.median([direct.median for _, direct in rounds]) * 1e3
    print(
        f"{what}: p50 {p50:.2f} ms [{added[:, 0].min():.2f}, {added[:, 0].max():.2f}], p99 {p99:.2f} ms over direct "
        f"({direct:.2f} ms); {_failures(rounds)} failures",
        flush=True,
    )


def _failures(rounds: Sequence[tuple[Measured, Measured]]) -> int:
    return sum(ours.failures + direct.failures for ours, direct in rounds)


def body(model: str, prompt: str, **options: object) -> bytes:
    """A whole HTTP request for a chat completion by this mock, routed or not."""
    number = _KINDS.index(model)
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "cost": number + 1.0, **options}
    if number:
        body["direct_model"] = f"model-{number}"
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _stream(port: int, request: bytes, count: int) -> tuple[float, float]:
    """Median seconds to the first token, and from it to the next ones."""
    return asyncio.run(_streams(port, request, count))


async def _streams(port: int, request: bytes, count: int) -> tuple[float, float]:
    found = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.perf_counter()
        writer.write(request)
        first, chunks = 0.0, 0
        while line := await reader.readline():
            if b'"content"' in line:
                first = first or time.perf_counter()
                chunks += 1
            if b"[DONE]" in line:
                break
        found.append((first - started, (time.perf_counter() - first) / max(1, chunks)))
        writer.close()
    first, chunk = np.median(found, axis=0)
    return float(first), float(chunk)


if __name__ == "__main__":
    run(main)
