"""POST /v1/chat/completions and /v1/messages: authenticate, read, choose a model, ask it, answer."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from p2l.common.long_texts import (
    LONG,
    BusyError,
    TooManyValuesError,
    dumps,
    holds_more,
    parse_apart,
    patiently,
    to_json,
)
from p2l.common.web import ClientGoneError, Deadline, alive
from route.application.dialects import Dialect
from route.application.exchange import Exchange
from route.application.live import Live
from route.application.service import Service
from route.application.streaming import open_stream, relay
from route.config import ROUTER_NAME
from route.keep.conversations import HEADER, Last, conversation_of, goes_on, is_tool_round
from route.keep.ledger import KeyRecord, Refusal
from route.observability.tracing import child
from route.providers.base import JSON
from route.request.api_errors import ApiError, of_refusal
from route.request.chat import (
    MOST_VALUES,
    Incoming,
    demand_of,
    key_of,
    mark_answer,
    outputs_of,
    parse_chat,
    prompt_of,
    read_body,
    refuse_constant,
)
from route.routing.decision import Coefficients, Decision
from route.routing.pair_shares import PairShares
from route.routing.spending import Allowance
from route.send.charges import ceiling_of, too_dear, worst_case
from route.send.dispatch import Choice, Trip, ask_whole

_BODY_SECONDS = 60.0
_MOST_OF_A_CHUNK = 1000  # values
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold chunks back
]
_log = logging.getLogger("route.application")
T = TypeVar("T")


@dataclass(frozen=True)
class ChatEndpoint:
    """The ASGI application of one route; it writes streams itself, to be able to end them with an error."""

    live: Live
    dialect: type[Dialect] = Dialect
    """What the clients speak."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service = self.live.service
        exchange = Exchange(service, f"req-{secrets.token_hex(12)}")
        if service.tracing is not None:
            exchange.trace = service.tracing.begin(scope["path"], exchange.request_id, Headers(scope=scope))
        reply = _Reply(send, self.dialect())
        service.metrics.running.inc()
        try:
            await _answer(exchange, Headers(scope=scope), receive, reply)
        except ClientGoneError:
            exchange.status, exchange.code = 499, "client_gone"
        except ApiError as error:
            exchange.code = error.code
            await _report(exchange, error, reply)
        except Exception:
            _log.exception("request %s failed", exchange.request_id)
            exchange.code = "internal_error"
            await _report(exchange, ApiError(500, "internal_error", "an error of the router; its log says more"), reply)
        finally:
            service.metrics.running.dec()
            exchange.close()  # after the answer: it is sent when its end is written


@dataclass
class _Reply:
    """The response under way."""

    send: Send
    dialect: Dialect
    begun: bool = False
    """Whether its head was sent."""

    async def answer(self, answer: JSON, headers: dict[str, str]) -> None:
        translated = self.dialect.answer(answer)
        await self.dialect.keep()
        text = await to_json(translated)
        await self._whole(Response(text, 200, headers, media_type="application/json"))

    async def refuse(self, error: ApiError, headers: dict[str, str]) -> None:
        await self._whole(error.response(headers, self.dialect.error(error)))

    async def _whole(self, response: Response) -> None:
        self.begun = True
        head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self.send(head)
        await self.send({"type": "http.response.body", "body": bytes(response.body)})

    async def start(self, headers: dict[str, str]) -> None:
        self.begun = True
        raw = _STREAM_HEADERS + [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, chunks: Sequence[JSON]) -> None:
        take, events = self.dialect.take, b""
        for chunk in chunks:
            # A provider may send anything in one chunk, but hardly any is long.
            is_long = holds_more(chunk, _MOST_OF_A_CHUNK, LONG)
            events += await patiently(partial(take, chunk, dumps)) if is_long else take(chunk)
        if events:
            await self.send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self) -> None:
        await self.send({"type": "http.response.body", "body": self.dialect.end()})

    async def fail(self, error: ApiError) -> None:
        await self.send({"type": "http.response.body", "body": self.dialect.fail(error)})


