"""Ask a P2L endpoint from Python, in threads or with asyncio.

    with P2LClient("http://localhost:10250", api_key=key) as client:
        names = client.models().names
        coefs = client.predict("Prove that 17 is prime.").coefs           # one coefficient for each name

    async with AsyncP2LClient("https://gateway/p2l", api_key=key) as client:
        answer = await client.predict(["first turn", "second turn"])      # one prompt of two turns

Every call is safe to repeat, so what may pass is tried again: an endpoint that cannot be reached, drops the connection,
takes too long for one attempt, or answers 429, 502, 503 or, from a gateway, 504. Between attempts the client waits as
long as Retry-After says, plus a random part (`uniform(0, min(5 s, 0.1 s * 2^n))`) that keeps many clients from coming
back at the same moment. `timeout` limits all of it together.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import anyio
import httpx2
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from p2l import __version__
from p2l.common.errors import (
    AnswerTimeoutError,
    BadRequestError,
    ConfigError,
    InputError,
    KeyRefusedError,
    MalformedAnswerError,
    P2LClientError,
    UnavailableError,
)
from p2l.common.retry import RetryPolicy, parse_retry_after
from p2l.model.encoding import check_turns, repair

# What can be asked of a P2L endpoint, and what its answers hold: one function or constant for each of its paths.
#
# Fields are named as in the HTTP contract but for the two lists, `models` and `leaderboard`.

T = TypeVar("T")
Prompt: TypeAlias = "str | Sequence[str]"
"""One prompt: its text, or the user's turns in order."""


@dataclass(frozen=True)
class ModelAnswer:
    """What the model says of one prompt."""

    coefs: Annotated[list[FiniteFloat], Field(min_length=1)]
    """One coefficient for each name of `models()`, in that order."""
    eta: FiniteFloat | None = None
    """Raw output of the eta head, or None for a head without it."""
    gamma: FiniteFloat | None = None
    truncated: bool = False
    """Whether the prompt was too long and lost its oldest tokens."""
    revision: str = ""
    """Which model spoke; a change means that `models()` may have changed. Older endpoints say nothing."""


@dataclass(frozen=True)
class ModelList:
    """The models that have a coefficient, in the order of the coefficients."""

    names: Annotated[list[str], Field(min_length=1, validation_alias="models")]
    revision: str = ""


@dataclass(frozen=True)
class RankedModel:
    """A row of a leaderboard."""

    rank: int
    """From 1, the best."""
    model: str
    score: FiniteFloat
    """Its coefficient."""
    win_rate: FiniteFloat
    """Chance of beating a model drawn from the rest of the list, a tie being half a win."""


@dataclass(frozen=True)
class PromptLeaderboard:
    """The leaderboard of one prompt, best model first."""

    rows: Annotated[list[RankedModel], Field(min_length=1, validation_alias="leaderboard")]
    truncated: bool = False
    revision: str = ""


@dataclass(frozen=True)
class Health:
    """What a ready endpoint says of itself."""

    status: str
    revision: str = ""


@dataclass(frozen=True)
class _Batch:
    predictions: list[ModelAnswer]
    revision: str = ""


@dataclass(frozen=True)
class Call(Generic[T]):
    """What to ask, and how to read the answer."""

    path: str
    read: Callable[[bytes], T]
    """Raises ValueError for what is no answer."""
    body: Mapping[str, Any] | None = None
    patient: bool = False
    """Whether one attempt may take all the time there is."""
    repeated: bool = True
    """Whether a failed attempt may be followed by another."""


def read_json(shape: Any, body: bytes) -> Any:
    """The JSON of `body` as a value of the type `shape`; further fields are passed over.

    Raises:
        ValidationError: it is no JSON, or of another shape.
    """
    return _adapter(shape).validate_json(body, strict=True)


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _read_batch(expected: int, body: bytes) -> list[ModelAnswer]:
    batch: _Batch = read_json(_Batch, body)
    if len(batch.predictions) != expected:
        raise ValueError(f"{len(batch.predictions)} predictions for {expected} prompts")
    return [replace(answer, revision=answer.revision or batch.revision) for answer in batch.predictions]


def _turns(prompt: Prompt, number: int = 0) -> list[str]:
    return [repair(turn) for turn in check_turns(prompt, number)]


def predict(prompt: Prompt) -> Call[ModelAnswer]:
    """Coefficients for one prompt. `InputError` for what is no prompt; likewise the next two."""
    return Call("/predict", partial(read_json, ModelAnswer), {"prompt": _turns(prompt)})


