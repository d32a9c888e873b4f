"""Limits of a request: its size, its time, and a client that is still there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyLimit", "ClientGoneError", "within"]

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was there."""


class BodyLimit:
    """Middleware: answers 413 to a body beyond `max_bytes`, without reading the rest of it."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        """Wrap `app`."""
        self.app = app
        self.max_bytes = max_bytes

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

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise self._problem()  # FastAPI lets this kind of error through where it reads the body
            return message

        return counted

    def _problem(self) -> HTTPException:
        text = f"the request is larger than {self.max_bytes / 2**20:g} MiB; send less at once"
        # The rest of the body is never read, so the connection cannot be used again.
        return HTTPException(413, text, {"connection": "close"})


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