async def _answer(exchange: Exchange, headers: Headers, receive: Receive, reply: _Reply) -> None:
    service = exchange.service
    exchange.enter(await authenticate(service, headers))
    assert exchange.key is not None
    incoming = await read_chat(service, headers, receive, reply.dialect)
    incoming = await reply.dialect.prepare(service, exchange.key, incoming)
    deadline = Deadline.after(service.config.timeouts.total)
    late = ApiError(504, "deadline_exceeded", "the time of this request was up before its answer was complete")
    async with alive(receive, deadline, late):
        choice, conversation = await choose_for(exchange, incoming, headers, exchange.key)
        strict = incoming.budget_usd if service.router.optimizer.keeps_each else None
        trip = Trip(incoming, deadline, choice, exchange.key, ceiling_of(exchange.key, 1 + incoming.compare, strict))
        trip.trace = exchange.trace
        exchange.trips.append(trip)
        answer = None
        if incoming.compare:
            answer = await answer_of_two(exchange, trip)
        elif incoming.stream:
            await _stream(exchange, trip, reply)
        else:
            answer = await _whole(exchange, trip)
    # Only after `alive` has ended: the server reports the connection as closed when the response is complete.
    exchange.status = 200
    if answer is None:
        await reply.dialect.keep()
        await reply.end()
    else:
        await reply.answer(answer, exchange.headers())
    if conversation is not None:
        service.sticky.remember(conversation, exchange.answers[0].model)


async def authenticate(service: Service, headers: Headers) -> KeyRecord:
    """Return the record of the request's key; raise `ApiError` 401 without a key, or with a wrong one."""
    record = await service.keys.check(key_of(headers))
    if isinstance(record, Refusal):
        raise of_refusal(record)
    return record


async def read_chat(service: Service, headers: Headers, receive: Receive, dialect: Dialect | None = None) -> Incoming:
    """Read and check the request; raise `ApiError` if it cannot be used."""
    dialect = dialect or Dialect()
    seconds = min(_BODY_SECONDS, service.config.timeouts.total)
    raw = await read_body(headers, receive, int(service.settings.max_body_mb * 2**20), seconds)

    def parse(decoder: json.JSONDecoder) -> Incoming:
        return parse_chat(
            raw,
            headers,
            service.chat_models,
            by_name=service.settings.direct_by_name,
            translate=dialect.request,
            hints=dialect.hints,
            decoder=decoder,
        )

    return await parse_long(raw, parse, MOST_VALUES)


async def parse_long(raw: bytes, parse: Callable[[json.JSONDecoder], T], most_values: int) -> T:
    """Parse a body beside the event loop where it is long; raise `ApiError` 413 for one of too many values, 503."""
    try:
        return await parse_apart(raw, parse, most_values=most_values, parse_constant=refuse_constant)
    except TooManyValuesError:
        text = f"the request holds more than {most_values:,} values; send fewer at once"
        raise ApiError(413, "request_too_large", text) from None
    except BusyError as error:
        raise ApiError(503, "busy", str(error), retry_after=1.0) from error


async def choose_for(
    exchange: Exchange, incoming: Incoming, headers: Mapping[str, str], key: KeyRecord
) -> tuple[Choice, str | None]:
    """Admit a request; return how its model is chosen, and its conversation if that keeps its model."""
    service = exchange.service
    models = service.routable if incoming.direct is None else [incoming.direct]
    tokens = await incoming.apart(lambda: incoming.prompt_tokens) if key.tokens_per_minute else 0
    allowed = await service.ledger.admit(key, models, tokens)
    if isinstance(allowed, Refusal):
        raise of_refusal(allowed)
    if incoming.direct is not None:
        if service.spending.pacers_of(key):
            exchange.allowance = service.spending.plan_named(key, incoming.direct, prompt_of(incoming))
            check_room(exchange.allowance)
        return Choice([incoming.direct]), None
    budget, allowed = _budget_and_models(service, incoming, key, allowed)
    conversation, last, is_round = await _last_turn(service, incoming, headers, key)
    fixed, held = None, None
    if last is not None and (service.config.sticky or is_round):
        fixed = last.model
    elif last is not None:
        turn = last
        held = await incoming.apart(lambda: service.held(turn, incoming.body))
    with child(exchange.trace, "score", is_call=True):
        turns = await incoming.apart(lambda: service.scorer.newest(incoming.turns))
        coefficients = await service.coefficients(turns)
    menu = service.router.menu
    demand = await incoming.apart(lambda: demand_of(incoming, service.refusals, menu.rare, menu.least_window))
    allowance = _allowance(exchange, incoming, coefficients, key, allowed)
    exchange.allowance = allowance
    if allowance is not None and coefficients is None and budget is None and allowance.dollars is not None:
        # Nothing says which dollars are well spent: as many for each request.
        budget = max(allowance.target, float(allowance.dollars.costs.min()))
        allowance.dollars = replace(allowance.dollars, is_budget=True)
    choice = Choice(allowed, service.router, coefficients, budget, demand, fixed, held, allowance)
    exchange.sticky = fixed is not None
    return choice, conversation


