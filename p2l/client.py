"""Client of a P2L endpoint, for threads and for asyncio.

    with P2LClient("http://localhost:10250", api_key=key) as client:
        names = client.models().names
        coefs = client.predict("Prove that 17 is prime.").coefs           # one coefficient for each name

    async with AsyncP2LClient("https://gateway/p2l", api_key=key) as client:
        answer = await client.predict(["first turn", "second turn"])      # one prompt of two turns

Every call is safe to repeat, so temporary failures are retried: no connection, a connection that breaks, an attempt
that takes too long, and the statuses 429, 502, 503 and, from a gateway, 504. The pause before attempt n + 1 is what
Retry-After says plus `uniform(0, min(5 s, 0.1 s * 2^n))`, which keeps many clients from returning at the same moment.
`timeout` limits all of it together.

Both clients run the same coroutines. Those of `P2LClient` block instead of waiting, so that they need no event loop.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from itertools import count
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

import anyio
import httpx2
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

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
from p2l.common.prompts import familiarity_note, repair
from p2l.common.retry import RetryPolicy, parse_retry_after
from p2l.common.version import __version__
from p2l.model.encoding import Prompt as Prompt
from p2l.model.encoding import check_turns

P = ParamSpec("P")
T = TypeVar("T")
Http = TypeVar("Http", httpx2.Client, httpx2.AsyncClient)

_CONNECT_SECONDS = 5.0
_MIN_SECONDS = 0.001  # a socket with a time limit of zero fails at once, and not with a timeout
_KEEPALIVE_SECONDS = 4.0  # uvicorn closes idle connections after 5 s; a request must not meet a closing one
_MAX_DETAIL = 300
_TEMPORARY = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ProxyError)
_NO_ENDPOINT = "did not answer as a P2L endpoint does; is this its URL?"
_EXAMPLE = "write for example http://localhost:10250"

# Answers, with the field names of the HTTP contract except for the two lists, `models` and `leaderboard`.


@dataclass(frozen=True)
class PairInterval:
    """The log-odds of one model against another on one prompt, with the interval of the true ones."""

    model_a: str
    model_b: str
    log_odds: FiniteFloat
    """coef of model_a less that of model_b"""
    sd: FiniteFloat
    lower: FiniteFloat
    upper: FiniteFloat


@dataclass(frozen=True)
class PairVote:
    """A vote between two models on one prompt, with the covariates that were asked for counted in."""

    model_a: str
    model_b: str
    log_odds: FiniteFloat
    """coef of model_a less that of model_b, and what the covariates add"""
    probs: dict[str, FiniteFloat]
    """Probability of each outcome that the likelihood has."""


@dataclass(frozen=True)
class ModelAnswer:
    """The output of the model for one prompt."""

    coefs: Annotated[list[FiniteFloat], Field(min_length=1)]
    """One coefficient for each name of `models()`, in that order."""
    eta: FiniteFloat | None = None
    """Raw output of the eta head, or None for a head without it."""
    gamma: FiniteFloat | None = None
    truncated: bool = False
    """Whether the prompt was too long and lost its oldest tokens."""
    revision: str = ""
    """Identifies the model; when it changes, `models()` may have changed. Empty for older endpoints."""
    sd: list[FiniteFloat] | None = None
    """Standard deviation of each true coefficient, if asked for."""
    pairs: list[PairInterval] | None = None
    """Of each pair that was asked for, in order; with covariates, only where the model has a posterior."""
    votes: list[PairVote] | None = None
    """Of each pair, if covariates were given."""
    familiarity: FiniteFloat | None = None
    """Share of the prompt's own departure from the overall leaderboard that is kept, from 0 to 1.

    0: the coefficients are the overall leaderboard's, since nothing like the prompt was voted on. None for a model
    without posterior, and for older endpoints.
    """

    @property
    def familiarity_note(self) -> str:
        """Return in a sentence how far the coefficients are the overall leaderboard's; empty where they are its own."""
        return familiarity_note(self.familiarity)


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
    coef: FiniteFloat
    """Its coefficient."""
    score: FiniteFloat
    """The coefficient on the scale of arena scores: 1000 + 400 / ln(10) * coef."""
    win_rate: FiniteFloat
    """Probability of beating a model drawn from the rest of the list; a tie counts as half a win."""


