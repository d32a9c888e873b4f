"""The fleet: the deployments of each model, with a circuit breaker and limits of their own.

A model may be asked at several places, or with several keys; a request goes to one that is not blocked, by weight, by
the fewest requests under way, or by the lowest latency.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p2l.common.errors import ConfigError
from route.config import ModelConfig, RouterConfig
from route.keep.workers import Peers, SharedCounts
from route.observability.tracing import Attributes, place_of
from route.providers.accounts import account_for, make_provider
from route.providers.base import Fault, Forwarding, NativeProvider, Provider, ProviderError
from route.request.api_errors import ApiError
from route.send.identity import Identity
from route.send.pace import Pace

# Faults of the request: a model that finds them works.
_BLAMELESS = (Fault.CONTEXT_LENGTH, Fault.CONTENT_FILTER, Fault.REQUEST, Fault.UNSUPPORTED)
_NOT_THERE = 404
# An hour, whatever the provider says: a `Retry-After` of a year would take the model out until the next start.
_LONGEST_REST_SECONDS = 3600.0
_MINUTE = 60.0
# For which a measured latency counts; then a request goes there to measure anew.
_FRESH_SECONDS = 60.0
# Of a deployment that answered as another model.
_LEFT_SECONDS = 3600.0
# Weight of the newest latency in the mean.
_SMOOTHING = 0.3


@dataclass
class Breaker:
    """The circuit breaker of one deployment in one worker; it opens and closes with those of the other workers.

    closed --failures in a row--> open --seconds--> half open --success--> closed
                                    ^                   |
                                    +-----failure-------+

    A rate limit opens it for as long as the provider says, an hour at most. Half open, it lets one request through.
    """

    most: int
    """Failures in a row that open it."""
    seconds: float
    """Seconds that it stays open."""
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[float], None] | None = None
    """Called with the seconds that it opens for, and with 0 when it closes."""
    fault: ProviderError | None = None
    """The last one since the model answered."""
    failures: int = 0
    """Number of failures in a row."""
    _opened_until: float | None = None
    _left_until: float = 0.0
    """Until when no success closes it."""
    _probing: bool = False

    @property
    def state(self) -> str:
        """Return closed, open or half_open."""
        if self._opened_until is None:
            return "closed"
        return "open" if self.clock() < self._opened_until else "half_open"

    @property
    def is_blocked(self) -> bool:
        """Return whether no request may go there now: it is open, or another request probes it."""
        return self._opened_until is not None and (self._probing or self.clock() < self._opened_until)

    @property
    def is_left(self) -> bool:
        """Return whether another model answered here, so that nobody asks for some time."""
        return self.clock() < self._left_until

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
            self._close()
            self._probing = False

    def succeeded(self) -> None:
        """Count a complete answer, or a refusal that is the request's own fault."""
        self.failures = 0
        self._close()
        self._probing = False
        self.fault = None

    def failed(self, error: ProviderError, probe: bool = False) -> None:
        """Count a fault; `probe` is what `begin` returned."""
        # A model that is not there will not be there for the next request either.
        if error.fault is Fault.REQUEST and error.status != _NOT_THERE:
            self.give_up(probe)  # whose fault it is another model has to say
            return
        if error.fault in _BLAMELESS and error.status != _NOT_THERE:
            self.succeeded()
            return
        self._count(error, probe)

    def blamed(self, error: ProviderError) -> None:
        """Count the refusal of a request that another model has answered."""
        self._count(error, False)

    def _count(self, error: ProviderError, probe: bool) -> None:
        self.fault = error
        self.failures += 1
        if error.retry_after:
            self._open(min(error.retry_after, _LONGEST_REST_SECONDS))
        elif probe or self.failures >= self.most:
            self._open(self.seconds)
        if probe:
            self._probing = False

    def _open(self, seconds: float) -> None:
        # A failure that comes late must not shorten the rest that the provider asked for.
        self._opened_until = max(self._opened_until or 0.0, self.clock() + seconds)
        if self.tell is not None:
            self.tell(self.opens_in)

    def leave(self) -> None:
        """Open for an hour, whatever answers come of requests under way."""
        self._left_until = self.clock() + _LEFT_SECONDS
        self._open(_LEFT_SECONDS)

    def _close(self) -> None:
        if self._opened_until is not None and self.clock() >= self._left_until:
            self._opened_until = None
            if self.tell is not None:
                self.tell(0.0)

    def hear(self, seconds: float) -> None:
        """Open for as long as another worker's breaker of this deployment has, or close with it."""
        if seconds > 0.0:
            self._opened_until = max(self._opened_until or 0.0, self.clock() + min(seconds, _LONGEST_REST_SECONDS))
        elif not self._probing and self.clock() >= self._left_until:  # a probe of this worker's own decides for itself
            self.failures = 0
            self._opened_until = None


