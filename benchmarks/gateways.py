"""What a gateway adds to a call: this router beside a bare proxy, LiteLLM's proxy and the router of another checkout.

    python -m venv .venv-litellm
    .venv-litellm/bin/python -m pip install --require-hashes --requirement benchmarks/litellm.lock
    python -m benchmarks.gateways --litellm .venv-litellm/bin/litellm --beside ../before [--requests 300] [--rounds 5]

All stand before the same mock provider, one process each, and are asked in turns, another one first in each round, so
that a busy moment of the machine meets all of them. Added time is the median (or the 99th percentile) of one client's
whole answers, less that of the same requests straight to the mock in the same round; requests a second are those of as
many clients on an upstream that answers at once. The bare proxy is aiohttp passing bytes on, without reading them. The
router decides by scores of P2L, which it remembers, checks a key, and books spend; LiteLLM's proxy checks a key.
Memory is that of the processes, before the first round and after the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from benchmarks.route_overhead import KEY, Ports, routing
from benchmarks.serving.__main__ import serving
from benchmarks.serving.load import Measured, drive
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

_LITELLM_KEY = "sk-a-key-of-the-benchmark"
_CLIENTS = (32, 128)
_START_SECONDS = 120.0


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.gateways", "Time the router beside other gateways.")
    flags.add_argument("--requests", type=positive, default=300, help="of one client in each round; clients ask thrice")
    flags.add_argument("--rounds", type=positive, default=5)
    flags.add_argument("--litellm", type=Path, help="program `litellm` of its environment; without it, it is left out")
    flags.add_argument(
        "--beside", type=Path, nargs="*", default=[], help="other checkouts, whose routers are timed too"
    )
    flags.add_argument("--proxy", metavar="URL", help=argparse.SUPPRESS)
    flags.add_argument("--port", type=positive, help=argparse.SUPPRESS)
    return flags


@dataclass
class Gateway:
    """One gateway under test, and what was measured of it in each round."""

    name: str
    port: int
    pid: int
    key: str = KEY
    added: list[tuple[float, float]] = field(default_factory=list)
    """Milliseconds at the median and at the 99th percentile."""
    rates: dict[int, list[float]] = field(default_factory=dict)
    """Requests a second by the number of clients."""
    failures: int = 0
    at_rest: float = 0.0
    """MiB of memory."""

    def request(self) -> bytes:
        """Return a whole HTTP request for a chat completion."""
        content = json.dumps({"model": "fast", "messages": [{"role": "user", "content": "hello"}]}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def memory(self) -> float:
        """Return the MiB that its process and the children of that hold."""
        pids, total = [self.pid], 0
        while pids:
            pid = pids.pop()
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                total += int(status.partition("VmRSS:")[2].split()[0])
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return total / 1024


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    if flags.proxy:
        web.run_app(_proxy(flags.proxy), host="127.0.0.1", port=flags.port, access_log=None, print=None)
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        mock = stack.enter_context(serving(["-m", "route.providers.mock", "--port"]))
        gateways = stack.enter_context(_gateways(Path(name), mock, flags))
        direct = Gateway("the provider itself", mock, os.getpid())
        for gateway in [*gateways, direct]:
            pool.submit(drive, gateway.port, [gateway.request()] * 50, 4).result()
        for gateway in gateways:
            gateway.at_rest = gateway.memory()
        for number in range(flags.rounds):
            first = number % len(gateways)
            _round(pool, [*gateways[first:], *gateways[:first]], direct, flags.requests)
        print(_shown(gateways, direct))


def _round(pool: ProcessPoolExecutor, gateways: Sequence[Gateway], direct: Gateway, count: int) -> None:
    def measured(gateway: Gateway, requests: int, clients: int) -> Measured:
        result: Measured = pool.submit(drive, gateway.port, [gateway.request()] * requests, clients).result()
        gateway.failures += result.failures
        return result

    for gateway in gateways:
        through, straight = measured(gateway, count, 1), measured(direct, count, 1)
        difference = (through.median - straight.median) * 1e3, (through.p99 - straight.p99) * 1e3
        gateway.added.append(difference)
    for clients in _CLIENTS:
        for gateway in [*gateways, direct]:
            gateway.rates.setdefault(clients, []).append(measured(gateway, 3 * count, clients).requests_per_second)


def _shown(gateways: Sequence[Gateway], direct: Gateway) -> str:
    ours = gateways[0]
    header = ["", "added p50, ms", "of the router's", "added p99, ms"]
    header += [f"requests/s, {clients} clients" for clients in _CLIENTS] + ["MiB at rest", "MiB after", "failures"]
    rows = []
    for gateway in [*gateways, direct]:
        rates = [f"{statistics.median(gateway.rates[clients]):,.0f}" for clients in _CLIENTS]
        if not gateway.added:
            rows.append([gateway.name, "", "", "", *rates, "", "", str(gateway.failures)])
            continue
        p50s = [p50 for p50, _ in gateway.added]
        # In each round of its own, since the machine's pace changes between rounds.
        ratios = [p50 / of_router for p50, (of_router, _) in zip(p50s, ours.added, strict=True)]
        p50 = f"{statistics.median(p50s):.2f} [{min(p50s):.2f}, {max(p50s):.2f}]"
        ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        p99 = f"{statistics.median(p99 for _, p99 in gateway.added):.2f}"
        memory = [f"{gateway.at_rest:.0f}", f"{gateway.memory():.0f}"]
        rows.append([gateway.name, p50, ratio, p99, *rates, *memory, str(gateway.failures)])
    return table(header, rows)


@contextlib.contextmanager
def _gateways(folder: Path, mock: int, flags: argparse.Namespace) -> Iterator[list[Gateway]]:
    """Start all gateways, the router of this checkout first."""
    url = f"http://127.0.0.1:{mock}"
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(routing(folder, "tfidf", Ports(mock, mock, mock, mock), flags.beside))
        gateways = [
            Gateway(f"this router{commit}", server.port, server.pid) for commit, server in ports.routers.items()
        ]
        words = [sys.executable, "-m", "benchmarks.gateways", "--proxy", url]
        gateways.append(Gateway("bare aiohttp proxy", *stack.enter_context(_process(words, {}))))
        if flags.litellm is not None:
            config = folder / "litellm.yaml"
            place = {"model": "openai/fast", "api_base": f"{url}/v1", "api_key": "none"}
            settings = {"master_key": _LITELLM_KEY}
            models = [{"model_name": "fast", "litellm_params": place}]
            config.write_text(yaml.safe_dump({"model_list": models, "general_settings": settings}))
            words = [str(flags.litellm), "--config", str(config), "--host", "127.0.0.1"]
            offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
            proxy = stack.enter_context(_process(words, offline))
            gateways.append(Gateway("LiteLLM's proxy", *proxy, key=_LITELLM_KEY))
        yield gateways


@contextlib.contextmanager
def _process(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Run a server, its port last on the command line, until the block ends; gives its port and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [*words, "--port", str(port)], env={**os.environ, **variables}, stdout=subprocess.DEVNULL
    )
    try:
        late = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < late:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"{words[0]} did not start")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _proxy(url: str) -> web.Application:
    """Return a proxy that passes bodies on as they are."""

    async def session(app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app["session"]:
            yield

    async def forward(request: web.Request) -> web.Response:
        headers = {"content-type": request.headers["content-type"], "authorization": request.headers["authorization"]}
        content = await request.read()
        async with request.app["session"].post(f"{url}{request.path}", data=content, headers=headers) as response:
            return web.Response(body=await response.read(), status=response.status, content_type=response.content_type)

    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_post("/{path:.*}", forward)
    return app


if __name__ == "__main__":
    run(main)
