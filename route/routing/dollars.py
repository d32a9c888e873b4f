"""What an answer is expected to cost in dollars, by model: from the prompt, the prices, and what was seen.

    E[cost of model m] = r_m (tokens of the prompt x input_m + choices x E[answer of m] x output_m)

The expected answer is a mean of each model, times a factor for prompts of this length that all models share, until
enough answers of the model to such prompts were seen to take their own mean. It starts from a prior, the answer whose
output costs what the model's `cost` says, which weighs as much as five answers, so that one that is wrong by a factor
of three is forgotten soon. r_m is what was booked over what tokens and prices make, by model and length alike: it
follows a provider that reports dollars, and tokens that are not four bytes. 150 answers are averaged, since their costs
have long tails; where the last twenty contradict those before, these are forgotten.

Shapes: M models in the order of the menu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from route.routing.candidates import Menu
from route.routing.optimizers import Floats, Mask

_USUAL_ANSWER = 400.0
"""Tokens of an answer of which nothing is known."""
_SHORTEST_PRIOR_ANSWER = 8.0  # tokens
_LONGEST_PRIOR_ANSWER = 32_768.0
_PRIOR_ANSWERS = 5.0
_ANSWERS = 150.0
"""The mean is over this many of the last answers, the older the less weight."""
_BUCKETS = 24  # by the power of two of the prompt's length
# Of the factor that all models share there are more answers to average.
_PRIOR_OF_BUCKET = 30.0
_ANSWERS_OF_BUCKET = 600.0
_PRIOR_OF_RATIO = 2.0
_PRIOR_OF_CELL = 6.0
_LAST, _CONTRADICTION, _AFTER_A_CHANGE = 20, 4.0, 5.0
"""The last 20 observations replace the earlier ones where they are 4 standard errors away, and count as 5 then."""
_ERROR_OF_PRIOR = 1.7
_TAIL_OF_PRIOR = 6.0
_ANSWERS_OF_PRIOR = 10.0
_DEVIATIONS = 4.0
_TAIL_DECAY = 0.995
_MOST_TAIL = 20.0
_DOUBT, _TRIALS = 2.0, 1.0
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
    errors: Floats | None = None
    """(M,) standard deviations of what answers cost, relative to `costs`; None: not known."""

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
        # The answer whose output costs what the configuration says of the model.
        with np.errstate(divide="ignore", invalid="ignore"):
            prior = np.where((self._output > 0) & (menu.costs > 0), menu.costs / self._output, _USUAL_ANSWER)
        prior = np.clip(prior, _SHORTEST_PRIOR_ANSWER, _LONGEST_PRIOR_ANSWER)
        self._lengths = _Table(prior, _PRIOR_ANSWERS, _ANSWERS)
        self._ratios = _Table(np.ones(len(models)), _PRIOR_OF_RATIO, _ANSWERS)
        self._answers = np.zeros(len(models))
        self._squares = np.full(len(models), _ERROR_OF_PRIOR**2)
        """(M,) mean squares of what answers have cost beside what was expected, relative to that."""
        self._tails = np.full(len(models), _TAIL_OF_PRIOR)
        self.hopes = np.where(self._input + self._output > 0.0, 1.0 / _DOUBT, 1.0)
        """(M,) by which the expectation may be too high, for a model that has hardly answered: else a cheap one whose
        prior is too high would never show it."""

    def costs(self, prompt: Prompt) -> Floats:
        """Return the expected dollars (M,) of an answer of each model."""
        bucket = _bucket(prompt.size)
        answers = self._lengths.column(bucket)
        if prompt.most:
            answers = np.minimum(answers, prompt.most)
        tokens = prompt.tokens * self._input + prompt.choices * answers * self._output
        return np.asarray(tokens * self._ratios.column(bucket) + self._fixed * prompt.choices)

    @property
    def errors(self) -> Floats:
        """Return the standard deviations (M,) of what answers cost, relative to what is expected."""
        return np.asarray(np.sqrt(self._squares))

    @property
    def tails(self) -> Floats:
        """Return how many times what is expected an answer may cost (M,)."""
        return np.asarray(np.maximum(1.0 + _DEVIATIONS * self.errors, self._tails))

    def observe(self, name: str, prompt: Prompt, tokens: int | None, dollars: float) -> None:
        """Take over an answer: the tokens of all its choices where the provider counted them, and what was booked."""
        place = self._menu.places.get(name)
        if place is None or not dollars >= 0.0:
            return
        self._answers[place] += 1
        self._hope(place)
        if tokens is None or not self._output[place] + self._input[place]:
            return
        bucket = _bucket(prompt.size)
        mean = self._lengths.at(bucket, place)
        # The error of what was expected before this answer, as `costs` has it for all models.
        expected_tokens = min(mean, prompt.most or math.inf) * prompt.choices
        plain = prompt.tokens * self._input[place] + expected_tokens * self._output[place]
        cost = float(plain * self._ratios.at(bucket, place) + self._fixed[place] * prompt.choices)
        multiple = min(dollars / max(cost, 1e-12), _MOST_TAIL)
        weight = min(self._answers[place] + _ANSWERS_OF_PRIOR, _ANSWERS)
        self._squares[place] += ((multiple - 1.0) ** 2 - self._squares[place]) / weight
        self._tails[place] = max(multiple, self._tails[place] * _TAIL_DECAY)
        length = tokens / prompt.choices
        # An answer that was cut says only that it would have been longer.
        if not (prompt.most and prompt.most <= length < mean):
            # A single answer of a hundred thousand tokens must not stand for the next hundred.
            self._lengths.take(bucket, place, min(length, 20.0 * max(mean, _USUAL_ANSWER)), 1.0)
        expected = prompt.tokens * self._input[place] + tokens * self._output[place]
        if expected > 0.0:
            self._ratios.take(bucket, place, min(dollars, 20.0 * expected), expected)

    def inherit(self, before: Estimator) -> None:
        """Take over what was seen of models that have the same name and price in another menu."""
        for name, place in self._menu.places.items():
            old = before._menu.places.get(name)
            if old is None or self._menu.models[place].price != before._menu.models[old].price:
                continue
            self._lengths.inherit(place, before._lengths, old)
            self._answers[place] = before._answers[old]
            self._squares[place] = before._squares[old]
            self._tails[place] = before._tails[old]
            self._ratios.inherit(place, before._ratios, old)
            self._hope(place)
        self._lengths.inherit_lengths(before._lengths)
        self._ratios.inherit_lengths(before._ratios)

    def age(self) -> None:
        """Let half of what is known of each model be old news."""
        self._answers *= 0.5
        for place in range(len(self._answers)):
            self._hope(place)

    def _hope(self, place: int) -> None:
        if self._input[place] + self._output[place]:
            self.hopes[place] = _DOUBT ** (-1.0 / (1.0 + self._answers[place] / _TRIALS))


class _Table:
    """The ratio of two sums, by model and by how long the prompt is: of tokens to answers, of dollars to list prices.

    Ratios of sums, since means of ratios would be those of small answers. A cell of which little was seen is taken to
    be the model's ratio times that of prompts of this length, which all models share.
    """

    def __init__(self, priors: Floats, prior: float, most: float) -> None:
        """Start at `priors` (M,), which weigh as much as `prior` observations; forget those before the last `most`."""
        self._priors, self._prior, self._most = priors.astype(np.float64), prior, most
        self.models = self._priors.copy()
        """(M,) for prompts of the usual length."""
        self._rows = [_Sums() for _ in self.models]
        self._columns = [_Sums() for _ in range(_BUCKETS)]
        self._lengths = [1.0] * _BUCKETS
        self._above = np.zeros((_BUCKETS, len(self.models)))
        self._below = np.ones((_BUCKETS, len(self.models)))
        self._weights = np.zeros((_BUCKETS, len(self.models)))

    def column(self, bucket: int) -> Floats:
        """Return the ratios (M,) for prompts of one length."""
        weights, usual = self._weights[bucket], self.models * self._lengths[bucket]
        return np.asarray(
            usual + (self._above[bucket] / self._below[bucket] - usual) * (weights / (weights + _PRIOR_OF_CELL))
        )

    def at(self, bucket: int, place: int) -> float:
        """Return the ratio of one model."""
        weight, usual = float(self._weights[bucket, place]), float(self.models[place]) * self._lengths[bucket]
        ratio = float(self._above[bucket, place] / self._below[bucket, place])
        return usual + (ratio - usual) * (weight / (weight + _PRIOR_OF_CELL))

    def take(self, bucket: int, place: int, above: float, below: float) -> None:
        """Take over an observation."""
        row, column, before = self._rows[place], self._columns[bucket], float(self.models[place])
        has_changed = row.take(above, below * self._lengths[bucket], before, self._most)
        prior = self._prior * row.below / row.weight
        self.models[place] = ratio = (row.above + prior * self._priors[place]) / (row.below + prior)
        if has_changed:
            self._above[:, place] *= ratio / before
            np.minimum(self._weights[:, place], _AFTER_A_CHANGE, out=self._weights[:, place])
        if row.weight > 2 * self._prior:  # before, it is the model's own ratio that is wrong
            column.take(above, below * ratio, self._lengths[bucket], _ANSWERS_OF_BUCKET)
            prior = _PRIOR_OF_BUCKET * column.below / column.weight
            self._lengths[bucket] = (column.above + prior) / (column.below + prior)
        weight = min(float(self._weights[bucket, place]) + 1.0, self._most)
        self._weights[bucket, place] = weight
        self._above[bucket, place] += (above - self._above[bucket, place]) / weight
        self._below[bucket, place] += (below - self._below[bucket, place]) / weight

    def inherit(self, place: int, before: _Table, old: int) -> None:
        """Take over what was seen of a model."""
        self.models[place] = before.models[old]
        self._priors[place] = before._priors[old]
        self._rows[place] = replace(before._rows[old])
        self._above[:, place] = before._above[:, old]
        self._below[:, place] = before._below[:, old]
        self._weights[:, place] = before._weights[:, old]

    def inherit_lengths(self, before: _Table) -> None:
        """Take over what was seen of prompts of each length."""
        self._columns, self._lengths = before._columns, before._lengths


@dataclass
class _Sums:
    """Of one ratio: of many observations, and of the last few.

    Costs have long tails, so that many observations are averaged; but where the last ones contradict those before by
    more than chance allows, these are forgotten at once.
    """

    above: float = 0.0
    below: float = 0.0
    squares: float = 0.0
    """Of what is above beside what was expected there."""
    weight: float = 0.0
    last_above: float = 0.0
    last_below: float = 0.0
    last_weight: float = 0.0

    def take(self, above: float, below: float, expected: float, most: float) -> bool:
        """Take over an observation; return whether earlier ones are forgotten."""
        error = above - expected * below
        keep = 1.0 if self.weight < most else 1.0 - 1.0 / most
        self.above, self.below = keep * self.above + above, keep * self.below + below
        self.squares, self.weight = keep * self.squares + error * error, keep * self.weight + 1.0
        keep = 1.0 - 1.0 / _LAST
        self.last_above, self.last_below = keep * self.last_above + above, keep * self.last_below + below
        self.last_weight = keep * self.last_weight + 1.0
        if self.weight < 2.0 * _LAST:
            return False
        gap = abs(self.last_above - self.above / self.below * self.last_below)
        if gap <= _CONTRADICTION * math.sqrt(self.squares / self.weight * 0.5 * self.last_weight):
            return False
        # The last ones hold some of before the change, too, so they weigh little beside what comes.
        share = _AFTER_A_CHANGE / self.last_weight
        self.squares *= _AFTER_A_CHANGE / self.weight
        self.above, self.below, self.weight = share * self.last_above, share * self.last_below, _AFTER_A_CHANGE
        return True


def _bucket(size: int) -> int:
    return min(size.bit_length(), _BUCKETS - 1)
