"""Scorers: coefficients from a P2L endpoint, from a P2L model in this process, or none.

A scorer never fails a request: without coefficients in time it returns None, and the router takes its static order.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from p2l import likelihood
from p2l.common.cache import LRUCache
from p2l.common.errors import (
    AnswerTimeoutError,
    ConfigError,
    InputError,
    KeyRefusedError,
    MalformedAnswerError,
    P2LError,
    UnavailableError,
)
from p2l.common.prompts import MAX_CHARS, MAX_TURNS, newest_turns
from p2l.public import PUBLIC, Names
from route.providers.base import TRACE_HEADERS
from route.routing.candidates import Kind
from route.routing.decision import Coefficients

if TYPE_CHECKING:
    from p2l.client import AsyncP2LClient, ModelAnswer
    from p2l.inference import P2L


Ask: TypeAlias = "Callable[[Sequence[str]], Awaitable[Coefficients | None]]"
"""Returns the coefficients for the user's turns, or None."""


class Memory:
    """A cache of the prompts used last in front of `ask`, for one event loop.

    It holds digests of prompts only; an entry of 130 models takes about 10 kB. Concurrent requests for one prompt are
    asked once.
    """

    def __init__(self, ask: Ask, *, capacity: int = 2000, most_waiting: int = 256) -> None:
        """Keep `capacity` prompts; while `most_waiting` are being asked, return None for further ones at once."""
        self._ask = ask
        self._most_waiting = most_waiting
        self._long: set[bytes] = set()
        """Long prompts that are being asked for; they leave most places to short ones."""
        self._coefficients: LRUCache[bytes, Coefficients] = LRUCache(capacity)
        self._waiting: dict[bytes, asyncio.Task[Coefficients | None]] = {}

    def recall(self, turns: Sequence[str], revision: str) -> Coefficients | None:
        """Return the cached output of this revision of the model for the prompt."""
        return self._coefficients.get(_key(turns, revision))

    async def ask(self, turns: Sequence[str], timeout: float | None) -> Coefficients | None:
        """Ask for a prompt, or wait for a request that already does.

        Raises TimeoutError after `timeout` seconds; an answer that comes later is cached all the same.
        """
        key = _key(turns)
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= self._most_waiting:
                return None
            if _is_long(turns):
                if len(self._long) >= self._most_waiting // 4:
                    return None
                self._long.add(key)
            task = self._waiting[key] = asyncio.create_task(self._fetch(key, turns))
        # Unlike wait_for, this leaves the task alone when the time is over or the request is cancelled.
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        """Cancel the requests under way."""
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, waiting: bytes, turns: Sequence[str]) -> Coefficients | None:
        try:
            coefficients = await self._ask(turns)
        finally:
            del self._waiting[waiting]
            self._long.discard(waiting)
        if coefficients is not None:
            self._coefficients.put(_key(turns, coefficients.revision), coefficients)
        return coefficients


def _key(turns: Sequence[str], revision: str = "") -> bytes:
    """Return a digest of both; the lengths keep turns apart."""
    texts = [text.encode("utf-8", "surrogatepass") for text in (revision, *turns)]
    digest = hashlib.blake2b(str(list(map(len, texts))).encode(), digest_size=20)
    digest.update(b"".join(texts))
    return digest.digest()


_LONG_PROMPT_CHARS = 4000
"""Characters of a prompt that may be too slow by itself, which says nothing of the endpoint."""


def _is_long(turns: Sequence[str]) -> bool:
    return sum(map(len, turns)) > _LONG_PROMPT_CHARS


