"""Dispatch: ask the chosen model; when it fails before its first token, choose again without it, or retry it.

Another model within the budget goes first. Without one, the model that failed is retried if its fault may pass, after
the pause that the provider names, else `uniform(0.5, 1) * 0.2 s * 2^n`. There is no retry of what is the request's own
fault, none after `max_attempts` attempts, and none beyond the deadline.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from p2l.common.errors import ConfigError, InputError
from p2l.common.web import Deadline
from route.config import ModelConfig, RouterConfig, TimeoutsConfig
from route.providers.accounts import account_for, make_provider
from route.providers.base import JSON, Fault, Provider, ProviderError, Timeouts
from route.routing.candidates import NoModelError
from route.routing.decision import Coefficients, Decision
from route.routing.router import Router
from route.service.charges import Bounds, Charge, limited, too_dear
from route.service.errors import ApiError, of_choice, of_fault, of_refusal
from route.service.wire import Incoming, count_of, request_for
from route.storage.ledger import KeyRecord, Ledger, Refusal
from route.storage.reservations import NOTHING

_BLAMELESS = (Fault.CONTEXT_LENGTH, Fault.CONTENT_FILTER, Fault.REQUEST, Fault.UNSUPPORTED)
_NOT_THERE = 404
_LONGEST_REST = 3600.0
"""Seconds, whatever the provider says."""


@dataclass
class Breaker:
    """The circuit breaker of one model in one worker.

    closed --failures in a row--> open --seconds--> half open --success--> closed
                                    ^                   |
                                    +-----failure-------+

    A rate limit opens it for as long as the provider says, an hour at most. Half open, it lets one request through.
    """

    most: int
    """Failures in a row that open it."""
    seconds: float
    """For which it stays open."""
    clock: Callable[[], float] = time.monotonic
    fault: ProviderError | None = None
    """The last one since the model answered."""
    _failures: int = 0
    _opened_until: float | None = None
    _probing: bool = False

    @property
    def is_blocked(self) -> bool:
        """Return whether no request may go there now: it is open, or another request probes it."""
        return self._opened_until is not None and (self._probing or self.clock() < self._opened_until)

    @property
    def opens_in(self) -> float:
        """Return the seconds until a request may probe the model."""
        return max(0.0, (self._opened_until or 0.0) - self.clock())

    def begin(self) -> bool:
        """Count a request; return whether it is the probe."""
        if self._opened_until is None or self._probing:
            return False
        self._probing = True
        return True

    def give_up(self, probe: bool) -> None:
        """Count a cancelled request, which says nothing of the model."""
        if probe:
            self._probing = False

    def began(self, probe: bool) -> None:
        """Close after the first token of a probe; if the stream breaks off, the failures before it still count."""
        if probe:
            self._opened_until = None
            self._probing = False

    def succeeded(self) -> None:
        """Count a complete answer, or a refusal that is the request's own fault."""
        self._failures = 0
        self._opened_until = None
        self._probing = False
        self.fault = None

    def failed(self, error: ProviderError, probe: bool = False) -> None:
        """Count a fault; `probe` is what `begin` returned."""
        # A model that is not there will not be there for the next request either.
        if error.fault in _BLAMELESS and error.status != _NOT_THERE:
            self.succeeded()
            return
        self.fault = error
        self._failures += 1
        if error.retry_after:
            self._open(min(error.retry_after, _LONGEST_REST))
        elif probe or self._failures >= self.most:
            self._open(self.seconds)
        if probe:
            self._probing = False

    def _open(self, seconds: float) -> None:
        # A failure that comes late must not shorten the rest that the provider asked for.
        self._opened_until = max(self._opened_until or 0.0, self.clock() + seconds)


@dataclass(frozen=True)
class Target:
    """A model with its provider and its breaker."""

    name: str
    """As the configuration and P2L call it."""
    config: ModelConfig
    provider: Provider
    breaker: Breaker
    pass_fields: frozenset[str] = frozenset()
    """Names of the fields of requests that reach it beside the plain ones."""


class Fleet:
    """All models of the configuration."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        """Hold the targets by name, in the order of the configuration."""
        self.targets = dict(targets)
        windows = [target.config.context_window for target in targets.values()]
        self.smallest_window = min((window for window in windows if window is not None), default=None)

    def blocked(self) -> set[str]:
        """Return the names of the models whose breaker is open."""
        return {name for name, target in self.targets.items() if target.breaker.is_blocked}

    def no_larger_than(self, name: str) -> set[str]:
        """Return the names of the models whose context window is not larger than this one's."""
        window = self.targets[name].config.context_window
        if window is None:
            return {name}
        windows = ((other, target.config.context_window) for other, target in self.targets.items())
        return {other for other, size in windows if size is not None and size <= window}

    async def close(self) -> None:
        """Close all connections."""
        # Models of one account share a client.
        for provider in {id(target.provider): target.provider for target in self.targets.values()}.values():
            await provider.close()


