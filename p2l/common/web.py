"""Limits of a request: its size, its time, and a client that is still there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.common.errors import ConfigError

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was there."""


class BodyLimit:
    """Middleware: answers 413 to a body beyond `max_bytes`, 408 to one that is not there after `seconds`.

    The rest of such a body is not read.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        """Wrap `app`."""
        self.app = app
        self.max_bytes = max_bytes
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on while its body stays within the limit."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.max_bytes:
            problem = self._problem()
            response = JSONResponse({"detail": problem.detail}, problem.status_code, problem.headers)
            await response(scope, receive, send)
        else:
            await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0
        whole = False
        until = time.monotonic() + self.seconds

        async def counted() -> Message:
            nonlocal seen, whole
            # Nothing more than the end of the connection comes after the body, and that may take any time.
            message = await receive() if whole else await _before(until, receive)
            if message is None:
                text = f"the body of the request was not there after {self.seconds:g} seconds"
                raise HTTPException(408, text, {"connection": "close"})
            whole = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise self._problem()  # FastAPI lets this kind of error through where it reads the body
            return message

        return counted

    def _problem(self) -> HTTPException:
        text = f"the request is larger than {self.max_bytes / 2**20:g} MiB; send less at once"
        # The rest of the body is never read, so the connection cannot be used again.
        return HTTPException(413, text, {"connection": "close"})


async def _before(until: float, receive: Receive) -> Message | None:
    """The next message; None when it is not there in time."""
    task = asyncio.current_task()
    assert task is not None
    late = False

    def end() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(max(0.0, until - time.monotonic()), end)
    try:
        return await receive()
    except asyncio.CancelledError:
        if not late:
            raise
        if hasattr(task, "uncancel"):  # from Python 3.11
            task.uncancel()
        return None
    finally:
        timer.cancel()


async def within(request: Request, seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when it takes longer, or when the client leaves.

    Raises:
        TimeoutError: it took longer.
        ClientGoneError: the client left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    tasks: list[asyncio.Future[Any]] = [working, leaving]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError if leaving.done() else TimeoutError
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await working


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Who may ask: keys are compared in constant time and are never written anywhere.


def matches(given: bytes | None, digest: str) -> bool:
    """Whether a request's key is the one with this digest, in a time that tells nothing about either."""
    return hmac.compare_digest(hashlib.sha256(given or b"").hexdigest(), digest) and given is not None


def digest_of(key: str) -> str:
    """What is kept of a key: enough to recognise it, too little to use it."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> str:
    """A random key of 256 bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# Where a service listens: refused before anything large is loaded.


def port(text: str) -> int:
    """A port, for `type=` of a flag."""
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, got {number}")
    return number


def check_address(host: str, number: int) -> None:
    """Listen on an address for a moment.

    Raises:
        ConfigError: that cannot be done.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{number}: {error.strerror or error}; choose another --port or --host"
        ) from error
