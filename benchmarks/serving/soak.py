"""Ten minutes of mixed load: good and bad requests, clients that leave, batches, reloads. What failed, what was kept?

    python -m benchmarks.serving.soak [--minutes 10] [--clients 8] [--shape tiny]

Prints each minute's requests and the endpoint's memory, then the failures that no client caused, and memory at the end
beside memory after one minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serving.__main__ import serving
from benchmarks.serving.folders import prompts, write_folders
from benchmarks.shapes import SHAPES
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

BAD = (b"", b"{", b"[]", b'{"prompt": []}', b'{"prompt": [1]}', b'{"prompt": ["\\ud800"]}', b"[" * 10_000, b"\xff\xfe")
_ADMIN_KEY = "the-admin-key-of-the-benchmark"


@dataclass
class Seen:
    """What the clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.serving.soak", "Mixed load on an endpoint, and what it leaves behind.")
    flags.add_argument("--minutes", type=positive, default=10)
    flags.add_argument("--clients", type=positive, default=8)
    flags.add_argument("--shape", choices=SHAPES, default="tiny")
    flags.add_argument("--reload-seconds", type=positive, default=20, help="between two reloads")
    flags.add_argument("endpoint", nargs="*", help="further flags for the endpoint, after --")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        ours, _ = write_folders(Path(name), flags.shape)
        words = ["-m", "p2l.endpoint", "-m", str(ours), "--host", "127.0.0.1", "--admin-key", _ADMIN_KEY]
        with serving([*words, *flags.endpoint, "--port"]) as port:
            asyncio.run(_soak(port, flags))


async def _soak(port: int, flags: argparse.Namespace) -> None:
    seen = Seen()
    until = time.monotonic() + 60 * flags.minutes
    clients = [asyncio.ensure_future(_client(port, number, until, seen)) for number in range(flags.clients)]
    reloads = asyncio.ensure_future(_reload(port, flags.reload_seconds, until, seen))
    kept: list[float] = []
    for minute in range(1, flags.minutes + 1):
        await asyncio.sleep(60)
        kept.append(await _memory(port))
        so_far = sum(seen.statuses.values())
        print(f"minute {minute:>2}: {so_far:>8,} requests, {kept[-1]:7.1f} MB", file=sys.stderr, flush=True)
    await asyncio.gather(*clients, reloads)
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(seen.statuses.items()))
    causes = "".join(f", {cause} ({count})" for cause, count in Counter(seen.unexpected).most_common(5))
    rows = [
        ["requests", f"{sum(seen.statuses.values()):,} ({answers})"],
        ["failures that no client caused", f"{len(seen.unexpected)}{causes}"],
        ["memory after one minute", f"{kept[0]:.1f} MB"],
        ["memory at the end", f"{kept[-1]:.1f} MB ({kept[-1] / kept[0] - 1:+.1%})"],
    ]
    print(table([f"{flags.minutes} minutes, {flags.clients} clients", ""], rows))


async def _client(port: int, number: int, until: float, seen: Seen) -> None:
    draw = random.Random(number)
    texts = prompts(400, 0.8, number)
    while time.monotonic() < until:
        kind = draw.random()
        text = draw.choice(texts) + f" {draw.randrange(10**6) if kind < 0.6 else ''}"
        if kind < 0.75:
            await _expect(port, "/predict", json.dumps({"prompt": [text]}).encode(), {200}, seen)
        elif kind < 0.8:
            batch = json.dumps({"prompts": [[text], [text, "more"]]}).encode()
            await _expect(port, "/predict_batch", batch, {200}, seen)
        elif kind < 0.9:
            await _expect(port, "/predict", draw.choice(BAD), {400, 422, 200}, seen)
        else:
            await _leave(port, json.dumps({"prompt": [text]}).encode(), draw.random() * 0.02)
            seen.statuses["left"] += 1


async def _reload(port: int, seconds: int, until: float, seen: Seen) -> None:
    while time.monotonic() + seconds < until:
        await asyncio.sleep(seconds)
        await _expect(port, "/reload", b"{}", {200}, seen, "api-key: admin\r\n")


async def _expect(port: int, path: str, body: bytes, fine: set[int], seen: Seen, header: str = "") -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request(path, body, header))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        status = int(head.split(b" ", 2)[1])
    except (OSError, asyncio.IncompleteReadError) as error:
        seen.unexpected.append(f"{path}: {type(error).__name__}")
        return
    seen.statuses[str(status)] += 1
    if status not in fine:
        seen.unexpected.append(f"{path}: {status}")


async def _leave(port: int, body: bytes, seconds: float) -> None:
    """Ask, and close the connection before the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request("/predict", body, ""))
    await asyncio.sleep(seconds)
    writer.close()


def _request(path: str, body: bytes, header: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{header}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _memory(port: int) -> float:
    """Resident megabytes of the process that listens on the port."""

    def read() -> float:
        pid = next(pid for pid in _listeners(port))
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    return await asyncio.to_thread(read)


def _listeners(port: int) -> list[int]:
    """Processes of this machine whose command line ends in the port."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if words[-1] == str(port).encode() and b"p2l.endpoint" in words:
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    run(main)