@dataclass(frozen=True)
class PromptLeaderboard:
    """The leaderboard of one prompt, best model first."""

    rows: Annotated[list[RankedModel], Field(min_length=1, validation_alias="leaderboard")]
    truncated: bool = False
    revision: str = ""
    familiarity: FiniteFloat | None = None
    """As of `ModelAnswer`."""

    @property
    def familiarity_note(self) -> str:
        """As of `ModelAnswer`."""
        return familiarity_note(self.familiarity)


@dataclass(frozen=True)
class Health:
    """The state of a ready endpoint."""

    status: str
    revision: str = ""


@dataclass(frozen=True)
class _Batch:
    predictions: list[ModelAnswer]
    revision: str = ""


@dataclass(frozen=True)
class _Refusal:
    detail: str


@cache
def _reader(shape: Any) -> Callable[[bytes], Any]:
    """Return what reads JSON as the type `shape`, without its unknown fields; ValidationError if it does not fit."""
    return partial(TypeAdapter(shape).validate_json, strict=True)


def _parse_answer(sd: bool, num_pairs: int, covariates: bool, body: bytes) -> ModelAnswer:
    answer: ModelAnswer = _reader(ModelAnswer)(body)
    if sd and len(answer.sd or []) != len(answer.coefs):
        raise ValueError("no standard deviations, which older endpoints do not have")
    if covariates and len(answer.votes or []) != num_pairs:
        raise ValueError("no votes with covariates, which older endpoints do not have")
    if not covariates and len(answer.pairs or []) != num_pairs:
        raise ValueError(f"{len(answer.pairs or [])} intervals for {num_pairs} pairs")
    return answer


def _parse_batch(num_prompts: int, sd: bool, body: bytes) -> list[ModelAnswer]:
    batch: _Batch = _reader(_Batch)(body)
    if sd and any(len(answer.sd or []) != len(answer.coefs) for answer in batch.predictions):
        raise ValueError("no standard deviations, which older endpoints do not have")
    if len(batch.predictions) != num_prompts:
        raise ValueError(f"{len(batch.predictions)} predictions for {num_prompts} prompts")
    return [replace(answer, revision=answer.revision or batch.revision) for answer in batch.predictions]


def _turns(prompt: Prompt, number: int = 0) -> list[str]:
    return [repair(turn) for turn in check_turns(prompt, number)]


# Outcomes of an attempt, and the errors that they become.


@dataclass(frozen=True)
class _Reply:
    """An HTTP response, read to its end."""

    status: int
    headers: httpx2.Headers
    body: bytes

    @property
    def detail(self) -> str:
        """The endpoint's own reason for a refusal, on one line; empty for a page of another server."""
        try:
            detail: str = _reader(_Refusal)(self.body).detail
        except ValidationError:
            return ""
        printable = "".join(letter if letter.isprintable() else " " for letter in detail)
        return " ".join(printable.split())[:_MAX_DETAIL]


@dataclass(frozen=True)
class _Failure:
    kind: type[P2LClientError]
    message: str
    """Follows the URL."""
    temporary: bool = False
    """Whether another attempt may fare better."""
    retry_after: float | None = None


_Outcome: TypeAlias = "_Reply | _Failure | httpx2.HTTPError"
_REFUSED_KEY = (KeyRefusedError, "refuses the API key; use the key that the endpoint was started with")
_ERRORS: dict[int, tuple[type[P2LClientError], str]] = {
    400: (BadRequestError, "cannot use the prompt"),
    401: _REFUSED_KEY,
    403: _REFUSED_KEY,
    413: (BadRequestError, "finds the request too large"),
    422: (BadRequestError, "cannot use the prompt"),
    429: (UnavailableError, "is overloaded"),
    503: (UnavailableError, "is overloaded or not ready"),
    504: (AnswerTimeoutError, "did not answer before the server's deadline"),
}


