"""Nobody waits in silence: signs of life on every dialect, and the deadline of the first token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import HELLO, KEY, Running, a_router, model, served

PING = 0.05
PIECE = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 50},
    "/v1/responses": {"input": "Hello"},
}
SIGNS = {
    "/v1/chat/completions": b": keep-alive\n\n",
    "/v1/messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    "/v1/responses": b": keep-alive\n\n",
}


async def slow_server(pieces: list[tuple[float, bytes]]) -> web.Application:
    """A provider that sends each piece of its stream so many seconds after the one before."""

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for seconds, piece in pieces:
            await asyncio.sleep(seconds)
            await response.write(piece)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stream)
    return app


async def received(router: Running, path: str) -> AsyncIterator[bytes]:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {**BODIES[path], "model": "auto", "stream": True}
    async with router.http.post(f"{router.url}{path}", json=body, headers=headers) as response:
        assert response.status == 200
        async for piece in response.content.iter_any():
            yield piece


async def told(folder: Path, path: str, pieces: list[tuple[float, bytes]], **timeouts: float) -> list[bytes]:
    """Return what a client receives, piece by piece."""
    async with served(await slow_server(pieces)) as url:
        models = {name: model(f"{url}/v1") for name in ("good", "fair", "poor")}
        async with a_router(folder, models, timeouts={"ping": PING, **timeouts}) as router:
            return [piece async for piece in received(router, path)]


@pytest.mark.parametrize("path", BODIES)
def test_a_client_hears_of_a_stream_that_pauses_after_its_first_token(tmp_path: Path, path: str) -> None:
    alive = [(0.04, b": keep-alive\n\n")] * 10
    pieces = asyncio.run(told(tmp_path, path, [(0, PIECE % b"one"), *alive, (0, PIECE % b" two"), (0, END)], stall=0.3))
    text = b"".join(pieces)
    before = text[text.index(b"one") : text.index(b" two")]
    assert before.count(SIGNS[path]) >= 4
    assert b'"error":{' not in text


@pytest.mark.parametrize("path", BODIES)
def test_a_client_hears_of_a_stream_before_its_first_token(tmp_path: Path, path: str) -> None:
    pieces = asyncio.run(told(tmp_path, path, [(0.4, PIECE % b"one"), (0, END)]))
    text = b"".join(pieces)
    assert text.startswith(SIGNS[path] * 3)
    assert b"one" in text


def test_a_fast_stream_has_no_signs_of_life(tmp_path: Path) -> None:
    pieces = asyncio.run(told(tmp_path, "/v1/chat/completions", [(0, PIECE % b"one"), (0, END)], ping=30))
    assert b"keep-alive" not in b"".join(pieces)


def test_signs_of_life_of_a_provider_do_not_put_off_the_first_token(tmp_path: Path) -> None:
    """The role comes at once, and then nothing but comments."""
    role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
    alive = [(0.05, b": keep-alive\n\n")] * 100
    pieces = asyncio.run(
        told(tmp_path, "/v1/chat/completions", [(0, role), *alive, (0, END)], first_token=0.3, ping=0.1, total=1.5)
    )
    text = b"".join(pieces)
    assert b'"error"' in text
    assert b"[DONE]" not in text
