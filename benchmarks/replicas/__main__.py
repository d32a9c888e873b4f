"""Three routers, PostgreSQL, Redis and two P2L endpoints under clients, while a process is killed every few seconds.

    python -m benchmarks.replicas [--seconds 600] [--every 5] [--clients 64]

PostgreSQL and Redis are the benchmark's own, in a temporary folder; Redis keeps nothing, and comes back empty. Clients
ask any router, try a second time at another one, and vote on a third of their answers at any. Half of the keys may
spend less than their clients would: each answer costs 1. At the end every vote that was acknowledged is looked up, and
what each key has spent is held against its limit, by the database and by what the provider was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psycopg

from benchmarks.replicas.cluster import Cluster
from benchmarks.tables import table
from p2l.common.cli import above_zero, parser, positive, run
from route.providers.base import JSON
from route.providers.mock import Mock, Script, Trouble, running

_KEYS = 8
_SHARE_OF_VOTES = 1 / 3
_ANSWERED = {200, 202, 429}  # a limit that is reached is an answer


class CountingMock(Mock):
    """A provider that counts what each key has had."""

    def __init__(self) -> None:
        """Answer after 20 ms."""
        super().__init__(Script(text="an answer", latency=0.02))
        self.counts: Counter[str] = Counter()

    def next_trouble(self, request: JSON) -> Trouble:
        """Count a request by the first word of its prompt."""
        self.counts[str(request["messages"][-1]["content"]).split()[0]] += 1
        return super().next_trouble(request)


@dataclass
class Tally:
    """What clients saw."""

    first: int = 0
    second: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    limited: int = 0
    votes: dict[str, str] = field(default_factory=dict)
    """Verdicts that were acknowledged, by request."""
    pending: int = 0
    unacknowledged: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """Return how many there were."""
        return self.first + self.second + sum(self.failed.values())


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("python -m benchmarks.replicas", "Kill processes of a cluster of routers under load.")
    flags.add_argument("--seconds", type=positive, default=600, help="of load")
    flags.add_argument("--every", type=above_zero, default=5.0, help="seconds between two kills")
    flags.add_argument("--clients", type=positive, default=64, help="that ask at once")
    flags.add_argument("--pause", type=above_zero, default=0.6, help="mean seconds between two requests of a client")
    flags.add_argument("--limit", type=above_zero, help="a day's spend of each limited key (default: half its share)")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    limit = flags.limit or float(int(flags.seconds * flags.clients / flags.pause / _KEYS / 2))
    keys = [
        {"key": f"secret-{number}", "name": f"key-{number}"} | ({"spend_per_day": limit} if number % 2 else {})
        for number in range(_KEYS)
    ]
    with tempfile.TemporaryDirectory(prefix="p2l-replicas-") as name:
        return asyncio.run(_measure(flags, Path(name), keys, limit))


async def _measure(flags: argparse.Namespace, folder: Path, keys: list[dict[str, Any]], limit: float) -> int:
    provider, tally = CountingMock(), Tally()
    async with running(provider) as url:
        cluster = Cluster(folder, url, keys)
        try:
            await asyncio.to_thread(cluster.start)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=25)) as session:
                stop = asyncio.Event()
                clients = [
                    _client(session, cluster, tally, number, flags.pause, stop) for number in range(flags.clients)
                ]
                tasks = [asyncio.create_task(client) for client in clients]
                await _kill(cluster, tally, flags.seconds, flags.every)
                stop.set()
                await asyncio.gather(*tasks)
                await asyncio.to_thread(cluster.wait)
                await _drained(session, cluster)
            return _report(tally, cluster, provider, limit)
        finally:
            await asyncio.to_thread(cluster.stop)


async def _kill(cluster: Cluster, tally: Tally, seconds: float, every: float) -> None:
    end, victims, number = time.monotonic() + seconds, cluster.victims(), 0
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(every, left))
        await asyncio.to_thread(cluster.watch)
        if time.monotonic() < end:
            victim = victims[number % len(victims)]
            number += 1
            await asyncio.to_thread(cluster.kill, victim)
            tally.kills[victim.split()[0]] += 1


async def _client(
    session: aiohttp.ClientSession, cluster: Cluster, tally: Tally, number: int, pause: float, stop: asyncio.Event
) -> None:
    draw, key = random.Random(number), number % _KEYS
    while not stop.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), draw.expovariate(1 / pause))
        body = {"model": "p2l-router", "messages": [{"role": "user", "content": f"key-{key} asks {draw.random()}"}]}
        request_id = await _twice(session, cluster, tally, draw, key, body)
        if request_id and draw.random() < _SHARE_OF_VOTES:
            await _vote(session, cluster, tally, draw, key, request_id)


async def _twice(
    session: aiohttp.ClientSession, cluster: Cluster, tally: Tally, draw: random.Random, key: int, body: JSON
) -> str | None:
    ports = draw.sample([router.port for router in cluster.routers], 2)
    why = ""
    for attempt, port in enumerate(ports):
        status, request_id, _ = await _post(session, port, "/v1/chat/completions", key, body)
        if status in _ANSWERED:
            if attempt:
                tally.second += 1
            else:
                tally.first += 1
            tally.limited += status == 429
            return request_id if status == 200 else None
        why = f"{why} {status}".strip()
    tally.failed[why] += 1
    return None


async def _vote(
    session: aiohttp.ClientSession, cluster: Cluster, tally: Tally, draw: random.Random, key: int, request_id: str
) -> None:
    verdict = draw.choice(["up", "down"])
    for port in draw.sample([router.port for router in cluster.routers], 2):
        body = {"request_id": request_id, "thumbs": verdict}
        status, _, _ = await _post(session, port, "/v1/feedback", key, body)
        if status in (200, 202):
            tally.votes[request_id] = verdict
            tally.pending += status == 202
            return
    tally.unacknowledged += 1


async def _post(
    session: aiohttp.ClientSession, port: int, path: str, key: int, body: JSON
) -> tuple[int, str | None, bytes]:
    try:
        async with session.post(
            f"http://127.0.0.1:{port}{path}", json=body, headers={"authorization": f"Bearer secret-{key}"}
        ) as response:
            return response.status, response.headers.get("x-request-id"), await response.read()
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        return 0, None, b""


async def _drained(session: aiohttp.ClientSession, cluster: Cluster) -> None:
    """Wait until no router holds a vote back."""
    late = time.monotonic() + 60
    waiting = 1
    while waiting and time.monotonic() < late:
        await asyncio.sleep(1.0)
        waiting = 0
        for router in cluster.routers:
            async with session.get(f"http://127.0.0.1:{router.port}/ready") as response:
                state = json.loads(await response.read())
            waiting += state["waiting_votes"] + (not state["database"]) + (not state["limits"])


def _report(tally: Tally, cluster: Cluster, provider: CountingMock, limit: float) -> int:
    with psycopg.connect(cluster.servers.postgres_url) as session:
        stored = session.execute("SELECT request_id, verdict FROM votes").fetchall()
        spent = dict(session.execute("SELECT key, cost FROM spend").fetchall())
    verdicts = dict(stored)
    lost = sum(verdicts.get(request) != verdict for request, verdict in tally.votes.items())
    answered = (tally.first + tally.second) / max(1, tally.requests)
    limited = [f"key-{number}" for number in range(1, _KEYS, 2)]
    over = {name: (spent.get(name, 0.0) / limit - 1, provider.counts[name] / limit - 1) for name in limited}
    worst, asked = (max(one[place] for one in over.values()) for place in (0, 1))
    tries = f"{tally.second:,} at the second try, {tally.limited:,} of them a limit that was reached"
    spend = f"{max(worst, 0.0):.2%} in the database, {max(asked, 0.0):.2%} by what the provider was asked"
    rows = [
        ["processes killed with -9", ", ".join(f"{count} of {name}" for name, count in tally.kills.items()), ""],
        ["requests answered to a client that tries twice", f"{answered:.3%} of {tally.requests:,} ({tries})", "99.9 %"],
        [
            "votes that were acknowledged and lost",
            f"{lost} of {len(tally.votes):,} ({tally.pending:,} given while PostgreSQL was gone)",
            "0",
        ],
        ["votes stored twice", f"{len(stored) - len(verdicts)}", "0"],
        [f"spend over the limit of {limit:g}, worst of {len(over)} keys", spend, "1 %"],
    ]
    print(f"{table(['', 'in the run', 'aim'], rows)}\n")
    print(f"requests not answered: {dict(tally.failed)}; votes not acknowledged: {tally.unacknowledged}")
    bars = {
        "no acknowledged vote lost": lost == 0,
        "none twice": len(stored) == len(verdicts),
        "spend at most 1 % over": worst <= 0.01,
        "99.9 % answered": answered >= 0.999,
    }
    print("; ".join(f"{bar}: {'yes' if met else 'NO'}" for bar, met in bars.items()))
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    run(main)