def predict_batch(prompts: Iterable[Prompt]) -> Call[list[ModelAnswer]]:
    """Coefficients for several prompts."""
    if isinstance(prompts, str):
        raise InputError("predict_batch takes a list of prompts; give one prompt to predict")
    turns = [_turns(prompt, number) for number, prompt in enumerate(prompts)]
    return Call("/predict_batch", partial(_read_batch, len(turns)), {"prompts": turns}, patient=True)


def leaderboard(prompt: Prompt) -> Call[PromptLeaderboard]:
    """All models ranked for one prompt."""
    return Call("/leaderboard", partial(read_json, PromptLeaderboard), {"prompt": _turns(prompt)})


MODELS: Call[ModelList] = Call("/models", partial(read_json, ModelList))
INFO: Call[dict[str, Any]] = Call("/info", partial(read_json, dict[str, Any]))
HEALTH: Call[Health] = Call("/health", partial(read_json, Health), repeated=False)

# One call of a P2L endpoint from its first attempt to its answer or error, without sending or sleeping itself.
#
# A client sends what `Exchange.request` says, reports the outcome to `Exchange.hear`, and waits as long as that says;
# so
# the rules are the same in threads and with asyncio.

_CONNECT_SECONDS = 5.0
_LEAST_SECONDS = 0.001  # a time limit of zero would make sockets fail at once, and for another reason
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
        return parse_retry_after(self.headers.get("retry-after")) or 0.0


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
    clock: Callable[[], float]
    retry: RetryPolicy


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
        if self._call.repeated and _passes(outcome):
            seconds = outcome.retry_after if isinstance(outcome, Reply) else None
            if (pause := self._rules.retry.pause(self._attempts, seconds, remaining=self.remaining)) is not None:
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

    def _error(self, kind: type[P2LClientError], words: str) -> P2LClientError:
        where = f"{str(self._url.copy_with(query=None)).rstrip('/')}{self._call.path}"
        seconds = self._rules.clock() - self._start
        tried = f" [attempts: {self._attempts}, seconds: {seconds:.1f}]"
        return kind(f"{where} {words}{tried if self._attempts > 1 or kind is AnswerTimeoutError else ''}")


H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
_KEEPALIVE_SECONDS = 4.0  # uvicorn closes idle connections after 5; whoever closes first should be us


