"""`compare: true`: the answers of two models, sides shuffled, so that a vote between them can be asked for.

The first model is the one that the request would have gone to; the other is drawn from all models that keep to the
budget by themselves, each with the same chance, so that new models earn votes as well. Which is which the order of the
two choices does not tell.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Collection, Sequence

from route.config import ROUTER_NAME, LimitConfig
from route.decision import Decision, RoutedModel
from route.providers.base import JSON
from route.service.choice import Direct, Routed
from route.service.dispatch import Trip, ask_whole
from route.service.errors import ApiError
from route.service.exchange import Answered, Exchange
from route.service.outgoing import mark_answer, outputs_of, usage_of

__all__ = ["answer_of_two", "propensity_of"]

_random = random.SystemRandom()


async def answer_of_two(exchange: Exchange, trip: Trip) -> JSON:
    """One answer with two choices, each with its `model`; with one, when only one of the models answered.

    Raises:
        ApiError: nobody answered, or there are no two models within the budget.
    """
    service = exchange.service
    choice = trip.choice
    assert isinstance(choice, Routed)
    first = service.dispatcher.first(trip).name
    assert choice.decision is not None
    candidates = _candidates(exchange, choice)
    others = sorted(candidates - {first})
    if not others:
        raise ApiError(400, "nothing_to_compare", "compare: no second model keeps to the budget", param="compare")
    sides = [first, _random.choice(others)]
    explore = 0.0 if choice.decision.static else service.config.explore  # without scores nothing is explored
    propensity = min(1.0, propensity_of(sides, choice.decision, candidates, explore))
    _random.shuffle(sides)
    answers = await _ask(exchange, trip, sides)
    exchange.remember(propensity if len(answers) == 2 else None)
    return {**_joined(exchange, answers), **outputs_of(choice.decision, exchange.attempts)}


def propensity_of(pair: Sequence[str], decision: Decision, candidates: Collection[str], explore: float) -> float:
    """Probability that these two are shown, in either order: each may have been the first choice, the other drawn."""

    def chosen(name: str) -> float:
        if name == decision.model:
            return decision.propensity
        drawn = explore / len(candidates) if name in candidates else 0.0
        return (1 - explore) * decision.probabilities.get(name, 0.0) + drawn

    def joins(name: str, first: str) -> float:
        return 1 / (len(candidates) - (first in candidates)) if name in candidates else 0.0

    a, b = pair
    return chosen(a) * joins(b, a) + chosen(b) * joins(a, b)


def _candidates(exchange: Exchange, choice: Routed) -> set[str]:
    """Models that keep to budget and limits by themselves and take a prompt of this length."""
    limits = exchange.service.config.limits
    targets = exchange.service.fleet.targets
    blocked = exchange.service.fleet.blocked()
    most = math.inf if choice.budget is None else choice.budget
    fitting = set()
    for name in set(choice.allowed) - blocked:
        model = targets[name].config
        window = model.context_window
        fits = window is None or choice.tokens is None or choice.tokens <= window
        if fits and model.cost <= most and all(_keeps(model.routed(name), limit) for limit in limits):
            fitting.add(name)
    return fitting


def _keeps(model: RoutedModel, limit: LimitConfig) -> bool:
    """Whether a model keeps to a limit by itself."""
    kind, _, provider = limit.quantity.partition(":")
    if kind == "share":
        return limit.most >= 1 or model.provider != provider
    amount = model.cost if kind == "cost" else model.amounts.get(limit.quantity, 0.0)
    return amount <= limit.most


async def _ask(exchange: Exchange, trip: Trip, sides: Sequence[str]) -> list[JSON]:
    """The answers that came, in the order of `sides`, with the names of their models."""
    service = exchange.service
    trips = [Trip(trip.incoming, trip.deadline, Direct(name)) for name in sides]
    exchange.trips += trips
    runs = (service.dispatcher.run(each, ask_whole) for each in trips)
    results = await asyncio.gather(*runs, return_exceptions=True)
    faults = [result for result in results if isinstance(result, BaseException)]
    unexpected = next((fault for fault in faults if not isinstance(fault, ApiError)), None)
    if unexpected is not None or len(faults) == len(results):
        raise unexpected or faults[0]
    answers = []
    for result in results:
        if not isinstance(result, BaseException):
            target, answer = result
            exchange.answers.append(Answered(target.name, usage_of(answer)))
            answers.append(mark_answer(answer, target.name, None, []))
    return answers


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
