"""A provider of every protocol that thinks, writes several tokens a piece, and bills what it has made."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web

from benchmarks.billing.wires import WIRES, Call, Wire, is_stream, pieces_of, record_of

WORDS = (" the", " river", " carries", " small", " boats", " under", " bridges", " while", " morning", " turns")
_HIDDEN_PER_SECOND = 500.0
_PIECE_SECONDS = 0.002
_FAILS = 0.05
"""Share of the calls that end in an outage before they begin."""
_BREAKS = 0.02
"""Share of the streams that the provider itself breaks off."""
_PROMPT = re.compile(r"call-(\d+) [^\"]*")
_BYTES_PER_TOKEN = 3.7


@dataclass
class Biller:
    """It bills a stream up to where its connection closes, thoughts among it, and a whole answer in any case."""

    draw: random.Random
    has_records: bool = True
    record_misses: int = 1
    """Looks at a record before it is there."""
    calls: dict[str, Call] = field(default_factory=dict)
    by_request: defaultdict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    looks: dict[str, int] = field(default_factory=dict)

    def application(self) -> web.Application:
        """Return the server: each protocol below its name."""
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/{wire}/{path:.*}", self._record)
        app.router.add_post("/{wire}/{path:.*}", self._complete)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        name, wire = request.match_info["wire"], WIRES[request.match_info["wire"]]
        text = await request.text()
        if request.path.endswith("/responses") and name != "responses":
            return web.json_response({"error": {"message": "there is no such path"}}, status=404)
        if self.draw.random() < _FAILS:
            return web.json_response({"error": {"message": "an outage"}}, status=500)
        call = self._begun(name, text)
        words = itertools.cycle(self.draw.sample(WORDS, len(WORDS)))
        pieces = pieces_of(words, self.draw.randint(4, 24))
        hidden_seconds = call.hidden / _HIDDEN_PER_SECOND
        if not is_stream(request.path, json.loads(text)):
            call.completion = call.hidden + sum(piece.count(" ") for piece in pieces)
            await asyncio.sleep(hidden_seconds + _PIECE_SECONDS * len(pieces))
            return web.json_response(wire.whole(call, "".join(pieces)))
        response = web.StreamResponse(headers={"content-type": wire.media})
        try:
            await response.prepare(request)
            await self._stream(response, wire, call, pieces)
        except ConnectionError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _stream(self, response: web.StreamResponse, wire: Wire, call: Call, pieces: list[str]) -> None:
        breaks_after = self.draw.randrange(len(pieces)) if self.draw.random() < _BREAKS else len(pieces)
        for event in wire.first(call):
            await response.write(wire.framed(event))
        began = time.perf_counter()
        try:
            await asyncio.sleep(call.hidden / _HIDDEN_PER_SECOND)
        finally:  # also where the connection closes before the first word
            call.completion = min(call.hidden, math.ceil((time.perf_counter() - began) * _HIDDEN_PER_SECOND))
        for number, piece in enumerate(pieces):
            if number == breaks_after:
                raise ConnectionError
            call.completion += piece.count(" ")
            await response.write(wire.framed(wire.piece(call, piece)))
            await asyncio.sleep(_PIECE_SECONDS)
        for event in wire.last(call):
            await response.write(wire.framed(event))
        await response.write(wire.end)

    def _begun(self, name: str, text: str) -> Call:
        told = _PROMPT.search(text)
        number = int(told[1]) if told else -1
        prefix = "resp_" if name == "responses" else "gen-"
        prompt = 8 + math.ceil(len(told[0] if told else "") / _BYTES_PER_TOKEN)
        call = Call(f"{prefix}{len(self.calls)}", number, prompt, self.draw.choice((0, prompt // 2)))
        call.hidden = self.draw.choice((0, 0, 40, 160))
        self.calls[call.identifier] = call
        self.by_request[number].append(call)
        return call

    async def _record(self, request: web.Request) -> web.Response:
        identifier = request.query.get("id") or request.path.rpartition("/")[2]
        self.looks[identifier] = self.looks.get(identifier, 0) + 1
        if not self.has_records or self.looks[identifier] <= self.record_misses:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        return web.json_response(record_of(request.match_info["wire"], self.calls[identifier]))

    def bill_of(self, number: int) -> float:
        """Return what is billed for a request, all its attempts together."""
        return sum(call.dollars for call in self.by_request.get(number, ()))

    @property
    def bill(self) -> float:
        """Return what is billed for all."""
        return sum(call.dollars for call in self.calls.values())


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