def _split_url(url: str) -> tuple[httpx2.URL, tuple[str, str] | None]:
    """The base URL without credentials, and the credentials.

    Raises:
        ConfigError: it is no http or https URL.
    """
    # What may hold a secret is not repeated.
    shown = "the URL" if re.search(r"[@?#]", url) else f"{url!r}"
    try:
        parsed = httpx2.URL(url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise ConfigError(f"P2L endpoint: {shown} is no URL; write for example http://localhost:10250") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 65536:
        raise ConfigError(f"P2L endpoint: {shown} is no http or https URL; write for example http://localhost:10250")
    credentials = (parsed.username, parsed.password) if parsed.userinfo else None
    return parsed.copy_with(userinfo=b"", fragment=None), credentials


def _headers(api_key: str | None) -> dict[str, str]:
    agent = {"User-Agent": f"p2l/{__version__}"}
    if api_key is None:
        return agent
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("P2L endpoint: the API key is empty or has characters that no HTTP header can carry")
    return agent | {"api-key": key}


class _Client(Generic[H]):
    """What the two clients share: everything but waiting."""

    _http_class: type[H]
    _wait: Callable[[float], Any]

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        attempt_timeout: float = 20.0,
        retries: int = 3,
        max_connections: int = 100,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Nothing is sent before the first call.

        Args:
            url: where the endpoint's paths begin: `http://localhost:10250`, or `https://gateway/p2l` behind a gateway.
            api_key: the key that the endpoint was started with.
            timeout: seconds for a call, all its attempts and the pauses between them included.
            attempt_timeout: seconds without a byte after which one attempt is given up; `predict_batch`, which may
                take long, has all of `timeout`.
            retries: attempts after the first.
            max_connections: further calls wait for a free one, at most as long as their `timeout`.
            clock: seconds that only grow.
            sleep: waits for some seconds; a coroutine function for the async client.
            uniform: draws between two numbers.

        Raises:
            ConfigError: no http or https URL, a key that no header can carry, a limit that is no limit.
        """
        if not (timeout > 0 and attempt_timeout > 0 and retries >= 0 and max_connections >= 1):
            raise ConfigError("P2L endpoint: timeouts must be above 0, retries at least 0, max_connections at least 1")
        self._url, credentials = _split_url(url)
        retry = RetryPolicy(retries + 1, base=0.2, cap=5.0, jitter=1.0, uniform=uniform)
        self._rules = Rules(timeout, attempt_timeout, clock, retry)
        self._sleep = sleep or self._wait
        self._has_key = api_key is not None
        self._http: H = self._http_class(
            headers=_headers(api_key),
            auth=credentials,
            limits=httpx2.Limits(
                max_connections=max_connections,
                max_keepalive_connections=max_connections,
                keepalive_expiry=_KEEPALIVE_SECONDS,
            ),
            verify=self._url.scheme == "https",  # loading certificates takes 0.1 s
        )

    def __repr__(self) -> str:
        url = self._url.copy_with(query=None)
        return f"{type(self).__name__}({str(url)!r}, api_key={'***' if self._has_key else None!r})"

    def _begin(self, call: Call[T]) -> Exchange[T]:
        return Exchange(call, self._rules, self._url)


class P2LClient(_Client[httpx2.Client]):
    """Client of one endpoint; threads may share it. Every method may raise a `P2LClientError`."""

    _http_class = httpx2.Client
    _wait = staticmethod(time.sleep)

    def __enter__(self) -> P2LClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def predict(self, prompt: Prompt) -> ModelAnswer:
        """Coefficients for a prompt: its text, or the user's turns in order."""
        return self._ask(predict(prompt))

    def predict_batch(self, prompts: Iterable[Prompt]) -> list[ModelAnswer]:
        """Coefficients for several prompts, in their order, by one request."""
        return self._ask(predict_batch(prompts))

    def leaderboard(self, prompt: Prompt) -> PromptLeaderboard:
        """All models ranked for a prompt."""
        return self._ask(leaderboard(prompt))

    def models(self) -> ModelList:
        """Names in the order of the coefficients."""
        return self._ask(MODELS)

    def info(self) -> dict[str, Any]:
        """What the endpoint says of its model."""
        return self._ask(INFO)

    def health(self) -> Health:
        """Return if the endpoint is ready now; asks once. `UnavailableError` if it is not."""
        return self._ask(HEALTH)

    def _ask(self, call: Call[T]) -> T:
        exchange = self._begin(call)
        while (pause := exchange.hear(self._attempt(exchange))) is not None:
            self._sleep(pause)
        return exchange.answer

    def _attempt(self, exchange: Exchange[T]) -> Reply | httpx2.HTTPError:
        try:
            with self._http.stream(**exchange.request()) as response:
                body = b"".join(exchange.in_time(response.iter_bytes()))
        except httpx2.HTTPError as error:
            return error
        return Reply(response.status_code, response.headers, body)


class AsyncP2LClient(_Client[httpx2.AsyncClient]):
    """`P2LClient` for asyncio and trio; hundreds of calls may run at once."""

    _http_class = httpx2.AsyncClient
    _wait = staticmethod(anyio.sleep)

    async def __aenter__(self) -> AsyncP2LClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def predict(self, prompt: Prompt) -> ModelAnswer:
        """Coefficients for a prompt: its text, or the user's turns in order."""
        return await self._ask(predict(prompt))

    async def predict_batch(self, prompts: Iterable[Prompt]) -> list[ModelAnswer]:
        """Coefficients for several prompts, in their order, by one request."""
        return await self._ask(predict_batch(prompts))

    async def leaderboard(self, prompt: Prompt) -> PromptLeaderboard:
        """All models ranked for a prompt."""
        return await self._ask(leaderboard(prompt))

    async def models(self) -> ModelList:
        """Names in the order of the coefficients."""
        return await self._ask(MODELS)

    async def info(self) -> dict[str, Any]:
        """What the endpoint says of its model."""
        return await self._ask(INFO)

    async def health(self) -> Health:
        """Return if the endpoint is ready now; asks once. `UnavailableError` if it is not."""
        return await self._ask(HEALTH)

    async def _ask(self, call: Call[T]) -> T:
        exchange = self._begin(call)
        while (pause := exchange.hear(await self._attempt(exchange))) is not None:
            await self._sleep(pause)
        return exchange.answer

    async def _attempt(self, exchange: Exchange[T]) -> Reply | httpx2.HTTPError:
        try:
            with anyio.fail_after(exchange.remaining):
                response = await self._http.request(**exchange.request())
        except TimeoutError:
            return httpx2.ReadTimeout("")
        except httpx2.HTTPError as error:
            return error
        return Reply(response.status_code, response.headers, response.content)
