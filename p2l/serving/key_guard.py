"""Middleware that asks for the key of a route, before a byte of the body is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from p2l.common.access import matches
from p2l.common.web import bearer_of

_OPEN_ROUTES = frozenset({"/health", "/metrics", "/docs", "/docs/oauth2-redirect", "/openapi.json"})
"""Routes that say nothing of prompts and need no key."""
RELOAD = "/reload"


class KeyGuard:
    """Answers 403 unless the header `api-key` (or `Authorization: Bearer`) holds the key that the route asks for."""

    def __init__(self, app: ASGIApp, api_key: str | None, admin_key: str | None, has_page: bool) -> None:
        """Take the digests of the keys. Without `api_key` everybody may ask; without `admin_key` nobody may reload."""
        self.app = app
        self._has_page = has_page
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
        if path in _OPEN_ROUTES:
            return None
        # The page itself checks who may have these.
        if self._has_page and (path == "/" or path.startswith(("/page/", "/static/"))):
            return None
        if path == RELOAD and self._admin_key is None:
            return "this service was started without --admin-key and reloads nothing on request"
        expected = self._admin_key if path == RELOAD else self._api_key
        if expected is None:
            return None
        headers = Headers(scope=scope)
        key = headers.get("api-key", bearer_of(headers))
        # The bytes as they were sent, which need not be UTF-8.
        if matches(None if key is None else key.strip(" \t").encode("latin-1"), expected):
            return None
        return "the key is missing or wrong; send it in the header api-key"
