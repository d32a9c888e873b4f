"""Middleware that asks for the key of a route, before a byte of the body is read."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from p2l.common.access import KeyJudge, TooManyKeysError, matches
from p2l.common.web import bearer_of

_OPEN_ROUTES = frozenset({"/health", "/metrics", "/docs", "/docs/oauth2-redirect", "/openapi.json"})
"""Routes that say nothing of prompts and need no key."""
RELOAD = "/reload"
_WRONG = "the key is missing or wrong; send it in the header api-key"


class KeyGuard:
    """Answers 403 unless the header `api-key` (or `Authorization: Bearer`) holds the key that the route asks for."""

    def __init__(self, app: ASGIApp, api_key: str | None, admin_key: str | None, has_page: bool) -> None:
        """Take the digests of the keys. Without `api_key` everybody may ask; without `admin_key` nobody may reload."""
        self.app = app
        self._has_page = has_page
        self._api_key = api_key
        self._admin_key = admin_key
        self._judge = KeyJudge("operators", logging.getLogger("p2l.serving"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its key is right."""
        status = 403
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None and scope["type"] == "http" and scope["path"] == RELOAD:
            try:
                problem = await self._problem_of_operator(scope)
            except TooManyKeysError as error:
                status, problem = 429, str(error)
        if problem is None:
            await self.app(scope, receive, send)
        else:
            response = JSONResponse({"detail": problem}, status_code=status, headers={"connection": "close"})
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
        if path == RELOAD or self._api_key is None or matches(_key_of(scope), self._api_key):
            return None
        return _WRONG

    async def _problem_of_operator(self, scope: Scope) -> str | None:
        """Return why a request may not command the service; a wrong key is told after a pause."""
        key, digest = _key_of(scope), self._admin_key
        if key is None or digest is None:
            return _WRONG
        if self._api_key is not None and self._api_key != digest and matches(key, self._api_key):
            return _WRONG  # a client's key, which is no guess
        return None if await self._judge.is_right(key, digest, (scope.get("client") or [None])[0]) else _WRONG


def _key_of(scope: Scope) -> bytes | None:
    """Return the key of a request as the bytes that were sent, which need not be UTF-8."""
    headers = Headers(scope=scope)
    key = headers.get("api-key", bearer_of(headers))
    return None if key is None else key.strip(" \t").encode("latin-1")
