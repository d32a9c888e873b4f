"""HTTP/1.1 connections to one provider, each for one request after the other.

A call of a provider is one message each way on a connection that is mostly open already. Its head is the same but for
the length and a few headers, so that it is written by hand, and httptools reads the answer: a general client takes
several times as long for it, which every request of the router would wait for. What is rare (proxies, forms, bodies in
pieces) is left to such a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import cast

import aiohappyeyeballs
import httptools
from multidict import CIMultiDict
from yarl import URL

from p2l.common.errors import ConfigError
from p2l.common.web import time_limit

_KEEP_ALIVE_SECONDS = 30.0
"""Below what most providers keep. Some servers (uvicorn, vLLM) close after 5 s, which is noticed; but a request that
crosses such an end is not sent again here, since it may have been paid for: it is a fault of the connection."""
_MOST_UNREAD_BYTES = 2**18  # beyond which a provider has to wait
_UNPACKED_BYTES = 2**17  # at once, of a compressed answer
_MOST_HEADER_BYTES = 2**16  # also of what arrives without a byte of the body
_MOST_INTERIM_ANSWERS = 20
_OTHER_ADDRESS_SECONDS = 0.25  # after which another address of the host is tried beside the first
_UNPACKABLE = ("gzip", "deflate", "x-gzip")
_GZIP_OR_ZLIB_BITS = 47
_FRAMING = ("content-length", "transfer-encoding")  # which the body alone decides
_TARGET = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class UnreachableError(Exception):
    """No connection could be opened; the message says why, without the address."""


class UnsentError(Exception):
    """The request is none that HTTP can carry; the message names what is at fault, without its value."""


class BrokenError(Exception):
    """The connection ended before the answer did."""


class NotHttpError(Exception):
    """What arrived is no answer of HTTP; the message says what it is."""


class HttpAnswer:
    """An answer that is arriving."""

    def __init__(self, connection: _ProviderConnection) -> None:
        self.status = 0
        self.headers = CIMultiDict[str]()
        self._connection: _ProviderConnection | None = connection
        self._received: deque[bytes] = deque()
        self._unread = 0
        self._packed: zlib._Decompress | None = None
        self._lacks_end = False  # of what is packed
        self._fruitless = 0  # bytes since the last one that was unpacked
        self._is_whole = False
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def content(self) -> HttpAnswer:
        """Return what the body is read from."""
        return self

    @property
    def content_type(self) -> str:
        """Return the media type, without its parameters."""
        return self.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()

    def is_eof(self) -> bool:
        """Return whether all of it has been read."""
        return self._is_whole and not self._received

    async def readany(self) -> bytes:
        """Return what has arrived of the body, at least a byte; nothing at its end."""
        while True:
            while self._received:
                piece = self._received.popleft()
                taken = self._unpacked(self._packed, piece) if self._packed is not None else self._took(piece)
                if taken:
                    return taken
            if self._error is not None:
                raise self._error
            if self._is_whole:
                if self._lacks_end:
                    raise NotHttpError("a compressed body without its end")
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _unpacked(self, packed: zlib._Decompress, piece: bytes) -> bytes:
        if packed.eof:  # another part follows, as gzip may have
            packed = self._packed = zlib.decompressobj(_GZIP_OR_ZLIB_BITS)
        try:
            unpacked = packed.decompress(piece, _UNPACKED_BYTES)
        except zlib.error:
            raise NotHttpError("a compressed body that cannot be read") from None
        rest = packed.unconsumed_tail or packed.unused_data
        if rest:
            self._received.appendleft(rest)
        self._lacks_end = not packed.eof
        consumed = self._took(piece[: len(piece) - len(rest)])
        self._fruitless = 0 if unpacked else self._fruitless + len(consumed)
        if self._fruitless > _MOST_HEADER_BYTES:
            raise NotHttpError("a compressed body that holds nothing")
        return unpacked

    def _took(self, piece: bytes) -> bytes:
        self._unread -= len(piece)
        if self._connection is not None and self._unread <= _MOST_UNREAD_BYTES // 2:
            self._connection.resume()
        return piece

    def set_exception(self, error: BaseException) -> None:
        """Let whoever reads have an error, after what has arrived."""
        self._error = self._error or error
        self._wake()

    def begin(self) -> None:
        """Take over the head."""
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding in _UNPACKABLE:
            self._packed = zlib.decompressobj(_GZIP_OR_ZLIB_BITS)
        elif coding != "identity":
            self.set_exception(NotHttpError(f"a body in {coding[:20]}, which was not asked for"))

    def receive(self, piece: bytes) -> None:
        """Take over a piece of the body; none after an error."""
        if self._error is not None:
            return
        self._received.append(piece)
        self._unread += len(piece)
        if self._connection is not None and self._unread > _MOST_UNREAD_BYTES:
            self._connection.pause()
        self._wake()

    def end(self) -> None:
        """Note that the body is whole."""
        self._is_whole = True
        self._wake()

    def close(self) -> None:
        """Keep the connection for the next request where the answer has been read, else close it."""
        connection, self._connection = self._connection, None  # which has other answers from now on
        if connection is not None:
            connection.release(is_read=self.is_eof())

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _ProviderConnection(asyncio.Protocol):
    """One connection; it reads one answer at a time."""

    def __init__(self, pool: Connections) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._answer: HttpAnswer | None = None
        self._head: asyncio.Future[HttpAnswer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._bodiless_bytes = 0
        """That arrived without a byte of the body: a header or chunk without end, of which the parser tells nothing."""
        self._interim_answers = 0
        self._is_paused = False
        self._may_be_kept = True

    async def ask(self, message: bytes) -> HttpAnswer:
        """Send a request and return its answer, once its head has arrived."""
        if self._timer is not None:
            self._timer.cancel()
        self._parser = httptools.HttpResponseParser(self)
        self._answer = HttpAnswer(self)
        self._header_bytes = self._bodiless_bytes = self._interim_answers = 0
        self._head = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(message)
        try:
            return await self._head
        except BaseException:
            self.abort()
            raise
        finally:
            self._head = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol; likewise the others."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer._is_whole:  # nothing was asked for
            self.abort()
            return
        self._bodiless_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._bodiless_bytes > _MOST_HEADER_BYTES and not self._answer._is_whole:
                raise NotHttpError("too many headers, or too large ones")
        except NotHttpError as error:
            self._fail(error)
        except httptools.HttpParserUpgrade:
            self._fail(NotHttpError("another protocol"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, NotHttpError) else NotHttpError("what is not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_be_kept = False
        self._pool.forget(self)
        answer = self._answer
        if answer is None or answer._is_whole:
            return
        ends_with_connection = "content-length" not in answer.headers and "transfer-encoding" not in answer.headers
        if self._head is None and exc is None and ends_with_connection:
            answer.end()
        else:
            self._fail(BrokenError("the connection ended"))

    def on_message_begin(self) -> None:
        """Begin an answer; what follows is called by the parser, too."""
        if self._answer is None or self._answer.status >= 200:
            raise NotHttpError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEADER_BYTES:
            raise NotHttpError("too many headers, or too large ones")
        assert self._answer is not None
        self._answer.headers.add(name.decode("latin-1"), value.decode("latin-1").strip())

    def on_headers_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        answer.status = self._parser.get_status_code()
        if answer.status < 200:  # an interim answer, which another one follows
            self._interim_answers += 1
            if self._interim_answers > _MOST_INTERIM_ANSWERS:
                raise NotHttpError("interim answers without end")
            answer.headers.clear()
            return
        self._may_be_kept = self._parser.should_keep_alive()
        answer.begin()
        if self._head is not None and not self._head.done():
            self._head.set_result(answer)

    def on_body(self, body: bytes) -> None:
        assert self._answer is not None
        self._bodiless_bytes = 0
        self._answer.receive(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status >= 200:
            self._answer.end()

    def pause(self) -> None:
        """Read nothing more for now."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def release(self, *, is_read: bool) -> None:
        """Take back a connection whose answer is over."""
        if not (is_read and self._may_be_kept):
            self.abort()
            return
        self._answer = None
        self.resume()
        self._timer = asyncio.get_running_loop().call_later(_KEEP_ALIVE_SECONDS, self.abort)
        self._pool.keep(self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._may_be_kept = False
        if self._timer is not None:
            self._timer.cancel()
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: BaseException) -> None:
        self._may_be_kept = False
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        elif self._answer is not None and not self._answer._is_whole:  # what follows a whole answer is not its fault
            self._answer.set_exception(error)


