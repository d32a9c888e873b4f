"""`compare: true`: the answers of two models, in random order, so that a vote between them can be asked for.

The first model is the one that the request would have gone to; the other is drawn from all models within the budget by
themselves, uniformly or by `pairs`, so that new models earn votes as well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Sequence

from route.application.record import remember
from route.application.service import Service
from route.config import ROUTER_NAME
from route.providers.base import JSON
from route.request.api_errors import ApiError
from route.request.fields import mark_answer, outputs_of
from route.routing.candidates import PairShares
from route.routing.decision import Decision
from route.send.asking import ask_whole
from route.send.charges import served_of
from route.send.dispatch import Answer

_random = random.SystemRandom()


async def answer_of_two(service: Service, answer: Answer) -> JSON:
    """Return one answer with two choices, each with its `model`; with one choice if only one model answered."""
    propensity = begin_sides(service, answer)
    runs = (service.dispatcher.run(side, ask_whole) for side in answer.sides)
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    # An answer of one model is shown alone; the request fails with both, or with an error of the router itself.
    unexpected = next((error for error in errors if not isinstance(error, ApiError)), None)
    if unexpected is not None or len(errors) == len(outcomes):
        raise unexpected or errors[0]
    completions = []
    for side, outcome in zip(answer.sides, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            deployment, completion = outcome
            answer.shown.append(side.charges[-1])
            completions.append(mark_answer(completion, deployment.name, None, []))
    remember(service, answer, propensity if len(completions) == 2 else None)
    usages = [completion.get("usage") or {} for completion in completions]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    decision = answer.choice.decision
    assert decision is not None
    return {
        "id": answer.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": ROUTER_NAME,
        "choices": [{**completion["choices"][0], "index": index} for index, completion in enumerate(completions)],
        "usage": {count: sum(usage.get(count) or 0 for usage in usages) for count in counts},
        **outputs_of(decision, answer.attempts),
        **served_of(answer.shown),
    }


def begin_sides(service: Service, answer: Answer) -> float:
    """Give an answer its two sides, in random order; return the probability that just these models are shown.

    Raise `ApiError` 400 where the budget leaves no second one.
    """
    choice = answer.choice
    first = service.dispatcher.first(answer).name
    assert choice.decision is not None
    blocked = service.fleet.blocked()
    candidates = service.router.fitting(choice.budget, choice.allowed, blocked, choice.demand)
    shares = service.pair_shares
    others = shares.seconds(first, candidates)
    if not others:
        raise ApiError(400, "nothing_to_compare", "compare: no second model keeps to the budget", param="compare")
    names = [first, *_random.choices([*others], [*others.values()])]
    explore = 0.0 if choice.decision.static else service.config.explore  # without scores nothing is explored
    # Of the pair in any order: each of the two may have been the first choice.
    propensity = min(1.0, propensity_of(names, choice.decision, candidates, explore, shares))
    _random.shuffle(names)
    for name in names:
        answer.side(name)
    return propensity


def propensity_of(
    pair: Sequence[str], decision: Decision, candidates: Collection[str], explore: float, shares: PairShares
) -> float:
    """Return the probability of this pair: each may have been the first choice, and the other drawn."""

    def first_choice(name: str) -> float:
        if name == decision.model:
            return decision.propensity
        explored = explore / len(candidates) if name in candidates else 0.0
        return (1 - explore) * decision.probabilities.get(name, 0.0) + explored

    a, b = pair
    b_after_a = shares.seconds(a, candidates).get(b, 0.0)
    a_after_b = shares.seconds(b, candidates).get(a, 0.0)
    return first_choice(a) * b_after_a + first_choice(b) * a_after_b
