"""Book mixed calls of two routers against what their providers bill, while clients leave and routers are killed.

    python -m benchmarks.billing [--calls N] [--seconds S] [--every S] [--at-once N]

Providers of every protocol, and cousins of OpenAI's, think before their first word, write several tokens a piece, count
them at the end, and bill what they have made when a connection closes; some calls fail, some streams break off. Clients
speak chat completions, Messages and Responses, ask for whole answers and for streams, and leave a tenth of these. Every
few seconds one router is killed and started again. Both share PostgreSQL and Redis, which must run (`make services`).

Each call whose cost the provider told, by its usage or its record, is held against the bill of that call; the others,
which are marked as estimates, and what a kill left, against the rest of the bill. One key has more than it needs, and
no call of it may be refused; one has too little, and may not spend more nor be refused while it has enough.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from benchmarks.billing.provider import WORDS, Biller, serving
from benchmarks.billing.replicas import Replica, config_of
from benchmarks.billing.wires import KEEPS_RECORDS, WIRES
from benchmarks.recorded.traffic import standing_in
from benchmarks.tables import table

POSTGRES = os.environ.get("P2L_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = os.environ.get("P2L_TEST_REDIS", "redis://127.0.0.1:6379/0")
AMPLE, SCARCE = "ample", "scarce"
_SETTLE_SECONDS = 25.0  # for which a record is looked for at most
_DIALECTS = ("chat", "messages", "responses")
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
_CENT = 0.01


def _body(dialect: str, model: str, text: str, *, stream: bool) -> dict[str, Any]:
    common = {"model": model, "direct_model": model, "stream": stream}
    if dialect == "responses":
        return {**common, "input": text, "max_output_tokens": 400}
    return {**common, "messages": [{"role": "user", "content": text}], "max_tokens": 400}


@dataclass
class Clients:
    """Many clients of several routers."""

    draw: random.Random
    replicas: Sequence[Replica]
    http: aiohttp.ClientSession
    models: Sequence[str]
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: {AMPLE: Counter(), SCARCE: Counter()})
    asked: int = 0

    async def ask(self, kind: str, *, key: str = AMPLE, model: str = "", words: int = 0) -> None:
        """Send one request in any dialect to any model of any router.

        It asks for a `whole` answer or for a `stream`, which it leaves after some lines (`cut`) or, perhaps before the
        first word, after a short time (`gone`).
        """
        number, draw = self.asked, self.draw
        self.asked += 1
        text = f"call-{number} " + "".join(itertools.islice(itertools.cycle(WORDS), words or draw.randint(5, 800)))
        dialect = draw.choice(_DIALECTS)
        body = _body(dialect, model or draw.choice(self.models), text, stream=kind != "whole")
        headers = {"authorization": f"Bearer {key}", "x-p2l-tags": f"call={number}"}
        url = f"{draw.choice(self.replicas).url}{_PATHS[dialect]}"
        lines = draw.randint(0, 24)
        patience = draw.uniform(0.02, 0.4) if kind == "gone" else None
        try:
            async with asyncio.timeout(patience), self.http.post(url, json=body, headers=headers) as response:
                self.statuses[key][str(response.status)] += 1
                if kind != "cut":  # which reads to the end, if it has the time
                    await response.read()
                    return
                for _ in range(lines):
                    await response.content.readline()
                response.close()
        except (aiohttp.ClientError, TimeoutError):
            self.statuses[key]["cut"] += 1


@dataclass
class Books:
    """What many calls cost, by all who count."""

    calls: int
    """That were billed."""
    kills: int
    seconds: float
    billed: float
    ledger: float
    enforced: float
    told: int
    """Requests whose cost the provider told."""
    told_wrongly: int
    """Of these, such as differ from their bill."""
    told_billed: float
    told_booked: float
    estimates: int
    """Requests that are marked as estimates, those that a kill left among them."""
    too_low: Mapping[int, tuple[float, float]]
    """What was booked and billed for requests that are marked as estimates, where that is less than the bill."""
    statuses: Mapping[str, Mapping[str, int]]
    scarce: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Limit, ledger and bill of the key that has too little."""

    @property
    def rest_billed(self) -> float:
        """Return the bill of all that was not told."""
        return self.billed - self.told_billed

    @property
    def rest_booked(self) -> float:
        """Return what was booked for all that was not told."""
        return self.ledger - self.told_booked


