"""HTTP/1.1 on one connection: uvicorn's protocol within the limits of `p2l.common.connections`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http import HTTPStatus
from select import select
from socket import socket
from typing import Any, TypeAlias, cast

import httptools
from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from p2l.common.connections import Connections, State

_errors = logging.getLogger("uvicorn.error.connection")
_errors.setLevel(logging.ERROR)  # uvicorn would warn of every faulty request, however many a client sends

# Uvicorn itself bounds neither the time nor the size of headers, nor how many requests a client sends ahead of answers.
_MAX_HEADER_BYTES = 65536
_MAX_HEADERS = 128
_MAX_QUEUED_REQUESTS = 16  # requests that wait for the answer to an earlier one
_MAX_IGNORED_BYTES = 2**20  # bytes after a refusal, while earlier requests are answered
_MAX_JOINED_BYTES = 2**16  # bytes: joining more takes longer than writing them apart
_CONNECTIONS_PER_ACCEPT = 256  # connections at once: some milliseconds
_LAST_SECONDS = 1.0  # a connection stays open at the end of the service, for a request that is on its way
# What may stand in `Host` (RFC 9110, 7.2): a name or an address, and a port; empty where there is no name.
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
_SENTENCES = {
    HTTPStatus.BAD_REQUEST: "this is not an HTTP request that can be read",
    HTTPStatus.REQUEST_TIMEOUT: "the request did not arrive in time",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the address of the request is too long",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the request has too many headers, or too large ones",
    HTTPStatus.SERVICE_UNAVAILABLE: "too many connections are open; try again later",
}

ErrorBody: TypeAlias = Callable[[int, str], dict[str, Any]]  # the body of a service's error, of status and sentence


def detail_body(_status: int, sentence: str) -> dict[str, Any]:
    """Return the body that FastAPI's errors have."""
    return {"detail": sentence}


