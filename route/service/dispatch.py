"""Attempts: ask the chosen model; when it fails before its first token, choose again without it, or come back to it.

Another model within the budget goes first. When there is none, the model that failed is asked again after a pause, as
long as its fault may pass: as long as the provider says, else `uniform(0.5, 1) * 0.2 s * 2^n`. Nothing is tried again
that is the request's own fault, nor more than `max_attempts` times, nor beyond the deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from p2l.errors import InputError
from route.config import TimeoutsConfig
from route.providers.base import JSON, Fault, ProviderError, Timeouts
from route.routers import NoModelError
from route.service.choice import Choice
from route.service.errors import ApiError, of_choice, of_fault
from route.service.fleet import Fleet, Target
from route.service.incoming import Incoming
from route.service.lifeline import Deadline
from route.service.outgoing import request_for

__all__ = ["Call", "Dispatcher", "Trip", "ask_whole"]

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