@dataclass
class _Activity:
    """Requests of a deployment, under way and of the last minute; it outlives a reload of the configuration."""

    in_flight: int = 0
    starts: deque[float] = field(default_factory=deque)
    """Times of the last requests, at most `per_minute` of them."""
    seconds: dict[bool, tuple[float, float]] = field(default_factory=dict)
    """Mean latency and the time of the last one, of streams (True) and of whole answers."""
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    """Times and counts of the tokens of the last minute, where they are limited."""
    pace: Pace = field(default_factory=Pace)


@dataclass(eq=False)
class Deployment:
    """One place where a model can be asked, with one account."""

    name: str
    """Name of the model in the configuration and in P2L."""
    config: ModelConfig
    """Configuration of the model, with the name that it has at this place."""
    provider: Provider
    breaker: Breaker
    identity: Identity
    """Which model answers there."""
    is_left_if_other: bool = False
    """Whether no more requests go there for an hour once another model has answered."""
    is_refused_if_other: bool = False
    """Whether such an answer is not passed on."""
    pass_fields: frozenset[str] = frozenset()
    """Names of the fields of requests that reach it beside the plain ones."""
    label: str = ""
    """Its name among the deployments of the model; empty where it is the only one."""
    about: Attributes = field(default_factory=dict)
    """What the spans of its calls say of it."""
    weight: float = 1.0
    max_in_flight: int | None = None
    per_minute: int | None = None
    """Requests that this worker may send in any minute."""
    tokens_per_minute: int | None = None
    """Tokens that its requests and their answers may have in any minute."""
    activity: _Activity = field(default_factory=_Activity)
    shared: SharedCounts | None = None
    """Requests under way in the other workers of the machine, where they are limited."""

    def speaks(self, protocol: str) -> bool:
        """Return whether a request in this protocol may go there as it is."""
        return isinstance(self.provider, NativeProvider) and self.provider.speaks(protocol)

    @property
    def in_flight(self) -> int:
        """Return the requests under way."""
        return self.activity.in_flight

    @property
    def is_blocked(self) -> bool:
        """Return whether no request may go there now: its breaker is open, or one of its limits is reached."""
        if self.breaker.is_blocked:
            return True
        if self.max_in_flight is None and self.per_minute is None and self.tokens_per_minute is None:
            return False  # every request asks every model, and most have no limits
        return self.is_full

    @property
    def is_full(self) -> bool:
        """Return whether one of its own limits is reached."""
        return self._has_too_many or self._wait() > 0.0

    @property
    def _has_too_many(self) -> bool:
        if self.max_in_flight is None:
            return False
        elsewhere = 0 if self.shared is None else self.shared.elsewhere(f"{self.name}/{self.label}")
        return self.in_flight + elsewhere >= self.max_in_flight

    def _count(self, change: int) -> None:
        self.activity.in_flight += change
        if self.max_in_flight is not None and self.shared is not None:
            self.shared.set(f"{self.name}/{self.label}", self.activity.in_flight)

    @property
    def is_limited(self) -> bool:
        """Return whether it is a limit, here or at the provider, not a failure, that blocks it."""
        fault = self.breaker.fault
        return not self.breaker.is_blocked or (fault is not None and fault.fault is Fault.RATE_LIMIT)

    @property
    def free_in(self) -> float:
        """Return the seconds until it may be asked; 1 where a request under way has to end first."""
        return max(self.breaker.opens_in, self._wait(), 1.0 if self._has_too_many else 0.0)

    def _wait(self) -> float:
        """Return the seconds until neither limit of a minute is reached."""
        starts, tokens, now, wait = self.activity.starts, self.activity.tokens, self.breaker.clock(), 0.0
        if self.per_minute is not None and len(starts) >= self.per_minute:
            wait = starts[-self.per_minute] + _MINUTE - now
        if self.tokens_per_minute is not None:
            while tokens and tokens[0][0] + _MINUTE <= now:
                tokens.popleft()
            # Free as soon as the oldest requests have left the window whose tokens make the excess.
            excess = sum(count for _, count in tokens) - self.tokens_per_minute
            for start, count in tokens:
                if excess < 0:
                    break
                excess -= count
                if excess < 0:
                    wait = max(wait, start + _MINUTE - now)
        return max(0.0, wait)

    def use(self, tokens: int) -> None:
        """Count tokens of a request, or of its answer."""
        if self.tokens_per_minute is not None and tokens:
            self.activity.tokens.append((self.breaker.clock(), tokens))

    def begin(self) -> bool:
        """Count a request until `end`; return whether it is the probe of the breaker."""
        self._count(1)
        if self.per_minute is not None:
            starts = self.activity.starts
            starts.append(self.breaker.clock())
            while len(starts) > self.per_minute:
                starts.popleft()
        return self.breaker.begin()

    def go_on_from(self, earlier: Deployment) -> None:
        """Take over activity and breaker of an earlier deployment, if account and model there are the same."""
        # Another key or address may have other limits, and be well where the old one failed.
        if self.provider is earlier.provider and self.config.name == earlier.config.name:
            self.activity = earlier.activity
            most, seconds = self.breaker.most, self.breaker.seconds
            self.breaker = earlier.breaker
            self.breaker.most, self.breaker.seconds = most, seconds

    def end(self) -> None:
        """Count the end of a request."""
        self._count(-1)

    def measure(self, seconds: float, *, stream: bool) -> None:
        """Take over how long the first token of a stream, or a whole answer, took."""
        measured = self.activity.seconds
        mean = measured[stream][0] if stream in measured else seconds
        measured[stream] = (mean + _SMOOTHING * (seconds - mean), self.breaker.clock())

    def latency(self, *, stream: bool) -> float:
        """Return the mean of `measure`; 0 where it has to be measured anew and nobody does, so that a request goes."""
        mean, at = self.activity.seconds.get(stream, (math.inf, -math.inf))
        is_stale = self.breaker.clock() - at > _FRESH_SECONDS
        return 0.0 if is_stale and not self.in_flight else mean