class _JoinedWrites:
    """A transport that joins writes: the head of an answer with the beginning of its body, later pieces of one turn."""

    # Each write is a system call that wakes the client: a sizeable part of the time that a short answer takes.

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0
        self.has_begun = False  # whether the head of the answer is sent
        # Every request asks for these: a look-up that ends in `__getattr__` takes longer than the call.
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        """Send `data`, joined with the other writes of this turn."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _MAX_JOINED_BYTES or (len(self._pieces) == 2 and not self.has_begun):
            self.flush()

    def flush(self) -> None:
        """Send what was written."""
        if not self._pieces:
            return
        pieces, self._pieces = self._pieces, []
        self.has_begun = True
        is_large, self._size = self._size > _MAX_JOINED_BYTES, 0
        if self.is_closing():  # the client has left since
            return
        if is_large:
            self._transport.writelines(pieces)  # joined they would take twice their memory
        else:
            self._transport.write(b"".join(pieces))

    def close(self) -> None:
        """Send what was written, then close."""
        self.flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._size + self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the transport."""
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends when its client sends nothing, too slowly or too much."""

    def __init__(self, connections: Connections, error_body: ErrorBody = detail_body, **options: Any) -> None:
        """Wait for the connection; `error_body` answers early refusals, `options` are uvicorn's."""
        super().__init__(**options)
        self._app, self.app = self.app, self._in_turn
        self._error_body = error_body
        self.logger = _errors
        self.peer = ""
        self.state = State.BUSY
        self.since = 0.0
        self.unsent = 0
        self._all = connections
        self._is_counted = False
        self._in_message = False
        self._in_head = False
        self._header_bytes = 0
        self._refusal = HTTPStatus.BAD_REQUEST
        self._ignored: int | None = None  # bytes received after a refusal; None before it
        self._is_last = False  # whether the connection ends with the next answer, since the service ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else "a local socket"
        self._joined = _JoinedWrites(transport, self.loop)
        self.transport = cast("asyncio.Transport", self._joined)
        self._is_counted = self._all.admit(self)
        if self._is_counted:
            super().connection_made(self.transport)
            if self._all.are_last:  # it was accepted while the others were told to end
                self.shutdown()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._forget()
        super().connection_lost(exc)
        # Break the circles of references, so that memory is freed before the garbage collector looks for it.
        self.app = self._app
        self.cycle = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if not self._is_counted:
            return
        if self._ignored is not None:
            self._ignored += len(data)
            if self._ignored > _MAX_IGNORED_BYTES:
                self.abort()
            return
        self._all.received_bytes += len(data)
        was_in_head = self._in_head
        self._parse(data)
        # The parser keeps the rest of a header that is not whole yet, and reports none of its bytes.
        if was_in_head and self._in_head:
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES:
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")
        self._note()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = data[offer.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("")
                return
            # Java's client offers another protocol in each request. The parser takes all that follows for that
            # protocol, even the body, and uvicorn would take the body for a request of its own. So the request is
            # parsed again, without the offer in its head.
            version = self.parser.get_http_version().encode()
            lines = [b" ".join((self.parser.get_method(), self.url, b"HTTP/" + version))]
            for name, value in self.headers:
                if name == b"connection":
                    value = b", ".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
                if name != b"upgrade":
                    lines.append(name + b": " + value)
            data = b"\r\n".join(lines) + b"\r\n\r\n" + rest
            self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header, while they are few and small."""
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= _MAX_HEADERS or self._header_bytes > _MAX_HEADER_BYTES:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("too many headers, or too large ones")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one before it."""
        if len(self.url) > _MAX_HEADER_BYTES:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
            raise ValueError("too long an address")
        if len(self.pipeline) >= _MAX_QUEUED_REQUESTS:
            raise ValueError("too many requests ahead of their answers")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("this is not a proxy")
        # A proxy before the service may have gone by the other one, or by none (RFC 9112, 3.2).
        hosts = [value for name, value in self.headers if name == b"host"]
        is_old = self.parser.get_http_version() == "1.0"
        if len(hosts) > 1 or not (hosts or is_old) or (hosts and _HOST.fullmatch(hosts[0]) is None):
            self._refusal = HTTPStatus.BAD_REQUEST
            raise ValueError("a request has one Host")
        if self.parser.should_upgrade():
            return  # it begins when it is parsed again
        self._in_head = False
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """End a request."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_message = False

    def on_response_complete(self) -> None:
        """Turn to the next request."""
        self._joined.flush()
        self._joined.has_begun = False
        super().on_response_complete()
        self._note()
        if self._is_last and not self._answers() and not self.transport.is_closing():
            self.loop.call_later(_LAST_SECONDS, self._end)

    def shutdown(self) -> None:
        """End the connection without breaking a request, since the service ends."""
        self._is_last = True
        self._all.are_last = True
        if not self._answers():
            # A request may be on its way: its client would meet a closed connection.
            self.loop.call_later(_LAST_SECONDS, self._end)
        elif not self.cycle.response_started:
            # The next answer that begins says `Connection: close`, after those to requests that came before.
            self.cycle.keep_alive = False

    def _end(self) -> None:
        # A request with headers that are not whole yet has the usual time for them.
        if not self._answers() and not self._in_message:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse what cannot be read, after the answers to the requests before it."""
        if self._ignored is not None:
            return  # both the parser's error and too long a header report the same bytes
        self._all.report("no request", f"refused what {self.peer} sent with status {self._refusal.value}")
        self._ignored = 0
        if not self._answers():
            self._refuse(self._refusal)
            return
        self.cycle.keep_alive = False
        if not self.cycle.more_body:  # the requests before are whole, and are answered
            return
        # The bytes that cannot be read are the body of the newest request.
        if self.pipeline:
            status = HTTPStatus.BAD_REQUEST
            refusal: Any = JSONResponse(self._error_body(status.value, _SENTENCES[status]), status.value)
            self.pipeline[0] = (self.cycle, refusal)
        elif self.cycle.response_started:
            self.abort()  # a second answer would be taken for a part of the first
        else:
            self.cycle.disconnected = True  # so that the service answers no more
            self.cycle.message_event.set()
            self._refuse(HTTPStatus.BAD_REQUEST)

    def _in_turn(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Answer a request when it is its address's turn, which for most is at once."""
        if self._all.turns.begins(self.loop):
            answer: Awaitable[None] = self._app(scope, receive, send)
            return answer
        return self._after_others(scope, receive, send)

    async def _after_others(self, scope: Any, receive: Any, send: Any) -> None:
        await self._all.turns.take(self.loop, self.peer)
        await self._app(scope, receive, send)

    def expire(self) -> None:
        """See `Connection`."""
        if self._in_message and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        self.transport.close()

    def abort(self) -> None:
        """See `Connection`."""
        self._forget()
        self.transport.abort()

    def _answers(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _note(self) -> None:
        """Tell what the connection waits for now."""
        if not self._is_counted:
            return
        if self.transport.is_closing():
            state = State.CLOSING
        elif self._answers():
            state = State.BODY if self.cycle.more_body else State.BUSY
        else:
            state = State.HEAD if self._in_message or self.cycle is None else State.IDLE
        self._all.move(self, state)

    def _forget(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._all.remove(self)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer with the sentence of a status, and close."""
        body = json.dumps(self._error_body(status.value, _SENTENCES[status])).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


class Arrivals:
    """Makes the protocol of each new connection, and takes what has arrived with it from the system's queue."""

    # The event loop takes one connection a turn: a client behind a thousand connections of another address would wait
    # until each has been set up and has begun a request. Taking a connection is cheap; they are set up address by
    # address.

    def __init__(self, connections: Connections, error_body: ErrorBody = detail_body) -> None:
        """Hand these to every protocol; without listeners it can be pickled, for uvicorn's workers."""
        self._all = connections
        self._error_body = error_body
        self.listeners: list[socket] = []  # copies of the sockets that the event loop listens at
        self._arriving: set[asyncio.Task[None]] = set()

    def __call__(self, **options: Any) -> BoundedProtocol:
        """Return the protocol of a connection; `options` are uvicorn's."""
        # Most connections come alone, and looking whether others wait takes less time than trying to take one.
        waits_at = select(self.listeners, (), (), 0)[0] if self.listeners else ()
        for listener in waits_at:
            make = partial(BoundedProtocol, self._all, self._error_body, **options)
            loop = asyncio.get_running_loop()
            room = min(_CONNECTIONS_PER_ACCEPT, self._all.limits.total - len(self._arriving))
            for connection, peer in waiting_at(listener, room):
                task = loop.create_task(self._set_up(connection, peer, make))
                self._arriving.add(task)
                task.add_done_callback(self._arriving.discard)
        return BoundedProtocol(self._all, self._error_body, **options)

    async def stop(self) -> None:
        """Take no more, and wait until those that were taken are set up."""
        for listener in self.listeners:
            listener.close()
        self.listeners = []
        await asyncio.gather(*self._arriving)

    async def _set_up(self, connection: socket, peer: str, make: Callable[[], BoundedProtocol]) -> None:
        loop = asyncio.get_running_loop()
        await self._all.arrivals.take(loop, peer)
        try:
            await loop.connect_accepted_socket(make, connection)
        except OSError:  # its client has left
            connection.close()


def waiting_at(listener: socket, most: int) -> Iterator[tuple[socket, str]]:
    """Take connections that wait at a socket, with their addresses; the event loop makes them non-blocking."""
    # One system call for each connection: each call lets other threads have the interpreter.
    with contextlib.suppress(OSError):  # BlockingIOError: no other connection waits
        for _ in range(most):
            connection, address = listener.accept()
            yield connection, str(address[0]) if isinstance(address, tuple) else "a local socket"