@contextlib.asynccontextmanager
async def running(folder: Path, biller: Biller, database: str, limits: str | None) -> AsyncIterator[list[Replica]]:
    """Run two routers over one database whose models are this provider's."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(biller.application()))
        endpoint = await stack.enter_async_context(standing_in(tuple(WIRES)))
        config = config_of(url, database, limits, {AMPLE: 1e5, SCARCE: 0.5})
        replicas = [Replica(folder / f"replica-{number}", endpoint.url) for number in range(2)]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for replica in replicas:
            replica.configure(config)
            replica.start()
            stack.push_async_callback(replica.stop)
        for replica in replicas:
            await replica.wait(http)
        yield replicas


async def book(
    folder: Path,
    calls: int,
    *,
    database: str,
    limits: str | None = None,
    seed: int = 1,
    at_once: int = 32,
    every: float | None = None,
    most_seconds: float = math.inf,
) -> Books:
    """Send mixed calls through two routers, of which one is killed `every` so many seconds; return what they cost."""
    draw = random.Random(seed)
    biller, kills = Biller(draw), 0
    async with running(folder, biller, database, limits) as replicas, aiohttp.ClientSession() as http:
        clients = Clients(draw, replicas, http, tuple(WIRES))

        async def client() -> None:
            while clients.asked < calls and time.perf_counter() - began < most_seconds:
                kind = draw.choices(("whole", "stream", "cut", "gone"), (50, 40, 7, 3))[0]
                await clients.ask(kind, key=draw.choices((AMPLE, SCARCE), (9, 1))[0])

        async def killer() -> None:
            nonlocal kills
            for number in itertools.count():
                await asyncio.sleep(every or 1e9)
                replica = replicas[number % len(replicas)]
                replica.kill()
                kills += 1
                replica.start()
                clients.replicas = [each for each in replicas if each is not replica]
                await replica.wait(http)
                await _warm(clients, [replica])
                clients.replicas = replicas

        await _warm(clients, replicas)
        began = time.perf_counter()
        killing = asyncio.ensure_future(killer())
        await asyncio.gather(*(client() for _ in range(at_once)))
        seconds = time.perf_counter() - began
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        for replica in replicas:
            await replica.wait(http)
        enforced = await _settled(replicas, http)
    return _counted(biller, clients, replicas, enforced, database, kills=kills, seconds=seconds)


async def _warm(clients: Clients, replicas: Sequence[Replica]) -> None:
    """Let routers see some streams of each deployment, by which they estimate others."""
    before, clients.replicas = clients.replicas, replicas
    for words in (10, 400, 10, 400, 10, 400):
        await asyncio.gather(*(clients.ask("stream", model=name, words=words) for name in WIRES))
    clients.replicas = before


async def _settled(replicas: Sequence[Replica], http: aiohttp.ClientSession) -> dict[str, float]:
    """Wait until nothing is booked any more; return by which spend limits are enforced, which is that of all alike."""
    late = time.monotonic() + 2 * _SETTLE_SECONDS
    before: list[dict[str, float]] = []
    quiet_since = time.monotonic()
    while time.monotonic() < late:
        spent = [await replica.spent(http) for replica in replicas]
        if spent != before:
            before, quiet_since = spent, time.monotonic()
        if time.monotonic() - quiet_since > _SETTLE_SECONDS / 3:
            break
        await asyncio.sleep(0.3)
    return {name: max(each[name] for each in before) for name in (AMPLE, SCARCE)}


def _counted(
    biller: Biller,
    clients: Clients,
    replicas: Sequence[Replica],
    enforced: Mapping[str, float],
    database: str,
    *,
    kills: int,
    seconds: float,
) -> Books:
    spent = _spend_in(database)
    told: dict[int, float] = {}
    estimated: dict[int, float] = {}
    estimates = 0
    for line in (line for replica in replicas for line in replica.lines()):
        estimates += bool(line.get("cost_is_estimated"))
        if line.get("event") == "request" and "call" in line.get("tags", {}) and line.get("cost"):
            costs = estimated if line.get("cost_is_estimated") else told
            costs[int(line["tags"]["call"])] = line["cost"]
    bills = {number: biller.bill_of(number) for number in told}
    # The log rounds to six digits.
    wrong = [number for number, cost in told.items() if abs(cost - bills[number]) > 1e-5 * bills[number] + 1e-9]
    for number in wrong[:10]:
        print(f"call {number}: booked {told[number]:.6f}, billed {bills[number]:.6f}", biller.by_request[number])
    too_low = {number: (cost, biller.bill_of(number)) for number, cost in estimated.items()}
    too_low = {number: pair for number, pair in too_low.items() if pair[0] < pair[1] * (1 - 1e-5) - 1e-9}
    for number, (cost, bill) in sorted(too_low.items(), key=lambda entry: entry[1][0] - entry[1][1])[:10]:
        print(f"call {number}: estimated {cost:.6f}, billed {bill:.6f}", biller.by_request[number])
    return Books(
        calls=len(biller.calls),
        kills=kills,
        seconds=seconds,
        billed=biller.bill,
        ledger=sum(spent.values()),
        enforced=sum(enforced.values()),
        told=len(told),
        told_wrongly=len(wrong),
        told_billed=sum(bills.values()),
        told_booked=sum(told.values()),
        estimates=estimates,
        too_low=too_low,
        statuses=clients.statuses,
        scarce=(0.5, spent.get(SCARCE, 0.0), enforced[SCARCE]),
    )


def _spend_in(database: str) -> dict[str, float]:
    """Return what each key has spent, by the database."""
    query = "SELECT key, sum(cost) FROM spend GROUP BY key"
    if database.startswith("postgresql"):
        import psycopg

        with psycopg.connect(database) as session:
            return {str(key): float(cost) for key, cost in session.execute(query).fetchall()}
    import sqlite3

    with contextlib.closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute(query).fetchall())


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="requests of clients (default: 10,000)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="for which they are sent (default: until all are)"
    )
    parser.add_argument("--at-once", type=int, default=32, help="requests under way (default: 32)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills (default: 10)")
    return parser


def main() -> None:
    """Print the tables."""
    import psycopg

    flags = build_parser().parse_args()
    schema = f"billing_{secrets.token_hex(4)}"
    with psycopg.connect(POSTGRES) as session:
        session.execute(f"CREATE SCHEMA {schema}".encode())
    database = f"{POSTGRES}?options={quote(f'-c search_path={schema}')}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            limits = f"{REDIS}?prefix={schema}"
            running_books = book(
                Path(folder),
                flags.calls,
                database=database,
                limits=limits,
                at_once=flags.at_once,
                every=flags.every,
                most_seconds=flags.seconds,
            )
            _show(asyncio.run(running_books))
    finally:
        with psycopg.connect(POSTGRES) as session:
            session.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def _least_share(books: Books) -> float:
    """Return the smallest estimate that is below its bill as a share of that; 1 where none is."""
    return min((cost / bill for cost, bill in books.too_low.values()), default=1.0)


def _show(books: Books) -> None:
    def row(name: str, number: int, billed: float, booked: float, enforced: str = "") -> list[str]:
        ratio = f"{booked / billed:.4f}" if billed else ""
        return [name, f"{number:,}", f"{billed:.6f}", f"{booked:.6f}", enforced, ratio]

    rest = books.calls - books.told
    rows = [
        row("usage told, or a record", books.told, books.told_billed, books.told_booked),
        row("estimates, and what kills left", rest, books.rest_billed, books.rest_booked),
        row("all", books.calls, books.billed, books.ledger, f"{books.enforced:.6f}"),
    ]
    print(table(["calls with", "number", "bill", "ledger", "enforced", "ledger / bill"], rows))
    limit, ledger, enforced = books.scarce
    refused = {key: counts.get("429", 0) for key, counts in books.statuses.items()}
    figures = [
        ["routers killed", f"{books.kills:,}"],
        ["calls a second", f"{books.calls / books.seconds:.0f}"],
        ["told calls that differ from their bill", f"{books.told_wrongly:,}"],
        ["requests marked as estimates", f"{books.estimates:,}"],
        ["of these below their bill", f"{len(books.too_low):,}"],
        ["the least of these, by its bill", f"{_least_share(books):.3f}"],
        ["calls of the ample key that were refused", f"{refused[AMPLE]:,}"],
        ["the scarce key: limit, ledger, enforced", f"{limit:.2f}, {ledger:.6f}, {enforced:.6f}"],
        ["its requests that were refused", f"{refused[SCARCE]:,}"],
        ["records are kept by", ", ".join(KEEPS_RECORDS)],
    ]
    print()
    print(table(["", "figure"], figures))
    print()
    print("statuses: " + "; ".join(f"{key}: {dict(counts)}" for key, counts in books.statuses.items()))


if __name__ == "__main__":
    main()