def make_fleet(config: RouterConfig, env: Mapping[str, str]) -> Fleet:
    """Build providers, one for each account, and breakers; raise ConfigError for an unknown type or a missing key."""
    providers: dict[str, Provider] = {}
    targets = {}
    for name, model in config.model_configs.items():
        try:
            account = account_for(model.type, model.api_key, model.base_url, env, model.options)
            # repr: YAML has options that JSON cannot say, such as dates.
            same = json.dumps([model.type, account.base_url, account.api_key, account.options], default=repr)
            if same not in providers:
                providers[same] = make_provider(model.type, account)
        except ConfigError as error:
            raise ConfigError(f"model_configs.{name}: {error}") from error
        breaker = Breaker(config.breaker.failures, config.breaker.seconds)
        listed = frozenset([*config.pass_fields, *model.pass_fields])
        targets[name] = Target(name, model, providers[same], breaker, listed)
    return Fleet(targets)


@dataclass
class Choice:
    """Chooses the model of a request, and again when one has failed."""

    allowed: Collection[str]
    """Names of all models that may be chosen."""
    router: Router | None = None
    """None: the client named the model."""
    coefficients: Coefficients | None = None
    """None, without scores in time: the static order decides."""
    budget: float | None = None
    tokens: int | None = None
    fixed: str | None = None
    """The model of this conversation."""
    decision: Decision | None = None
    """The last one of the router."""

    def choose(self, without: Collection[str]) -> str:
        """Return a model outside `without`; raise InfeasibleError for a budget that is too small, else NoModelError."""
        if self.router is None:
            name = next((name for name in self.allowed if name not in without), None)
            if name is None:
                raise NoModelError(f"{', '.join(self.allowed)} is not available")
            return name
        decision = self.router.decide(
            self.coefficients, self.budget, allowed=self.allowed, without=without, tokens=self.tokens, fixed=self.fixed
        )
        self.decision = decision.limited_to(self.allowed)  # a key is told of no model that it may not use
        return decision.model


T = TypeVar("T")
Call = Callable[[Target, JSON, Timeouts, Charge], Awaitable[T]]
"""Asks a model's provider."""
_UNSEEN = (Fault.TIMEOUT, Fault.MALFORMED)
"""Faults of answers that may have been made, and are charged by the provider."""
_LONGEST_PAUSE = 30.0
_MARGIN = 1e-3  # seconds; aiohttp reads a limit of 0 as none, and a sleep may end a little early


@dataclass
class Trip:
    """A request and its attempts so far."""

    incoming: Incoming
    deadline: Deadline
    choice: Choice
    key: KeyRecord
    ceiling: float | None = None
    """What the answer may cost at most."""
    excluded: set[str] = field(default_factory=set)
    """Models that failed."""
    tried: list[str] = field(default_factory=list)
    faults: list[ProviderError] = field(default_factory=list)
    """One for each failed attempt."""
    dropped: list[str] = field(default_factory=list)
    """Names of the fields that the model asked last did not get."""
    charges: list[Charge] = field(default_factory=list)
    """One for each attempt."""


