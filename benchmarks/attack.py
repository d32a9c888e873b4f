"""Hostile requests to the endpoint and the router: how fast each is answered or refused, and what others feel of it.

    python -m benchmarks.attack [--seconds 60] [--rest 60] [--clients 8] [--cases half-open deep-json ...]

Both services run here, the endpoint with a bag-of-words model, the router before it with a mock provider in a process
of its own. Eight clients send one case again and again from an address of their own, while another asks `/health` over
a new connection each time; in the case "all" they send all the others in turn, so that eight different ones are under
way at any time. The table has the time of an attempt until it was answered, refused or cut off, the times of `/health`,
and the memory of the service before (after some hundred usual requests one by one, and as many at once), at most
meanwhile, and after a rest. The same prompts sent straight to the mock say how long a provider alone takes for them.
Below floods of spend and of votes stands what the router's database holds of them. To add a case, add a line to
`CASES`; files are in `benchmarks.attack_files`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import anyio
import numpy as np
import yaml

from benchmarks.serving.folders import write_tfidf
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

KEY, SPENDER = "a-key-of-the-benchmark", "a-key-with-a-limit"
LIMIT = 0.05
ATTACKER, NEIGHBOUR = "127.0.0.2", "127.0.0.1"
_HEALTH_PAUSE = 0.02
_LONGEST_TRY = 30.0
_HELD = 200  # connections of each client that holds some
_AT_ONCE = 300  # requests of each client that spends
_VOTES = 50  # on one answer
_USUAL = 300  # requests before the attack, one by one and at once


@dataclass(frozen=True)
class Service:
    """A service under attack."""

    name: str
    port: int
    pid: int


@dataclass
class Attempts:
    """What the clients of a case saw."""

    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


Attack: TypeAlias = Callable[[Service, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What one client does on one connection; the answer is read and timed afterwards."""


def _head(service: Service) -> bytes:
    path = "/predict" if service.name == "endpoint" else "/v1/chat/completions"
    return f"POST {path} HTTP/1.1\r\nhost: h\r\napi-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n".encode()


def _body(turns: Callable[[], list[str]]) -> Callable[[Service], bytes]:
    """Return what makes the JSON of a prompt of these user's turns."""

    def make(service: Service) -> bytes:
        if service.name == "endpoint":
            return json.dumps({"prompt": turns()}).encode()
        messages = [{"role": "user", "content": turn} for turn in turns()]
        return json.dumps({"model": "-", "messages": messages}).encode()

    return make