def _refused(outcome: _Reply) -> _Failure:
    default = (UnavailableError, "failed") if outcome.status >= 500 else (MalformedAnswerError, _NO_ENDPOINT)
    kind, message = _ERRORS.get(outcome.status, default)
    # A 504 without detail is a gateway's. The endpoint's own means that it would spend its whole deadline again.
    temporary = outcome.status in (429, 502, 503) or (outcome.status == 504 and not outcome.detail)
    # The detail of a refused key may repeat the key.
    detail = "" if kind in (KeyRefusedError, MalformedAnswerError) else outcome.detail
    message = f"{message} (status {outcome.status})" + (f": {detail}" if detail else "")
    return _Failure(kind, message, temporary, parse_retry_after(outcome.headers.get("retry-after")))


def _unconnected(error: httpx2.HTTPError) -> _Failure:
    temporary = isinstance(error, _TEMPORARY)
    if isinstance(error, httpx2.TimeoutException):
        return _Failure(AnswerTimeoutError, "gave no answer in time", temporary)
    if isinstance(error, httpx2.DecodingError):
        return _Failure(MalformedAnswerError, "sent an answer that cannot be decompressed", temporary)
    reason = f"cannot be reached ({error or type(error).__name__}); is the endpoint running?"
    return _Failure(UnavailableError, reason, temporary)


