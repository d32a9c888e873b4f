"""Recorded interactions with providers, and a stand-in provider that answers as a recorded one did."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import web

JSON: TypeAlias = dict[str, Any]
KINDS: Mapping[str, str] = {
    "openai-chat": "openai",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "bedrock": "bedrock",
    "cohere": "cohere",
}
"""Recorded protocols, and the type of a model that speaks each."""
_MAX_BODY_BYTES = 2**25


@dataclass(frozen=True)
class Exchange:
    """One request of a client, and the provider's answer."""

    name: str
    kind: str
    path: str
    request: JSON
    status: int
    content_type: str
    response: JSON | str
    """A JSON object, or the text of an event stream."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        """Return whether the answer is a stream of events."""
        return "event-stream" in self.content_type

    @property
    def text(self) -> bytes:
        """Return the body of the answer."""
        text = self.response if isinstance(self.response, str) else json.dumps(self.response)
        return text.encode("utf-8", "surrogatepass")

    @property
    def answer(self) -> JSON:
        """Return the whole answer as an object."""
        return json.loads(self.response) if isinstance(self.response, str) else self.response


_ANSWER_PATHS = ("/chat/completions", "/messages", "/responses", ":generateContent", "/converse", "/chat")


def read_exchanges(folder: Path, kind: str) -> Iterator[Exchange]:
    """Yield the recorded questions to models of one protocol; embeddings, counts and other paths are left out."""
    path = folder / f"{kind}.jsonl.gz"
    if not path.exists():
        path = folder / f"{kind}.jsonl"
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if not row["path"].endswith(_ANSWER_PATHS):
                continue
            request = row["request"]
            yield Exchange(
                name=f"{row['cassette']}#{row['index']}",
                kind=kind,
                path=row["path"],
                request=json.loads(request) if isinstance(request, str) else request,
                status=row["status"],
                content_type=row["content_type"] or "application/json",
                response=row["response"],
                headers={name: row[name] for name in ("anthropic-beta", "anthropic-version") if row.get(name)},
            )


@dataclass
class Received:
    """One request as it came to the stand-in."""

    path: str
    headers: Mapping[str, str]
    body: JSON


@dataclass
class StandIn:
    """A provider that answers every request with the exchange that is set, and a P2L endpoint beside it."""

    models: tuple[str, ...]
    url: str = ""
    exchange: Exchange | None = None
    received: list[Received] = field(default_factory=list)

    async def _handle(self, request: web.Request) -> web.Response:
        coefs = [float(number) for number, _ in enumerate(self.models)]
        match request.path:
            case "/info":
                return web.json_response({"likelihood": "grk", "revision": "r1"})
            case "/models":
                return web.json_response({"models": list(self.models), "revision": "r1"})
            case "/predict":
                return web.json_response({"coefs": coefs, "eta": 0.0, "truncated": False, "revision": "r1"})
        text = await request.read()
        self.received.append(Received(request.path, request.headers, json.loads(text) if text else {}))
        if self.exchange is None:
            return web.json_response({"error": {"message": "nothing is recorded"}}, status=500)
        media = self.exchange.content_type.partition(";")[0]
        return web.Response(body=self.exchange.text, status=self.exchange.status, content_type=media)


@contextlib.asynccontextmanager
async def standing_in(models: tuple[str, ...]) -> AsyncIterator[StandIn]:
    """Serve a stand-in on the loopback interface; `models` are the names that its P2L endpoint knows."""
    stand_in = StandIn(models)
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", stand_in._handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield stand_in
    finally:
        await runner.cleanup()