def posting(make: Callable[[Service], bytes]) -> Callable[[Service], Attack]:
    """Return an attack that sends a body as fast as it is taken."""

    def prepare(service: Service) -> Attack:
        body = make(service)
        request = (
            _head(service) + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

        async def attack(_: Service, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(request)
            await writer.drain()

        return attack

    return prepare


def sending(piece: bytes, pause: float = 0.0, times: int = 10**9) -> Callable[[Service], Attack]:
    """Return an attack that begins a request and sends a piece of a header again and again."""

    async def attack(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(service))
        for _ in range(times):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
            if reader.at_eof():
                return

    return lambda _: attack


async def _hold(service: Service, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open connections that never send a whole request, until the first is ended."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(_HELD):
            with contextlib.suppress(OSError):
                _, other = await asyncio.open_connection("127.0.0.1", service.port, local_addr=(ATTACKER, 0))
                stack.callback(other.close)
                other.write(b"GET /health HTTP/1.1\r\nhost: h\r\n")
        writer.write(b"GET /health HTTP/1.1\r\nhost: h\r\n")
        await asyncio.sleep(1.0)


async def _spend(service: Service, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask with a key of little spend on many connections at once; half of the clients leave before the answer."""

    async def ask(leaves: bool) -> None:
        with contextlib.suppress(OSError):
            reader, other = await asyncio.open_connection("127.0.0.1", service.port, local_addr=(ATTACKER, 0))
            other.write(_chat({"max_tokens": 100}, SPENDER, "connection: close\r\n"))
            await (other.drain() if leaves else reader.read())
            other.close()

    await asyncio.gather(*(ask(number % 2 == 0) for number in range(_AT_ONCE)))
    writer.write(_chat({"max_tokens": 100}, SPENDER))


async def _vote(_: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Vote on one answer again and again, each time for the other side."""
    writer.write(_chat({"compare": True}, KEY))
    head = await reader.readuntil(b"\r\n\r\n")
    request_id = re.search(rb"x-request-id: (\S+)", head)
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
    if request_id is None:
        return
    for number in range(_VOTES):
        body = json.dumps({"request_id": request_id[1].decode(), "better": number % 2}).encode()
        writer.write(_post("/v1/feedback", KEY, body))
        await reader.readexactly(int((await reader.readuntil(b"\r\n\r\n")).split(b"content-length: ")[1].split()[0]))
    writer.write(_post("/v1/feedback", KEY, body))


def _chat(fields: dict[str, object], key: str, headers: str = "") -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return _post("/v1/chat/completions", key, json.dumps({"messages": messages, **fields}).encode(), headers)


def _post(path: str, key: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n{headers}"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _deep(_: Service) -> bytes:
    return b'{"prompt": ' + b"[" * 100_000


CASES: dict[str, Callable[[Service], Attack]] = {
    "half-open": lambda _: _hold,
    "slow-headers": sending(b"x-slow: 1\r\n", pause=0.5),
    "huge-header": sending(b"x" * 65536),
    "many-headers": sending(b"x: 1\r\n" * 1000),
    "pipelined": sending(b"\r\nGET /health HTTP/1.1\r\nhost: h\r\n" * 2000, times=1),
    "deep-json": posting(_deep),
    "combining-marks": posting(_body(lambda: ["a" + "\u0301\u0316" * 40_000])),
    "long-prompt": posting(_body(lambda: ["All work and no play makes a dull boy. " * 25_000])),
    "faulty-turns": posting(lambda _: b'{"prompt": [' + b"1," * 1_000_000 + b"1]}"),
    "empty-turns": posting(_body(lambda: [""] * 100_000)),
    "most-turns": posting(_body(lambda: [""] * 10_000)),
    "many-turns": posting(_body(lambda: ["a"] * 600_000)),
    "large-body": posting(_body(lambda: ["a" * 15_000_000])),
    "spend-flood": lambda _: _spend,
    "vote-flood": lambda _: _vote,
}
"""By name: what prepares an attack on a service, once for all clients of it."""
OF_THE_ROUTER = {
    "spend-flood": f"SELECT 'booked ' || round(sum(cost), 6) || ' of {LIMIT} a day' FROM spend WHERE key = 'spender'",
    "vote-flood": "SELECT count(*) || ' votes on ' || count(DISTINCT request_id) || ' answers' FROM votes",
}
"""Cases that the endpoint does not have, and what the router's database says of them."""
OF_THE_MOCK = ("combining-marks", "long-prompt", "empty-turns", "most-turns", "many-turns", "large-body")
"""Prompts, which a provider gets as well."""
ALL = "all"


def build_parser() -> argparse.ArgumentParser:
    """Return the command line of the benchmark."""
    flags = parser("python -m benchmarks.attack", "Attack both services, and time what others feel of it.")
    flags.add_argument("--seconds", type=positive, default=60, help="of each case")
    flags.add_argument("--rest", type=positive, default=60, help="seconds after each case, before memory is read again")
    flags.add_argument("--clients", type=positive, default=8)
    flags.add_argument("--cases", nargs="+", choices=[*CASES, ALL], default=[*CASES, ALL])
    names = ["endpoint", "mock", "router"]
    flags.add_argument("--services", nargs="+", choices=names, default=names, help="mock: the provider by itself")
    flags.add_argument("--same-address", action="store_true", help="ask /health from the attackers' address")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    rows: list[list[str]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        _services(Path(name)) as services,
    ):
        for service in services:
            if service.name in flags.services:
                _warm_up(service)
                for case in flags.cases:
                    if case in (*_cases_of(service), ALL):
                        rows.append(_case(service, case, pool, flags))
                    if service.name == "router" and case in OF_THE_ROUTER:
                        with contextlib.closing(sqlite3.connect(Path(name) / "router.sqlite")) as database:
                            rows[-1][3] += f"; {database.execute(OF_THE_ROUTER[case]).fetchone()[0]}"
    header = ["service, case", "attempt p50, ms", "p99", "answers", "`/health` p50, ms", "p99", "lost"]
    print(table([*header, "MB before", "most", "after"], rows))


def _cases_of(service: Service) -> list[str]:
    if service.name == "mock":
        return list(OF_THE_MOCK)
    return [name for name in CASES if service.name == "router" or name not in OF_THE_ROUTER]


@contextlib.contextmanager
def _services(folder: Path) -> Iterator[list[Service]]:
    """Start an endpoint of a random model, a provider, and a router that asks both."""
    common = ["--host", "127.0.0.1"]
    with contextlib.ExitStack() as stack:
        words = ["-m", "p2l.endpoint", "-m", str(write_tfidf(folder)), "-a", KEY, *common]
        endpoint = stack.enter_context(_running("endpoint", folder, words))
        words = ["-m", "route.providers.mock", "--text", "hello", *common]
        mock = stack.enter_context(_running("mock", folder, words))
        model = {"name": "m", "type": "openai", "base_url": f"http://127.0.0.1:{mock.port}/v1", "api_key": "none"}
        model |= {"cost": 1e-4, "price": {"input": 1, "output": 10}}
        spender = {"key": SPENDER, "name": "spender", "spend_per_day": LIMIT}
        models = {"model-0": model, "model-1": model}
        config = folder / "router.yaml"
        config.write_text(yaml.safe_dump({"model_configs": models, "keys": [spender], "database": "router.sqlite"}))
        words = ["-m", "route.openai_server", "-c", str(config), "--api-key", KEY, "--router-api-key", KEY, *common]
        words += ["--router-model-endpoint", f"http://127.0.0.1:{endpoint.port}"]
        yield [endpoint, mock, stack.enter_context(_running("router", folder, words))]


@contextlib.contextmanager
def _running(name: str, folder: Path, words: Sequence[str]) -> Iterator[Service]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words, "--port", str(port)], stderr=log)
    service = Service(name, port, process.pid)
    try:
        while _health(service, NEIGHBOUR) is None:
            if process.poll() is not None:
                raise SystemExit((folder / f"{name}.log").read_text())
            time.sleep(0.1)
        yield service
    finally:
        process.terminate()
        process.wait()


def _health(service: Service, address: str) -> float | None:
    """Return the seconds that /health took over a new connection; None if it was not answered."""
    started = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", service.port, timeout=10, source_address=(address, 0))
    try:
        connection.request("GET", "/health")
        answered = connection.getresponse().status in (200, 404)  # the mock has no such path
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return time.perf_counter() - started if answered else None


def _warm_up(service: Service) -> None:
    """Ask as others do, one by one and all at once, so that the memory before an attack is that of a service in use."""
    asyncio.run(_ask_in_turn_and_together(service))


async def _ask_in_turn_and_together(service: Service) -> None:
    for number in range(_USUAL):
        await _ask(service, number, await asyncio.open_connection("127.0.0.1", service.port))
    ways = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(_USUAL)]
    await asyncio.gather(*(_ask(service, number, way) for number, way in enumerate(ways)))


async def _ask(service: Service, number: int, way: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = way
    body = _body(partial(list, [f"hello {number}"]))(service)
    head = f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(_head(service) + head.encode() + body)
    answer = await reader.read()
    writer.close()
    if answer.split()[1:2] != [b"200"]:
        raise SystemExit(f"{service.name} answers a usual request with {answer[:100]!r}")


def _memory(service: Service) -> float:
    """Return the resident memory of a service, in MB."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


def _case(service: Service, case: str, pool: ProcessPoolExecutor, flags: argparse.Namespace) -> list[str]:
    """Attack, measure and return a row of the table."""
    address = ATTACKER if flags.same_address else NEIGHBOUR
    before = most = _memory(service)
    attempts: Future[Attempts] = pool.submit(_attack, service, case, flags.clients, flags.seconds)
    health: list[float | None] = []
    while not attempts.done():
        health.append(_health(service, address))
        most = max(most, _memory(service))
        time.sleep(_HEALTH_PAUSE)
    tries = attempts.result()
    time.sleep(flags.rest)
    answered = [seconds for seconds in health if seconds is not None]
    outcomes = ", ".join(f"{name} {count}" for name, count in tries.outcomes.most_common(4))
    row = [f"{service.name}, {case}", *_milliseconds(tries.seconds), outcomes, *_milliseconds(answered)]
    row += [f"{len(health) - len(answered)}", *(f"{megabytes:.1f}" for megabytes in (before, most, _memory(service)))]
    print("  ".join(row), file=sys.stderr, flush=True)
    return row


def _milliseconds(seconds: Sequence[float]) -> list[str]:
    """Return the median and the 99th percentile."""
    if not seconds:
        return ["-", "-"]
    return [f"{value:,.1f}" for value in np.quantile(np.array(seconds) * 1000, [0.5, 0.99])]


def _attack(service: Service, case: str, clients: int, seconds: float) -> Attempts:
    """Attack for some seconds from a process of its own."""
    attempts = Attempts()
    names = _cases_of(service) if case == ALL else [case]
    attacks = cycle([CASES[name](service) for name in names])
    asyncio.run(_attack_together(lambda: _try(service, next(attacks), attempts), clients, seconds))
    return attempts


async def _attack_together(attempt: Callable[[], Awaitable[None]], clients: int, seconds: float) -> None:
    end = time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < end:
            await attempt()

    await asyncio.gather(*(client() for _ in range(clients)))


async def _try(service: Service, attack: Attack, attempts: Attempts) -> None:
    """Make one attempt on a new connection, and note how it ended."""
    started = time.perf_counter()
    outcome = "closed"
    try:
        with anyio.fail_after(_LONGEST_TRY):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port, local_addr=(ATTACKER, 0))
            try:
                with contextlib.suppress(ConnectionError):
                    await attack(service, reader, writer)
                line = await reader.readline()
                outcome = line.split()[1].decode() if line else outcome
            finally:
                writer.close()
    except TimeoutError:
        outcome = "nothing"
    except OSError:
        pass
    attempts.seconds.append(time.perf_counter() - started)
    attempts.outcomes[outcome] += 1


if __name__ == "__main__":
    run(main)
