"""Dispatch: ask the chosen model; when it fails before its first token, ask it once more, or choose again without it.

The same model is asked once more at another deployment, at once, or where the fault was a short rate limit or a single
5xx, after a pause of at most `retry_seconds`. Then another model within the budget goes first. Without one, the model
that failed is retried if its fault may pass, after the pause that the provider names, else
`uniform(0.5, 1) * 0.2 s * 2^n`. A request that one model finds invalid goes to one other: where that agrees, it is the
client's fault, and where it answers, the refusal counts against the first. There is no retry of refused content, none
after `max_attempts` attempts, and none beyond the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from p2l.common.errors import InputError
from p2l.common.web import Deadline
from route.config import RouterConfig
from route.keep.accounts import Labels
from route.keep.ledger import KeyRecord, Ledger, Refusal
from route.keep.reservations import NOTHING
from route.observability.logs import LOGGER
from route.observability.metrics import RouterMetrics
from route.observability.tracing import RequestTrace, child, passed_on
from route.providers.base import (
    DROPPED_FIELDS,
    JSON,
    NATIVE,
    OWN_HISTORY,
    USAGE_SO_FAR,
    Fault,
    NativeRequest,
    NotSpokenError,
    ProviderError,
    Timeouts,
)
from route.providers.completions import asks_for_usage
from route.request.api_errors import ApiError, of_choice, of_fault, of_refusal
from route.request.chat import MEDIA, ChatRequest, count_of
from route.request.fields import mark_chunk, native_for, outputs_of, request_for
from route.request.native import limit_of
from route.routing.candidates import NoModelError
from route.routing.decision import NO_DEMAND, Coefficients, Decision, Demand, Held, features_in
from route.routing.experiments import Trial
from route.routing.refusals import REMEMBERED_SECONDS, Refusals
from route.routing.router import Router
from route.routing.spending import Allowance
from route.send.asking import Opened
from route.send.charges import Bounds, Charge, limited, served_of, too_dear
from route.send.fleet import Deployment, Fleet, all_blocked


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
    """Its share of a budget in dollars."""
    decision: Decision | None = None
    """The last one of the router."""

    def choose(self, without: Collection[str]) -> str:
        """Return a model outside `without`; raise InfeasibleError for a budget that is too small, else NoModelError."""
        if self.router is None:
            name = next((name for name in self.allowed if name not in without), None)
            if name is None:
                raise NoModelError(f"{', '.join(self.allowed)} is not available")
            return name
        decision = self.decide(self.router, without)
        if self.allowance is not None and self.allowance.dollars is not None:
            self.allowance.begin(self.router.menu.places[decision.model])
        self.decision = decision.limited_to(self.allowed)  # a key is told of no model that it may not use
        return decision.model

    def decide(self, router: Router, without: Collection[str]) -> Decision:
        """Return what a router decides outside `without`, and count nothing; errors as of `choose`."""
        return router.decide(
            self.coefficients,
            self.budget,
            allowed=self.allowed,
            without=without,
            demand=self.demand,
            fixed=self.fixed,
            held=self.held,
            dollars=None if self.allowance is None else self.allowance.dollars,
        )


@dataclass
class UnseenAnswer:
    """An answer of a shadow policy's model to the same request, which is compared with the one that was shown."""

    model: str
    shown: list[str] = field(default_factory=list)
    """Pieces of the text that was shown."""
    is_text: bool = True
    """Whether all that was shown is text."""

    def hear(self, chunks: Sequence[JSON]) -> None:
        """Take over the text of an answer, or of chunks of it."""
        for chunk in chunks:
            text = text_in(chunk)
            self.is_text = self.is_text and text is not None
            self.shown.append(text or "")


def text_in(answer: JSON) -> str | None:
    """Return the text of the first choice of an answer or a chunk; None where it calls tools or holds other things."""
    choice: JSON = next(iter(answer.get("choices") or ()), {})
    message = choice.get("message") or choice.get("delta") or {}
    content = message.get("content") or ""
    return None if message.get("tool_calls") or not isinstance(content, str) else content


T = TypeVar("T")
Call = Callable[[Deployment, "JSON | NativeRequest", Timeouts, Charge], Awaitable[T]]
"""Asks a provider."""
Write = Callable[[Sequence[JSON]], Awaitable[None]]
"""Sends chunks to the client, in one piece."""
# Faults of answers that may have been made, and are charged by the provider.
_UNSEEN = (Fault.TIMEOUT, Fault.MALFORMED, Fault.OTHER_MODEL)
_NOT_THERE = 404
_SHORT_PAUSE = 0.2  # seconds
_LONGEST_PAUSE = 30.0  # seconds
_MARGIN = 1e-3  # seconds; aiohttp reads a limit of 0 as none, and a sleep may end a little early
_NO_DEADLINE = Deadline(math.inf)
UNREAD = ChatRequest(body={"messages": []}, turns=(), budget=None, direct=None, compare=False, stream=False, size=0)
"""Stands for a request until its model is to be chosen."""


