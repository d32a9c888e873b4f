"""Book mixed calls of two replicas against what their provider bills: whole answers, streams, cut streams, failures.

    python -m benchmarks.billing [--calls N]

The provider thinks before its first word, writes several tokens a piece, counts them at the end, and bills what it
has made when a connection closes. Once it keeps a record of each generation, as OpenRouter does; once it keeps none, so
that what is booked of a cut stream is an estimate. Printed are the bill, what the database holds, what the limit of the
key is measured by, and how many calls were estimates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.recorded.replay import routing
from benchmarks.recorded.traffic import standing_in
from benchmarks.tables import table
from route.application.service import Service
from route.observability.logs import LOGGER, RequestRecord

PRICE = {"input": 2.0, "output": 10.0, "cached": 0.5}
_PATH = "/v1/chat/completions"
_HIDDEN_PER_SECOND = 500.0
_WORDS = (" the", " river", " carries", " small", " boats", " under", " bridges", " while", " morning", " turns")


@dataclass
class Call:
    """One call as its provider bills it."""

    prompt: int
    cached: int
    completion: int = 0
    hidden: int = 0
    """Of the completion."""

    @property
    def dollars(self) -> float:
        fresh = self.prompt - self.cached
        return (fresh * PRICE["input"] + self.cached * PRICE["cached"] + self.completion * PRICE["output"]) / 1e6

    def usage(self) -> dict[str, Any]:
        details = {
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.hidden},
        }
        counts = {"prompt_tokens": self.prompt, "completion_tokens": self.completion}
        return {**counts, "total_tokens": self.prompt + self.completion, **details}


@dataclass
class Biller:
    """A provider that thinks, writes several tokens a piece, and bills what it has made when the connection closes."""

    draw: random.Random
    has_records: bool = False
    record_misses: int = 1
    """Looks at a record before it is there."""
    calls: dict[str, Call] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post(_PATH, self.complete)
        app.router.add_get("/v1/generation", self.record)
        return app

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        identifier = f"gen-{len(self.calls)}"
        if self.draw.random() < 0.1:
            return web.json_response({"error": {"message": "no"}}, status=500)
        prompt = 8 + math.ceil(len(body["messages"][0]["content"]) / 3.7)
        call = self.calls[identifier] = Call(prompt, self.draw.choice((0, prompt // 2)))
        frame = {"id": identifier, "model": "m-1", "created": 1}
        call.hidden = hidden = self.draw.choice((0, 0, 40, 160))
        pieces = [
            "".join(self.draw.choices(_WORDS, k=self.draw.randint(1, 3))) for _ in range(self.draw.randint(4, 40))
        ]
        if not body.get("stream"):
            call.completion = hidden + sum(piece.count(" ") for piece in pieces)
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(pieces)}, "finish_reason": "stop"}
            return web.json_response({**frame, "choices": [choice], "usage": call.usage()})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(hidden / _HIDDEN_PER_SECOND)
        call.completion = hidden
        for piece in pieces:
            await self._send(response, {**frame, "choices": [{"index": 0, "delta": {"content": piece}}]})
            call.completion += piece.count(" ")
            await asyncio.sleep(0.002)
        await self._send(response, {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        await self._send(response, {**frame, "choices": [], "usage": call.usage()})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

    async def record(self, request: web.Request) -> web.Response:
        identifier = request.query["id"]
        self.looks[identifier] = self.looks.get(identifier, 0) + 1
        if not self.has_records or self.looks[identifier] <= self.record_misses:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        call = self.calls[identifier]
        tokens = {"native_tokens_prompt": call.prompt, "native_tokens_completion": call.completion}
        told = {"id": identifier, "model": "m-1", "total_cost": call.dollars, "native_tokens_cached": call.cached}
        return web.json_response({"data": {**told, **tokens, "cancelled": True}})


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on the loopback interface; give its address."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class Replica:
    """One router of several over one database."""

    url: str
    service: Service
    http: aiohttp.ClientSession

    async def ask(self, kind: str, pieces: int, words: int) -> None:
        """Send one request, `whole`, `stream` or `cut`; of a stream that is cut so many pieces are read."""
        text = "".join(_WORDS[number % len(_WORDS)] for number in range(words))
        body = {"messages": [{"role": "user", "content": text}], "stream": kind != "whole", "max_tokens": 2000}
        headers = {"authorization": "Bearer k"}
        async with self.http.post(f"{self.url}{_PATH}", json=body, headers=headers) as response:
            if kind != "cut":
                await response.read()
                return
            for _ in range(pieces):
                await response.content.readline()
            response.close()

    async def settle(self) -> None:
        """Wait until all calls are booked, and write them to the database."""
        ledger = self.service.ledger
        while self.service.finishing or ledger._in_flight["k"]:
            await asyncio.sleep(0.05)
        await self.service.database.flush()


@contextlib.asynccontextmanager
async def replicas(folder: Path, biller: Biller, number: int) -> AsyncIterator[list[Replica]]:
    """Run routers over one database whose only model is this provider."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(biller.application()))
        endpoint = await stack.enter_async_context(standing_in(("only",)))
        kind = "openrouter" if biller.has_records else "openai"
        model = {"name": "m-1", "type": kind, "base_url": f"{url}/v1", "api_key": "k", "cost": 0.001, "price": PRICE}
        config = {
            "model_configs": {"only": model},
            "keys": [{"key": "k", "name": "k", "spend_per_day": 1e6}],
            "database": str(folder / "books.sqlite"),
            "retry_seconds": 0,
            "breaker": {"failures": 1_000_000},
        }
        started = []
        for place in range(number):
            home = folder / str(place)
            home.mkdir()
            address, service = await stack.enter_async_context(routing(home, config, endpoint.url))
            started.append(Replica(address, service, await stack.enter_async_context(aiohttp.ClientSession())))
        yield started


