"""Sessions of a browser that has brought the key once: a signed cookie that says until when, and nothing else.

A browser cannot send a key in a header when it opens a page. So the page asks for the key, compares it with the digest
that the service knows, and sets a cookie: the time at which it ends, and a signature under a random secret that the
workers of one service share and that a restart forgets.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

_SESSION_SECONDS = 12 * 3600


class Sessions:
    """Starts, recognises and ends the sessions of one kind of page."""

    def __init__(self, secret: str, name: str, clock: Callable[[], float] = time.time) -> None:
        """Sign with `secret` (`new_key`); `name` is that of the cookie, and tells kinds of sessions apart."""
        self._secret = hashlib.sha256(f"{name}:{secret}".encode()).digest()
        self._name = name
        self._clock = clock

    def start(self, request: Request, response: Response) -> None:
        """Set the cookie of a session that begins now."""
        text = f"{int(self._clock()) + _SESSION_SECONDS}.{secrets.token_urlsafe(9)}"
        # Scripts cannot read the cookie, and other sites cannot cause it to be sent; requests that change something are
        # checked by `is_same_origin` besides.
        response.set_cookie(
            self._name,
            f"{text}.{self._signature(text)}",
            max_age=_SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https",
        )

    def end(self, response: Response) -> None:
        """Remove the cookie."""
        response.delete_cookie(self._name, httponly=True, samesite="strict")

    def has(self, request: Request) -> bool:
        """Return whether a request belongs to a session that lasts."""
        text, _, signature = request.cookies.get(self._name, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return False
        return int(text.partition(".")[0]) > self._clock()

    def _signature(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_same_origin(request: Request) -> bool:
    """Return whether a page of this service sent a request, as the browser says; another program says nothing.

    `Sec-Fetch-Site` cannot be set by pages; an older browser sends `Origin` with every POST.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")