@dataclass(frozen=True)
class Dispatcher:
    """Asks models until one answers."""

    fleet: Fleet
    max_attempts: int
    timeouts: TimeoutsConfig
    max_bytes: int
    """Of an answer."""
    failed: Callable[[str, ProviderError], None]
    """Called for every fault."""
    ledger: Ledger
    settle: Callable[[Charge, bool], float]
    """Books what an attempt has cost; False: it has cost nothing."""

    async def run(self, trip: Trip, call: Call[T]) -> tuple[Target, T]:
        """Return the first model that answers and what `call` returned; raise `ApiError` if none does."""
        target = self.first(trip)
        while True:
            try:
                return target, await self._attempt(trip, target, call)
            except ProviderError as error:
                target = await self._next(trip, target, error)

    async def _attempt(self, trip: Trip, target: Target, call: Call[T]) -> T:
        request, trip.dropped = request_for(target.config, trip.incoming, target.pass_fields)
        charge, request = await self._reserve(trip, target, request)
        trip.charges.append(charge)
        trip.tried.append(target.name)
        probe = target.breaker.begin()
        try:
            left = max(_MARGIN, trip.deadline.left())
            timeouts = self.timeouts.of_attempt(left, self.max_bytes, stream=trip.incoming.stream)
            answer = await call(target, request, timeouts, charge)
        except ProviderError as error:
            target.breaker.failed(error, probe)
            trip.faults.append(error)
            self.failed(target.name, error)
            cost = self.settle(charge, may_have_cost(charge, error))
            if trip.ceiling is not None:
                trip.ceiling -= cost
            raise
        except BaseException:
            target.breaker.give_up(probe)
            raise
        target.breaker.began(probe)
        return answer

    async def _reserve(self, trip: Trip, target: Target, request: JSON) -> tuple[Charge, JSON]:
        """Reserve the worst case of an attempt; return its charge and the request, whose answer may be cut shorter."""
        key, choices = trip.key, count_of(request.get("n")) or 1
        bounds = None
        if key.spend_per_day is not None or trip.ceiling is not None:
            bounds = Bounds.of(target.config, trip.incoming, request)
        worst = NOTHING if bounds is None else bounds.worst(target.config, trip.ceiling)
        if worst is None:
            raise too_dear(key)
        reservation = await self.ledger.reserve(key, worst)
        if isinstance(reservation, Refusal):
            raise of_refusal(reservation)
        charge = Charge(target.name, target.config, trip.incoming, reservation, choices=choices)
        if bounds is not None:
            charge.max_tokens = bounds.lowered(worst.most if reservation.amount is None else reservation.amount)
        return charge, request if charge.max_tokens is None else limited(request, charge.max_tokens)

    def first(self, trip: Trip) -> Target:
        """Return the model that a request goes to first.

        Raise `ApiError` 400 if no model fits budget and length of the prompt, 429 or 502 if all that do have failed.
        """
        blocked = self.fleet.blocked()
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
        """Return the model to ask after one has failed."""
        if _is_the_requests(error, trip.incoming) or len(trip.tried) >= self.max_attempts:
            raise of_fault(error, target.name)
        too_small = self.fleet.no_larger_than(target.name) if error.fault is Fault.CONTEXT_LENGTH else {target.name}
        trip.excluded |= too_small
        try:
            return self._chosen(trip, trip.excluded | self.fleet.blocked())
        except (InputError, NoModelError):
            return await self._again(trip, target, error)

    async def _again(self, trip: Trip, target: Target, error: ProviderError) -> Target:
        """Pause and return the same model, since there is no other."""
        backoff = random.uniform(0.5, 1.0) * 0.2 * 2 ** (len(trip.tried) - 1)
        pause = max(error.retry_after or backoff, target.breaker.opens_in if error.retry_after else 0.0) + _MARGIN
        if not error.fault.is_transient or pause > min(_LONGEST_PAUSE, trip.deadline.left()):
            raise of_fault(error, target.name)
        await asyncio.sleep(pause)
        if target.breaker.is_blocked:
            raise of_fault(error, target.name)
        return target

    def _chosen(self, trip: Trip, without: Collection[str]) -> Target:
        return self.fleet.targets[trip.choice.choose(without)]

    def _all_blocked(self, trip: Trip) -> ApiError:
        """Return the error for a request all of whose models are blocked."""
        breakers = [self.fleet.targets[name].breaker for name in trip.choice.allowed]
        breakers = [breaker for breaker in breakers if breaker.is_blocked]
        soonest = min(breakers, key=lambda breaker: breaker.opens_in)
        limited = soonest.fault is not None and soonest.fault.fault is Fault.RATE_LIMIT
        status, code = (429, "rate_limit_exceeded") if limited else (502, "models_unavailable")
        text = "every model that this request could go to has been failing; come again later"
        return ApiError(status, code, text, retry_after=soonest.opens_in)


def _is_the_requests(error: ProviderError, incoming: Incoming) -> bool:
    """Return whether a fault is the request's own, so that every other model would refuse it too.

    A model that is unknown to its provider, or does not continue the beginning of an answer, says nothing of others.
    """
    if error.fault is Fault.REQUEST:
        return error.status != 404 and not incoming.ends_with_assistant
    return error.fault.is_request_error


def may_have_cost(charge: Charge, error: ProviderError) -> bool:
    """Return whether a failed attempt has to be paid by its tokens, though nobody saw them."""
    return charge.config.price is not None and error.fault in _UNSEEN


async def ask_whole(target: Target, request: JSON, timeouts: Timeouts, charge: Charge) -> JSON:
    """Ask for a whole answer; see `Call`."""
    answering = target.provider.chat(request, timeouts)
    if charge.config.price is None:
        answer = await answering
    else:
        # The provider charges for an answer whether or not the client waits, so its counts are waited for.
        charge.pending = asyncio.ensure_future(answering)
        answer = await asyncio.shield(charge.pending)
    target.breaker.succeeded()
    charge.complete(answer)
    charge.pending = None
    return answer
