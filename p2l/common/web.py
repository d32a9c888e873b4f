"""Kit of the HTTP services: deadlines of requests, clients that leave, limits of the size and time of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")
_UNHEARD_SECONDS = 0.05  # before a listener notices a client that leaves: most requests are over by then

# A request lives as long as its client is connected and its deadline has not passed. Its task does the work: a timer
# and a listener for the end of the connection cancel that task, so nothing else has to be cleaned up.


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


@dataclass(frozen=True)
class Deadline:
    """The time at which a request has to be over, by the clock of the event loop."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(asyncio.get_running_loop().time() + seconds)

    def left(self) -> float:
        """Return the seconds left; negative once it has passed."""
        return self.at - asyncio.get_running_loop().time()


class _Cancellation:
    """Runs a block in the current task, which is cancelled for a reason; other cancellations stay what they are."""

    # A class, since every request enters some: a generator, or a cancel scope of anyio, takes several times as long.

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = _cancellations(task)
        self._reason: Exception | None = None
        self._is_over = False

    def cancel(self, reason: Exception) -> None:
        """Cancel the task; the first reason counts, and none after the block."""
        # A client that leaves with the last word of the block is heard of in the next turn of the event loop.
        if self._reason is None and not self._is_over:
            self._reason = reason
            self._task.cancel()

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise the reason in place of the cancellation that `cancel` caused."""
        self._is_over = True
        if self._reason is None or not isinstance(error, asyncio.CancelledError):
            return
        if hasattr(self._task, "uncancel"):  # from Python 3.11
            self._task.uncancel()
        if _cancellations(self._task) <= self._before:  # else somebody has cancelled the block around this one
            raise self._reason from None


# The number of requests to end a task; counted from Python 3.11 on.
_cancellations: Callable[[asyncio.Task[Any]], int] = getattr(asyncio.Task, "cancelling", lambda _: 0)


class time_limit(_Cancellation):  # noqa: N801 - in lower case, as the standard library's context managers are
    """Run the block, or raise `late` when it takes longer."""

    def __init__(self, seconds: float, late: Exception) -> None:
        super().__init__()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.cancel, late)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        super().__exit__(kind, error, trace)


class alive(_Cancellation):  # noqa: N801 - likewise
    """Run the block, or raise ClientGoneError soon after the client has left, or `late` at the deadline.

    The body must have been read: what arrives after it can only be the end of the connection.
    """

    def __init__(self, receive: Receive, deadline: Deadline, late: Exception) -> None:
        super().__init__()
        self._receive = receive
        self._deadline = deadline
        self._late = late
        self._listener: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(_UNHEARD_SECONDS, deadline.at - self._loop.time()), self._listen)

    def _listen(self) -> None:
        self._timer = self._loop.call_at(self._deadline.at, self.cancel, self._late)
        self._listener = asyncio.ensure_future(_disconnected(self._receive))
        self._listener.add_done_callback(lambda task: None if task.cancelled() else self.cancel(ClientGoneError()))

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
        self.__exit__(kind, error, trace)


async def within(request: Request, seconds: float, work: Awaitable[T]) -> T:
    """Await `work`; raise TimeoutError after `seconds`, ClientGoneError when the client leaves."""
    async with alive(request.receive, Deadline.after(seconds), TimeoutError()):
        return await work


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Bodies:
    """Bytes of all bodies of the process that are not whole yet."""

    size = 0
    max_bytes = 2**30


def headers_in(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by their names in small letters; of several with one name the first."""
    # Starlette's own object looks through all headers for each that is asked for, and raises an error for most of them.
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Read the body of a request; raise ClientGoneError where the client left while it sent.

    Raise HTTPException 413 for one larger than `max_bytes`, 408 for one that did not arrive within `seconds`, 503 where
    all that arrive together would fill the memory.
    """
    # The rest of a refused body is never read, so the connection cannot be used again.
    close = {"connection": "close"}
    too_large = HTTPException(413, f"the request is larger than {max_bytes / 2**20:g} MiB; send less at once", close)
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        with time_limit(seconds, HTTPException(408, f"the body did not arrive within {seconds:g} seconds", close)):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                _Bodies.size += len(chunks[-1])
                if size > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(chunks)
                if _Bodies.size > _Bodies.max_bytes:
                    text = "too many large requests arrive at once; try again in a moment"
                    raise HTTPException(503, text, {**close, "retry-after": "1"})
    finally:
        _Bodies.size -= size


class BodyLimit:
    """Middleware that reads each body within its limits, and answers 413 or 408 to one that exceeds them."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        """Wrap `app`."""
        self.app = app
        self.max_bytes = max_bytes
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await read_body(Headers(scope=scope), receive, self.max_bytes, self.seconds)
        except HTTPException as error:
            response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            await response(scope, receive, send)
        except ClientGoneError:
            pass
        else:
            messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replayed() -> Message:
                return messages.pop() if messages else await receive()

            await self.app(scope, replayed, send)


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token of `Authorization: Bearer TOKEN`; None for another scheme or none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
