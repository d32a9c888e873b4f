"""Decide: which models a request may go to, and what their choice depends on: scores, budget, conversation, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from route.application.service import Service
from route.application.trials import begin_trial
from route.keep.conversations import HEADER, Last, conversation_of, goes_on, is_tool_round
from route.keep.ledger import KeyRecord, Refusal
from route.observability.tracing import child
from route.providers.base import JSON
from route.request.api_errors import ApiError, of_refusal
from route.request.chat import ChatRequest, prompt_of, prompt_tokens_of, tokens_of
from route.routing.decision import NO_DEMAND, Demand, Held
from route.routing.refusals import answer_of
from route.routing.spending import Allowance
from route.send.charges import ceiling_of, too_dear, worst_case
from route.send.dispatch import Answer, Choice

# For which every provider keeps a prompt in its cache.
_CACHE_SECONDS = 300.0
# Of the shortest prompt that providers cache.
_LEAST_CACHED_TOKENS = 1024


async def decide(service: Service, answer: Answer, request: ChatRequest, headers: Mapping[str, str]) -> str | None:
    """Admit a request and set how the model of its answer is chosen; return its conversation if that keeps its model.

    Raise `ApiError` for a request that its key may not make, or that no model may answer.
    """
    key = answer.key
    assert key is not None
    models = _able(service, request, service.routable if request.direct is None else [request.direct])
    # Counting the tokens of a long prompt takes milliseconds, so that it is done for keys with such a limit alone.
    tokens = await request.apart(lambda: request.prompt_tokens) if key.tokens_per_minute else 0
    admitted = await service.ledger.admit(key, models, tokens, answer.labels)
    if isinstance(admitted, Refusal):
        raise of_refusal(admitted)
    conversation = None
    if request.direct is not None:
        answer.choice = Choice([request.direct])
        if service.spending.pacers_of(key):
            answer.choice.allowance = service.spending.plan_named(key, request.direct, prompt_of(request))
            check_room(answer.choice.allowance)
    else:
        conversation = await _decide_among(service, answer, request, headers, key, admitted)
    strict_dollars = request.budget_usd if service.router.optimizer.keeps_each else None
    answer.ceiling = ceiling_of(key, 1 + request.compare, strict_dollars)
    answer.request = request
    return conversation


def _able(service: Service, request: ChatRequest, names: Sequence[str]) -> Sequence[str]:
    """Return the models that can take a request; raise `ApiError` 400 where its protocol is that of none of them."""
    form = request.native
    if form is None or (form.blocked is None and not form.is_poorer):
        return names
    native = [name for name in names if service.fleet.targets[name].speaks(form.protocol)]
    if not native and form.blocked is not None:
        raise form.blocked
    return native or names


async def _decide_among(
    service: Service,
    answer: Answer,
    request: ChatRequest,
    headers: Mapping[str, str],
    key: KeyRecord,
    admitted: tuple[str, ...],
) -> str | None:
    budget, allowed = _budget_and_models(service, request, key, admitted)
    conversation, last, is_round = await _last_turn(service, request, headers, key)
    fixed, held = None, None
    if last is not None and (service.config.sticky or is_round):
        # In a round of tools always: the results are for the model that called them.
        fixed = last.model
    elif last is not None:
        turn = last
        held = await request.apart(lambda: _held(service, turn, request.body))
    with child(answer.trace, "score", is_call=True):
        turns = await request.apart(lambda: service.scorer.newest(request.turns))
        with service.metrics.scoring.time():
            coefficients = await service.scorer.coefficients(turns, service.config.score_timeout_ms / 1000)
    if coefficients is not None:
        service.average.add(coefficients)
    elif service.fallback == "average":  # a configured `static_order` goes before it
        coefficients = service.average.coefficients
    demand = await request.apart(lambda: _demand(service, request))
    is_budget, allowance = request.budget_usd is not None, None
    if is_budget or service.spending.pacers_of(key):
        scores = service.router.scores(coefficients)
        if scores is not None and len(allowed) < len(scores):  # what the key may not use must not set the price
            scores = np.where([name in allowed for name in service.router.menu.names], scores, np.nan)
        allowance = service.spending.plan(key, scores, prompt_of(request), is_budget=is_budget)
        if allowance is not None and allowance.dollars is None:
            allowance.begin(None)
    answer.choice.allowance = allowance  # from here on it is closed with the answer, even one that is refused
    check_room(allowance)
    if allowance is not None and coefficients is None and budget is None and allowance.dollars is not None:
        # Nothing says which dollars are well spent: as many for each request.
        budget = max(allowance.target, float(allowance.dollars.costs.min()))
        allowance.dollars = replace(allowance.dollars, is_budget=True)
    answer.choice = Choice(
        allowed=allowed,
        router=service.router,
        coefficients=coefficients,
        budget=budget,
        demand=demand,
        fixed=fixed,
        held=held,
        allowance=allowance,
    )
    if service.experiments or service.shadow is not None:
        await begin_trial(service, answer, request, headers, conversation)
    return conversation


def _budget_and_models(
    service: Service, request: ChatRequest, key: KeyRecord, allowed: tuple[str, ...]
) -> tuple[float | None, tuple[str, ...]]:
    """Return the budget of a request, and the models that no ceiling of single requests rules out."""
    configs = service.config.model_configs
    ceiling = ceiling_of(key, 1 + request.compare)
    if ceiling is not None:
        # The budget of a mixture holds on average; the ceiling holds for every request.
        allowed = tuple(name for name in allowed if configs[name].cost <= ceiling)
        if not allowed:
            raise too_dear(key)
    dollars = request.budget_usd
    if dollars is None:
        budget = key.cost if request.budget is None else request.budget
        if ceiling is not None:
            budget = ceiling if budget is None else min(budget, ceiling)
        return budget, allowed
    if service.router.optimizer.keeps_each:
        worst = {name: worst_case(configs[name], request) for name in allowed}
        allowed = tuple(name for name, most in worst.items() if most <= dollars)
        if not allowed:
            message = f"budget_usd of {dollars:g} buys no answer: the cheapest may cost {min(worst.values()):.6g}"
            raise ApiError(400, "infeasible_budget", message, param="budget_usd")
    return dollars, allowed


async def _last_turn(
    service: Service, request: ChatRequest, headers: Mapping[str, str], key: KeyRecord
) -> tuple[str | None, Last | None, bool]:
    """Return the conversation of a request, if its model matters to the next turn, its last turn, `is_tool_round`."""
    body, header = request.body, headers.get(HEADER)
    # Most routers need none of this: a conversation's name is a digest over its beginning, and a look-up may follow.
    matters = service.config.sticky or service.has_caches or body.get("tools")
    is_round = await request.apart(lambda: is_tool_round(body))
    if request.compare or not (matters or is_round):
        return None, None, is_round

    def look() -> tuple[str, bool]:
        return conversation_of(body, key=key.name, header=header), goes_on(body, header=header)

    conversation, is_further = await request.apart(look)
    return conversation, await service.sticky.last_of(conversation) if is_further else None, is_round


def _held(service: Service, last: Last, body: JSON) -> Held | None:
    """Return the model of a conversation's last turn, and what leaving it costs; None where it costs nothing."""
    model = service.config.model_configs.get(last.model)
    price = None if model is None else model.price
    if price is None or price.cached is None or service.sticky.seconds_since(last) > _CACHE_SECONDS:
        return None
    # The provider has cached what it was sent with the last turn: all messages before the last answer.
    answers = [number for number, message in enumerate(body["messages"]) if message["role"] == "assistant"]
    tokens = prompt_tokens_of({**body, "messages": body["messages"][: answers[-1]]}) if answers else 0
    lost = tokens * (price.input - price.cached) / 1e6
    return Held(last.model, lost) if tokens >= _LEAST_CACHED_TOKENS and lost > 0 else None


def _demand(service: Service, request: ChatRequest) -> Demand:
    """Return what a request needs of its model, as far as that matters among the models of the menu."""
    # What cannot rule out a model of this menu is not computed: it would take a walk through every message.
    menu = service.router.menu
    tokens = None if menu.least_window == math.inf else tokens_of(request, int(menu.least_window))
    refused = service.refusals.of(request)
    features = request.features if menu.rare else 0
    longest = answer_of(request.body)
    if not features and tokens is None and not refused and not longest:
        return NO_DEMAND
    return Demand(features, tokens, longest, refused)


def check_room(allowance: Allowance | None) -> None:
    """Raise `ApiError` 429 where a ceiling has no room for a request."""
    if allowance is not None and allowance.dollars is None:
        message = "what these 1,000 requests may cost is spent; a cheaper model or a shorter prompt may fit"
        raise ApiError(429, "insufficient_quota", message, retry_after=1.0)