Balance = Callable[[Sequence[Deployment], bool], Deployment]


def _by_weight(deployments: Sequence[Deployment], _stream: bool) -> Deployment:
    """Draw a deployment by weight."""
    if len(deployments) == 1:
        return deployments[0]
    return random.choices(deployments, [deployment.weight for deployment in deployments])[0]


def _by_requests_in_flight(deployments: Sequence[Deployment], stream: bool) -> Deployment:
    """Return the deployment with the fewest requests under way for its weight, drawn by weight among equals."""
    fewest = min(deployment.in_flight / deployment.weight for deployment in deployments)
    return _by_weight([each for each in deployments if each.in_flight / each.weight <= fewest], stream)


def _by_latency(deployments: Sequence[Deployment], stream: bool) -> Deployment:
    """Return the fastest deployment, drawn by weight among equals; one not measured for a minute goes first."""
    seconds = [deployment.latency(stream=stream) for deployment in deployments]
    lowest = min(seconds)
    return _by_weight([each for each, mean in zip(deployments, seconds, strict=True) if mean <= lowest], stream)


_BALANCES: Mapping[str, Balance] = {
    "weight": _by_weight,
    "in_flight": _by_requests_in_flight,
    "latency": _by_latency,
}
"""Balances by the key `balance` of a model."""


@dataclass(frozen=True)
class Target:
    """A model with its deployments."""

    name: str
    """Name in the configuration and in P2L."""
    config: ModelConfig
    deployments: tuple[Deployment, ...]

    def speaks(self, protocol: str) -> bool:
        """Return whether a request in this protocol may go to each deployment as it is."""
        return all(deployment.speaks(protocol) for deployment in self.deployments)

    def pick(self, *, stream: bool, without: Collection[Deployment] = ()) -> Deployment | None:
        """Return the deployment that a request goes to; None if all but those of `without` are blocked."""
        free = [each for each in self.deployments if each not in without and not each.is_blocked]
        return _BALANCES[self.config.balance](free, stream) if free else None


