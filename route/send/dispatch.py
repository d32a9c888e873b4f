"""Dispatch: ask the chosen model; when it fails before its first token, ask it once more, or choose again without it.

The same model is asked once more at another deployment, at once, or where the fault was a short rate limit or a single
5xx, after a pause of at most `retry_seconds`. Then another model within the budget goes first. Without one, the model
that failed is retried if its fault may pass, after the pause that the provider names, else
`uniform(0.5, 1) * 0.2 s * 2^n`. There is no retry of what is the request's own fault, none after `max_attempts`
attempts, and none beyond the deadline.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from p2l.common.errors import InputError
from p2l.common.web import Deadline
from route.config import RouterConfig
from route.keep.ledger import KeyRecord, Ledger, Refusal
from route.keep.reservations import NOTHING
from route.observability.tracing import RequestTrace, child, passed_on
from route.providers.base import JSON, Fault, ProviderError, Timeouts
from route.request.api_errors import ApiError, of_choice, of_fault, of_refusal
from route.request.chat import Incoming, count_of, request_for
from route.request.fields import MEDIA
from route.routing.candidates import NoModelError
from route.routing.decision import NO_DEMAND, Coefficients, Decision, Demand, Held
from route.routing.router import Router
from route.routing.spending import Allowance
from route.send.charges import Bounds, Charge, limited, too_dear
from route.send.fleet import Deployment, Fleet


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
    demand: Demand = NO_DEMAND
    fixed: str | None = None
    """The model of this conversation."""
    held: Held | None = None
    """The model of its last turn, which it may leave."""
    allowance: Allowance | None = None
    """What it may cost in dollars."""
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
            self.coefficients,
            self.budget,
            allowed=self.allowed,
            without=without,
            demand=self.demand,
            fixed=self.fixed,
            held=self.held,
            dollars=None if self.allowance is None else self.allowance.dollars,
        )
        if self.allowance is not None and self.allowance.dollars is not None:
            self.allowance.begin(self.router.menu.places[decision.model])
        self.decision = decision.limited_to(self.allowed)  # a key is told of no model that it may not use
        return decision.model


T = TypeVar("T")
Call = Callable[[Deployment, JSON, Timeouts, Charge], Awaitable[T]]
"""Asks a provider."""
_UNSEEN = (Fault.TIMEOUT, Fault.MALFORMED)
"""Faults of answers that may have been made, and are charged by the provider."""
_NOT_THERE = 404
_SHORT_PAUSE = 0.2
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
    retried: set[str] = field(default_factory=set)
    """Models that were asked once more before another one was; these attempts do not count."""
    deployment: Deployment | None = None
    """The one that is being asked, or that answers."""
    faults: list[ProviderError] = field(default_factory=list)
    """One for each failed attempt."""
    dropped: list[str] = field(default_factory=list)
    """Names of the fields that the model asked last did not get."""
    charges: list[Charge] = field(default_factory=list)
    """One for each attempt."""
    trace: RequestTrace | None = None

    def begin(self, deployment: Deployment) -> bool:
        """Count an attempt; return whether it is a probe."""
        self.tried.append(deployment.name)
        self.deployment = deployment
        return deployment.begin()

    def end(self) -> None:
        """Count the end of the attempt or, when that gave an answer, of the answer; a second call does nothing."""
        if self.deployment is not None:
            self.deployment.end()
            self.deployment = None


@dataclass(frozen=True)
class Dispatcher:
    """Asks models until one answers."""

    fleet: Fleet
    config: RouterConfig
    failed: Callable[[Deployment, ProviderError, Incoming], None]
    """Called for every fault."""
    ledger: Ledger
    settle: Callable[[Charge, bool], float]
    """Books what an attempt has cost; False: it has cost nothing."""

    async def run(self, trip: Trip, call: Call[T]) -> tuple[Deployment, T]:
        """Return the first deployment that answers and what `call` returned; raise `ApiError` if none does.

        The caller ends the trip when the answer is complete.
        """
        deployment = self.first(trip)
        while True:
            try:
                return deployment, await self._attempt(trip, deployment, call)
            except ProviderError as error:
                deployment = await self._next(trip, deployment, error)

    async def _attempt(self, trip: Trip, deployment: Deployment, call: Call[T]) -> T:
        incoming, listed = trip.incoming, deployment.pass_fields
        request, trip.dropped = await incoming.apart(lambda: request_for(deployment.config, incoming, listed))
        charge, request = await self._reserve(trip, deployment, request)
        trip.charges.append(charge)
        if deployment.tokens_per_minute is not None:
            charge.use = deployment.use
            charge.use(await incoming.apart(lambda: incoming.prompt_tokens))
        probe = trip.begin(deployment)
        started = time.perf_counter()
        if trip.trace is not None:
            model = deployment.config
            charge.trace = trip.trace.call(deployment.name, model.name, model.type, deployment.label)
        try:
            left = max(_MARGIN, trip.deadline.left())
            max_bytes = int(self.config.max_answer_mb * 2**20)
            timeouts = self.config.timeouts.of_attempt(left, max_bytes, stream=trip.incoming.stream)
            with passed_on(charge.trace):
                answer = await call(deployment, request, timeouts, charge)
        except ProviderError as error:
            trip.end()
            if charge.trace is not None:
                charge.trace.failed(error.fault.value, error.status)
            deployment.breaker.failed(error, probe)
            trip.faults.append(error)
            self.failed(deployment, error, incoming)
            cost = self.settle(charge, may_have_cost(charge, error))
            if trip.ceiling is not None:
                trip.ceiling -= cost
            raise
        except BaseException:
            trip.end()
            deployment.breaker.give_up(probe)
            raise
        deployment.breaker.began(probe)
        deployment.measure(time.perf_counter() - started, stream=trip.incoming.stream)
        return answer

    async def _reserve(self, trip: Trip, deployment: Deployment, request: JSON) -> tuple[Charge, JSON]:
        """Reserve the worst case of an attempt; return its charge and the request, whose answer may be cut shorter."""
        key, choices = trip.key, count_of(request.get("n")) or 1
        bounds = None
        if key.has_budget or trip.ceiling is not None:
            bounds = Bounds.of(deployment.config, trip.incoming, request)
        worst = NOTHING if bounds is None else bounds.worst(deployment.config, trip.ceiling)
        if worst is None:
            raise too_dear(key)
        reservation = await self.ledger.reserve(key, worst)
        if isinstance(reservation, Refusal):
            raise of_refusal(reservation)
        charge = Charge(deployment.name, deployment.config, trip.incoming, reservation, choices=choices)
        if bounds is not None:
            charge.max_tokens = bounds.lowered(worst.most if reservation.amount is None else reservation.amount)
        return charge, request if charge.max_tokens is None else limited(request, charge.max_tokens)

    def first(self, trip: Trip) -> Deployment:
        """Return where a request goes first.

        Raise `ApiError` 400 if no model fits budget and length of the prompt, 429 or 502 if all that do have failed.
        """
        blocked = self.fleet.blocked()
        try:
            return self._chosen(trip, blocked)
        except (InputError, NoModelError) as error:
            if not blocked:
                raise of_choice(error) from error
        try:
            trip.choice.choose(())
        except (InputError, NoModelError) as error:
            raise of_choice(error) from error
        raise self._all_blocked(trip)

    async def _next(self, trip: Trip, deployment: Deployment, error: ProviderError) -> Deployment:
        """Return what to ask after a failure."""
        if _is_the_requests(error, trip.incoming):
            raise of_fault(error, deployment.name)
        same = await self._same_model(trip, deployment, error)
        if same is not None:
            return same
        if len(trip.tried) - len(trip.retried) >= self.config.max_attempts:
            raise of_fault(error, deployment.name)
        is_small = error.fault is Fault.CONTEXT_LENGTH
        trip.excluded |= self.fleet.no_larger_than(deployment.name) if is_small else {deployment.name}
        try:
            return self._chosen(trip, trip.excluded | self.fleet.blocked())
        except (InputError, NoModelError):
            return await self._again(trip, deployment, error)

    async def _same_model(self, trip: Trip, deployment: Deployment, error: ProviderError) -> Deployment | None:
        """Return where the model is asked once more before another one is, after a short pause; None: nowhere."""
        if deployment.name in trip.retried:
            return None
        if error.fault.is_transient or error.fault is Fault.CREDENTIALS or error.status == _NOT_THERE:
            other = self._other(trip, deployment)
            if other is not None:
                trip.retried.add(deployment.name)
                return other
        # Only a fault that stands alone: an outage is not worth the wait of every request that meets it.
        if error.fault not in (Fault.RATE_LIMIT, Fault.SERVER) or deployment.breaker.failures != 1:
            return None
        pause = (error.retry_after or random.uniform(0.5, 1.0) * _SHORT_PAUSE) + _MARGIN
        if max(pause, deployment.breaker.opens_in) > min(self.config.retry_seconds + _MARGIN, trip.deadline.left()):
            return None
        await asyncio.sleep(pause)
        if deployment.is_blocked:
            return None
        trip.retried.add(deployment.name)
        return deployment

    async def _again(self, trip: Trip, deployment: Deployment, error: ProviderError) -> Deployment:
        """Pause and return the same model, since there is no other."""
        pause = random.uniform(0.5, 1.0) * _SHORT_PAUSE * 2 ** (len(trip.tried) - 1)
        if error.retry_after and self._other(trip, deployment) is None:
            pause = max(error.retry_after, deployment.breaker.opens_in)
        pause += _MARGIN
        if not error.fault.is_transient or pause > min(_LONGEST_PAUSE, trip.deadline.left()):
            raise of_fault(error, deployment.name)
        await asyncio.sleep(pause)
        again = self.fleet.targets[deployment.name].pick(stream=trip.incoming.stream)
        if again is None:
            raise of_fault(error, deployment.name)
        return again

    def _other(self, trip: Trip, deployment: Deployment) -> Deployment | None:
        """Return another deployment of the same model."""
        return self.fleet.targets[deployment.name].pick(stream=trip.incoming.stream, without=(deployment,))

    def _chosen(self, trip: Trip, without: Collection[str]) -> Deployment:
        """Return a deployment of the model that is chosen; `without` holds all models that are blocked."""
        with child(trip.trace, "choose"):
            name = trip.choice.choose(without)
        deployment = self.fleet.targets[name].pick(stream=trip.incoming.stream)
        if deployment is None:
            raise NoModelError(f"{name} is not available")
        return deployment

    def _all_blocked(self, trip: Trip) -> ApiError:
        """Return the error for a request all of whose models are blocked."""
        blocked = [
            deployment
            for name in trip.choice.allowed
            for deployment in self.fleet.targets[name].deployments
            if deployment.is_blocked
        ]
        soonest = min(blocked, key=lambda deployment: deployment.free_in)
        status, code = (429, "rate_limit_exceeded") if soonest.is_limited else (502, "models_unavailable")
        text = "every model that this request could go to has been failing; try again later"
        if soonest.is_limited:
            text = "every model that this request could go to has reached a limit; try again later"
        return ApiError(status, code, text, retry_after=soonest.free_in)


def _is_the_requests(error: ProviderError, incoming: Incoming) -> bool:
    """Return whether a fault is the request's own, so that every other model would refuse it too.

    A model that is unknown to its provider, does not continue the beginning of an answer, or reads no images, says
    nothing of others.
    """
    if error.fault is Fault.REQUEST:
        # Another model may read the image in whatever words this one refuses it.
        return error.status != 404 and not incoming.ends_with_assistant and not incoming.features & MEDIA
    return error.fault.is_request_error


def may_have_cost(charge: Charge, error: ProviderError) -> bool:
    """Return whether a failed attempt has to be paid by its tokens, though nobody saw them."""
    return charge.config.price is not None and error.fault in _UNSEEN


async def ask_whole(deployment: Deployment, request: JSON, timeouts: Timeouts, charge: Charge) -> JSON:
    """Ask for a whole answer; see `Call`."""
    answering = deployment.provider.chat(request, timeouts)
    if charge.config.price is None:
        answer = await answering
    else:
        # The provider charges for an answer whether or not the client waits, so its counts are waited for.
        charge.pending = asyncio.ensure_future(answering)
        answer = await asyncio.shield(charge.pending)
    deployment.breaker.succeeded()
    charge.complete(answer)
    charge.pending = None
    return answer