@dataclass(frozen=True)
class PromptLimits:
    """How much of a prompt is scored: its newest turns and characters."""

    turns: int = MAX_TURNS
    chars: int = MAX_CHARS

    @classmethod
    def of_endpoint(cls, about: Mapping[str, Any]) -> PromptLimits:
        """Return what an endpoint takes by its /info, and the defaults for what an older one does not say."""
        turns, chars = _count(about, "max_turns", MAX_TURNS), _count(about, "max_chars", MAX_CHARS)
        room = int(_count(about, "max_body_mb", 8.0) * 2**20) - _BYTES_OF_A_REQUEST
        turns = max(1, min(turns, room // (2 * _BYTES_OF_A_TURN)))
        return cls(turns, max(1, min(chars, (room - turns * _BYTES_OF_A_TURN) // _BYTES_OF_A_CHARACTER)))

    def newest(self, turns: Sequence[str]) -> Sequence[str]:
        """Return what is scored of a prompt; the provider gets all of it."""
        return newest_turns(turns, max_turns=self.turns, max_chars=self.chars)


N = TypeVar("N", int, float)


def _count(about: Mapping[str, Any], name: str, default: N) -> N:
    number = about.get(name)
    is_sound = isinstance(number, int | type(default)) and not isinstance(number, bool) and 0 < number < math.inf
    return number if is_sound else default  # type: ignore[return-value]


# In JSON, at most: a character may be written as \uXXXX.
_BYTES_OF_A_REQUEST = 1000
_BYTES_OF_A_TURN = 4
_BYTES_OF_A_CHARACTER = 6
_START_SECONDS = 1.5  # the router starts without its endpoint rather than late
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts to reach an endpoint
_MOST_MISSES = 5
_MOST_LONG_MISSES = 50  # one client's long prompts do not end the scores of everybody
_REVISIONS_KEPT = 4  # behind a load balancer, old and new may answer in turn for a while
_QUEUE_OF_ONE_THREAD = 32
_OnModels = Callable[[Sequence[str]], None]


class Scorer:
    """A source of coefficients. This one has none, for routers that need none."""

    # Attributes of the class, so that those of a scorer of another kind need no call of this one's constructor.
    model_list: Sequence[str] | None = ()
    """The models that have a coefficient; None while the list is unknown."""
    on_change: Callable[[str], None] | None = None
    """Called with the trouble when there are no coefficients any more, and with an empty text when there are again."""
    on_models: _OnModels | None = None
    """Called with the model list when it becomes known, and whenever it changes."""
    _trouble = ""

    @property
    def trouble(self) -> str:
        """Return why there are no coefficients now, or an empty text."""
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: str) -> None:
        is_change = bool(trouble) != bool(self._trouble)
        self._trouble = trouble
        if is_change and self.on_change is not None:
            self.on_change(trouble)

    @property
    def is_well(self) -> bool:
        """Return whether prompts are scored now."""
        return self.model_list is not None and not self._trouble

    def newest(self, turns: Sequence[str]) -> Sequence[str]:
        """Return what is scored of a prompt."""
        return PromptLimits().newest(turns)

    def configure(self, names: Sequence[str]) -> None:
        """Take the names of the configured models, at start and when they change; most scorers need none."""

    async def start(self) -> None:
        """Connect or load; raise InputError for what waiting does not fix: a refused key, a model of another kind."""

    async def close(self) -> None:
        """Release connections and threads."""

    async def coefficients(self, _turns: Sequence[str], _timeout: float | None) -> Coefficients | None:
        """Return the coefficients of a prompt; None if there are none within `_timeout` seconds."""
        return None


class EndpointScorer(Scorer):
    """Coefficients from a P2L endpoint.

    An endpoint that cannot be reached, or has missed the time limit several times in a row, is tried again in the
    background with exponential backoff; until then requests do not wait for it.
    """

    def __init__(
        self,
        client: AsyncP2LClient,
        *,
        family: str,
        on_models: _OnModels | None = None,
        capacity: int = 2000,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Send nothing yet.

        Coefficients must be of `family` (bt or grk). `on_models` is called with the model list when it becomes known
        and whenever it changes; a `P2LError` from it counts as trouble of the endpoint, at start as a mistake.
        `capacity` prompts are cached.
        """
        self._client = client
        self._family = family
        self.on_models = on_models
        self._sleep = sleep
        self._memory = Memory(self._ask, capacity=capacity)
        self.model_list = None
        self._lists: dict[str, tuple[str, ...]] = {}
        self._revision = ""
        self._limits = PromptLimits()
        self._misses, self._long_misses = 0, 0
        self._pause = _FIRST_PAUSE
        self._learning = asyncio.Lock()
        self._recovery: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetch the model list; keep trying in the background if the endpoint cannot be reached now."""
        try:
            await asyncio.wait_for(self._learn(), _START_SECONDS)
        except InputError:
            raise
        except P2LError as error:
            self._pause_until_recovered(str(error))
        except asyncio.TimeoutError:
            self._pause_until_recovered("the P2L endpoint gave no answer in time")

    async def close(self) -> None:
        """Cancel background tasks and close the connections."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        await self._memory.close()
        await self._client.aclose()

    def newest(self, turns: Sequence[str]) -> Sequence[str]:
        """See `Scorer`."""
        return self._limits.newest(turns)

    async def coefficients(self, turns: Sequence[str], timeout: float | None) -> Coefficients | None:
        """See `Scorer`."""
        turns = self.newest(turns)
        coefficients = self._memory.recall(turns, self._revision)
        if coefficients is not None or self.trouble:
            return coefficients
        try:
            return await self._memory.ask(turns, timeout)
        except TimeoutError:
            if _is_long(turns):
                self._miss_long("the P2L endpoint was too slow")
                return None
            self._misses += 1
            if self._misses >= _MOST_MISSES:
                self._pause_until_recovered(f"the P2L endpoint was too slow {self._misses} times in a row")
            return None

    async def _ask(self, turns: Sequence[str]) -> Coefficients | None:
        try:
            answer = await self._client.predict(turns)
            names = await self._names(answer)
        except P2LError as error:
            if isinstance(error, UnavailableError | AnswerTimeoutError) and _is_long(turns):
                self._miss_long(str(error))
            # Any other mistake of the input is the prompt's: the endpoint works and only refuses this one.
            elif not isinstance(error, InputError) or isinstance(error, KeyRefusedError | ConfigError):
                self._pause_until_recovered(str(error))
            return None
        self._misses = 0
        self._long_misses = 0
        self._pause = _FIRST_PAUSE
        coefs = dict(zip(names, answer.coefs, strict=True))
        return Coefficients(coefs, answer.eta, answer.revision, familiarity=answer.familiarity)

    async def _names(self, answer: ModelAnswer) -> tuple[str, ...]:
        """Return the names of an answer's coefficients; fetch the list of a new revision, once."""
        async with self._learning:
            names = self._lists.get(answer.revision, ())
            if len(names) != len(answer.coefs):
                await self._learn()
                names = self._lists.get(answer.revision, ())
        if len(names) != len(answer.coefs):
            raise P2LError("the P2L endpoint answers with other models than it lists")
        self.model_list, self._revision = names, answer.revision
        return names

    async def _learn(self) -> None:
        """Fetch the likelihood and the model list."""
        with suppress(MalformedAnswerError):  # not every endpoint has this path
            about = await self._client.info()
            check_family(self._family, str(about.get("likelihood", "")))
            self._limits = PromptLimits.of_endpoint(about)
        listed = await self._client.models()
        names = tuple(listed.names)
        if names != self.model_list and self.on_models is not None:
            self.on_models(names)
        self._lists.pop(listed.revision, None)  # it moves to the end: the first one is forgotten first
        self._lists[listed.revision] = names
        if len(self._lists) > _REVISIONS_KEPT:
            del self._lists[next(iter(self._lists))]
        self.model_list, self._revision = names, listed.revision

    def _miss_long(self, trouble: str) -> None:
        self._long_misses += 1
        if self._long_misses >= _MOST_LONG_MISSES:
            self._pause_until_recovered(f"{trouble} ({self._long_misses} long prompts in a row)")

    def _pause_until_recovered(self, trouble: str) -> None:
        self.trouble = trouble
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        while self.trouble:
            await self._sleep(self._pause)
            self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)
            try:
                async with self._learning:
                    await self._learn()
                self.trouble, self._misses, self._long_misses = "", 0, 0
            except P2LError as error:
                self.trouble = str(error)


class LocalScorer(Scorer):
    """Coefficients from a P2L model in this process, in a thread of its own; prompts wait for one another."""

    def __init__(
        self, path: str | Path, *, family: str, on_models: _OnModels | None = None, capacity: int = 2000
    ) -> None:
        """Load nothing yet; arguments as of `EndpointScorer`, `path` a model folder or hub id."""
        self._path = path
        self._family = family
        self._capacity = capacity
        self._configured: tuple[str, ...] = ()
        self.on_models = on_models
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="p2l")
        self._memory = self._new_memory()
        self._model: P2L | None = None
        self._called: list[str] = []
        self.model_list = None
        self.trouble = "the model is not loaded yet"

    async def start(self) -> None:
        """Load the model; raise InputError if the folder holds none, or one of another kind."""
        model = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        check_family(self._family, model.likelihood.name)
        self._called = self._names_of(model.model_list)
        if self.on_models is not None:
            self.on_models(self._called)
        self._model, self.model_list, self.trouble = model, self._called, ""

    def configure(self, names: Sequence[str]) -> None:
        """See `Scorer`: models of the public P2L go by the names that the configuration has for them."""
        self._configured = tuple(names)
        if self._model is not None:
            self._called = self.model_list = self._names_of(self._model.model_list)
            self._memory = self._new_memory()  # what it holds goes by the names before

    def _new_memory(self) -> Memory:
        return Memory(self._ask, capacity=self._capacity, most_waiting=_QUEUE_OF_ONE_THREAD)

    def _names_of(self, models: Sequence[str]) -> list[str]:
        """Return what each model of the list is called in the configuration; of the public P2L alone is that another.

        Of two names for one model the second is not known.
        """
        if self._path != PUBLIC:
            return list(models)
        called: dict[str, str] = {}
        for name, model in Names.load().matched(self._configured, models).items():
            called.setdefault(model, name)
        return [called.get(model, model) for model in models]

    async def close(self) -> None:
        """End the thread, after the prompt under way."""
        await self._memory.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def coefficients(self, turns: Sequence[str], timeout: float | None) -> Coefficients | None:
        """See `Scorer`."""
        if self._model is None:
            return None
        turns = self.newest(turns)
        coefficients = self._memory.recall(turns, self._model.revision)
        if coefficients is not None:
            return coefficients
        try:
            return await self._memory.ask(turns, timeout)
        except TimeoutError:
            return None

    def _load(self) -> P2L:
        from p2l.inference import P2L
        from p2l.serving.probing import check_model

        check_model(self._path)  # what a tokenizer does to the process that opens it cannot be caught there
        model = P2L.from_pretrained(self._path)
        model.predict(["warm up"])
        _ = model.revision  # computed from the files, once
        return model

    async def _ask(self, turns: Sequence[str]) -> Coefficients | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, turns)
        except InputError:
            return None

    def _predict(self, turns: Sequence[str]) -> Coefficients:
        assert self._model is not None
        output = self._model.predict([list(turns)])
        coefs = dict(zip(self._called, output.coefs[0].tolist(), strict=True))
        eta, familiarity = (None if values is None else float(values[0]) for values in (output.eta, output.familiarity))
        return Coefficients(coefs, eta, self._model.revision, familiarity=familiarity)


def check_family(family: str, name: str) -> None:
    """Raise ConfigError if a P2L model's coefficients mean something else than the router's kind needs.

    `family` is bt or grk, `name` that of the model's likelihood, or "" where an older endpoint has none.
    """
    if name not in likelihood.LIKELIHOODS:
        return
    model = likelihood.get(name)
    fits = {"bt": model.head == "bt", "grk": model.grounded}
    if fits.get(family, True):
        return
    others = [f"{other}-endpoint or {other}-local" for other, fit in fits.items() if fit]
    advice = f"use router type {others[0]}" if others else "route with a model trained with bt or grk"
    raise ConfigError(f"the P2L model has likelihood {name}, which {family} routers cannot use; {advice}")


def family_of(name: str) -> str:
    """Return the family of routers that can use a P2L model of this likelihood; ConfigError if none can."""
    if name not in likelihood.LIKELIHOODS:
        return "bt"
    family = "bt" if likelihood.get(name).head == "bt" else "grk"
    check_family(family, name)
    return family


def make_scorer(
    kind: Kind,
    *,
    endpoint: str | None = None,
    api_key: str | None = None,
    path: str | Path | None = None,
    on_models: _OnModels | None = None,
) -> Scorer:
    """Build the scorer of a kind of router; raise ConfigError if the URL or path that it needs is missing or wrong.

    `endpoint` (a URL) and `api_key` are for `*-endpoint`, `path` (a model folder or hub id) for `*-local`.
    """
    if kind.source == "endpoint":
        if not endpoint:
            raise ConfigError(f"router type {kind.name} needs the URL of a P2L endpoint: --router-model-endpoint")
        from p2l.client import AsyncP2LClient

        # An answer that comes after the request's time limit is still cached, so the client may wait longer.
        client = AsyncP2LClient(
            endpoint, api_key, timeout=15.0, attempt_timeout=10.0, retries=1, headers=TRACE_HEADERS.get
        )
        return EndpointScorer(client, family=kind.family, on_models=on_models)
    if kind.source == "local":
        if not path:
            raise ConfigError(f"router type {kind.name} needs a model folder or hub id: --router-model-name")
        return LocalScorer(path, family=kind.family, on_models=on_models)
    return Scorer()
