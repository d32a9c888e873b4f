"""Servers on the loopback interface that answer as a test tells them to, byte by byte where that matters."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pytest
from aiohttp import web

from route.providers.accounts import make_provider
from route.providers.base import JSON, Account, Fault, Provider, ProviderError, Timeouts

__all__ = [
    "KEY",
    "PATIENT",
    "QUICK",
    "REQUEST",
    "Asked",
    "Piece",
    "Server",
    "answering",
    "asking",
    "chunks",
    "collected",
    "failure",
    "refusing",
    "run",
    "serving",
    "streaming",
]

T = TypeVar("T")
Piece: TypeAlias = bytes | float | str
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEY = "sk-very-secret-key-0123456789"
REQUEST: JSON = {"model": "m-1", "messages": [{"role": "user", "content": "a prompt about herons"}]}
QUICK = Timeouts(first_token=0.15, stall=0.15)
"""Where a time limit has to end the waiting."""
PATIENT = Timeouts()
"""Where no limit may, on a machine that is busy with other things."""


@dataclass
class Asked:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: JSON


@dataclass
class Server:
    """What came, and where to send it."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client left before its answer was complete."""


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(test)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[Server, None]:
    server = Server()

    async def handle(request: web.Request) -> web.StreamResponse:
        text = await request.read()
        server.asked.append(Asked(request.path_qs, request.headers, json.loads(text) if text else {}))
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionResetError):
            server.gone.set()
            raise

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def answering(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Handler:
    """Answer with JSON, or with bytes as they are."""

    async def handle(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=text, status=status, headers=headers, content_type="application/json")

    return handle


def refusing(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **error: object) -> Handler:
    return answering({"error": {"message": message, **error}}, status, headers)


def streaming(*pieces: Piece, content_type: str = "text/event-stream") -> Handler:
    """Send pieces; a number is a pause in seconds, "cut" breaks the connection, "hang" sends nothing more."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        for piece in pieces:
            if isinstance(piece, bytes):
                await response.write(piece)
            elif piece == "cut":
                assert request.transport is not None
                request.transport.abort()
                return response
            else:
                await asyncio.sleep(60 if isinstance(piece, str) else piece)
        return response

    return handle


@contextlib.asynccontextmanager
async def asking(
    handler: Handler, kind: str = "openai", *, path: str = "", options: Mapping[str, Any] | None = None
) -> AsyncGenerator[tuple[Provider, Server], None]:
    """A server, and a provider's client that asks it."""
    async with serving(handler) as server:
        provider = make_provider(kind, Account(server.url + path, KEY, options=options or {}))
        try:
            yield provider, server
        finally:
            await provider.close()


async def collected(provider: Provider, request: JSON, timeouts: Timeouts = PATIENT) -> list[JSON]:
    return [chunk async for chunk in provider.stream(request, timeouts)]


def chunks(*deltas: JSON, finish: str | None = "stop", done: bool = True) -> list[bytes]:
    """The events of a stream in OpenAI's protocol."""
    choices: Sequence[JSON] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if finish:
        choices = [*choices, {"index": 0, "delta": {}, "finish_reason": finish}]
    bodies = [{"id": "c", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]} for choice in choices]
    return [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies] + [b"data: [DONE]\n\n"] * done


def failure(
    handler: Handler, kind: str = "openai", *, stream: bool, request: JSON = REQUEST, timeouts: Timeouts = PATIENT
) -> ProviderError:
    """The error that a client raises against a server."""

    async def test() -> ProviderError:
        async with asking(handler, kind) as (provider, _):
            with pytest.raises(ProviderError) as caught:
                await (collected(provider, request, timeouts) if stream else provider.chat(request, timeouts))
            return caught.value

    error = run(test())
    assert isinstance(error.fault, Fault)
    return error
