"""Connections to a provider, against servers that answer byte by byte as they like."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.http import Transport

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
WHOLE = OK + b'content-length: 9\r\n\r\n{"a": 1}\n'
QUICK = Timeouts(connect=5.0, first_token=5.0, total=5.0)


class Server:
    """Sends the next script to each request: pieces one after the other, `b""` closes the connection."""

    def __init__(self, *scripts: Sequence[bytes]) -> None:
        self.scripts = list(scripts)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.bodies.append(await reader.readexactly(int(length or 0)))
                for piece in self.scripts.pop(0):
                    if not piece:
                        writer.write_eof()
                        await reader.read()  # until the client has closed its side too
                        raise ConnectionError
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.closed.set()


@contextlib.asynccontextmanager
async def asking(
    *scripts: Sequence[bytes], path: str = "/v1", headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[Transport, Server]]:
    server = Server(*scripts)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
    transport = Transport(Account(server.url, "secret-key-0123456789", headers or {}))
    try:
        yield transport, server
    finally:
        await transport.close()
        listening.close()
        await asyncio.gather(*server.tasks)


async def ask(transport: Transport, server: Server, headers: dict[str, str] | None = None) -> JSON:
    return await transport.answer(f"{server.url}/chat", {"q": 1}, QUICK, headers)


def packed(body: bytes) -> bytes:
    return OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


@pytest.mark.parametrize(
    "script",
    [
        [WHOLE],
        [WHOLE[:10], WHOLE[10:60], WHOLE[60:]],
        [OK + b"transfer-encoding: chunked\r\n\r\n" + chunked(b'{"a"', b": 1}")],
        [OK + b"\r\n", b'{"a": ', b"1}", b""],  # its end is that of the connection
        [b"HTTP/1.1 100 Continue\r\n\r\n", WHOLE],
        [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + WHOLE],
        [packed(gzip.compress(b'{"a": 1}'))],
        [packed(gzip.compress(b'{"a"') + gzip.compress(b": 1}"))],
        [b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + WHOLE],
        [b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}', b""],
    ],
)
def test_an_answer_is_read_however_it_comes(script: list[bytes]) -> None:
    async def main() -> None:
        async with asking(script, [WHOLE]) as (transport, server):
            assert await ask(transport, server) == {"a": 1}
            assert await ask(transport, server) == {"a": 1}, "and the next one, on this connection or another"
            assert server.bodies == [b'{"q":1}'] * 2

    asyncio.run(main())


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def main() -> None:
        async with asking(*[[WHOLE]] * 5) as (transport, server):
            for _ in range(3):
                await ask(transport, server)
            assert server.connections == 1
            await asyncio.gather(ask(transport, server), ask(transport, server))
            assert server.connections == 2
            head = server.heads[0].decode()
            assert head.startswith("POST /v1/chat HTTP/1.1\r\n")
            assert "\r\nauthorization: Bearer secret-key-0123456789\r\n" in head
            assert f"\r\nhost: {server.url.split('/')[2]}\r\n" in head

    asyncio.run(main())


def test_a_connection_that_the_provider_closed_meanwhile_is_not_used_again() -> None:
    async def main() -> None:
        async with asking([WHOLE, b""], [WHOLE]) as (transport, server):
            await ask(transport, server)
            await server.closed.wait()
            assert await ask(transport, server) == {"a": 1}
            assert server.connections == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ([b""], Fault.CONNECTION),
        ([WHOLE[:30], b""], Fault.CONNECTION),
        ([WHOLE[:-3], b""], Fault.CONNECTION),
        ([OK + b"transfer-encoding: chunked\r\n\r\n5\r\n{", b""], Fault.CONNECTION),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], Fault.MALFORMED),
        ([OK + b"x: " + b"y" * 100_000 + b"\r\n\r\n"], Fault.MALFORMED),
        ([OK + b"x: " + b"y" * 65_536] + [b"y" * 65_536] * 3, Fault.MALFORMED),
        ([OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 65_536] + [b"y" * 65_536] * 3, Fault.MALFORMED),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + WHOLE], Fault.MALFORMED),
        ([OK + b"content-encoding: br\r\ncontent-length: 2\r\n\r\nab"], Fault.MALFORMED),
        ([OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nab"], Fault.MALFORMED),
        ([packed(gzip.compress(b'{"a": 1}')[:-5])], Fault.MALFORMED),
        ([packed(gzip.compress(b'{"a": 1}') + b"more")], Fault.MALFORMED),
        ([packed(gzip.compress(b'{"a": 1}') + gzip.compress(b"") * 5_000)], Fault.MALFORMED),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], Fault.MALFORMED),
    ],
)
def test_what_is_no_answer_is_a_fault(script: list[bytes], fault: Fault) -> None:
    async def main() -> None:
        async with asking(script, [WHOLE]) as (transport, server):
            with pytest.raises(ProviderError) as caught:
                await ask(transport, server)
            assert caught.value.fault is fault
            assert "secret" not in str(caught.value)
            assert await ask(transport, server) == {"a": 1}, "the next request has a connection of its own"

    asyncio.run(main())


def test_a_compressed_answer_may_come_in_single_bytes() -> None:
    async def main() -> None:
        body = gzip.compress(b'{"a": "%s"}' % (b"x" * 5000))
        padded = gzip.compress(b"") * 200 + body  # parts that hold nothing
        head = OK + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
        async with asking([head + chunked(*(padded[i : i + 1] for i in range(len(padded))))]) as (transport, server):
            assert await ask(transport, server) == {"a": "x" * 5000}

    asyncio.run(main())


def test_a_whole_answer_counts_whatever_follows_it() -> None:
    async def main() -> None:
        other = OK + b'content-length: 10\r\n\r\n{"b": "x"}'
        async with asking([WHOLE + other], [WHOLE], [WHOLE + b"junk"], [WHOLE]) as (transport, server):
            for _ in range(4):
                assert await ask(transport, server) == {"a": 1}
            assert server.connections == 3, "what nobody asked for reaches no later request"

    asyncio.run(main())


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 50\r\n\r\n{",
        b"content-encoding: br\r\ncontent-length: 2\r\n\r\nab",
        b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nab",
    ],
)
def test_a_refusal_counts_where_its_body_cannot_be_read(rest: bytes) -> None:
    async def main() -> None:
        head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\n"
        async with asking([head + rest, b""]) as (transport, server):
            with pytest.raises(ProviderError) as caught:
                await ask(transport, server)
            assert caught.value.fault is Fault.RATE_LIMIT
            assert caught.value.retry_after == 7

    asyncio.run(main())


def test_a_stream_that_breaks_after_its_last_event_is_whole() -> None:
    async def main() -> None:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        events = b"data: {}\n\ndata: [DONE]\n\n"
        async with asking([head + b"%x\r\n%s\r\n" % (len(events), events), b""]) as (transport, server):
            received = [event.data async for event in transport.events(f"{server.url}/chat", {}, QUICK)]
            assert received == [b"{}", b"[DONE]"]
            await server.closed.wait()
        gc.collect()  # a task whose error nobody asked for tells it when it is gone
        assert unheard == []

    asyncio.run(main())


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\0b", "Grün €"])
def test_a_header_that_http_cannot_carry_is_not_sent(value: str) -> None:
    async def main() -> None:
        async with asking([WHOLE]) as (transport, server):
            with pytest.raises(ProviderError, match="was not asked: the header anthropic-beta") as caught:
                await ask(transport, server, {"anthropic-beta": value})
            assert caught.value.fault is Fault.REQUEST
            assert value not in str(caught.value)
            assert server.connections == 0
        with pytest.raises(ConfigError, match="x-own") as refused:
            Transport(Account("http://127.0.0.1:1", None, {"x-own": value}))
        assert value not in str(refused.value)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "x own"])
def test_an_account_cannot_have_a_header_that_ends_the_body(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        Transport(Account("http://127.0.0.1:1", None, {name: "5"}))


def test_an_account_may_name_the_host() -> None:
    async def main() -> None:
        async with asking([WHOLE], headers={"Host": "models.example"}) as (transport, server):
            await ask(transport, server)
            assert server.heads[0].lower().count(b"\r\nhost: ") == 1
            assert b"\r\nhost: models.example\r\n" in server.heads[0]

    asyncio.run(main())


def test_a_socket_that_cannot_be_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []

    def refuse(self: socket.socket, *_: object) -> None:
        opened.append(self)
        raise OSError(errno.EINVAL, "Invalid argument")

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            monkeypatch.setattr(socket.socket, "setsockopt", refuse)
            transport = Transport(Account(url, None))
            with pytest.raises(ProviderError, match="cannot be reached: Invalid argument"):
                await transport.answer(url, {}, QUICK)
            assert [one.fileno() for one in opened] == [-1]
            await transport.close()

    asyncio.run(main())


def test_a_handshake_that_fails_without_a_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, sock: socket.socket, **__: object) -> None:
        sock.close()
        raise ssl.SSLError

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"https://127.0.0.1:{listening.getsockname()[1]}"
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
            transport = Transport(Account(url, None))
            with pytest.raises(ProviderError, match=r"no encryption \(the handshake failed\)"):
                await transport.answer(url, {}, QUICK)
            await transport.close()

    asyncio.run(main())


def test_names_beyond_ascii_are_escaped_in_the_path() -> None:
    async def main() -> None:
        async with asking([WHOLE], path="/größe") as (transport, server):
            await ask(transport, server)
            assert server.heads[0].startswith(b"POST /gr%C3%B6%C3%9Fe/chat HTTP/1.1\r\n")

    asyncio.run(main())


def test_a_provider_waits_until_what_it_sent_is_read() -> None:
    async def main() -> None:
        sent, ended = 0, asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(2000):
                    writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                    await writer.drain()
                    sent += 65536
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            writer.close()
            ended.set()

        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        transport = Transport(Account(url, None))
        forwarded = await transport.forward(url, b"", "application/json", replace(QUICK, max_bytes=2**28, total=60.0))
        received = len(await anext(forwarded.chunks))
        for _ in range(10_000):  # turns of the loop, in which an unhindered server would send all of it
            await asyncio.sleep(0)
        assert sent < 100 * 2**20
        async for piece in forwarded.chunks:
            received += len(piece)
        assert received == 2000 * 65536
        await transport.close()
        await ended.wait()
        listening.close()

    asyncio.run(main())
