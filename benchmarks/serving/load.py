"""Clients that ask as fast as they are answered, each on one kept connection: plain sockets, which cost little."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Measured", "bodies", "drive"]


@dataclass(frozen=True)
class Measured:
    """What the clients saw."""

    requests_per_second: float
    median: float
    """Seconds."""
    p99: float
    failures: int


def bodies(prompts: Sequence[str]) -> list[bytes]:
    """Whole HTTP requests to /predict."""
    return [_request(json.dumps({"prompt": [prompt]}).encode()) for prompt in prompts]


def drive(port: int, requests: Sequence[bytes], clients: int) -> Measured:
    """Send every request once, `clients` of them at a time."""
    return asyncio.run(_drive(port, requests, clients))


def _request(body: bytes) -> bytes:
    head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _drive(port: int, requests: Sequence[bytes], clients: int) -> Measured:
    left = iter(requests)
    latencies: list[float] = []
    failures: list[int] = []
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    started = time.perf_counter()
    await asyncio.gather(*(_client(reader, writer, left, latencies, failures) for reader, writer in connections))
    seconds = time.perf_counter() - started
    for _, writer in connections:
        writer.close()
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    return Measured(len(latencies) / seconds, float(p50), float(p99), len(failures))


async def _client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    left: Iterator[bytes],
    latencies: list[float],
    failures: list[int],
) -> None:
    for request in left:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - started)
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            failures.append(status)