@dataclass
class Books:
    """What many calls cost, by all who count."""

    calls: int
    billed: float
    ledger: float
    enforced: float
    estimates: int


class _Estimates(logging.Handler):
    """Counts requests whose cost is marked as an estimate."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", None)
        self.number += isinstance(fields, RequestRecord) and fields.cost_is_estimated


async def book(calls: int, *, has_records: bool, seed: int, at_once: int = 8) -> Books:
    """Send mixed calls through two replicas; return what they cost."""
    draw = random.Random(seed)
    biller = Biller(draw, has_records=has_records)
    estimates, places = _Estimates(), asyncio.Semaphore(at_once)
    LOGGER.addHandler(estimates)
    level, LOGGER.level = LOGGER.level, logging.INFO
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with replicas(Path(folder), biller, 2) as routers:
                for words in (10, 400) * 4:  # what a deployment's streams are like is known from the first few
                    for router in routers:
                        await router.ask("stream", 0, words)

                async def ask() -> None:
                    async with places:
                        kind = draw.choices(("whole", "stream", "cut"), (5, 4, 1))[0]
                        with contextlib.suppress(aiohttp.ClientError):
                            await draw.choice(routers).ask(kind, draw.randint(1, 8), draw.randint(5, 800))

                await asyncio.gather(*(ask() for _ in range(calls)))
                return await _counted(biller, routers, estimates)
    finally:
        LOGGER.removeHandler(estimates)
        LOGGER.setLevel(level)


async def _counted(biller: Biller, routers: Sequence[Replica], estimates: _Estimates) -> Books:
    for router in routers:
        await router.settle()
    await asyncio.sleep(0.3)  # until each has read what the other wrote
    for router in routers:
        await router.settle()
    query = "SELECT sum(cost) FROM spend"
    database = routers[0].service.database
    [[spent]] = await database.read(lambda connection: connection.execute(query).fetchall())
    return Books(
        calls=len(biller.calls),
        billed=sum(call.dollars for call in biller.calls.values()),
        ledger=float(spent),
        enforced=routers[0].service.ledger.spent_of("k"),
        estimates=estimates.number,
    )


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls of each of the two (default: 2000)")
    parser.add_argument("--at-once", type=int, default=8, help="calls under way (default: 8)")
    return parser


def main() -> None:
    """Print the table."""
    flags = build_parser().parse_args()
    rows = []
    for has_records in (True, False):
        books = asyncio.run(book(flags.calls, has_records=has_records, seed=1, at_once=flags.at_once))
        told = "usage, and a record of each" if has_records else "usage alone"
        figures = [f"{books.billed:.6f}", f"{books.ledger:.6f}", f"{books.enforced:.6f}"]
        rows.append([told, f"{books.calls:,}", *figures, f"{books.estimates:,}", f"{books.ledger / books.billed:.4f}"])
    print(
        table(["the provider tells", "calls billed", "bill", "ledger", "enforced", "estimates", "ledger / bill"], rows)
    )


if __name__ == "__main__":
    main()
