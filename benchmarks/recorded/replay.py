"""A router over a stand-in provider, through which recorded answers and requests are played."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from asyncio import ensure_future, sleep
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import yaml

from benchmarks.recorded import telling
from benchmarks.recorded.telling import Telling, events_of
from benchmarks.recorded.traffic import JSON, KINDS, Exchange, StandIn, standing_in
from p2l.common.access import digest_of
from route.application.app import build_app
from route.application.service import Service
from route.application.settings import Settings
from route.config import load_config

KEY = "recorded-key"
_QUESTION = "What is the weather in Paris?"
_FUNCTION = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass(frozen=True)
class ClientDialect:
    """A protocol that clients of the router speak."""

    path: str
    question: JSON
    """A plain request."""
    whole: Callable[[JSON], Telling]
    streamed: Callable[[Sequence[JSON]], Telling]


DIALECTS: Mapping[str, ClientDialect] = {
    "chat": ClientDialect(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": _QUESTION}], "stream_options": {"include_usage": True}},
        telling.told_by_chat,
        telling.told_by_chat_stream,
    ),
    "messages": ClientDialect(
        "/v1/messages",
        {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 4096},
        telling.told_by_message,
        lambda events: telling.told_by_message(telling.message_of_events(events)),
    ),
    "responses": ClientDialect(
        "/v1/responses",
        {"input": _QUESTION},
        telling.told_by_response,
        lambda events: telling.told_by_response(telling.response_of_events(events)),
    ),
}
NATIVE: Mapping[str, str] = {"openai-chat": "chat", "anthropic": "messages", "openai-responses": "responses"}
"""The client dialect that is a recorded protocol itself."""


@dataclass
class Replay:
    """A router that runs, and the stand-in behind it."""

    url: str
    stand_in: StandIn
    http: aiohttp.ClientSession

    async def post(self, path: str, body: JSON, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and text of an answer."""
        sent = {"authorization": f"Bearer {KEY}", **headers}
        async with self.http.post(f"{self.url}{path}", json=body, headers=sent) as response:
            return response.status, response.headers, await response.text()

    async def told(self, exchange: Exchange, dialect: ClientDialect, *, stream: bool) -> Telling:
        """Return what a client is told of a recorded answer; raise ValueError with the error that it got instead."""
        self.stand_in.exchange = exchange
        body = {**dialect.question, "direct_model": exchange.kind, "stream": stream}
        if not stream:
            body.pop("stream_options", None)
        status, _, text = await self.post(dialect.path, body, {})
        if status != 200:
            raise ValueError(f"{status} {text[:300]}")
        if not stream:
            return dialect.whole(json.loads(text))
        events = list(events_of(text))
        faults = ("error", "response.failed")
        broken = next((event for event in events if event.get("error") or event.get("type") in faults), None)
        if broken is not None:
            raise ValueError(json.dumps(broken)[:300])
        return dialect.streamed(events)

    async def passed(
        self, exchange: Exchange, model: str, answer: Exchange | None = None
    ) -> tuple[int, str, JSON, Mapping[str, str]]:
        """Send a recorded request to a model; return the status, an error, what the provider got, and headers.

        The provider gives the recorded answer, or another one.
        """
        self.stand_in.exchange = answer or exchange
        self.stand_in.received.clear()
        dialect = DIALECTS[NATIVE[exchange.kind]]
        status, headers, text = await self.post(
            dialect.path, {**exchange.request, "direct_model": model}, exchange.headers
        )
        received = self.stand_in.received[-1].body if self.stand_in.received else {}
        return status, "" if status == 200 else text, received, headers


@contextlib.asynccontextmanager
async def routing(folder: Path, config: Mapping[str, Any], endpoint: str) -> AsyncIterator[tuple[str, Service]]:
    """Run a router in this process, with `endpoint` as its P2L; give its address and its parts."""
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    settings = Settings(
        config=str(path),
        router_type="grk-endpoint",
        cost_optimizer="strict",
        router_model_endpoint=endpoint,
        api_keys=(digest_of(KEY),),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = build_app(load_config(path), settings)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=2))
        task = ensure_future(server.serve(sockets=[listener]))
        while not server.started and not task.done():
            await sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.live.service
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def replaying() -> AsyncIterator[Replay]:
    """Run a router in this process with one model for each recorded protocol, all of them the stand-in."""
    kinds = tuple(KINDS)
    async with contextlib.AsyncExitStack() as stack:
        stand_in = await stack.enter_async_context(standing_in(kinds))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models: dict[str, dict[str, Any]] = {}
        for kind in kinds:
            base_url = f"{stand_in.url}/{kind}" + ("/v1" if KINDS[kind].startswith("openai") else "")
            models[kind] = {"name": "m-1", "type": KINDS[kind], "base_url": base_url, "api_key": "upstream", "cost": 1}
        config = {"model_configs": models, "max_attempts": 1, "retry_seconds": 0, "breaker": {"failures": 1_000_000}}
        url, _ = await stack.enter_async_context(routing(folder, config, stand_in.url))
        yield Replay(url, stand_in, await stack.enter_async_context(aiohttp.ClientSession()))


SET_BY_ROUTING = frozenset({"model", "stream", "stream_options", "direct_model"})
"""Fields of a request that routing sets."""


def differences(sent: JSON, received: JSON) -> list[str]:
    """Return the fields in which a received request differs from what the client sent, but for `SET_BY_ROUTING`."""
    names = [*sent, *(name for name in received if name not in sent)]
    return [name for name in names if name not in SET_BY_ROUTING and sent.get(name) != received.get(name)]
