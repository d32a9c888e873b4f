"""What a mock provider says and does: text, pace, and troubles in order or at random.

A trouble is written as its name, some with a number: `rate-limit` (429), `rate-limit:2` (with Retry-After of 2 s),
`status:503`, `reset`, `silence` (no response at all), `slow:5` (first token after 5 s), `cut` and `stall` (after half
of the answer), `malformed` (a broken chunk), `no-done`, `context-length`, `content-filter`, `prefill`, `credentials`;
`ok` is none.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p2l.errors import ConfigError
from route.providers.base import JSON
from route.providers.content import joined_text

__all__ = ["TROUBLES", "Mock", "Script", "Trouble", "refusal_body"]

_WORDS = ("the", "river", "carries", "small", "boats", "under", "old", "bridges", "while", "morning", "light", "turns")
_REMEMBERED = 1000

TROUBLES = (
    *("ok", "rate-limit", "status", "reset", "silence", "slow", "cut", "stall", "malformed", "no-done"),
    *("context-length", "content-filter", "prefill", "credentials"),
)
"""Names of troubles."""

_TOO_LONG = "This model's maximum context length is 8 tokens; please reduce the length of the messages."
_NO_PREFILL = "This model does not support assistant message prefill."
_REFUSALS = {
    "rate-limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached, please slow down."),
    "status": (500, "server_error", None, "The server had an error."),
    "context-length": (400, "invalid_request_error", "context_length_exceeded", _TOO_LONG),
    "content-filter": (400, "invalid_request_error", "content_filter", "The content management policy was triggered."),
    "prefill": (400, "invalid_request_error", None, _NO_PREFILL),
    "credentials": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
}
"""Status, type, code and message of the troubles that are refusals."""


@dataclass(frozen=True)
class Trouble:
    """What goes wrong with one request."""

    name: str
    number: float | None = None
    """Of seconds or a status, see above."""

    @classmethod
    def of(cls, text: str) -> Trouble:
        """`NAME` or `NAME:NUMBER`.

        Raises:
            ConfigError: there is no such trouble, or the number is none.
        """
        name, _, number = text.partition(":")
        try:
            found = cls(name, float(number) if number else None)
        except ValueError:
            raise ConfigError(f"mock: {text!r}: what follows the colon is no number") from None
        if name not in TROUBLES:
            raise ConfigError(f"mock: there is no trouble {name!r}; choose from {', '.join(TROUBLES)}")
        return found


@dataclass(frozen=True)
class Script:
    """How a mock provider behaves."""

    text: str | None = None
    """What it answers; by default `tokens` words."""
    tokens: int = 16
    latency: float = 0.0
    """Seconds until the first token."""
    token_seconds: float = 0.0
    """Seconds between two tokens."""
    failures: tuple[str, ...] = ()
    """Troubles of the first requests, one each."""
    failure_rate: float = 0.0
    """Share of the requests after them that meet `failure`."""
    failure: str = "status:500"
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Script:
        """From the options of an account.

        Raises:
            ConfigError: an option that a mock does not have, or a trouble that there is not.
        """
        try:
            script = cls(**{**options, "failures": tuple(options.get("failures", ()))})
        except TypeError:
            known = ", ".join(cls.__dataclass_fields__)
            raise ConfigError(f"mock: options are {known}; got {', '.join(options)}") from None
        for text in (*script.failures, script.failure):
            Trouble.of(text)
        return script

    def pieces(self) -> list[str]:
        """The answer, token by token; its concatenation is the text."""
        words = self.text.split(" ") if self.text is not None else [_WORDS[n % len(_WORDS)] for n in range(self.tokens)]
        return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


class Mock:
    """A script that is being played."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.pieces = script.pieces()
        self.requests: deque[JSON] = deque(maxlen=_REMEMBERED)
        """The last bodies that came, for tests to look at."""
        self._failures = deque(map(Trouble.of, script.failures))
        self._usual = Trouble.of(script.failure)
        self._random = random.Random(script.seed)

    def fail_next(self, *troubles: str) -> None:
        """Let the next requests meet these troubles."""
        self._failures.extend(map(Trouble.of, troubles))

    def next_trouble(self, request: JSON) -> Trouble:
        """What happens to this request."""
        self.requests.append(request)
        if self._failures:
            return self._failures.popleft()
        unlucky = self.script.failure_rate > 0 and self._random.random() < self.script.failure_rate
        return self._usual if unlucky else Trouble("ok")

    def usage(self, request: JSON) -> JSON:
        """Tokens, counted as words."""
        prompt = sum(len(joined_text(message.get("content")).split()) for message in request.get("messages", []))
        answer = len(self.pieces)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def refusal_body(trouble: Trouble) -> tuple[int, dict[str, str], JSON] | None:
    """Status, headers and body of a trouble that is a refusal; None for any other."""
    if trouble.name not in _REFUSALS:
        return None
    status, kind, code, message = _REFUSALS[trouble.name]
    headers = {}
    if trouble.name == "status" and trouble.number is not None:
        status = int(trouble.number)
    elif trouble.number is not None:
        headers["Retry-After"] = f"{trouble.number:g}"
    return status, headers, {"error": {"message": message, "type": kind, "param": None, "code": code}}