def _budget_and_models(
    service: Service, incoming: Incoming, key: KeyRecord, allowed: tuple[str, ...]
) -> tuple[float | None, tuple[str, ...]]:
    """Return the budget of a request, and the models that no ceiling of single requests rules out."""
    ceiling = ceiling_of(key, 1 + incoming.compare)
    if ceiling is not None:
        # The budget of a mixture holds on average; the ceiling holds for every request.
        allowed = tuple(name for name in allowed if service.config.model_configs[name].cost <= ceiling)
        if not allowed:
            raise too_dear(key)
    if incoming.budget_usd is not None:
        is_strict = service.router.optimizer.keeps_each
        return incoming.budget_usd, _within(service, incoming, allowed) if is_strict else allowed
    budget = key.cost if incoming.budget is None else incoming.budget
    if ceiling is not None:
        budget = ceiling if budget is None else min(budget, ceiling)
    return budget, allowed


def _allowance(
    exchange: Exchange, incoming: Incoming, coefficients: Coefficients | None, key: KeyRecord, allowed: Collection[str]
) -> Allowance | None:
    """Return what a request may cost in dollars, if a budget or a ceiling says so; raise `ApiError` 429 if nothing."""
    service, is_budget = exchange.service, incoming.budget_usd is not None
    if not is_budget and not service.spending.pacers_of(key):
        return None
    scores = service.router.scores(coefficients)
    if scores is not None and len(allowed) < len(scores):
        scores = np.where([name in allowed for name in service.router.menu.names], scores, np.nan)
    allowance = service.spending.plan(key, scores, prompt_of(incoming), is_budget=is_budget)
    if allowance is not None and allowance.dollars is None:
        allowance.begin(None)
        exchange.allowance = allowance
    check_room(allowance)
    return allowance


def check_room(allowance: Allowance | None) -> None:
    """Raise `ApiError` 429 where a ceiling has no room for a request."""
    if allowance is not None and allowance.dollars is None:
        message = "what these 1,000 requests may cost is spent; a cheaper model or a shorter prompt may fit"
        raise ApiError(429, "insufficient_quota", message, retry_after=1.0)


def _within(service: Service, incoming: Incoming, allowed: Collection[str]) -> tuple[str, ...]:
    """Return the models whose worst case is within a strict budget; raise `ApiError` 400 if there is none."""
    worst = {name: worst_case(service.config.model_configs[name], incoming) for name in allowed}
    dollars = incoming.budget_usd or 0.0
    within = tuple(name for name, most in worst.items() if most <= dollars)
    if not within:
        message = f"budget_usd of {dollars:g} buys no answer: the cheapest may cost {min(worst.values()):.6g}"
        raise ApiError(400, "infeasible_budget", message, param="budget_usd")
    return within


async def _last_turn(
    service: Service, incoming: Incoming, headers: Mapping[str, str], key: KeyRecord
) -> tuple[str | None, Last | None, bool]:
    """Return the conversation of a request, if its model matters to the next turn, its last turn, `is_tool_round`."""
    body, header = incoming.body, headers.get(HEADER)
    matters = service.config.sticky or service.has_caches or body.get("tools")
    is_round = await incoming.apart(lambda: is_tool_round(body))
    if incoming.compare or not (matters or is_round):
        return None, None, is_round

    def look() -> tuple[str, bool]:
        return conversation_of(body, key=key.name, header=header), goes_on(body, header=header)

    conversation, is_further = await incoming.apart(look)
    return conversation, await service.sticky.last_of(conversation) if is_further else None, is_round


async def _whole(exchange: Exchange, trip: Trip) -> JSON:
    target, answer = await exchange.service.dispatcher.run(trip, ask_whole)
    exchange.answers.append(trip.charges[-1])
    exchange.remember()
    return mark_answer(answer, target.name, trip.choice.decision, trip.tried)


