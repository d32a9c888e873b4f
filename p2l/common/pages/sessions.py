"""Sessions of a browser that has brought the key once: a signed cookie that says until when.

A browser cannot send a key in a header when it opens a page. So the page asks for the key, compares it with the digest
that the service knows, and sets a cookie: the time at which it ends, and a signature under a random secret that the
workers of one service share and that a restart forgets. Sessions that were signed out before their time are remembered
until then, in a folder that the workers share.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from p2l.common.access import KeyJudge, TooManyKeysError
from p2l.common.pages.responses import page

_SESSION_SECONDS = 12 * 3600
_ENDED = ".ended"


class EndedSessions:
    """The sessions that were signed out, each until it would have ended by itself."""

    def __init__(self, folder: Path | None = None) -> None:
        """Keep them as names of files in `folder`, which the workers of a service share; None: in memory."""
        self._folder = folder
        self._names: set[str] = set()

    def add(self, text: str, now: float) -> None:
        """End the session of a cookie's text, which begins with its time; forget those whose time is over."""
        name = _name_of(text)
        if self._folder is None:
            self._names = {each for each in self._names if _end_of(each) > now} | {name}
            return
        for path in self._folder.glob(f"*{_ENDED}"):
            if _end_of(path.name) <= now:
                path.unlink(missing_ok=True)
        (self._folder / name).touch()

    def has(self, text: str) -> bool:
        """Return whether a session was signed out."""
        return _name_of(text) in self._names if self._folder is None else (self._folder / _name_of(text)).exists()


def _name_of(text: str) -> str:
    return f"{_end_of(text)}-{hashlib.sha256(text.encode()).hexdigest()[:32]}{_ENDED}"


def _end_of(text: str) -> int:
    return int(text.partition(".")[0].partition("-")[0])


class Sessions:
    """Starts, recognises and ends the sessions of one kind of page."""

    def __init__(
        self,
        secret: str,
        name: str,
        clock: Callable[[], float] = time.time,
        ended: EndedSessions | None = None,
    ) -> None:
        """Sign with `secret` (`new_key`); `name` is that of the cookie, and tells kinds of sessions apart."""
        self._ended = ended or EndedSessions()
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
            secure=is_secure(request),
        )

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request, wherever its cookie was copied to, and remove the cookie."""
        if self.has(request):
            self._ended.add(self._text_of(request), self._clock())
        response.delete_cookie(self._name, httponly=True, samesite="strict")

    def has(self, request: Request) -> bool:
        """Return whether a request belongs to a session that lasts."""
        text, _, signature = request.cookies.get(self._name, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return False
        return _end_of(text) > self._clock() and not self._ended.has(text)

    def _text_of(self, request: Request) -> str:
        return request.cookies.get(self._name, "").rpartition(".")[0]

    def _signature(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class SignIn:
    """The form for the key of a service, and the session that the right key starts."""

    title: str
    action: str
    """Path that the form is sent to."""
    label: str
    note: str
    """Where whoever runs the service finds the key."""

    def form(self, request: Request, problem: str = "", *, status: int = 403) -> Response:
        """Respond with the form."""
        return page(
            request,
            "p2l.common.pages/sign_in.html",
            status=status,
            title=self.title,
            action=self.action,
            label=self.label,
            note=self.note,
            problem=problem,
        )

    async def start(
        self, request: Request, key: str, digest: str | None, *, judge: KeyJudge, sessions: Sessions, home: str
    ) -> Response:
        """Start a session for the key with this digest and redirect to `home`; for any other respond with the form."""
        if digest is None or not is_same_origin(request):
            return self.form(request, "This is not the key.")
        try:
            if not await judge.is_right(key, digest, request.client and request.client.host):
                return self.form(request, "This is not the key.")
        except TooManyKeysError as error:
            return self.form(request, str(error).capitalize() + ".", status=429)
        response = RedirectResponse(home, 303)
        sessions.start(request, response)
        return response


def is_secure(request: Request) -> bool:
    """Return whether a browser came by https, to this service or to a proxy before it."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def is_same_origin(request: Request) -> bool:
    """Return whether a page of this service sent a request, as the browser says; another program says nothing.

    `Sec-Fetch-Site` cannot be set by pages; an older browser sends `Origin` with every POST.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")
