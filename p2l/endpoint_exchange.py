"""One call of a P2L endpoint from its first attempt to its answer or error, without sending or sleeping itself.

A client sends what `Exchange.request` says, reports the outcome to `Exchange.hear`, and waits as long as that says; so
the rules are the same in threads and with asyncio.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import httpx2
from pydantic import ValidationError

from p2l.endpoint_calls import Call, read_json
from p2l.errors import (
    AnswerTimeoutError,
    BadRequestError,
    KeyRefusedError,
    MalformedAnswerError,
    P2LClientError,
    UnavailableError,
)

__all__ = ["Exchange", "Reply", "Rules"]

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_LEAST_SECONDS = 0.001  # a time limit of zero would make sockets fail at once, and for another reason
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LONGEST_SENTENCE = 300
_STRANGE = "did not answer as a P2L endpoint does; is this its URL?"
_TRANSIENT = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ProxyError)


@dataclass(frozen=True)
class _Refusal:
    detail: str


@dataclass(frozen=True)
class Reply:
    """An HTTP answer, read to its end."""

    status: int
    headers: httpx2.Headers
    body: bytes

    @property
    def sentence(self) -> str:
        """What the endpoint itself says of its refusal, on one line; empty for another server's page."""
        try:
            detail: str = read_json(_Refusal, self.body).detail
        except ValidationError:
            return ""
        printable = "".join(letter if letter.isprintable() else " " for letter in detail)
        return " ".join(printable.split())[:_LONGEST_SENTENCE]

    @property
    def retry_after(self) -> float:
        """Seconds, from a number or a date; zero where the header is missing or says nothing."""
        text = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII):
            return float(text)
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        return max(0.0, moment.timestamp() - time.time())


def _passes(outcome: Reply | httpx2.HTTPError) -> bool:
    """Whether another attempt may fare better."""
    if isinstance(outcome, httpx2.HTTPError):
        return isinstance(outcome, _TRANSIENT)
    if outcome.status == 504:  # a gateway's: the endpoint gives a sentence, and would spend its whole deadline again
        return not outcome.sentence
    return outcome.status in (429, 502, 503)


_KINDS: dict[int, tuple[type[P2LClientError], str]] = {
    400: (BadRequestError, "cannot use the prompt"),
    401: (KeyRefusedError, "refuses the API key; give the key that the endpoint was started with"),
    403: (KeyRefusedError, "refuses the API key; give the key that the endpoint was started with"),
    413: (BadRequestError, "finds the request too large"),
    422: (BadRequestError, "cannot use the prompt"),
    429: (UnavailableError, "is overloaded"),
    503: (UnavailableError, "is overloaded or not ready"),
    504: (AnswerTimeoutError, "did not answer before the server's deadline"),
}


def _failure(outcome: Reply | httpx2.HTTPError) -> tuple[type[P2LClientError], str]:
    """The error for an outcome, and what follows the URL in its message."""
    if isinstance(outcome, httpx2.TimeoutException):
        return AnswerTimeoutError, "gave no answer in time"
    if isinstance(outcome, httpx2.DecodingError):
        return MalformedAnswerError, "sent an answer that cannot be decompressed"
    if isinstance(outcome, httpx2.HTTPError):
        return UnavailableError, f"cannot be reached ({outcome or type(outcome).__name__}); is the endpoint running?"
    other = (UnavailableError, "failed") if outcome.status >= 500 else (MalformedAnswerError, _STRANGE)
    kind, words = _KINDS.get(outcome.status, other)
    words = f"{words} (status {outcome.status})"
    # What refuses a key may repeat it.
    heard = outcome.sentence if kind not in (KeyRefusedError, MalformedAnswerError) else ""
    return kind, f"{words}: {heard}" if heard else words


@dataclass(frozen=True)
class Rules:
    """When to give up, and where time and chance come from."""

    timeout: float
    attempt_timeout: float
    retries: int
    clock: Callable[[], float]
    uniform: Callable[[float, float], float]


class Exchange(Generic[T]):
    """One call from its first attempt to its answer or error: decides everything, but neither sends nor sleeps."""

    answer: T

    def __init__(self, call: Call[T], rules: Rules, url: httpx2.URL) -> None:
        self._call, self._rules, self._url = call, rules, url
        self._content = None if call.body is None else json.dumps(call.body, ensure_ascii=False).encode()
        self._start = rules.clock()
        self._attempts = 0

    @property
    def remaining(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self._start + self._rules.timeout - self._rules.clock())

    def request(self) -> dict[str, Any]:
        """The next attempt, as arguments of `httpx2.Client.stream`."""
        self._attempts += 1
        remaining = max(self.remaining, _LEAST_SECONDS)
        seconds = remaining if self._call.patient else min(remaining, self._rules.attempt_timeout)
        # The endpoint forgets a prompt that nobody waits for any more.
        headers = {"x-p2l-timeout": f"{remaining:.3f}"}
        path, _, query = self._url.raw_path.partition(b"?")
        target = path.rstrip(b"/") + self._call.path.encode() + (b"?" + query if query else b"")
        return {
            "method": "GET" if self._content is None else "POST",
            "url": self._url.copy_with(raw_path=target),
            "content": self._content,
            "headers": headers if self._content is None else headers | {"Content-Type": "application/json"},
            "timeout": httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=remaining),
        }

    def in_time(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks of an answer as long as there is time: one that trickles in would never be too late by itself."""
        for chunk in chunks:
            if not self.remaining:
                raise httpx2.ReadTimeout("")
            yield chunk

    def hear(self, outcome: Reply | httpx2.HTTPError) -> float | None:
        """Seconds to wait before the next attempt, or None: there is an `answer`.

        Raises:
            P2LClientError: there is none, and there will be no other attempt.
        """
        if isinstance(outcome, Reply) and outcome.status == 200:
            self.answer = self._answer(outcome.body)
            return None
        pause = self._pause(outcome)
        if pause is not None and pause < self.remaining:
            return pause
        kind, words = _failure(outcome)
        raise self._error(kind, words) from (outcome if isinstance(outcome, httpx2.HTTPError) else None)

    def _answer(self, body: bytes) -> T:
        try:
            return self._call.read(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            words = ": ".join([*(str(part) for part in first["loc"]), first["msg"]])
        except ValueError as error:
            words = str(error)
        raise self._error(MalformedAnswerError, f"{_STRANGE} ({words})")

    def _pause(self, outcome: Reply | httpx2.HTTPError) -> float | None:
        if self._attempts > self._rules.retries or not self._call.repeated or not _passes(outcome):
            return None
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._attempts, 10))
        least = outcome.retry_after if isinstance(outcome, Reply) else 0.0
        return least + self._rules.uniform(0.0, most)

    def _error(self, kind: type[P2LClientError], words: str) -> P2LClientError:
        where = f"{str(self._url.copy_with(query=None)).rstrip('/')}{self._call.path}"
        seconds = self._rules.clock() - self._start
        tried = f" [attempts: {self._attempts}, seconds: {seconds:.1f}]"
        return kind(f"{where} {words}{tried if self._attempts > 1 or kind is AnswerTimeoutError else ''}")
