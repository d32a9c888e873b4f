"""What the router adds to a call: latency, lost throughput, time to first token, cost of a chunk.

    python -m benchmarks.route_overhead [--requests 400] [--rounds 3] [--endpoints tfidf tiny 135m] [--beside ../before]

Everything runs on this machine: a mock provider, a P2L endpoint and the router (with keys, spend, metrics and its
database on), and clients in a process of their own. Every figure stands beside the same load sent straight to the mock
in the same round; medians over rounds, least and greatest in brackets. `--beside` times the router of another checkout
too, round by round in turns with this one's, at the same mock and endpoint; and request by request in turns, which
takes the machine's own changes out of the difference: its median, with a 90 % interval. The processor's time is the
router's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from benchmarks.serving.__main__ import Server, serving, started
from benchmarks.serving.folders import prompts, write_folders, write_tfidf
from benchmarks.serving.load import Measured, drive
from benchmarks.shapes import SHAPES
from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
KEY = "a-key-of-the-benchmark"
_EMPTY = re.compile(rb'"content": ?""')
"""In the chunk that brings the role alone."""
_KINDS = ("fast", "slow", "talking", "paced")
SLOW = 0.2
"""Seconds of the slow upstream."""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.route_overhead", "Time the router beside the provider that it calls.")
    flags.add_argument("--requests", type=positive, default=400, help="in each round of one client")
    flags.add_argument("--rounds", type=positive, default=3)
    flags.add_argument("--endpoints", nargs="*", choices=["tfidf", *SHAPES], default=["tfidf", "tiny", "135m"])
    flags.add_argument(
        "--beside", type=Path, nargs="*", default=[], help="other checkouts, whose routers are timed too"
    )
    return flags


@dataclass(frozen=True)
class Ports:
    """Where the mocks and the routers listen."""

    fast: int
    slow: int
    talking: int
    paced: int
    routers: Mapping[str, Server] = field(default_factory=dict)
    """By what stands behind the names of their figures, this checkout's first."""

    @property
    def router(self) -> int:
        """Return the port of this checkout's router."""
        return next(iter(self.routers.values())).port


