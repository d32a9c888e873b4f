"""A mock provider as a server: OpenAI's chat completions over HTTP, and the misbehaviour that only a wire has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncGenerator

from aiohttp import web

from route.providers.base import JSON
from route.providers.chunks import asks_for_usage, chunk, completion
from route.providers.mock_script import Mock, Script, Trouble, refusal_body

__all__ = ["application", "running", "serve"]

_FOR_EVER = 3600.0  # seconds; longer than any client waits


def application(mock: Mock) -> web.Application:
    """The server's application: POST /v1/chat/completions."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body: JSON = json.loads(await request.read())
        trouble = mock.next_trouble(body)
        refused = refusal_body(trouble)
        if refused is not None:
            status, headers, text = refused
            return web.json_response(text, status=status, headers=headers)
        await _wait_for_first_token(request, mock.script, trouble)
        return await (_stream if body.get("stream") else _whole)(request, body, mock, trouble)

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", complete)
    return app


async def _wait_for_first_token(request: web.Request, script: Script, trouble: Trouble) -> None:
    if trouble.name == "reset":
        _abort(request)
    seconds = script.latency
    if trouble.name == "silence":
        seconds = _FOR_EVER
    if trouble.name == "slow":
        seconds += _FOR_EVER if trouble.number is None else trouble.number
    if seconds:
        await asyncio.sleep(seconds)


async def _whole(request: web.Request, body: JSON, mock: Mock, trouble: Trouble) -> web.StreamResponse:
    if mock.script.token_seconds:
        await asyncio.sleep(mock.script.token_seconds * len(mock.pieces))
    if trouble.name == "stall":
        await asyncio.sleep(_FOR_EVER)
    message = {"role": "assistant", "content": "".join(mock.pieces), "refusal": None}
    text = json.dumps(completion(str(body.get("model")), message, "stop", mock.usage(body))).encode()
    if trouble.name == "malformed":
        text = text[: len(text) // 2]
    if trouble.name == "cut":
        await _cut(request, text)
    return web.Response(body=text, content_type="application/json")


async def _cut(request: web.Request, text: bytes) -> None:
    response = web.StreamResponse(headers={"Content-Length": str(len(text)), "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(text[: len(text) // 2])
    _abort(request)


async def _stream(request: web.Request, body: JSON, mock: Mock, trouble: Trouble) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    frame = completion(str(body.get("model")), {}, "stop", mock.usage(body))
    counts = frame.pop("usage")
    await response.write(_event(chunk(frame, {"role": "assistant", "content": ""})))
    for number, piece in enumerate(mock.pieces):
        if number == len(mock.pieces) // 2:
            await _go_wrong(request, response, trouble)
        if number and mock.script.token_seconds:
            await asyncio.sleep(mock.script.token_seconds)
        await response.write(_event(chunk(frame, {"content": piece})))
    if trouble.name == "no-done":
        return response
    await response.write(_event(chunk(frame, {}, "stop")))
    if asks_for_usage(body):
        await response.write(_event({**chunk(frame, {}), "choices": [], "usage": counts}))
    await response.write(b"data: [DONE]\n\n")
    return response


async def _go_wrong(request: web.Request, response: web.StreamResponse, trouble: Trouble) -> None:
    if trouble.name == "cut":
        _abort(request)
    elif trouble.name == "stall":
        await asyncio.sleep(_FOR_EVER)
    elif trouble.name == "malformed":
        await response.write(b'data: {"choices": [{"index": 0, "del\n\n')


def _abort(request: web.Request) -> None:
    """End the connection with a reset, and this handler with it."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


def _event(body: JSON) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def running(mock: Mock, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str, None]:
    """Serve while the block runs; gives the base URL."""
    runner = web.AppRunner(application(mock), access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def serve(script: Script, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, and print the base URL."""
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with running(Mock(script), host, port) as url:
        print(f"mock provider at {url}", flush=True)
        await stop.wait()
