"""Answers without end, or far larger than they look: they end at a number of bytes, and another model is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import zlib
from pathlib import Path

import pytest
from aiohttp import web

from route.providers.base import Account, Fault, ProviderError, Timeouts
from route.providers.files import FileTransport
from route.providers.http import Transport
from tests.route.providers.servers import KEY, Handler, answering, chunks, failure, run, serving
from tests.route.router_helpers import a_router, served

SMALL = Timeouts(max_bytes=100_000)
BLOCK = b" " * 65536
EVENT = chunks({"content": "heron"}, finish=None, done=False)[0]


def endless(piece: bytes, content_type: str = "application/json", status: int = 200, start: bytes = b"") -> Handler:
    """Send a piece again and again, after a start, until the client has had enough."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": content_type})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            await response.write(start)
            while True:
                await response.write(piece)
        return response

    return handle


def bomb(content_type: str) -> Handler:
    """Send 256 MiB as 256 KB of gzip, whatever the client accepts."""
    packer = zlib.compressobj(wbits=31)
    block = b" " * 2**20
    packed = b"".join(packer.compress(block) for _ in range(256)) + packer.flush()

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Content-Type": content_type})

    return handle


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("piece", "content_type"),
    [
        (BLOCK, "application/json"),
        (EVENT * 100, "text/event-stream"),
        (b": a comment\n" * 1000, "text/event-stream"),
        (b"data: " + BLOCK, "text/event-stream"),
        (b"data:\n" * 1000, "text/event-stream"),
    ],
)
def test_an_answer_without_end_is_the_providers_fault(stream: bool, piece: bytes, content_type: str) -> None:
    error = failure(endless(piece, content_type), stream=stream, timeouts=SMALL)
    assert error.fault is Fault.MALFORMED
    assert "more than 0.0954 MiB" in str(error)
    assert "max_answer_mb" in str(error)


@pytest.mark.parametrize(("stream", "content_type"), [(False, "application/json"), (True, "text/event-stream")])
def test_a_compressed_answer_is_counted_as_it_unfolds(stream: bool, content_type: str) -> None:
    handler = bomb(content_type)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = failure(handler, stream=stream, timeouts=Timeouts(max_bytes=10_000_000))
    assert (error.fault, "9.54 MiB" in str(error)) == (Fault.MALFORMED, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_without_end_is_still_that_refusal(stream: bool) -> None:
    error = failure(endless(BLOCK, status=401), stream=stream, timeouts=SMALL)
    assert (error.fault, error.status) == (Fault.CREDENTIALS, 401)


def test_what_follows_the_end_of_a_stream_is_not_kept() -> None:
    """The connection is drained for a while, so that it can be used again, and never into memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    handler = endless(BLOCK * 16, "text/event-stream", start=b"".join(chunks({"content": "heron"})))

    async def test() -> None:
        async with serving(handler) as server:
            transport = Transport(Account(server.url, KEY))
            async for _ in transport.events(server.url, {}, Timeouts()):
                pass
            await asyncio.sleep(1.2)
            await transport.close()

    run(test())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


@pytest.mark.parametrize(
    ("piece", "timeouts", "problem"),
    [
        (b"{}\n" * 1000, SMALL, "more than 0.0954 MiB"),
        (BLOCK * 16, Timeouts(max_bytes=2**32), "a line of more than 64 MiB"),
    ],
)
def test_a_download_without_end_leaves_the_file_as_it_was(
    tmp_path: Path, piece: bytes, timeouts: Timeouts, problem: str
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("{}\n")

    async def test() -> None:
        async with serving(endless(piece)) as server:
            transport = FileTransport(Account(server.url, KEY))
            with pytest.raises(ProviderError, match=re.escape(problem)):
                await transport.fetch_file(server.url, path, timeouts)
            await transport.close()

    run(test())
    assert path.read_text() == "{}\n"


@pytest.mark.parametrize("stream", [False, True])
def test_the_router_turns_to_another_model(tmp_path: Path, stream: bool) -> None:
    async def test() -> None:
        piece, content_type = (b": a comment\n" * 1000, "text/event-stream") if stream else (BLOCK, "application/json")
        app = web.Application()
        app.router.add_post("/{path:.*}", endless(piece, content_type))
        async with served(app) as url, a_router(tmp_path, {"good": {"base_url": url}}, max_answer_mb=0.1) as router:
            body = {"messages": [{"role": "user", "content": "hello"}], "stream": stream}
            headers = {"authorization": "Bearer test-key"}
            async with router.http.post(f"{router.url}/v1/chat/completions", json=body, headers=headers) as response:
                text = await response.text()
        assert response.status == 200
        assert "fair" in text
        assert stream or json.loads(text)["choices"][0]["message"]["content"] == "I am fair"

    run(test())


def test_an_answer_within_the_limit_is_whole() -> None:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 50_000}}]}
    error = failure(answering(answer), stream=False, timeouts=Timeouts(max_bytes=10_000))
    assert "more than" in str(error)