async def _stream(exchange: Exchange, trip: Trip, reply: _Reply) -> None:
    target, opened = await exchange.service.dispatcher.run(trip, open_stream)
    exchange.first_token = time.perf_counter() - exchange.started
    exchange.answers.append(trip.charges[-1])
    exchange.status = 200
    await reply.start(exchange.headers())
    await relay(exchange, trip, target, opened, reply.write)
    exchange.remember()


async def _report(exchange: Exchange, error: ApiError, reply: _Reply) -> None:
    """Send an error, as a response or as the last event of a stream that has begun."""
    if reply.begun:
        await reply.fail(error)
        return
    exchange.status = error.status
    await reply.refuse(error, exchange.headers())


# `compare: true`: the answers of two models, in random order, so that a vote between them can be asked for.
#
# The first model is the one that the request would have gone to; the other is drawn from all models within the budget
# by themselves, uniformly or by `pairs`, so that new models earn votes as well.

_random = random.SystemRandom()


async def answer_of_two(exchange: Exchange, trip: Trip) -> JSON:
    """Return one answer with two choices, each with its `model`; with one choice if only one model answered."""
    sides, propensity = sides_of(exchange.service, trip)
    answers = await _ask(exchange, trip, sides)
    exchange.remember(propensity if len(answers) == 2 else None)
    assert trip.choice.decision is not None
    return {**_joined(exchange, answers), **outputs_of(trip.choice.decision, exchange.attempts)}


def sides_of(service: Service, trip: Trip) -> tuple[list[str], float]:
    """Return two different models in random order, and the probability that just they are shown.

    Raise `ApiError` 400 where the budget leaves no second one.
    """
    choice = trip.choice
    first = service.dispatcher.first(trip).name
    assert choice.decision is not None
    blocked = service.fleet.blocked()
    candidates = service.router.fitting(choice.budget, choice.allowed, blocked, choice.demand)
    shares = service.pair_shares
    others = shares.seconds(first, candidates)
    if not others:
        raise ApiError(400, "nothing_to_compare", "compare: no second model keeps to the budget", param="compare")
    sides = [first, *_random.choices([*others], [*others.values()])]
    explore = 0.0 if choice.decision.static else service.config.explore  # without scores nothing is explored
    propensity = min(1.0, propensity_of(sides, choice.decision, candidates, explore, shares))
    _random.shuffle(sides)
    return sides, propensity


def propensity_of(
    pair: Sequence[str], decision: Decision, candidates: Collection[str], explore: float, shares: PairShares
) -> float:
    """Return the probability of this pair: each may have been the first choice, and the other drawn."""

    def first_choice(name: str) -> float:
        if name == decision.model:
            return decision.propensity
        explored = explore / len(candidates) if name in candidates else 0.0
        return (1 - explore) * decision.probabilities.get(name, 0.0) + explored

    def drawn_second(name: str, first: str) -> float:
        return shares.seconds(first, candidates).get(name, 0.0)

    a, b = pair
    return first_choice(a) * drawn_second(b, a) + first_choice(b) * drawn_second(a, b)


async def _ask(exchange: Exchange, trip: Trip, sides: Sequence[str]) -> list[JSON]:
    """Ask both models; return the answers that came, in the order of `sides`."""
    service = exchange.service
    trips = trips_of(exchange, trip, sides)
    runs = (service.dispatcher.run(each, ask_whole) for each in trips)
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    unexpected = next((error for error in errors if not isinstance(error, ApiError)), None)
    if unexpected is not None or len(errors) == len(outcomes):
        raise unexpected or errors[0]
    answers = []
    for each, outcome in zip(trips, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            target, answer = outcome
            exchange.answers.append(each.charges[-1])
            answers.append(mark_answer(answer, target.name, None, []))
    return answers


def trips_of(exchange: Exchange, trip: Trip, sides: Sequence[str]) -> list[Trip]:
    """Return a request of its own for each side, which counts in the exchange."""
    trips = [Trip(trip.incoming, trip.deadline, Choice([name]), trip.key, trip.ceiling) for name in sides]
    for each in trips:
        each.trace = trip.trace
    exchange.trips += trips
    return trips


def _joined(exchange: Exchange, answers: Sequence[JSON]) -> JSON:
    choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    usages = [answer.get("usage") or {} for answer in answers]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {
        "id": exchange.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": ROUTER_NAME,
        "choices": choices,
        "usage": {count: sum(usage.get(count) or 0 for usage in usages) for count in counts},
    }