class Connections:
    """The connections to one address."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Open none yet; each request has these headers. Raise ConfigError for one that cannot be sent."""
        address = URL(url)
        self._origin = _origin_of(url)
        try:
            self._headers = _sendable(headers)
        except UnsentError as error:
            raise ConfigError(f"{address.host}: {error}") from None
        self._headers.setdefault("host", address.host_port_subcomponent or "")
        self._all: set[_ProviderConnection] = set()
        self._idle: list[_ProviderConnection] = []
        self._tls: ssl.SSLContext | None = None

    def reaches(self, url: str | URL) -> bool:
        """Return whether an address lies there."""
        return _origin_of(str(url)) == self._origin

    async def request(
        self, method: str, url: str | URL, body: bytes, headers: Mapping[str, str] | None, connect_seconds: float
    ) -> HttpAnswer:
        """Send a request and return its answer, once its head has arrived.

        Raise UnsentError, UnreachableError, BrokenError, NotHttpError or TimeoutError.
        """
        message = self._message(method, url, body, headers)
        connection = self._idle.pop() if self._idle else await self._open(connect_seconds)
        return await connection.ask(message)

    def _message(self, method: str, url: str | URL, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        target = _target_of(url) if isinstance(url, str) else url.raw_path_qs
        if not _TARGET.fullmatch(target):
            raise UnsentError("its address has characters that no request can carry")
        named = {**self._headers, **_sendable(headers)} if headers else self._headers
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        if body or method not in ("GET", "DELETE"):
            lines.append(f"content-length: {len(body)}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body

    async def _open(self, seconds: float) -> _ProviderConnection:
        loop = asyncio.get_running_loop()
        scheme, host, port = self._origin
        tls = None
        if scheme == "https":
            tls = self._tls = self._tls or ssl.create_default_context()
        try:
            with time_limit(seconds, UnreachableError("no connection in time")):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                opened = await aiohappyeyeballs.start_connection(
                    found, happy_eyeballs_delay=_OTHER_ADDRESS_SECONDS, loop=loop
                )
                try:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError:  # the other side has closed it
                    opened.close()
                    raise
                name = host if tls is not None else None
                _, connection = await loop.create_connection(
                    lambda: _ProviderConnection(self), sock=opened, ssl=tls, server_hostname=name
                )
        except ssl.SSLError as error:
            raise UnreachableError(
                f"no encryption ({getattr(error, 'reason', None) or 'the handshake failed'})"
            ) from None
        except OSError as error:
            known = error.errno if error.errno in errno.errorcode else None
            reason = error.strerror or "no connection"
            raise UnreachableError(reason if known is None else os.strerror(known)) from None
        self._all.add(connection)
        return connection

    def keep(self, connection: _ProviderConnection) -> None:
        """Keep a connection for the next request."""
        self._idle.append(connection)

    def forget(self, connection: _ProviderConnection) -> None:
        """Keep a connection no longer, since it ends."""
        self._all.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all of them."""
        for connection in list(self._all):
            connection.abort()


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with their names in small letters. Raise UnsentError for one that a request cannot have."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _FRAMING:
            raise UnsentError(f"a request cannot have the header {name[:80]!r}")
        if not _VALUE.fullmatch(value):
            raise UnsentError(f"the header {name} has characters that HTTP cannot carry")
    return {name.lower(): value for name, value in headers.items()}


@lru_cache(maxsize=256)
def _origin_of(url: str) -> tuple[str, str | None, int | None]:
    address = URL(url)
    return address.scheme, address.raw_host, address.port


@lru_cache(maxsize=256)
def _target_of(url: str) -> str:
    return URL(url).raw_path_qs
