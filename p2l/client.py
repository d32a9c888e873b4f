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

import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import anyio
import httpx2

from p2l import __version__, endpoint_calls
from p2l.endpoint_calls import Call, Health, ModelAnswer, ModelList, Prompt, PromptLeaderboard, RankedModel
from p2l.endpoint_exchange import Exchange, Reply, Rules
from p2l.errors import ConfigError

__all__ = [
    "AsyncP2LClient",
    "Health",
    "ModelAnswer",
    "ModelList",
    "P2LClient",
    "PromptLeaderboard",
    "RankedModel",
]

T = TypeVar("T")
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
        self._rules = Rules(timeout, attempt_timeout, retries, clock, uniform)
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
        return self._ask(endpoint_calls.predict(prompt))

    def predict_batch(self, prompts: Iterable[Prompt]) -> list[ModelAnswer]:
        """Coefficients for several prompts, in their order, by one request."""
        return self._ask(endpoint_calls.predict_batch(prompts))

    def leaderboard(self, prompt: Prompt) -> PromptLeaderboard:
        """All models ranked for a prompt."""
        return self._ask(endpoint_calls.leaderboard(prompt))

    def models(self) -> ModelList:
        """Names in the order of the coefficients."""
        return self._ask(endpoint_calls.MODELS)

    def info(self) -> dict[str, Any]:
        """What the endpoint says of its model."""
        return self._ask(endpoint_calls.INFO)

    def health(self) -> Health:
        """Return if the endpoint is ready now; asks once. `UnavailableError` if it is not."""
        return self._ask(endpoint_calls.HEALTH)

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
        return await self._ask(endpoint_calls.predict(prompt))

    async def predict_batch(self, prompts: Iterable[Prompt]) -> list[ModelAnswer]:
        """Coefficients for several prompts, in their order, by one request."""
        return await self._ask(endpoint_calls.predict_batch(prompts))

    async def leaderboard(self, prompt: Prompt) -> PromptLeaderboard:
        """All models ranked for a prompt."""
        return await self._ask(endpoint_calls.leaderboard(prompt))

    async def models(self) -> ModelList:
        """Names in the order of the coefficients."""
        return await self._ask(endpoint_calls.MODELS)

    async def info(self) -> dict[str, Any]:
        """What the endpoint says of its model."""
        return await self._ask(endpoint_calls.INFO)

    async def health(self) -> Health:
        """Return if the endpoint is ready now; asks once. `UnavailableError` if it is not."""
        return await self._ask(endpoint_calls.HEALTH)

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
