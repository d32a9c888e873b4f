"""What an answer is expected to cost in dollars, by model: from the prompt, the prices, and what was seen.

    E[cost of model m] = r_m (tokens of the prompt x input_m + choices x E[answer of m] x output_m)

The expected answer is a mean of each model, times a factor for prompts of this length that all models share. Both start
from a prior, that of a model being the answer whose output costs what its `cost` says, and follow the last answers: a
prior weighs as much as five of them, so that one that is wrong by a factor of three is forgotten soon. r_m is what was
booked over what tokens and prices make: it follows prices that change where a provider reports dollars, and tokens that
are no four bytes.

Shapes: M models in the order of the menu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from route.routing.candidates import Menu
from route.routing.optimizers import Floats, Mask

USUAL_ANSWER = 400.0
"""Tokens of an answer of which nothing is known."""
_SHORTEST, _LONGEST = 8.0, 32_768.0  # of a prior
_PRIOR_ANSWERS = 5.0
_ANSWERS = 150.0
"""The mean is that of so many of the last answers, the older the less."""
_BUCKETS = 24  # by the power of two of the prompt's length
_PRIOR_OF_BUCKET = 30.0
_OF_BUCKET = 600.0
_PRIOR_OF_RATIO, _OF_RATIO = 2.0, 20.0
_DOUBT, _TRIALS = 3.0, 3.0
"""An expectation may be too high by this factor, and by its root once a model has answered so often."""
_MILLION = 1e6
PLAIN: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
"""The rates of a request that nothing but its own budget limits."""


@dataclass(frozen=True)
class Dollars:
    """What a decision knows of dollars."""

    costs: Floats
    """(M,) expected, of an answer of each model."""
    is_budget: bool = True
    """Whether the budget of the request is in dollars, rather than in the unit of `cost`."""
    rates: tuple[tuple[float, float], ...] = PLAIN
    """(probability, score that a dollar must buy): with each probability the mixture for scores less rate x costs."""
    hopes: Floats | None = None
    """(M,) by which the costs of models that have hardly answered are lowered for the choice under a rate."""
    permitted: Mask | None = None
    """(M,) whose answers a ceiling has room for; the cheapest candidate is permitted in any case."""

    @property
    def hopeful(self) -> Floats:
        """Return the costs (M,) that scores are weighed against under a rate."""
        return self.costs if self.hopes is None else self.costs * self.hopes

    @property
    def rate(self) -> float:
        """Return the mean score that a dollar must buy."""
        return sum(share * rate for share, rate in self.rates)


class Prompt(NamedTuple):
    """What the cost of an answer depends on, beside the model."""

    tokens: int
    size: int
    """Bytes of the request."""
    most: int = 0
    """Tokens of the longest answer that was asked for; 0: no limit."""
    choices: int = 1


class Estimator:
    """The expected dollars of answers; of one worker, in an event loop."""

    def __init__(self, menu: Menu) -> None:
        """Start from the prior that costs and prices of the menu make."""
        self._menu = menu
        models = menu.models
        self._fixed = np.array([model.cost if model.price is None else 0.0 for model in models])
        self._input = np.array([0.0 if model.price is None else model.price[0] for model in models]) / _MILLION
        self._output = np.array([0.0 if model.price is None else model.price[1] for model in models]) / _MILLION
        with np.errstate(divide="ignore", invalid="ignore"):
            prior = np.where((self._output > 0) & (menu.costs > 0), menu.costs / self._output, USUAL_ANSWER)
        self._means = np.clip(prior, _SHORTEST, _LONGEST)
        self._weights = np.full(len(models), _PRIOR_ANSWERS)
        self._ratios = _Ratios(len(models), _PRIOR_OF_RATIO, _OF_RATIO)
        self._factors = [1.0] * _BUCKETS
        self._factor_weights = [_PRIOR_OF_BUCKET] * _BUCKETS
        self._surcharges = _Ratios(_BUCKETS, _PRIOR_OF_BUCKET, _OF_BUCKET)
        self._answers = np.zeros(len(models))
        self.hopes = np.where(self._input + self._output > 0.0, 1.0 / _DOUBT, 1.0)
        """(M,) by which the expectation may be too high, for a model that has hardly answered: else a cheap one whose
        prior is too high would never show it."""

    def costs(self, prompt: Prompt) -> Floats:
        """Return the expected dollars (M,) of an answer of each model."""
        answers = self._means * self._factors[_bucket(prompt.size)]
        if prompt.most:
            answers = np.minimum(answers, prompt.most)
        tokens = prompt.tokens * self._input + prompt.choices * answers * self._output
        return np.asarray(
            tokens * (self._ratios.values * self._surcharges.of(_bucket(prompt.size))) + self._fixed * prompt.choices
        )

    def observe(self, name: str, prompt: Prompt, tokens: int | None, dollars: float) -> None:
        """Take over an answer: the tokens of all its choices where the provider counted them, and what was booked."""
        place = self._menu.places.get(name)
        if place is None or not dollars >= 0.0:
            return
        self._answers[place] += 1
        self._hope(place)
        if tokens is None or not self._output[place] + self._input[place]:
            return
        self._observe_length(place, prompt, tokens / prompt.choices)
        expected = prompt.tokens * self._input[place] + tokens * self._output[place]
        if expected > 0.0:
            bucket, dollars = _bucket(prompt.size), min(dollars, 20.0 * expected)
            self._ratios.take(place, dollars / self._surcharges.of(bucket), expected)
            self._surcharges.take(bucket, dollars / self._ratios.of(place), expected)

    def inherit(self, before: Estimator) -> None:
        """Take over what was seen of models that have the same name and price in another menu."""
        for name, place in self._menu.places.items():
            old = before._menu.places.get(name)
            if old is None or self._menu.models[place].price != before._menu.models[old].price:
                continue
            for ours, theirs in ((self._means, before._means), (self._weights, before._weights)):
                ours[place] = theirs[old]
            self._answers[place] = before._answers[old]
            self._ratios.inherit(place, before._ratios, old)
            self._hope(place)
        self._factors, self._factor_weights = before._factors, before._factor_weights
        self._surcharges = before._surcharges

    def age(self) -> None:
        """Let half of what is known of each model be old news."""
        self._answers *= 0.5
        for place in range(len(self._answers)):
            self._hope(place)

    def _hope(self, place: int) -> None:
        if self._input[place] + self._output[place]:
            self.hopes[place] = _DOUBT ** (-1.0 / (1.0 + self._answers[place] / _TRIALS))

    def _observe_length(self, place: int, prompt: Prompt, tokens: float) -> None:
        bucket, mean, weight = _bucket(prompt.size), float(self._means[place]), float(self._weights[place])
        factor, of_factor = self._factors[bucket], self._factor_weights[bucket]
        is_cut = prompt.most and tokens >= prompt.most
        if is_cut and tokens < mean * factor:
            return  # an answer that was cut says only that it would have been longer
        # A single answer of a hundred thousand tokens must not stand for the next hundred.
        seen = min(tokens, 20.0 * max(mean * factor, USUAL_ANSWER))
        self._means[place] = mean + (seen / factor - mean) / (weight + 1.0)
        self._weights[place] = min(weight + 1.0, _ANSWERS)
        if weight > 2 * _PRIOR_ANSWERS:  # before, it is the model's mean that is wrong
            self._factors[bucket] = max(0.05, factor + (seen / mean - factor) / (of_factor + 1.0))
            self._factor_weights[bucket] = min(of_factor + 1.0, _OF_BUCKET)


class _Ratios:
    """Sums over sums of the last observations, one ratio by place: means of ratios would be those of small answers."""

    def __init__(self, count: int, prior: float, most: float) -> None:
        """Start at 1, which weighs as much as `prior` observations; forget those before the last `most`."""
        self.values = np.ones(count)
        self._prior, self._most = prior, most
        self._weights = [0.0] * count
        self._above = [0.0] * count
        self._below = [0.0] * count

    def of(self, place: int) -> float:
        return float(self.values[place])

    def inherit(self, place: int, before: _Ratios, old: int) -> None:
        self.values[place], self._weights[place] = before.values[old], before._weights[old]
        self._above[place], self._below[place] = before._above[old], before._below[old]

    def take(self, place: int, above: float, below: float) -> None:
        weight = min(self._weights[place] + 1.0, self._most)
        keep = (weight - 1.0) / self._weights[place] if self._weights[place] else 0.0
        self._above[place] = keep * self._above[place] + above
        self._below[place] = keep * self._below[place] + below
        self._weights[place] = weight
        prior = self._prior * self._below[place] / weight
        self.values[place] = (self._above[place] + prior) / (self._below[place] + prior)


def _bucket(size: int) -> int:
    return min(size.bit_length(), _BUCKETS - 1)
