"""Attempts: ask the chosen model; when it fails before its first token, choose again without it, or come back to it.

Another model within the budget goes first. When there is none, the model that failed is asked again after a pause, as
long as its fault may pass: as long as the provider says, else `uniform(0.5, 1) * 0.2 s * 2^n`. Nothing is tried again
that is the request's own fault, nor more than `max_attempts` times, nor beyond the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p2l.common.errors import ConfigError, InputError
from p2l.common.web import Deadline
from route.config import BreakerConfig, ModelConfig, RouterConfig, TimeoutsConfig
from route.providers.accounts import account_for, make_provider
from route.providers.base import JSON, Account, Fault, Provider, ProviderError, Timeouts
from route.routing.candidates import NoModelError
from route.routing.decision import Coefficients, Decision
from route.routing.router import Router
from route.service.errors import ApiError, of_choice, of_fault
from route.service.wire import Incoming, request_for

# A circuit breaker for one model: after enough failures in a row it is left alone, then tried by one request.
#
#     closed --failures in a row--> open --seconds--> half open --success--> closed
#                                     ^                   |
#                                     +-----failure-------+
#
# A rate limit opens it for as long as the provider says, an hour at most. Each worker has its own breakers.

_BLAMELESS = (Fault.CONTEXT_LENGTH, Fault.CONTENT_FILTER, Fault.REQUEST, Fault.UNSUPPORTED)
_NOT_THERE = 404
_LONGEST_REST = 3600.0
"""Seconds; a provider that says a nonsensical time is tried all the same."""


class Breaker:
    """Whether a model may be asked."""

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float]) -> None:
        """Open for `seconds` after `failures` in a row; `clock` only grows."""
        self._most = failures
        self._seconds = seconds
        self._clock = clock
        self._failures = 0
        self._opened_until: float | None = None
        self._probing = False
        self.fault: ProviderError | None = None
        """The last one, while the model is not known to be well."""

    @property
    def is_blocked(self) -> bool:
        """Whether no request may go there now: it is open, or another request is trying it."""
        return self._opened_until is not None and (self._probing or self._clock() < self._opened_until)

    @property
    def opens_in(self) -> float:
        """Seconds until a request may try the model again."""
        return max(0.0, (self._opened_until or 0.0) - self._clock())

    def begin(self) -> bool:
        """A request goes there; True if it is the one that tries whether the model is well again."""
        if self._opened_until is None or self._probing:
            return False
        self._probing = True
        return True

    def give_up(self, probe: bool) -> None:
        """The request was cancelled and nothing was learned."""
        if probe:
            self._probing = False

    def began(self, probe: bool) -> None:
        """An answer has begun: others may come too, but should it break off the model is as unwell as before."""
        if probe:
            self._opened_until = None
            self._probing = False

    def succeeded(self) -> None:
        """The model answered to the end, or refused for reasons that are the request's."""
        self._failures = 0
        self._opened_until = None
        self._probing = False
        self.fault = None

    def failed(self, error: ProviderError, probe: bool = False) -> None:
        """Take note of a fault; `probe` as `begin` said."""
        if error.fault in _BLAMELESS and error.status != _NOT_THERE:
            self.succeeded()
            return
        self.fault = error
        self._failures += 1
        if error.retry_after:
            self._open(min(error.retry_after, _LONGEST_REST))
        elif probe or self._failures >= self._most:
            self._open(self._seconds)
        if probe:
            self._probing = False

    def _open(self, seconds: float) -> None:
        self._opened_until = max(self._opened_until or 0.0, self._clock() + seconds)


# The models that can be asked: each with its provider and its breaker; models of one account share its connections.


@dataclass(frozen=True)
class Target:
    """One model."""

    name: str
    """As the configuration and P2L call it."""
    config: ModelConfig
    provider: Provider
    breaker: Breaker


