"""Middleware around every request: the key is checked before a byte of the body is read, and the answer is counted."""

from __future__ import annotations

import time
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2l.serving.access import matches
from p2l.serving.metrics import Metrics

__all__ = ["Counter", "KeyGuard"]

OPEN_ROUTES = frozenset({"/health", "/metrics", "/docs", "/docs/oauth2-redirect", "/openapi.json"})
"""Routes that say nothing of prompts and need no key."""

RELOAD = "/reload"


class KeyGuard:
    """Answers 403 unless the header `api-key` (or `Authorization: Bearer`) holds the key that the route asks for."""

    def __init__(self, app: ASGIApp, api_key: str | None, admin_key: str | None) -> None:
        """The digests of the keys. Without `api_key` everybody may ask; without `admin_key` nobody may reload."""
        self.app = app
        self._api_key = api_key
        self._admin_key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its key is right."""
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self.app(scope, receive, send)
        else:
            response = JSONResponse({"detail": problem}, status_code=403, headers={"connection": "close"})
            await response(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        path = scope["path"]
        if path in OPEN_ROUTES:
            return None
        if path == RELOAD and self._admin_key is None:
            return "this service was started without --admin-key and reloads nothing on request"
        expected = self._admin_key if path == RELOAD else self._api_key
        if expected is None or matches(_given(scope), expected):
            return None
        return "the key is missing or wrong; send it in the header api-key"


class Counter:
    """Counts requests and their time by route; unknown paths are one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[str]) -> None:
        """Count into `metrics`."""
        self.app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note its status."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._routes else "other"
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(route, str(message["status"])).inc()
                self._metrics.latency.labels(route).observe(time.perf_counter() - started)
            await send(message)

        await self.app(scope, receive, counted)


def _given(scope: Scope) -> bytes | None:
    """The key that a request brings."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if b"api-key" in headers:
        return headers[b"api-key"].strip(b" \t")
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