@dataclass(frozen=True)
class Round:
    """The same requests to a router and straight to the mock."""

    ours: Measured
    direct: Measured
    cpu: float
    """Milliseconds of the router's processor for a request."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        paces = ([], ["--latency", str(SLOW)], ["--tokens", "500"], ["--tokens", "20", "--token-seconds", "0.005"])
        mocks = Ports(
            *(stack.enter_context(serving(["-m", "route.providers.mock", *words, "--port"])) for words in paces)
        )
        for shape in flags.endpoints:
            with routing(Path(name), shape, mocks, flags.beside) as ports:
                if shape == flags.endpoints[0]:
                    rows += _cached(pool, ports, flags)
                    rows += _throughput(pool, ports, flags)
                    rows += _streaming(pool, ports, flags)
                    rows += _request_by_request(pool, ports, flags)
                rows += _uncached(pool, ports, flags, shape)
        with routing(Path(name), flags.endpoints[0], mocks, flags.beside, score_timeout_ms=1) as ports:
            rows += _uncached(pool, ports, flags, f"{flags.endpoints[0]}, `score_timeout_ms: 1`")
    print(table(["", "added", "direct", "processor, ms", "failures"], rows))


@contextlib.contextmanager
def routing(root: Path, shape: str, mocks: Ports, others: Sequence[Path] = (), **options: object) -> Iterator[Ports]:
    """An endpoint of a random model of this shape and a router before it, and those of other checkouts."""
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
    keys = [{"key": KEY, "name": "bench", "spend_per_day": 1e9, "requests_per_minute": 10_000_000}]
    with contextlib.ExitStack() as stack:
        words = ["-m", "p2l.endpoint", "-m", str(ours), "--host", "127.0.0.1", "--port"]
        url = f"http://127.0.0.1:{stack.enter_context(serving(words))}"
        routers = {}
        for number, checkout in enumerate([None, *others]):
            file = folder / f"router-{number}.yaml"
            config = {"model_configs": models, "keys": keys, "database": str(file.with_suffix(".db")), **options}
            file.write_text(yaml.safe_dump(config))
            words = ["-m", "route.openai_server", "-c", str(file), "--router-type", "bt-endpoint"]
            words += ["--router-model-endpoint", url, "--router-api-key", "none", "--host", "127.0.0.1", "--port"]
            place = None if checkout is None else checkout.resolve()
            routers[_commit(place)] = stack.enter_context(started(words, place))
        yield replace(mocks, routers=routers)


def _commit(checkout: Path | None) -> str:
    """What stands behind the figures of a checkout: nothing for this one."""
    if checkout is None:
        return ""
    words = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return f" ({subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()})"


def _cached(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> Iterator[list[str]]:
    """One client, one prompt: its scores are known after the first request."""
    rounds = _rounds(pool, flags, ports, ports.fast, lambda _: [body("fast", "hello")] * flags.requests, 1)
    return _added("scores cached, one client", rounds)


def _uncached(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace, what: str) -> Iterator[list[str]]:
    """One client, every prompt new."""
    count = max(20, flags.requests // 8)

    def ask(number: int) -> list[bytes]:
        return [body("fast", prompt) for prompt in prompts(count, 0.8, number)]

    return _added(f"scores by {what}, one client", _rounds(pool, flags, ports, ports.fast, ask, 1))


def _throughput(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> Iterator[list[str]]:
    """Many clients on an upstream that takes its time."""
    for clients in (32, 128):
        by_router = _rounds(
            pool, flags, ports, ports.slow, lambda _, n=clients: [body("slow", "hello")] * (n * 12), clients
        )
        for commit, rounds in by_router.items():
            shares = sorted(each.ours.requests_per_second / each.direct.requests_per_second for each in rounds)
            middle, least, greatest = (share(one, 1) for one in (np.median(shares), shares[0], shares[-1]))
            rate = float(np.median([each.direct.requests_per_second for each in rounds]))
            about = f"{SLOW * 1e3:.0f} ms upstream, {clients} clients{commit}"
            cells = [f"{middle} of direct throughput [{least}, {greatest}]", f"{rate:,.0f} requests/s"]
            yield [about, *cells, *_others(rounds)]


def _streaming(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> Iterator[list[str]]:
    """Time to the first of tokens that come every 5 ms, and what each of 500 costs that come as fast as they can."""
    count = max(10, flags.requests // 10)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for kind, mock in (("paced", ports.paced), ("talking", ports.talking)):
        request = body(kind, "hello", stream=True)
        for number in range(flags.rounds):
            for commit, router in _in_turn(ports, number):
                ours, direct = (pool.submit(_stream, port, request, count).result() for port in (router.port, mock))
                found.setdefault((commit, kind), []).append((ours[0] - direct[0], ours[1] - direct[1]))
    for commit in ports.routers:
        first = np.median([first for first, _ in found[commit, "paced"]])
        yield [f"streaming, first token{commit}", f"{first * 1e3:.2f} ms", "", "", ""]
    for commit in ports.routers:
        chunk = np.median([chunk for _, chunk in found[commit, "talking"]])
        yield [f"streaming, 500 tokens at once, each{commit}", f"{chunk * 1e3:.3f} ms", "", "", ""]


def _request_by_request(pool: ProcessPoolExecutor, ports: Ports, flags: argparse.Namespace) -> Iterator[list[str]]:
    """How much later this router answers than each of the others, asked one after the other in an order drawn anew."""
    servers = [router.port for router in ports.routers.values()]
    count = flags.requests * flags.rounds
    kinds = {
        "scores cached": (body("fast", "hello"), count),
        "first token": (body("paced", "hello", stream=True), count // 10),
    }
    for what, (request, times) in kinds.items():
        if len(servers) == 1:
            return
        seconds = pool.submit(_in_turns, servers, request, times).result()
        for commit, other in zip(list(ports.routers)[1:], seconds[1:], strict=True):
            later = (seconds[0] - other) * 1e3
            draws = np.random.default_rng(0).integers(0, len(later), (1000, len(later)))
            low, high = np.quantile(np.median(later[draws], axis=1), [0.05, 0.95])
            cell = f"{np.median(later):+.3f} ms [{low:+.3f}, {high:+.3f}]"
            yield [f"{what}, less that of{commit}, request by request", cell, "", "", ""]


def _in_turns(servers: Sequence[int], request: bytes, count: int) -> Floats:
    """Seconds (servers, count) to the first token of a stream on a new connection, or of whole answers on open ones."""
    return asyncio.run(_ask_in_turns(servers, request, count))


async def _ask_in_turns(servers: Sequence[int], request: bytes, count: int) -> Floats:
    seconds = np.empty((len(servers), count))
    ways = [await asyncio.open_connection("127.0.0.1", port) for port in servers]
    rng = np.random.default_rng(0)
    for number in range(-max(10, count // 20), count):  # those before 0 warm up
        for place in rng.permutation(len(servers)):
            if b'"stream"' in request:
                taken, _ = await _time_stream(servers[place], request)
            else:
                taken = await _time_whole(*ways[place], request)
            if number >= 0:
                seconds[place, number] = taken
    return seconds


async def _time_whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> float:
    started = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
    return time.perf_counter() - started


def _in_turn(ports: Ports, number: int) -> list[tuple[str, Server]]:
    """The routers in the order of a round: another one is first each time."""
    routers = list(ports.routers.items())
    first = number % len(routers)
    return routers[first:] + routers[:first]


def _rounds(
    pool: ProcessPoolExecutor,
    flags: argparse.Namespace,
    ports: Ports,
    mock: int,
    ask: Callable[[int], list[bytes]],
    clients: int,
) -> dict[str, list[Round]]:
    """The same requests to each router and straight to the mock, in turns; by router."""
    for port in (*(router.port for router in ports.routers.values()), mock):
        pool.submit(drive, port, ask(10_000)[: 4 * clients], clients).result()
    rounds: dict[str, list[Round]] = {commit: [] for commit in ports.routers}
    for number in range(flags.rounds):
        for commit, router in _in_turn(ports, number):
            # New prompts to each: what one router has asked for, the endpoint they share remembers.
            place = list(ports.routers).index(commit) * 100 * flags.rounds
            requests, before = ask(number + place), router.seconds
            ours = pool.submit(drive, router.port, requests, clients).result()
            cpu = (router.seconds - before) / len(requests) * 1e3
            direct = pool.submit(drive, mock, requests, clients).result()
            rounds[commit].append(Round(ours, direct, cpu))
    return rounds


def _added(what: str, by_router: Mapping[str, Sequence[Round]]) -> Iterator[list[str]]:
    for commit, rounds in by_router.items():
        pairs = [(each.ours, each.direct) for each in rounds]
        added = np.array([[ours.median - direct.median, ours.p99 - direct.p99] for ours, direct in pairs]) * 1e3
        p50, p99 = np.median(added, axis=0)
        direct = np.median([direct.median for _, direct in pairs]) * 1e3
        cell = f"p50 {p50:.2f} ms [{added[:, 0].min():.2f}, {added[:, 0].max():.2f}], p99 {p99:.2f} ms"
        print(f"{what}{commit}: {cell}", file=sys.stderr, flush=True)
        yield [f"{what}{commit}", cell, f"p50 {direct:.2f} ms", *_others(rounds)]


def _others(rounds: Sequence[Round]) -> tuple[str, str]:
    """The processor's time of a request, and failures."""
    failures = sum(each.ours.failures + each.direct.failures for each in rounds)
    return f"{np.median([each.cpu for each in rounds]):.2f}", str(failures)


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
    first, chunk = np.median([await _time_stream(port, request) for _ in range(count)], axis=0)
    return float(first), float(chunk)


async def _time_stream(port: int, request: bytes) -> tuple[float, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    writer.write(request)
    first, chunks = 0.0, 0
    while line := await reader.readline():
        if b'"content"' in line and not _EMPTY.search(line):
            first = first or time.perf_counter()
            chunks += 1
        if b"[DONE]" in line:
            break
    writer.close()
    return first - started, (time.perf_counter() - first) / max(1, chunks)


if __name__ == "__main__":
    run(main)
