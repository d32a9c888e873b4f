"""Connections to a provider, against servers that answer byte by byte as they like."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Sequence

import pytest

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
                        raise ConnectionError
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.closed.set()


@contextlib.asynccontextmanager
async def asking(*scripts: Sequence[bytes], path: str = "/v1") -> AsyncIterator[tuple[Transport, Server]]:
    server = Server(*scripts)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
    transport = Transport(Account(server.url, "secret-key-0123456789"))
    try:
        yield transport, server
    finally:
        await transport.close()
        listening.close()
        await asyncio.gather(*server.tasks)


async def ask(transport: Transport, server: Server, headers: dict[str, str] | None = None) -> JSON:
    return await transport.answer(f"{server.url}/chat", {"q": 1}, QUICK, headers)


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
        [
            OK
            + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(gzip.compress(b'{"a": 1}'))
            + gzip.compress(b'{"a": 1}')
        ],
        [b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}', b""],
    ],
)
def test_an_answer_is_read_however_it_comes(script: list[bytes]) -> None:
    async def main() -> None:
        async with asking(script, [WHOLE]) as (transport, server):
            assert await ask(transport, server) == {"a": 1}
            assert await ask(transport, server) == {"a": 1}, "and the next one, on this connection or another"
            assert server.bodies == [b'{"q": 1}'] * 2

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
            await asyncio.sleep(0.05)
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
        ([OK + b"content-encoding: br\r\ncontent-length: 2\r\n\r\nab"], Fault.MALFORMED),
        ([OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nab"], Fault.MALFORMED),
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


def test_an_answer_that_nobody_asked_for_reaches_no_later_request() -> None:
    async def main() -> None:
        other = OK + b'content-length: 10\r\n\r\n{"b": "x"}'
        async with asking([WHOLE + other], [WHOLE], [WHOLE]) as (transport, server):
            with contextlib.suppress(ProviderError):
                assert await ask(transport, server) == {"a": 1}
            assert await ask(transport, server) == {"a": 1}
            assert await ask(transport, server) == {"a": 1}

    asyncio.run(main())


def test_a_header_with_a_line_of_its_own_is_not_sent() -> None:
    async def main() -> None:
        async with asking([WHOLE]) as (transport, server):
            with pytest.raises(ProviderError):
                await ask(transport, server, {"anthropic-beta": "a\r\nx-evil: 1"})
            assert server.heads == []

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
            writer.close()
            ended.set()

        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        transport = Transport(Account(url, None))
        forwarded = await transport.forward(url, b"", "application/json", QUICK)
        await anext(forwarded.chunks)
        before = -1
        while sent > before:  # until it is held back
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 100 * 2**20
        await forwarded.chunks.aclose()
        await transport.close()
        await ended.wait()
        listening.close()

    asyncio.run(main())
