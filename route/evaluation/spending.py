"""What a policy does with a budget, and what comes of it.

A policy is a matrix of expected scores. Each prompt is a request of its own to the router's optimizer: its expected
scores, the mean training cost of each model, the budget. The mixture that the optimizer returns is then paid with the
true costs of this prompt and earns its true scores, in expectation, so no draw blurs the result.

Budgets are positions between the mean training cost of the cheapest model (0) and of the dearest (1) on a logarithmic
scale; at 0 every policy is the cheapest model.

Shapes: Q questions, M models, J budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.metrics import Interval
from route.evaluation.table import ScoreTable
from route.routing.optimizers import Mixture, Problem, get

Floats: TypeAlias = npt.NDArray[np.float64]
POSITIONS = tuple(np.linspace(0.0, 1.0, 25).tolist())


@dataclass(frozen=True)
class Spent:
    """What each prompt earned and cost under each budget, in expectation over the mixture."""

    scores: Floats
    """(Q, J)"""
    costs: Floats
    """(Q, J) dollars"""
    expected: Floats
    """(Q, J) the score that the policy expected"""


def budgets(costs: Floats, positions: tuple[float, ...] = POSITIONS) -> Floats:
    """Dollars (J,) of the positions, between the least and the greatest of the mean costs (M,)."""
    low, high = float(costs.min()), float(costs.max())
    if low <= 0.0:
        return np.asarray(low + (high - low) * np.array(positions))
    found = low * (high / low) ** np.array(positions)
    found[np.array(positions) == 0.0], found[np.array(positions) == 1.0] = low, high  # no rounding below the cheapest
    return np.asarray(found)


def spend(
    expected: Floats,
    mean_costs: Floats,
    scores: Floats,
    costs: Floats,
    limits: Floats,
    *,
    optimizer: str = "simple-lp",
) -> Spent:
    """Route every prompt under every budget.

    Args:
        expected: (Q, M) what the policy believes.
        mean_costs: (M,) what it believes of costs.
        scores: (Q, M) what is true.
        costs: (Q, M) what is true.
        limits: (J,) budgets, in the unit of the costs.
        optimizer: a name of `route.routing.optimizers.OPTIMIZERS`.

    Raises:
        InfeasibleError: a budget is below the cheapest model's mean cost.
    """
    order = np.argsort(mean_costs, kind="stable")
    ascending, solve = mean_costs[order], get(optimizer).solve
    found = np.empty((3, len(expected), len(limits)))
    for row, said in enumerate(expected[:, order]):
        problem = Problem(said, ascending)
        truth = (scores[row, order], costs[row, order], said)
        for column, limit in enumerate(limits.tolist()):
            problem.budget = limit
            mixture = solve(problem)
            found[:, row, column] = [mixture.mean(values) for values in truth]
    return Spent(*found)


def spend_at_random(mean_costs: Floats, scores: Floats, costs: Floats, limits: Floats) -> Spent:
    """Any model that costs no more than the budget by itself, all alike; it expects nothing (NaN)."""
    order = np.argsort(mean_costs, kind="stable")
    found = np.full((3, len(scores), len(limits)), np.nan)
    for column, limit in enumerate(limits.tolist()):
        count = Problem(np.zeros(len(order)), mean_costs[order], limit).num_affordable
        mixture = Mixture(tuple(order[:count].tolist()), (1.0 / count,) * count)
        shares = np.zeros(len(order))
        shares[list(mixture.positions)] = mixture.shares
        found[0, :, column], found[1, :, column] = scores @ shares, costs @ shares
    return Spent(*found)


def join(parts: list[Spent]) -> Spent:
    """The prompts of several folds as one."""
    return Spent(*(np.concatenate([getattr(part, name) for part in parts]) for name in Spent.__dataclass_fields__))


# The cost-quality curve of a policy and what is read from it, with intervals that draw prompts anew.
#
# A curve is mean score over mean cost, both as paid and earned on held-out prompts, a point for each budget and
# straight
# lines between. Left of its first point and right of its last it goes on level: who spends less than the limit keeps to
# it. The area is the mean height over the logarithm of cost, between the mean cost of the cheapest and of the dearest
# model on the same prompts: a score between 0 and 1, the mean quality to a user whose budget may be any order of
# magnitude in that range. Differences are between policies on the same drawn prompts.
#
# Shapes: Q questions, J budgets, R draws, G points of the cost axis.

POINTS = 201
DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Axis:
    """The costs (G,) at which curves are read, evenly spaced on a logarithmic scale."""

    costs: Floats

    @staticmethod
    def between(low: float, high: float) -> Axis:
        """From the cheapest to the dearest model; evenly spaced in dollars where one is free."""
        if low <= 0.0 or low == high:
            return Axis(np.linspace(low, high, POINTS))
        return Axis(np.geomspace(low, high, POINTS))


@dataclass(frozen=True)
class Curves:
    """A policy's curve on all prompts (row 0) and on R drawn samples of them."""

    scores: Floats
    """(1 + R, J)"""
    costs: Floats
    """(1 + R, J)"""

    @staticmethod
    def of(spent: Spent, counts: Floats) -> Curves:
        """Means over the prompts; `counts` (R, Q) says how often a sample has each."""
        weights = np.vstack([np.ones(counts.shape[1]), counts])
        weights /= weights.sum(axis=1, keepdims=True)
        return Curves(weights @ spent.scores, weights @ spent.costs)

    def heights(self, axis: Axis) -> Floats:
        """The curves (1 + R, G) read at each cost of the axis."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.stack([np.interp(axis.costs, x, y) for x, y in zip(xs, ys, strict=True)])

    def areas(self, axis: Axis) -> Floats:
        """(1 + R,) mean height over the axis."""
        heights = self.heights(axis)
        return np.asarray((heights[:, 1:] + heights[:, :-1]).mean(axis=1) / 2)

    def at(self, costs: Floats) -> Floats:
        """(1 + R,) height of each curve at a cost of its own."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.array([np.interp(cost, x, y) for cost, x, y in zip(costs, xs, ys, strict=True)])

    def cost_of(self, scores: Floats) -> Floats:
        """(1 + R,) the least cost at which each curve reaches a score of its own; infinite where it never does."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.array([_first_reach(*row) for row in zip(xs, ys, scores.tolist(), strict=True)])


def _first_reach(x: Floats, y: Floats, wanted: float) -> float:
    """Where a line through the points (x, y) first comes to a height."""
    above = np.flatnonzero(y >= wanted)
    if not len(above):
        return float("inf")
    right = int(above[0])
    if right == 0:
        return float(x[0])
    share = (wanted - y[right - 1]) / (y[right] - y[right - 1])
    return float(x[right - 1] + share * (x[right] - x[right - 1]))


def draw_counts(prompts: tuple[str, ...], *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """How often (R, Q) a sample has each question; questions with one prompt are drawn together."""
    _, groups = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    rng = np.random.default_rng(seed)
    number = int(groups.max()) + 1
    times = np.stack([np.bincount(rng.integers(0, number, number), minlength=number) for _ in range(draws)])
    return np.asarray(times[:, groups], dtype=np.float64)


def interval(values: Floats) -> Interval:
    """The estimate (first value) with the percentiles of the draws (the others); infinite values count as such."""
    tail = (1.0 - LEVEL) / 2
    draws = values[1:]
    lower, upper = (float(np.quantile(draws, share, method="nearest")) for share in (tail, 1.0 - tail))
    spread = float(draws.std(ddof=1)) if np.isfinite(draws).all() else float("nan")
    return Interval(float(values[0]), lower, upper, spread)


def difference(ours: Mapping[str, Curves], one: str, other: str, read: Callable[[Curves], Floats]) -> Interval:
    """How much more one policy has than another of what `read` takes from curves."""
    return interval(read(ours[one]) - read(ours[other]))


# How much expected scores earn on the questions they are tuned on: the router's rule for all questions at once.
#
# Under one budget the optimum mixes at most two models, one that costs no more than the budget and one that costs more
# (`route.routing.optimizers`). Where so many settings are tried, all such pairs are compared for all questions
# together; the earnings are those of the router's optimizer, question by question.
#
# Shapes: T questions, M models, J budgets.

TUNING_POSITIONS = tuple(np.linspace(0.0, 1.0, 9).tolist())
MOST_PROMPTS = 20_000
"""So many questions count when settings are chosen, evenly spaced in the table."""


@dataclass(frozen=True)
class Worth:
    """What expected scores are worth."""

    area: float
    """Under the curve; the mean score where there is one price."""
    by_prompt: Floats
    """(T,) mean score over budgets"""


Worths: TypeAlias = Callable[[Floats], Worth]


def counted(questions: int) -> npt.NDArray[np.intp]:
    """The questions that count, of so many."""
    return np.unique(np.linspace(0, questions - 1, min(questions, MOST_PROMPTS)).round().astype(np.intp))


def worth_on(table: ScoreTable) -> Worths:
    """A function that says what expected scores (T, M) of these questions are worth."""
    costs = table.costs.mean(axis=0)
    limits = costs[:1] if table.one_price else budgets(costs, TUNING_POSITIONS)
    few = counted(len(table.prompts))
    scores, paid = table.scores[few], table.costs[few]
    axis = Axis.between(float(costs.min()), float(costs.max()))

    def worth(expected: Floats) -> Worth:
        said = expected if len(expected) == len(few) else expected[few]
        found = [earnings(said, costs, scores, paid, float(limit)) for limit in limits]
        earned, spent = (np.stack(column, axis=1) for column in zip(*found, strict=True))
        curve = Curves(earned.mean(axis=0)[None], spent.mean(axis=0)[None])
        area = float(earned.mean()) if table.one_price else float(curve.areas(axis)[0])
        return Worth(area, earned.mean(axis=1))

    return worth


def earnings(
    expected: Floats, mean_costs: Floats, scores: Floats, costs: Floats, budget: float
) -> tuple[Floats, Floats]:
    """The score and the cost (T,) of each question under one budget; as `spending.spend`, of which it is the fast form.

    Arguments as there. Of equally good mixtures the cheaper model counts.
    """
    order = np.argsort(mean_costs, kind="stable")
    mean_costs, expected = mean_costs[order], expected[:, order]
    count = int(mean_costs.searchsorted(budget, side="right"))
    below = expected[:, :count].argmax(axis=1)
    rows = np.arange(len(expected))
    best = expected[rows, below]
    above, share = below.copy(), np.zeros(len(expected))
    for high in range(count, len(mean_costs)):
        part = (budget - mean_costs[:count]) / (mean_costs[high] - mean_costs[:count])
        mixed = expected[:, :count] * (1.0 - part) + expected[:, high, None] * part
        low = mixed.argmax(axis=1)
        better = mixed[rows, low] > best
        best = np.where(better, mixed[rows, low], best)
        below, above, share = (
            np.where(better, low, below),
            np.where(better, high, above),
            np.where(better, part[low], share),
        )
    first, second = order[below], order[above]
    return tuple(v[rows, first] * (1.0 - share) + v[rows, second] * share for v in (scores, costs))