@dataclass(eq=False)
class Answer:
    """The record of one request: models asked, faults, costs, and the answer that the client got.

    It is there before the request is read, since a request that cannot be read is counted and logged as well.
    """

    request_id: str
    request: ChatRequest = UNREAD
    key: KeyRecord | None = None
    labels: Labels = field(default_factory=Labels)
    choice: Choice = field(default_factory=lambda: Choice(()))
    deadline: Deadline = _NO_DEADLINE
    ceiling: float | None = None
    """The most that it may still cost."""
    trace: RequestTrace | None = None
    trial: Trial | None = None
    """What it tells of the policies of an experiment or a shadow."""
    unseen: UnseenAnswer | None = None
    started: float = field(default_factory=time.perf_counter)

    excluded: set[str] = field(default_factory=set)
    """Models that failed."""
    tried: list[str] = field(default_factory=list)
    """Model of each attempt, in order."""
    retried: set[str] = field(default_factory=set)
    """Models that were asked once more before another one was; these attempts do not count."""
    deployment: Deployment | None = None
    """The one that is being asked, or that answers."""
    faults: list[ProviderError] = field(default_factory=list)
    """One for each failed attempt."""
    not_spoken: set[Deployment] = field(default_factory=set)
    """Deployments that turned out not to speak the client's protocol."""
    dropped: list[str] = field(default_factory=list)
    """Names of the fields that the model asked last did not get."""
    doubts: list[tuple[Deployment, ProviderError]] = field(default_factory=list)
    """Deployments that found the request invalid, which another model may not."""
    charges: list[Charge] = field(default_factory=list)
    """One for each attempt."""

    sides: list[Answer] = field(default_factory=list)
    """The answers of two models that are compared, each with attempts of its own."""
    shown: list[Charge] = field(default_factory=list)
    """Attempts that gave an answer, or began to."""
    status: int = 500
    code: str | None = None
    """Code of the error that the client got."""
    first_token: float | None = None
    """Seconds after the start."""
    is_counted: bool = False
    """Whether it counts as a request under way of its key."""

    def side(self, name: str) -> Answer:
        """Return an answer of one model to the same request, which counts as part of this one."""
        side = Answer(
            self.request_id,
            self.request,
            key=self.key,
            labels=self.labels,
            choice=Choice([name]),
            deadline=self.deadline,
            ceiling=self.ceiling,
            trace=self.trace,
        )
        self.sides.append(side)
        return side

    @property
    def parts(self) -> list[Answer]:
        """Return all that attempts were made for: this answer, and those that are compared."""
        return [self, *self.sides]

    @property
    def attempts(self) -> list[str]:
        """Return every model that was asked, in order."""
        return [name for part in self.parts for name in part.tried]

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
    ledger: Ledger
    metrics: RouterMetrics
    refusals: Refusals

    async def run(self, answer: Answer, call: Call[T]) -> tuple[Deployment, T]:
        """Return the first deployment that answers and what `call` returned; raise `ApiError` if none does.

        The caller ends the answer when it is complete.
        """
        deployment = self.first(answer)
        while True:  # ended by `_next`, which raises when attempts or time are used up
            try:
                result = await self._attempt(answer, deployment, call)
            except ProviderError as error:
                deployment = await self._next(answer, deployment, error)
                continue
            except ApiError as error:
                form = answer.request.native
                if form is None or error is not form.blocked:
                    raise
                # The service does not have the request's protocol after all; another may.
                answer.excluded |= {deployment.name}
                try:
                    deployment = self._chosen(answer, answer.excluded | self.fleet.blocked())
                except (InputError, NoModelError):
                    raise error from None
                continue
            for doubted, refusal in answer.doubts:  # what they refused another model has answered
                doubted.breaker.blamed(refusal)
            return deployment, result

    async def relay(self, answer: Answer, deployment: Deployment, opened: Opened, write: Write) -> None:
        """Pass every chunk on and count the usage; raise `ApiError` if the stream breaks."""
        async with contextlib.aclosing(opened.rest):
            try:
                added = outputs_of(answer.choice.decision, answer.tried) | served_of(answer.charges[-1:])
                opened.head[0] = {**opened.head[0], **added}
                # In one write: the role, sent by itself, would wake the client before the token that it waits for.
                await write([mark_chunk(chunk, deployment.name) for chunk in opened.head if _count(answer, chunk)])
                async for chunk in opened.rest:
                    if _count(answer, chunk):
                        await write([mark_chunk(chunk, deployment.name)])
                if not answer.charges[-1].is_cached:
                    deployment.breaker.succeeded()
            except ProviderError as error:
                deployment.breaker.failed(error)
                answer.faults.append(error)
                if (trace := answer.charges[-1].trace) is not None:
                    trace.failed(error.fault.value, error.status)
                self.metrics.failed(deployment.name, error)
                raise of_fault(error, deployment.name) from error

    async def _attempt(self, answer: Answer, deployment: Deployment, call: Call[T]) -> T:
        request = answer.request
        outgoing, sizes = await self._outgoing(answer, deployment)
        # The worst case is reserved; where that is more than what may be spent, the answer is cut shorter.
        key = answer.key
        assert key is not None
        is_bound = answer.ceiling is not None or self.ledger.has_limits(key, answer.labels)
        bounds = Bounds.of(deployment.config, request, sizes) if is_bound else None
        worst = NOTHING if bounds is None else bounds.worst(deployment.config, answer.ceiling)
        if worst is None:
            raise too_dear(key)
        reservation = await self.ledger.reserve(key, worst, answer.labels)
        if isinstance(reservation, Refusal):
            raise of_refusal(reservation)
        choices = count_of(sizes.get("n")) or 1
        charge = Charge(deployment.name, deployment.config, request, reservation, choices=choices)
        charge.identity, charge.pace, charge.provider = (
            deployment.identity,
            deployment.activity.pace,
            deployment.provider,
        )
        if bounds is not None:
            charge.max_tokens = bounds.lowered(worst.most if reservation.amount is None else reservation.amount)
        if charge.max_tokens is not None:
            outgoing = limited(outgoing, charge.max_tokens)
        answer.charges.append(charge)
        charge.note(self.ledger.notes, answer.request_id, deployment.label)
        if deployment.tokens_per_minute is not None:
            charge.use = deployment.use
            charge.use(await request.apart(lambda: request.prompt_tokens))
        started = time.perf_counter()
        noted = DROPPED_FIELDS.set(answer.dropped)
        OWN_HISTORY.set(deployment.name in (request.direct, answer.choice.fixed))
        try:
            with self.attempt(answer, deployment, charge, outgoing):
                left = max(_MARGIN, answer.deadline.left())
                max_bytes = int(self.config.max_answer_mb * 2**20)
                timeouts = self.config.timeouts.of_attempt(left, max_bytes, stream=request.stream)
                result = await call(deployment, outgoing, timeouts, charge)
        except ProviderError as error:
            cost = self.settle(charge, failed_at_cost(charge, error))
            if answer.ceiling is not None:  # it holds for the request, whatever attempts it takes
                answer.ceiling -= cost
            raise
        except NotSpokenError:
            self.settle(charge, False)
            answer.charges.remove(charge)
            answer.tried.pop()
            answer.not_spoken.add(deployment)
            return await self._attempt(answer, deployment, call)
        finally:
            DROPPED_FIELDS.reset(noted)
        if not charge.is_cached:
            deployment.measure(time.perf_counter() - started, stream=request.stream)
        return result

    async def _outgoing(self, answer: Answer, deployment: Deployment) -> tuple[JSON | NativeRequest, JSON]:
        """Return the request for a deployment, and what bounds its cost by the names of a chat completion."""
        request, listed = answer.request, deployment.pass_fields
        form = request.native
        if form is not None and deployment not in answer.not_spoken and deployment.speaks(form.protocol):
            native, answer.dropped = native_for(deployment.config, request, listed)
            limit = native.body.get(limit_of(form.protocol)) or native.settings.get("max_tokens")
            return native, {"max_tokens": limit}
        if form is not None and form.blocked is not None:
            raise form.blocked
        body, answer.dropped = await request.apart(lambda: request_for(deployment.config, request, listed))
        return body, body

    @contextlib.contextmanager
    def attempt(
        self,
        answer: Answer,
        deployment: Deployment,
        charge: Charge,
        sent: JSON | NativeRequest,
        *,
        operation: str = "chat",
    ) -> Iterator[None]:
        """Count the block as an attempt: at its deployment and breaker, in its trace, and where it fails in the log.

        `sent` is the request, and `operation` what it asks for, as traces name it.
        """
        probe = answer.begin(deployment)
        if answer.trace is not None:
            body = sent if isinstance(sent, dict) else {**sent.settings, **sent.body}
            charge.trace = answer.trace.call(operation, deployment.about, body)
        try:
            with passed_on(charge.trace):
                yield
        except ProviderError as error:
            answer.end()
            if charge.trace is not None:
                charge.trace.failed(error.fault.value, error.status)
            deployment.breaker.failed(error, probe)
            answer.faults.append(error)
            self.count_fault(deployment, error, charge.request)
            raise
        except BaseException:  # the client has left, which says nothing of the deployment
            answer.end()
            deployment.breaker.give_up(probe)
            raise
        if charge.trace is not None and answer.request.stream:
            charge.trace.begun()
        deployment.breaker.began(probe)

    def first(self, answer: Answer) -> Deployment:
        """Return where a request goes first.

        Raise `ApiError` 400 if no model fits budget and length of the prompt, 429 or 502 if all that do have failed.
        """
        blocked = self.fleet.blocked()
        try:
            return self._chosen(answer, blocked)
        except (InputError, NoModelError) as error:
            if not blocked:
                raise of_choice(error) from error
        # Would any model fit, were none blocked? If not, it is the request's fault, and waiting does not help.
        try:
            answer.choice.choose(())
        except (InputError, NoModelError) as error:
            raise of_choice(error) from error
        names = answer.choice.allowed
        deployments = [each for name in names for each in self.fleet.targets[name].deployments if each.is_blocked]
        raise all_blocked(deployments, "every model that this request could go to")

    async def _next(self, answer: Answer, deployment: Deployment, error: ProviderError) -> Deployment:
        """Return what to ask after a failure."""
        if error.fault is Fault.CONTENT_FILTER or (error.fault is Fault.REQUEST and self._is_clients(answer, error)):
            raise of_fault(error, deployment.name)
        if error.fault is Fault.REQUEST and error.status != _NOT_THERE:
            answer.doubts.append((deployment, error))
        same = await self._same_model(answer, deployment, error)
        if same is not None:
            return same
        if len(answer.tried) - len(answer.retried) >= self.config.max_attempts:
            raise of_fault(error, deployment.name)
        # A prompt that is too long for one model is too long for every smaller one.
        is_small = error.fault is Fault.CONTEXT_LENGTH
        answer.excluded |= self.fleet.no_larger_than(deployment.name) if is_small else {deployment.name}
        try:
            return self._chosen(answer, answer.excluded | self.fleet.blocked())
        except (InputError, NoModelError):
            return await self._again(answer, deployment, error)

    @staticmethod
    def _is_clients(answer: Answer, error: ProviderError) -> bool:
        """Return whether a refusal is the client's fault: two models agree that the request is invalid.

        One alone may refuse what the router, its configuration or another model's turn has put there.
        """
        # A model that is unknown to its provider, does not continue the beginning of an answer, or reads no images in
        # whatever words, says nothing of other models.
        request = answer.request
        is_continued = request.body["messages"][-1]["role"] == "assistant"
        if error.status == _NOT_THERE or is_continued or request.features & MEDIA:
            return False
        return bool(answer.doubts)

    async def _same_model(self, answer: Answer, deployment: Deployment, error: ProviderError) -> Deployment | None:
        """Return where the model is asked once more before another one is, after a short pause; None: nowhere."""
        if deployment.name in answer.retried:
            return None
        # Another account or place of the model may be well where this one is limited, refused, does not know the model
        # or gives another.
        is_its = error.fault in (Fault.CREDENTIALS, Fault.OTHER_MODEL) or error.status == _NOT_THERE
        if is_its or error.fault.is_transient:
            other = self.fleet.targets[deployment.name].pick(stream=answer.request.stream, without=(deployment,))
            if other is not None:
                answer.retried.add(deployment.name)
                return other
        # Only a fault that stands alone: an outage is not worth the wait of every request that meets it.
        if error.fault not in (Fault.RATE_LIMIT, Fault.SERVER) or deployment.breaker.failures != 1:
            return None
        # At random, so that requests that failed together do not come back together.
        pause = (error.retry_after or random.uniform(0.5, 1.0) * _SHORT_PAUSE) + _MARGIN
        if max(pause, deployment.breaker.opens_in) > min(self.config.retry_seconds + _MARGIN, answer.deadline.left()):
            return None
        await asyncio.sleep(pause)
        if deployment.is_blocked:  # others have failed there meanwhile
            return None
        answer.retried.add(deployment.name)
        return deployment

    async def _again(self, answer: Answer, deployment: Deployment, error: ProviderError) -> Deployment:
        """Pause and return the same model, since there is no other."""
        target, is_stream = self.fleet.targets[deployment.name], answer.request.stream
        pause = random.uniform(0.5, 1.0) * _SHORT_PAUSE * 2 ** (len(answer.tried) - 1)
        if error.retry_after and target.pick(stream=is_stream, without=(deployment,)) is None:
            pause = max(error.retry_after, deployment.breaker.opens_in)
        pause += _MARGIN
        if not error.fault.is_transient or pause > min(_LONGEST_PAUSE, answer.deadline.left()):
            raise of_fault(error, deployment.name)
        await asyncio.sleep(pause)
        again = target.pick(stream=is_stream)
        if again is None:
            raise of_fault(error, deployment.name)
        return again

    def _chosen(self, answer: Answer, without: Collection[str]) -> Deployment:
        """Return a deployment of the model that is chosen; `without` holds all models that are blocked."""
        with child(answer.trace, "choose"):
            name = answer.choice.choose(without)
        deployment = self.fleet.targets[name].pick(stream=answer.request.stream)
        if deployment is None:
            raise NoModelError(f"{name} is not available")
        return deployment

    def settle(self, charge: Charge, has_cost: bool, answers: int | None = None) -> float:
        """Book what an attempt has cost, if it has; return that. A failed attempt is not an answer."""
        charge.booked = cost = charge.cost() if has_cost else 0.0
        charge.learn()
        # Counts that are not complete would make an answer look cheaper than it was.
        prompt, completion = charge.tokens if charge.is_measured else (None, None)
        self.ledger.settle(
            charge.reservation,
            charge.model,
            cost,
            answers=answers or 0,
            prompt_tokens=prompt,
            completion_tokens=completion,
            answer_tokens=charge.answer_tokens if has_cost else 0,
            is_told=not charge.is_estimated,
        )
        if charge.use is not None and has_cost:
            charge.use(charge.answer_tokens)
        if charge.trace is not None:
            charge.trace.end(charge.usage, cost)
        if cost or answers:
            self.metrics.cost.labels(charge.model).inc(cost)
            self.metrics.spend.labels(charge.reservation.key).inc(cost)
            self.metrics.used(charge.model, (prompt, completion))
        return cost

    def count_fault(self, deployment: Deployment, error: ProviderError, request: ChatRequest = UNREAD) -> None:
        """Count and log a fault of a provider, and remember what its model refuses."""
        self.metrics.failed(deployment.name, error)
        # Without the text of the provider, which may quote the prompt.
        fields = {"model": deployment.name, "fault": error.fault.value, "provider_status": error.status}
        if deployment.label:
            fields["deployment"] = deployment.label
        LOGGER.warning("no answer", extra={"fields": fields})
        memo = None if request is UNREAD else self.refusals.learn(deployment.name, error, request)
        if memo is not None:
            about: JSON = {"features": features_in(memo.features), "parameter": memo.parameter}
            about |= {"prompt_tokens": memo.tokens, "longest_answer": memo.answer, "seconds": REMEMBERED_SECONDS}
            refused = {name: each for name, each in about.items() if each}
            LOGGER.warning("a model refuses such requests", extra={"fields": {"model": deployment.name, **refused}})


def failed_at_cost(charge: Charge, error: ProviderError) -> bool:
    """Return whether a failed attempt has to be paid by its tokens: those the provider told, or that nobody saw."""
    if error.usage is not None:
        charge.take_usage({"usage": error.usage})
    may_be_charged = error.usage is not None or error.fault in _UNSEEN or error.has_begun
    return charge.config.price is not None and may_be_charged


def _count(answer: Answer, chunk: JSON) -> bool:
    """Count what a chunk brings; return whether the client gets it."""
    charge = answer.charges[-1]
    charge.count(chunk.get("choices"))
    if USAGE_SO_FAR in chunk:
        charge.take_usage_so_far(chunk.pop(USAGE_SO_FAR))
    if charge.trace is not None:
        charge.trace.hear(chunk)
    if not charge.served.model and chunk.get("model"):  # of a provider that says it late
        charge.identify(chunk)
        chunk |= served_of([charge])
    if chunk.get("usage") is not None:
        charge.take_usage(chunk)
        charge.identify(chunk)
        # The router asks for the usage of every stream: a chunk of nothing else is for clients that asked for it too.
        return bool(chunk.get("choices")) or NATIVE in chunk or asks_for_usage(answer.request.body)
    return True