class Fleet:
    """All models of the configuration."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        """By name, in the order of the configuration."""
        self.targets = dict(targets)
        windows = [target.config.context_window for target in targets.values()]
        self.smallest_window = min((window for window in windows if window is not None), default=None)

    def blocked(self) -> set[str]:
        """Names of the models that are left alone for now."""
        return {name for name, target in self.targets.items() if target.breaker.is_blocked}

    def no_larger_than(self, name: str) -> set[str]:
        """Names of the models that a prompt which is too long for this one does not fit into either."""
        window = self.targets[name].config.context_window
        if window is None:
            return {name}
        known = ((other, target.config.context_window) for other, target in self.targets.items())
        return {other for other, size in known if size is not None and size <= window}

    async def close(self) -> None:
        """Close all connections."""
        for provider in {id(target.provider): target.provider for target in self.targets.values()}.values():
            await provider.close()


def account_of(model: ModelConfig, env: Mapping[str, str]) -> Account:
    """Where a model is and who asks.

    Raises:
        ConfigError: an unknown type, or no key.
    """
    return account_for(model.type, model.api_key, model.base_url, env, model.options)


def make_fleet(config: RouterConfig, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> Fleet:
    """Providers and breakers of a configuration; call it within the event loop.

    Raises:
        ConfigError: names the model whose provider cannot be made.
    """
    providers: dict[str, Provider] = {}
    targets = {}
    for name, model in config.model_configs.items():
        with _blaming(name):
            account = account_of(model, env)
            same = json.dumps([model.type, account.base_url, account.api_key, account.options], default=repr)
            if same not in providers:
                providers[same] = make_provider(model.type, account)
        targets[name] = Target(name, model, providers[same], _breaker(config.breaker, clock))
    return Fleet(targets)


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"model_configs.{name}: {error}") from error


def _breaker(config: BreakerConfig, clock: Callable[[], float]) -> Breaker:
    return Breaker(config.failures, config.seconds, clock)


# Which model a request goes to: called by name, or chosen by the router from the scores of its prompt.


class Choice(Protocol):
    """Chooses, and chooses again when a model has failed."""

    @property
    def decision(self) -> Decision | None:
        """The last one, which tells why; None where nothing was decided."""
        ...

    @property
    def allowed(self) -> Collection[str]:
        """Names of all models that may be chosen."""
        ...

    def choose(self, without: Collection[str]) -> str:
        """The name of a model that is none of `without`.

        Raises:
            InfeasibleError: none that is left keeps to the budget.
            NoModelError: none is left.
        """
        ...


@dataclass(frozen=True)
class Direct:
    """The client named the model; no other will do."""

    model: str
    decision: None = None

    @property
    def allowed(self) -> Collection[str]:
        """See `Choice`."""
        return (self.model,)

    def choose(self, without: Collection[str]) -> str:
        """See `Choice`."""
        if self.model in without:
            raise NoModelError(f"{self.model} is not available")
        return self.model


@dataclass
class Routed:
    """The router decides."""

    router: Router
    coefficients: Coefficients | None
    """None: there were no scores in time, the static order decides."""
    budget: float | None
    allowed: Collection[str]
    tokens: int | None = None
    fixed: str | None = None
    """The model of this conversation."""
    decision: Decision | None = None

    def choose(self, without: Collection[str]) -> str:
        """See `Choice`."""
        self.decision = self.router.decide(
            self.coefficients,
            self.budget,
            allowed=self.allowed,
            without=without,
            tokens=self.tokens,
            fixed=self.fixed,
        )
        return self.decision.model


T = TypeVar("T")
Call = Callable[[Target, JSON, Timeouts], Awaitable[T]]
"""Asks a model's provider."""
_LONGEST_PAUSE = 30.0
_TARDY = 1e-3


@dataclass
class Trip:
    """A request on its way to an answer."""

    incoming: Incoming
    deadline: Deadline
    choice: Choice
    excluded: set[str] = field(default_factory=set)
    """Models that failed."""
    tried: list[str] = field(default_factory=list)
    faults: list[ProviderError] = field(default_factory=list)
    """One for each model tried that failed."""


