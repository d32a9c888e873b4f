"""Requests handed on to replicas, whole: a replica that is lost costs a request a second try, and no client an error.

The front knows keys and sizes and nothing else of a request; the application of `p2l.serving.app`, in a replica,
answers it. Predictions, like every route of the service, may be asked for twice, so the front tries again by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.common.errors import P2LError
from p2l.common.long_texts import BusyError
from p2l.common.web import BodyLimit, ClientGoneError, Deadline, alive
from p2l.serving.key_guard import RELOAD, KeyGuard
from p2l.serving.settings import Settings

Headers = list[tuple[bytes, bytes]]
_log = logging.getLogger("p2l.serving")
_PREFIX = "/m/"
_RELOAD_SECONDS = 600.0
_SPARE_SECONDS = 2.0
"""After its own deadline, in which a replica says that it has passed."""


class ForwardedRequest(NamedTuple):
    """A request with its whole body, as a replica gets it."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    scheme: str
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    http_version: str


class ForwardedResponse(NamedTuple):
    """The response of a replica."""

    status: int
    headers: Headers
    body: bytes


Ask = Callable[[ForwardedRequest], Awaitable[ForwardedResponse]]
"""Returns the response of some replica; ReplicaLostError or BusyError without one."""
End = Callable[[], Awaitable[None]]


class ReplicaLostError(P2LError):
    """The replica that had the request has ended."""


async def answer_here(app: ASGIApp, request: ForwardedRequest) -> ForwardedResponse:
    """Return the response of an application in this process; whoever cancels it is a client that left."""
    bodies: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
    start: Message = {"status": 500, "headers": []}
    chunks: list[bytes] = []

    async def receive() -> Message:
        if bodies:
            return bodies.pop()
        await asyncio.Event().wait()  # for ever: the front knows of the end of a connection, and cancels
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        else:
            chunks.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version,
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "client": request.client,
        "server": request.server,
        "state": {},
    }
    try:
        await app(scope, receive, send)
    except Exception:
        _log.exception("an error of the service")  # its response has been sent before it is raised
    return ForwardedResponse(start["status"], [(bytes(k), bytes(v)) for k, v in start["headers"]], b"".join(chunks))


class _Forwarder:
    """The application of the front: hands each request to a replica of its model."""

    def __init__(self, models: Mapping[str, Ask], settings: Settings, lost: Callable[[], None]) -> None:
        """Forward `/m/ID/...` to the model of that id and all else to the model "", within the limits of `settings`.

        `lost` is called whenever a replica took a request with it.
        """
        self._models = models
        self._seconds = settings.deadline + _SPARE_SECONDS
        self._lost = lost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        message = await receive()  # whole: see BodyLimit
        request = ForwardedRequest(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=[(bytes(name), bytes(text)) for name, text in scope["headers"]],
            body=message.get("body", b""),
            scheme=scope.get("scheme", "http"),
            client=scope.get("client"),
            server=scope.get("server"),
            http_version=scope.get("http_version", "1.1"),
        )
        seconds = _RELOAD_SECONDS if request.path == RELOAD else self._seconds
        try:
            async with alive(receive, Deadline.after(seconds), TimeoutError()):
                ask = self._models[scope.get("model", "")]
                try:
                    response = await ask(request)
                except ReplicaLostError as error:
                    self._lost()
                    _log.warning("%s; its request goes to another", error)
                    response = await ask(request)
        except ClientGoneError:
            return
        except TimeoutError:
            response = _problem(504, "the deadline passed before the answer was there")
        except BusyError as error:
            response = _problem(503, str(error))
        except ReplicaLostError:
            response = _problem(503, "the workers of this model are starting again; try again in a moment")
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})


def _problem(status: int, detail: str) -> ForwardedResponse:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return ForwardedResponse(status, [*headers, *([(b"retry-after", b"1")] if status == 503 else [])], body)


def front(models: Mapping[str, Ask], settings: Settings, lost: Callable[[], None], end: End | None = None) -> ASGIApp:
    """Return the front: keys first, then the size of the body, then a replica; `end` is awaited at last."""
    bounded = BodyLimit(_Forwarder(models, settings, lost), int(settings.max_body_mb * 2**20), settings.deadline)
    guarded = KeyGuard(bounded, settings.api_key_digest, settings.admin_key_digest, settings.page)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            if end is not None:
                await end()
            await send({"type": message["type"] + ".complete"})
        elif scope["type"] == "http":
            name, slash, rest = str(scope["path"]).removeprefix(_PREFIX).partition("/")
            if scope["path"].startswith(_PREFIX) and name in models:
                # Keys and replica see the path as the model's own service would.
                scope = {**scope, "path": slash + rest or "/", "model": name}
            await guarded(scope, receive, send)

    return application