def _settle(outcome: _Outcome, parse: Callable[[bytes], T]) -> T | _Failure:
    """Return what `parse` makes of an attempt's body, or why there is none."""
    if isinstance(outcome, _Failure):
        return outcome
    if isinstance(outcome, httpx2.HTTPError):
        return _unconnected(outcome)
    if outcome.status != 200:
        return _refused(outcome)
    try:
        return parse(outcome.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        problem = ": ".join([*(str(key) for key in first["loc"]), first["msg"]])
    except ValueError as error:
        problem = str(error)
    return _Failure(MalformedAnswerError, f"{_NO_ENDPOINT} ({problem})")


def _parse_url(url: str) -> tuple[httpx2.URL, tuple[str, str] | None]:
    """Return the base URL and its credentials apart; ConfigError if it is not an http or https URL."""
    # A URL that may hold a secret is not repeated.
    name = "the URL" if re.search(r"[@?#]", url) else f"{url!r}"
    try:
        parsed = httpx2.URL(url.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise ConfigError(f"P2L endpoint: {name} is not a URL; {_EXAMPLE}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 65536:
        raise ConfigError(f"P2L endpoint: {name} is not an http or https URL; {_EXAMPLE}")
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


class _Client(ABC, Generic[Http]):
    """The options and the connections of both clients."""

    _http_class: type[Http]
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
        max_answer_mb: float = 32.0,
        headers: Callable[[], Mapping[str, str] | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Send nothing before the first call; ConfigError for a URL, key or limit that cannot be used.

        `url` is the base of the endpoint's paths: `http://localhost:10250`, or `https://gateway/p2l` behind a gateway.
        `timeout` are the seconds for a call with all its attempts and pauses, `attempt_timeout` those without a byte
        that end one attempt (`predict_batch`, which may take long, has all of `timeout`), `retries` counts attempts
        after the first, calls beyond `max_connections` wait, and an answer has at most `max_answer_mb` MiB, after
        decompression. `headers` returns what each attempt sends beside its own headers, such as a trace. `sleep` is a
        coroutine function for the async client.
        """
        if not (min(timeout, attempt_timeout, max_answer_mb) > 0 and retries >= 0 and max_connections >= 1):
            raise ConfigError(
                "P2L endpoint: timeouts and max_answer_mb must be above 0, retries at least 0, "
                "max_connections at least 1"
            )
        self._url, credentials = _parse_url(url)
        self._timeout, self._attempt_timeout, self._clock = timeout, attempt_timeout, clock
        self._retry = RetryPolicy(attempts=retries + 1, base=0.2, cap=5.0, jitter=1.0, uniform=uniform)
        self._sleep = sleep or self._wait
        self._max_bytes = int(max_answer_mb * 2**20)
        self._has_key = api_key is not None
        self._more_headers = headers or dict
        self._http: Http = self._http_class(
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

    async def _ask(
        self,
        path: str,
        parse: Callable[[bytes], T],
        body: dict[str, Any] | None = None,
        *,
        patient: bool = False,
        retried: bool = True,
    ) -> T:
        """Send `body` by POST, else GET, until `parse` has an answer; a `patient` attempt may use all of `timeout`."""
        start = self._clock()
        deadline = start + self._timeout
        for attempt in count(1):
            outcome = await self._send(self._request(path, body, deadline - self._clock(), patient), deadline)
            answer = _settle(outcome, parse)
            if not isinstance(answer, _Failure):
                return answer
            now = self._clock()
            pause = None
            if answer.temporary and retried:
                pause = self._retry.pause(attempt, answer.retry_after, remaining=deadline - now)
            if pause is None:
                effort = f" [attempts: {attempt}, seconds: {now - start:.1f}]"
                url = f"{str(self._url.copy_with(query=None)).rstrip('/')}{path}"
                shows_effort = attempt > 1 or answer.kind is AnswerTimeoutError
                error = answer.kind(f"{url} {answer.message}{effort if shows_effort else ''}")
                raise error from (outcome if isinstance(outcome, httpx2.HTTPError) else None)
            slept = self._sleep(pause)
            if inspect.isawaitable(slept):
                await slept
        raise AssertionError("count() never ends")

    def _request(self, path: str, body: dict[str, Any] | None, remaining: float, patient: bool) -> dict[str, Any]:
        """Return an attempt as arguments of `httpx2.Client.stream`."""
        remaining = max(remaining, _MIN_SECONDS)
        seconds = remaining if patient else min(remaining, self._attempt_timeout)
        # The endpoint drops a prompt that nobody waits for any more.
        headers = {**(self._more_headers() or {}), "x-p2l-timeout": f"{remaining:.3f}"}
        base, _, query = self._url.raw_path.partition(b"?")
        target = base.rstrip(b"/") + path.encode() + (b"?" + query if query else b"")
        return {
            "method": "GET" if body is None else "POST",
            "url": self._url.copy_with(raw_path=target),
            "content": None if body is None else json.dumps(body, ensure_ascii=False).encode(),
            "headers": headers if body is None else headers | {"Content-Type": "application/json"},
            "timeout": httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), pool=remaining),
        }

    @abstractmethod
    async def _send(self, request: dict[str, Any], deadline: float) -> _Outcome:
        """Make one attempt and read its answer to the end, to the deadline, or to the most bytes that it may have."""

    def _reply(self, response: httpx2.Response, chunks: list[bytes], size: int) -> _Outcome:
        """Return the outcome of an attempt that has read `size` bytes: all, or more than an answer may have."""
        if size > self._max_bytes:
            most = f"{self._max_bytes / 2**20:.3g} MiB"
            return _Failure(MalformedAnswerError, f"sent more than {most}; for larger answers, pass max_answer_mb")
        return _Reply(response.status_code, response.headers, b"".join(chunks))


class AsyncP2LClient(_Client[httpx2.AsyncClient]):
    """Client of one endpoint for asyncio and trio; any number of calls at once, each may raise a `P2LClientError`."""

    _http_class = httpx2.AsyncClient
    _wait = staticmethod(anyio.sleep)

    async def __aenter__(self) -> AsyncP2LClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def predict(
        self,
        prompt: Prompt,
        *,
        sd: bool = False,
        pairs: Iterable[tuple[str, str]] = (),
        level: float = 0.9,
        covariates: Mapping[str, float] | None = None,
    ) -> ModelAnswer:
        """Return the coefficients for a prompt: its text, or the user's turns in order.

        `sd` adds their standard deviations, `pairs` of model names the log-odds of each with the central interval of
        probability `level`; `BadRequestError` where the model has no posterior. `covariates` of votes on the pairs,
        seen from each pair's first model (`{"side": 1}`: shown first), add the outcomes that they make likely;
        `BadRequestError` for one that the model was not trained with.
        """
        body: dict[str, Any] = {"prompt": _turns(prompt)} | ({"sd": True} if sd else {})
        if compared := [list(pair) for pair in pairs]:
            body |= {"pairs": compared, "level": level}
        if covariates:
            body["covariates"] = dict(covariates)
        return await self._ask("/predict", partial(_parse_answer, sd, len(compared), bool(covariates)), body)

    async def predict_batch(self, prompts: Iterable[Prompt], *, sd: bool = False) -> list[ModelAnswer]:
        """Return the coefficients for several prompts, in their order, by one request; `sd` as in `predict`."""
        if isinstance(prompts, str):
            raise InputError("predict_batch takes a list of prompts; pass one prompt to predict")
        turns = [_turns(prompt, number) for number, prompt in enumerate(prompts)]
        body = {"prompts": turns} | ({"sd": True} if sd else {})
        return await self._ask("/predict_batch", partial(_parse_batch, len(turns), sd), body, patient=True)

    async def leaderboard(self, prompt: Prompt) -> PromptLeaderboard:
        """Rank all models for a prompt."""
        return await self._ask("/leaderboard", _reader(PromptLeaderboard), {"prompt": _turns(prompt)})

    async def models(self) -> ModelList:
        """Return the names in the order of the coefficients."""
        return await self._ask("/models", _reader(ModelList))

    async def info(self) -> dict[str, Any]:
        """Describe the endpoint's model."""
        return await self._ask("/info", _reader(dict[str, Any]))

    async def health(self) -> Health:
        """Return if the endpoint is ready, else raise `UnavailableError`; tries once."""
        return await self._ask("/health", _reader(Health), retried=False)

    async def _send(self, request: dict[str, Any], deadline: float) -> _Outcome:
        chunks: list[bytes] = []
        size = 0
        try:
            with anyio.fail_after(max(0.0, deadline - self._clock())):
                async with self._http.stream(**request) as response:
                    async for chunk in response.aiter_bytes():
                        chunks.append(chunk)
                        size += len(chunk)
                        if size > self._max_bytes:
                            break
        except TimeoutError:
            return httpx2.ReadTimeout("")
        except httpx2.HTTPError as error:
            return error
        return self._reply(response, chunks, size)


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a plain method of a coroutine method, for a client whose `_send` and `_sleep` block instead of waiting."""

    @wraps(method)
    def run(client: Any, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            method(client, *args, **options).send(None)
        except StopIteration as end:
            answer: T = end.value
            return answer
        raise AssertionError("a blocking client never waits")

    return run


class P2LClient(_Client[httpx2.Client]):
    """`AsyncP2LClient` without asyncio; threads may share it."""

    _http_class = httpx2.Client
    _wait = staticmethod(time.sleep)

    def __enter__(self) -> P2LClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    predict = _blocking(AsyncP2LClient.predict)
    predict_batch = _blocking(AsyncP2LClient.predict_batch)
    leaderboard = _blocking(AsyncP2LClient.leaderboard)
    models = _blocking(AsyncP2LClient.models)
    info = _blocking(AsyncP2LClient.info)
    health = _blocking(AsyncP2LClient.health)

    async def _send(self, request: dict[str, Any], deadline: float) -> _Outcome:
        chunks: list[bytes] = []
        size = 0
        try:
            with self._http.stream(**request) as response:
                for chunk in response.iter_bytes():
                    # An answer that trickles in never exceeds a timeout of the socket.
                    if self._clock() >= deadline:
                        return httpx2.ReadTimeout("")
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self._max_bytes:
                        break
        except httpx2.HTTPError as error:
            return error
        return self._reply(response, chunks, size)
