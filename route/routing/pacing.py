"""A ceiling on average dollars per request, kept in every block of 1,000 requests, and spent where it buys most.

The program over many prompts with one ceiling has one multiplier: each prompt goes to the model with the largest
score - rate x dollars, for the rate at which the ceiling is spent. It is found every few requests by bisection on the
last prompts, so that they would have spent what the block has left per request. What answers really cost comes back:

    target = (what the block may have cost by now - what it did cost) / requests left + ceiling

What remains uncertain is bounded by a gate: an answer is permitted only where the block, with the cheapest model for
all of its other requests, stays within the ceiling even if this answer costs as many times what is expected as answers
of its model have done. A ceiling
that even the cheapest model exceeds cannot be kept, so requests are refused then.

Shapes: W prompts that are remembered, M models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from route.routing.dollars import Dollars, Estimator, Prompt
from route.routing.optimizers import Floats

BLOCK = 1000
"""Requests whose mean cost keeps to the ceiling."""
SLACK = 0.002
"""By which share of the ceiling a block may exceed it."""
_PROMPTS_KEPT = 192
_REQUESTS_A_SEARCH = 8
"""Requests between two searches for the rate, after the first few, each of which is followed by one."""
_HORIZON = 120
"""A surplus or deficit is made up for over at least this many requests."""
_MOST_OF_CEILING = 4.0
"""A surplus is spent at no more than this many ceilings a request."""
_DEVIATIONS = 4.0
"""Standard deviations of what is under way that the gate holds back."""
_UNKNOWN_TAIL = 2.0
"""As many times its expectation may a request cost that no model is chosen for."""
_STEPS = 14
_LEAST_TARGET = 1e-12
_MOST_RATE = 1e15
_RATES_APART = 1.05
_FOLLOWING = 60.0
"""Answers whose costs, beside what was expected of them, correct the next ones."""


def rates_around(target: float, mean_cost: Callable[[float], float], *, steps: int) -> tuple[float, float]:
    """Return two rates between which the mean cost of prompts falls from above `target` to no more than that.

    `mean_cost` is that of the models with the largest scores less a rate times cost; it must exceed the target at 0.
    The second rate still costs more only where the cheapest models do.
    """
    low, high = 0.0, 1.0 / max(target, _LEAST_TARGET)
    while mean_cost(high) > target and high < _MOST_RATE / max(target, _LEAST_TARGET):
        low, high = high, high * 32.0
    for _ in range(steps):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if mean_cost(middle) > target else (low, middle)
    return low, high


@dataclass
class Ticket:
    """A request that was begun, until `Pacer.settle`."""

    block: int
    expected: float
    variance: float


class Pacer:
    """Keeps one ceiling; of one worker, in an event loop: where each worker keeps it, all together do."""

    def __init__(self, ceiling: float, num_models: int) -> None:
        """Begin the first block; `ceiling` is in dollars per request."""
        self.ceiling = ceiling
        self._remember(num_models)
        self._block = 0
        self._count = 0
        self._spent = 0.0
        self._held = 0.0
        self._variance = 0.0
        self._cheapest = 0.0
        self._correction = 1.0
        # As after 60 answers that cost the ceiling each, as expected: a first answer moves the correction little.
        self._booked = _FOLLOWING * ceiling
        self._expected = _FOLLOWING * ceiling
        self.rates: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
        """(probability, score that a dollar must buy), one or two of them."""

    @property
    def target(self) -> float:
        """Return the dollars that the next requests may cost on average."""
        surplus = self._count * self.ceiling - self._spent - self._held
        left = max(BLOCK - self._count, _HORIZON)
        return min(max(self.ceiling + surplus / left, 0.0), _MOST_OF_CEILING * self.ceiling)

    def _remember(self, num_models: int) -> None:
        """Forget all prompts; those to come are of `num_models` models."""
        self._scores = np.full((_PROMPTS_KEPT, num_models), -np.inf)
        self._costs = np.zeros((_PROMPTS_KEPT, num_models))
        self._hopeful = np.zeros((_PROMPTS_KEPT, num_models))
        self._seen = 0

    def _room(self) -> float:
        """Return the dollars that the block has left."""
        return BLOCK * self.ceiling - self._spent - self._held * max(1.0, self._correction)

    def _free(self) -> float:
        """Return those that are surely left where all other requests of the block go to the cheapest model."""
        others = max(0, BLOCK - self._count - 1)
        kept = others * self._cheapest * max(1.0, self._correction)
        return self._room() - _DEVIATIONS * math.sqrt(self._variance) - kept

    def plan(self, scores: Floats | None, estimator: Estimator, prompt: Prompt) -> Dollars | None:
        """Return what the decision on a prompt needs; None where not even the cheapest model is permitted.

        `scores` are (M,), NaN for models that cannot answer it, or None where there are none.
        """
        self._turn(estimator)
        costs = estimator.costs(prompt)
        if scores is not None:
            if len(scores) != self._scores.shape[1]:  # the configuration was reloaded
                self._remember(len(scores))
            row = self._seen % _PROMPTS_KEPT
            np.copyto(self._scores[row], scores)
            self._scores[row][np.isnan(scores)] = -np.inf
            self._costs[row] = costs
            self._seen += 1
            if self._seen % _REQUESTS_A_SEARCH == 1 or self._seen < _REQUESTS_A_SEARCH:
                # Hopes fade as answers come, so that those of all prompts are the ones of now.
                np.multiply(self._costs, estimator.hopes, out=self._hopeful)
                self._search()
        cheapest = float(costs.min())
        self._cheapest += (cheapest - self._cheapest) / min(self._seen + 1, _PROMPTS_KEPT)
        if cheapest > self._room() + SLACK * BLOCK * self.ceiling:
            return None
        # Where answers cost less than expected, the gate does not open wider: they may cost more again.
        permitted = costs * estimator.tails * max(1.0, self._correction) <= self._free()
        return Dollars(
            costs,
            is_budget=False,
            rates=self.rates,
            hopes=estimator.hopes,
            permitted=np.asarray(permitted),
            errors=estimator.errors,
        )

    def has_room(self, expected: float, estimator: Estimator) -> bool:
        """Return whether a request that no model is chosen for may cost `expected` dollars, or twice that."""
        self._turn(estimator)
        return _UNKNOWN_TAIL * expected <= self._free()

    def _turn(self, estimator: Estimator) -> None:
        """Begin the next block where this one is over."""
        if self._count >= BLOCK:
            self._block += 1
            estimator.age()
            self._count = 0
            self._spent = 0.0
            self._held = 0.0
            self._variance = 0.0

    def begin(self, expected: float, error: float = 1.0) -> Ticket:
        """Count a request that goes to a model of these expected dollars; a refused one costs nothing.

        `error` is the standard deviation of what its answers cost, relative to what is expected.
        """
        self._count += 1
        self._held += expected
        ticket = Ticket(self._block, expected, (expected * error) ** 2)
        self._variance += ticket.variance
        return ticket

    def settle(self, ticket: Ticket, dollars: float) -> None:
        """Count what a request has cost, in its block; in this one, if it exceeds what was held in one that is over."""
        if ticket.block == self._block:
            self._held = max(0.0, self._held - ticket.expected)
            self._variance = max(0.0, self._variance - ticket.variance)
            self._spent += dollars
        else:
            # Its own block is over, which held what was expected of it.
            self._spent += max(0.0, dollars - ticket.expected)
        if ticket.expected <= 0.0:
            return
        keep = 1.0 - 1.0 / _FOLLOWING
        self._booked = keep * self._booked + dollars
        self._expected = keep * self._expected + ticket.expected
        self._correction = min(max(self._booked / self._expected, 0.1), 10.0)

    def _search(self) -> None:
        """Find the rates at which the prompts that are remembered cost the target."""
        target = self.target / self._correction
        if self._mean_cost(0.0) <= target:
            self.rates = ((1.0, 0.0),)
            return
        low, high = rates_around(target, self._mean_cost, steps=_STEPS)
        # Apart, so that a prompt on the edge is mixed though its expected costs move a little until the next search.
        low, high = low / _RATES_APART, high * _RATES_APART
        most, least = self._mean_cost(low), self._mean_cost(high)
        share = min(max((target - least) / (most - least), 0.0), 1.0) if most > least else 0.0
        self.rates = ((share, low), (1.0 - share, high)) if 0.0 < share < 1.0 else ((1.0, low if share else high),)

    def _mean_cost(self, rate: float) -> float:
        """Return what the prompts that are remembered would have cost at a rate."""
        rows = min(self._seen, _PROMPTS_KEPT)
        choices = (self._scores[:rows] - rate * self._hopeful[:rows]).argmax(axis=1)
        return float(self._costs[np.arange(rows), choices].mean())
