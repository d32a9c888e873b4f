"""The input and the output of a routing decision.

Shapes: M routable models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

FEATURES = (
    *("images", "audio", "files", "video"),
    *("audio_output", "image_output"),
    *("tools", "parallel_tools", "json_schema", "logprobs", "n", "reasoning"),
)
"""What a request can need of a model beyond text: to read the first four, to give the next two, and to do the rest."""
FEATURE_BITS = {feature: 1 << place for place, feature in enumerate(FEATURES)}


def bits_of(features: Collection[str]) -> int:
    """Return a set of features as the bits of a number."""
    return sum(FEATURE_BITS[feature] for feature in features)


def features_in(bits: int) -> tuple[str, ...]:
    """Return the features whose bits are set."""
    return tuple(feature for feature, bit in FEATURE_BITS.items() if bits & bit)


@dataclass(frozen=True)
class Demand:
    """What a request needs of the model that answers it."""

    features: int = 0
    """The bits of the features that it needs."""
    tokens: int | None = None
    """Of prompt and answer, estimated; None: no context window is too small."""
    answer: int = 0
    """Tokens of the longest answer that it asks for; 0: it does not say."""
    refused: Collection[str] = ()
    """Models that have lately refused such requests."""


NO_DEMAND = Demand()


@dataclass(frozen=True)
class RoutedModel:
    """A model of the configuration, as far as routing needs it."""

    name: str
    cost: float
    """Of an average answer, in the unit of the budgets."""
    provider: str = ""
    """The provider that limits on a share count the model to."""
    context_window: int | None = None
    """Tokens, or None when it is not known."""
    prior_coef: float | None = None
    """Its coefficient where P2L does not know it."""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """Of further limited quantities, latency say."""
    price: tuple[float, float] | None = None
    """Of a million tokens of input and of output; None: an answer costs `cost`."""
    lacks: Collection[str] = ()
    """Features that it does not have."""
    doubts: Collection[str] = ()
    """Features that it does not have by the catalogue, which may be wrong: it is asked where no other model is left."""
    longest_answer: int | None = None
    """Tokens; it is asked for longer ones where no other model is left."""
    listed_window: int | None = None
    """Its context window by the catalogue, where the configuration has none."""


@dataclass(frozen=True)
class Limit:
    """At most `most` of a quantity, on average over requests, for the optimizer `lp`.

    `quantity` is a key of `RoutedModel.amounts`, "cost", or "share:PROVIDER".
    """

    quantity: str
    most: float


@dataclass(frozen=True)
class Coefficients:
    """P2L's output for one prompt."""

    coefs: Mapping[str, float]
    """By the names of the P2L model's list."""
    eta: float | None = None
    revision: str = ""
    is_average: bool = False
    """Whether they are the mean of other prompts'."""
    familiarity: float | None = None
    """Share of the prompt's own departure from the overall leaderboard that is kept; None where P2L does not tell."""
    scored: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """What a router keeps with them, for further requests with the same prompt."""

    @cached_property
    def array(self) -> npt.NDArray[np.float64]:
        """Return them without their names, in the order of the list."""
        return np.fromiter(self.coefs.values(), np.float64, len(self.coefs))


@dataclass(frozen=True)
class Held:
    """The model that a conversation was with, whose provider has its prompt in a cache."""

    model: str
    lost: float
    """What the next prompt costs more without that cache, in the unit of the costs."""


@dataclass(frozen=True)
class FrontierPoint:
    """A corner of the cost-quality frontier; between two corners their models are mixed."""

    model: str
    cost: float
    score: float


@dataclass(frozen=True)
class Decision:
    """The chosen model, and why."""

    model: str
    probabilities: Mapping[str, float]
    """Shares of the optimal mixture, before exploring; only models that have one."""
    propensity: float
    """Probability of choosing `model`, exploring included."""
    costs: Mapping[str, float]
    expected_cost: float
    budget: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of every routable model; empty without coefficients, as what follows from scores."""
    expected_score: float | None = None
    strength: float | None = None
    """Coefficient of the routed system at this budget, on this prompt."""
    find_frontier: Callable[[], tuple[FrontierPoint, ...]] = field(default=tuple, repr=False, compare=False)
    """Computes `frontier`, which few look at."""
    explored: bool = False
    static: bool = False
    """Whether the configured order decided, since there were no scores in time."""
    average: bool = False
    """Whether the average leaderboard of earlier prompts decided, since there were no scores in time."""
    in_dollars: bool = False
    """Whether budget and costs are expected dollars, rather than in the unit of the configured costs."""
    optimizer: str = ""
    revision: str = ""
    """Of the P2L model whose scores decided."""
    familiarity: float | None = None
    """As of `Coefficients`."""
    over_constant: float | None = None
    """How much more the mixture is expected to score than the constant that this budget buys; None without a guard."""
    guard_is_stale: bool | None = None
    """Whether the guard was measured with another revision of P2L; None without a guard."""

    @cached_property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Return the corners, cheapest first."""
        return self.find_frontier()

    def limited_to(self, names: Collection[str]) -> Decision:
        """Return the decision with the scores and costs of these models alone, the only ones it can have chosen."""
        if self.costs.keys() <= set(names):
            return self
        scores, costs = (
            {name: amount for name, amount in amounts.items() if name in names} for amounts in (self.scores, self.costs)
        )
        return replace(self, scores=scores, costs=costs)