class Fleet:
    """All models of the configuration."""

    def __init__(self, targets: Mapping[str, Target], providers: Mapping[str, Provider]) -> None:
        """Hold the targets by name, in the order of the configuration, and the providers by their account."""
        self.targets = dict(targets)
        self.deployments = [deployment for target in targets.values() for deployment in target.deployments]
        """Deployments of all models."""
        self.providers = dict(providers)

    def blocked(self) -> set[str]:
        """Return the names of the models that no request may go to now."""
        return self.targets.keys() - {each.name for each in self.deployments if not each.is_blocked}

    def failing(self) -> set[str]:
        """Return the names of the models all of whose circuit breakers are open."""
        return {
            name
            for name, target in self.targets.items()
            if all(deployment.breaker.is_blocked for deployment in target.deployments)
        }

    def no_larger_than(self, name: str) -> set[str]:
        """Return the names of the models that have no larger context window than this one."""
        window = self.targets[name].config.context_window
        if window is None:
            return {name}
        windows = ((other, target.config.context_window) for other, target in self.targets.items())
        return {other for other, size in windows if size is not None and size <= window}

    def go_on_from(self, before: Fleet) -> None:
        """Take over activity and breakers of the deployments of an earlier fleet."""
        earlier = {(each.name, each.label): each for each in before.deployments}
        for deployment in self.deployments:
            if (deployment.name, deployment.label) in earlier:
                deployment.go_on_from(earlier[deployment.name, deployment.label])

    def share(self, peers: Peers, counts: SharedCounts) -> None:
        """Share open breakers, and requests under way where they are limited, with the other workers."""
        places = {(each.name, each.label): each for each in self.deployments}

        def hear(_: str, body: list[Any]) -> None:
            name, label, seconds = body
            if (name, label) in places:
                places[name, label].breaker.hear(seconds)

        for place, deployment in places.items():
            deployment.shared = counts
            deployment.breaker.tell = lambda seconds, place=place: peers.tell("breaker", [*place, seconds])
        peers.on("breaker", hear)

    async def close(self, *others: Fleet) -> None:
        """Close the connections that no other fleet has."""
        kept = {id(provider) for other in others for provider in other.providers.values()}
        for provider in self.providers.values():
            if id(provider) not in kept:
                await provider.close()


def all_blocked(deployments: Sequence[Deployment], models: str) -> ApiError:
    """Return the error for a request all of whose deployments are blocked; `models` names them in its message."""
    soonest = min(deployments, key=lambda deployment: deployment.free_in)
    if soonest.is_limited:
        text = f"{models} has reached a limit; try again later"
        return ApiError(429, "rate_limit_exceeded", text, retry_after=soonest.free_in)
    has_left = all(deployment.breaker.is_left for deployment in deployments)
    text = f"{models} has {'answered as another model' if has_left else 'been failing'}; try again later"
    return ApiError(502, "models_unavailable", text, retry_after=soonest.free_in)


def make_fleet(config: RouterConfig, env: Mapping[str, str], *, workers: int = 1, before: Fleet | None = None) -> Fleet:
    """Build providers, one for each account, and breakers; raise ConfigError for an unknown type or a missing key.

    Each of the `workers` gets its share of the requests that a deployment takes in a minute. Accounts that the fleet
    `before` has keep their connections.
    """
    providers: dict[str, Provider] = {}
    open_providers = {} if before is None else before.providers
    targets = {}
    for name, model in config.model_configs.items():
        listed = frozenset([*config.pass_fields, *model.pass_fields])
        deployments = []
        for label, (place, limits) in model.places().items():
            where = f"model_configs.{name}" + (f".deployments.{label}" if model.deployments else "")
            limit, token_limit = limits.requests_per_minute, limits.tokens_per_minute
            try:
                account = account_for(place.type, place.api_key, place.base_url, env, place.options)
                # repr: YAML has options that JSON cannot say, such as dates.
                same = json.dumps([place.type, account.base_url, account.api_key, account.options], default=repr)
                if same not in providers:
                    providers[same] = (
                        open_providers[same] if same in open_providers else make_provider(place.type, account)
                    )
                if set(place.serves) != {"chat"} and not isinstance(providers[same], Forwarding):
                    raise ConfigError(f"serves: providers of the type {place.type} are asked for chat alone")
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
            deployments.append(
                Deployment(
                    name=name,
                    config=place,
                    provider=providers[same],
                    breaker=Breaker(config.breaker.failures, config.breaker.seconds),
                    identity=Identity(name, label, place, config.model_configs),
                    is_left_if_other=config.unexpected_model != "warn",
                    is_refused_if_other=config.unexpected_model == "refuse",
                    pass_fields=listed,
                    label=label,
                    about={
                        **place_of(place.type, place.name, account.base_url),
                        "p2l.model": name,
                        "p2l.deployment": label,
                    },
                    weight=limits.weight,
                    max_in_flight=limits.max_in_flight,
                    per_minute=None if limit is None else max(1, limit // workers),
                    tokens_per_minute=None if token_limit is None else max(1, token_limit // workers),
                )
            )
        targets[name] = Target(name, model, tuple(deployments))
    return Fleet(targets, providers)