class Dispatcher:
    """Finds a model that answers."""

    def __init__(
        self,
        fleet: Fleet,
        max_attempts: int,
        timeouts: TimeoutsConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        failed: Callable[[str, ProviderError], None] = lambda _model, _error: None,
    ) -> None:
        """`failed` is told of every fault."""
        self._fleet = fleet
        self._max_attempts = max_attempts
        self._timeouts = timeouts
        self._sleep = sleep
        self._uniform = uniform
        self._failed = failed

    async def run(self, trip: Trip, call: Call[T]) -> tuple[Target, T]:
        """The first model that answers, and what `call` returned.

        Raises:
            ApiError: none did.
        """
        target = self.first(trip)
        while True:
            try:
                return target, await self._attempt(trip, target, call)
            except ProviderError as error:
                target = await self._next(trip, target, error)

    async def _attempt(self, trip: Trip, target: Target, call: Call[T]) -> T:
        trip.tried.append(target.name)
        probe = target.breaker.begin()
        try:
            answer = await call(target, request_for(target.config, trip.incoming), self._times(trip))
        except ProviderError as error:
            target.breaker.failed(error, probe)
            trip.faults.append(error)
            self._failed(target.name, error)
            raise
        except BaseException:
            target.breaker.give_up(probe)
            raise
        target.breaker.began(probe)
        return answer

    def _times(self, trip: Trip) -> Timeouts:
        left = max(_TARDY, trip.deadline.left())
        return self._timeouts.of_attempt(left, stream=trip.incoming.stream)

    def first(self, trip: Trip) -> Target:
        """The model that a request goes to first.

        Raises:
            ApiError: 400, no model keeps to the budget or takes a prompt of this length; 429 or 502, all that do have
                been failing.
        """
        blocked = self._fleet.blocked()
        try:
            return self._chosen(trip, blocked)
        except (InputError, NoModelError) as error:
            if not blocked:
                raise of_choice(error) from error
        try:
            self._chosen(trip, ())
        except (InputError, NoModelError) as error:
            raise of_choice(error) from error
        raise self._all_blocked(trip)

    async def _next(self, trip: Trip, target: Target, error: ProviderError) -> Target:
        """The model to ask after one has failed."""
        if _is_the_requests(error, trip.incoming) or len(trip.tried) >= self._max_attempts:
            raise of_fault(error, target.name)
        too_small = self._fleet.no_larger_than(target.name) if error.fault is Fault.CONTEXT_LENGTH else {target.name}
        trip.excluded |= too_small
        try:
            return self._chosen(trip, trip.excluded | self._fleet.blocked())
        except (InputError, NoModelError):
            return await self._again(trip, target, error)

    async def _again(self, trip: Trip, target: Target, error: ProviderError) -> Target:
        """The same model after a pause, since there is no other."""
        backoff = self._uniform(0.5, 1.0) * 0.2 * 2 ** (len(trip.tried) - 1)
        pause = max(error.retry_after or backoff, target.breaker.opens_in if error.retry_after else 0.0) + _TARDY
        if not error.fault.may_pass or pause > min(_LONGEST_PAUSE, trip.deadline.left()):
            raise of_fault(error, target.name)
        await self._sleep(pause)
        if target.breaker.is_blocked:
            raise of_fault(error, target.name)
        return target

    def _chosen(self, trip: Trip, without: Collection[str]) -> Target:
        return self._fleet.targets[trip.choice.choose(without)]

    def _all_blocked(self, trip: Trip) -> ApiError:
        """Every model that the request could go to is left alone for now."""
        breakers = [self._fleet.targets[name].breaker for name in trip.choice.allowed]
        breakers = [breaker for breaker in breakers if breaker.is_blocked]
        soonest = min(breakers, key=lambda breaker: breaker.opens_in)
        limited = soonest.fault is not None and soonest.fault.fault is Fault.RATE_LIMIT
        status, code = (429, "rate_limit_exceeded") if limited else (502, "models_unavailable")
        text = "every model that this request could go to has been failing; come again later"
        return ApiError(status, code, text, retry_after=soonest.opens_in)


def _is_the_requests(error: ProviderError, incoming: Incoming) -> bool:
    """Whether the client has to hear of a fault, since every other model would say the same.

    A model that is unknown to its provider, or does not go on with the beginning of an answer, says nothing of others.
    """
    if error.fault is Fault.REQUEST:
        return error.status != 404 and not incoming.ends_with_assistant
    return error.fault.is_the_requests


async def ask_whole(target: Target, request: JSON, timeouts: Timeouts) -> JSON:
    """Ask for a whole answer; see `Call`."""
    answer = await target.provider.chat(request, timeouts)
    target.breaker.succeeded()
    return answer
