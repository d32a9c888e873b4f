"""Spend budgets by a policy, and measure its cost-quality curve.

A policy is a matrix of expected scores. A budget is that of each request, or a mean over all of them. The former is
spent by the router's optimizer, for which each prompt is a request of its own: its expected scores, the mean training
cost of each model, the budget. The latter is spent as the router spends a ceiling (`route.routing.pacing`): each prompt
goes to the model with the largest expected score less a rate times cost, at the rate that spends the budget. What is
chosen is charged the true costs of this prompt and earns its true scores, in expectation over a mixture, so that no
draw adds noise.

Budgets are positions between the mean training cost of the cheapest model (0) and of the dearest (1) on a logarithmic
scale; at 0 every policy is the cheapest model.

A curve is mean score over mean cost on held-out prompts: a point for each budget, straight lines between, level on both
sides, since who spends less than the limit is within it. Its area is the mean height over the logarithm of cost between
the mean costs of the cheapest and the dearest model: the mean quality to a user whose budget may be any order of
magnitude in that range.

Shapes: Q questions, T training questions, M models, J budgets, R samples, G points of the cost axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from route.evaluation.table import Floats, ScoreTable
from route.routing.optimizers import Problem, get
from route.routing.pacing import rates_around

_POSITIONS = tuple(np.linspace(0.0, 1.0, 25).tolist())


@dataclass(frozen=True)
class Spent:
    """Score and cost of each prompt under each budget, in expectation over the mixture."""

    scores: Floats
    """(Q, J)"""
    costs: Floats
    """(Q, J) dollars"""
    expected: Floats
    """(Q, J) the score that the policy expected"""


def budgets(costs: Floats, positions: tuple[float, ...] = _POSITIONS) -> Floats:
    """Return the dollars (J,) of the positions between the least and the greatest of the mean costs (M,)."""
    low, high = float(costs.min()), float(costs.max())
    if low <= 0.0:
        return np.asarray(low + (high - low) * np.array(positions))
    places = np.array(positions)
    dollars = low * (high / low) ** places
    # Rounding must not end below the cheapest, whose cost no model would be within.
    dollars[places == 0.0] = low
    dollars[places == 1.0] = high
    return np.asarray(dollars)


def spend(expected: Floats, mean_costs: Floats, scores: Floats, costs: Floats, limits: Floats) -> Spent:
    """Route every prompt under every budget of `limits` (J,).

    The policy expects the scores `expected` (Q, M) and the costs `mean_costs` (M,); `scores` and `costs` (Q, M) are the
    true ones. Raises InfeasibleError for a budget below the cheapest model's mean cost.
    """
    order = np.argsort(mean_costs, kind="stable")
    ascending = mean_costs[order]
    solve = get("simple-lp").solve
    means = np.empty((3, len(expected), len(limits)))
    for row, expectation in enumerate(expected[:, order]):
        problem = Problem(expectation, ascending)
        truth = (scores[row, order], costs[row, order], expectation)
        for column, limit in enumerate(limits.tolist()):
            problem.budget = limit
            mixture = solve(problem)
            means[:, row, column] = [mixture.mean(figures) for figures in truth]
    return Spent(scores=means[0], costs=means[1], expected=means[2])


_STEPS = 40  # of bisection to the rate


def spend_on_average(expected: Floats, mean_costs: Floats, scores: Floats, costs: Floats, limits: Floats) -> Spent:
    """Spend each budget of `limits` (J,) as a mean over the prompts; arguments are as of `spend`.

    Where no single rate spends a budget exactly, two neighbouring ones are mixed: one spends less, the other more.
    """
    order = np.argsort(mean_costs, kind="stable")  # of equally good models the cheaper one comes first, and is taken
    rows, ahead = np.arange(len(expected)), expected[:, order]
    # Beyond the cheapest model's cost, whose mean over prompts is then exactly zero. Rounding would put it above the
    # least budget, and the search would end at a rate beside which differences of scores are lost.
    beyond = mean_costs[order] - mean_costs.min()

    def choices(rate: float) -> npt.NDArray[np.intp]:
        return np.asarray((ahead - rate * beyond).argmax(axis=1))

    def mean_cost(rate: float) -> float:
        return float(beyond[choices(rate)].mean())

    means = np.empty((3, len(expected), len(limits)))
    for column, limit in enumerate((limits - mean_costs.min()).tolist()):
        low, high = (0.0, 0.0) if mean_cost(0.0) <= limit else rates_around(limit, mean_cost, steps=_STEPS)
        most, least = mean_cost(low), mean_cost(high)
        share = min(max((limit - least) / (most - least), 0.0), 1.0) if most > least else 0.0
        dear, cheap = order[choices(low)], order[choices(high)]
        means[:, :, column] = [
            share * figures[rows, dear] + (1.0 - share) * figures[rows, cheap] for figures in (scores, costs, expected)
        ]
    return Spent(scores=means[0], costs=means[1], expected=means[2])


def spend_at_random(mean_costs: Floats, scores: Floats, costs: Floats, limits: Floats) -> Spent:
    """Route uniformly among the models that cost no more than the budget; expected scores are NaN."""
    order = np.argsort(mean_costs, kind="stable")
    means = np.full((3, len(scores), len(limits)), np.nan)
    for column, limit in enumerate(limits.tolist()):
        count = Problem(np.zeros(len(order)), mean_costs[order], limit).num_affordable
        shares = np.zeros(len(order))
        shares[order[:count]] = 1.0 / count
        means[0, :, column] = scores @ shares
        means[1, :, column] = costs @ shares
    return Spent(scores=means[0], costs=means[1], expected=means[2])


def join(parts: list[Spent]) -> Spent:
    """Join the prompts of several folds."""
    return Spent(
        scores=np.concatenate([part.scores for part in parts]),
        costs=np.concatenate([part.costs for part in parts]),
        expected=np.concatenate([part.expected for part in parts]),
    )


POINTS = 201
_ROUNDING = 1e-9


def cost_axis(low: float, high: float) -> Floats:
    """Space costs (G,) evenly from the cheapest to the dearest model, on a logarithmic scale unless one is free."""
    return np.linspace(low, high, POINTS) if low <= 0.0 or low == high else np.geomspace(low, high, POINTS)


@dataclass(frozen=True)
class Curves:
    """A policy's curve on all prompts (row 0) and on R samples of them."""

    scores: Floats
    """(1 + R, J)"""
    costs: Floats
    """(1 + R, J)"""

    @staticmethod
    def of(spent: Spent, weights: Floats) -> Curves:
        """Average over the prompts; `weights` (R, Q) has how much a sample holds of each."""
        weights = np.vstack([np.ones(weights.shape[1]), weights])
        weights /= weights.sum(axis=1, keepdims=True)
        return Curves(weights @ spent.scores, weights @ spent.costs)

    def points(self) -> Iterator[tuple[Floats, Floats]]:
        """Return costs (J,), ascending, and scores (J,) of each curve."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        return zip(*(np.take_along_axis(rows, order, axis=1) for rows in (self.costs, self.scores)), strict=True)

    def areas(self, axis: Floats) -> Floats:
        """Return the mean heights (1 + R,) over the axis."""
        heights = np.stack([np.interp(axis, x, y) for x, y in self.points()])
        return np.asarray((heights[:, 1:] + heights[:, :-1]).mean(axis=1) / 2)

    def at(self, costs: Floats) -> Floats:
        """Return the height (1 + R,) of each curve at a cost of its own."""
        return np.array([np.interp(cost, x, y) for cost, (x, y) in zip(costs, self.points(), strict=True)])

    def cost_of(self, scores: Floats) -> Floats:
        """Return the least cost (1 + R,) at which each curve reaches a score of its own, or infinity."""
        reached = np.full(len(scores), np.inf)
        for curve, (height, (x, y)) in enumerate(zip(scores.tolist(), self.points(), strict=True)):
            # The means of equal scores may differ by rounding, which must not make the cost infinite.
            above = np.flatnonzero(y >= height - _ROUNDING)
            if not len(above):
                continue
            right = int(above[0])
            if right == 0:
                reached[curve] = x[0]
                continue
            share = min((height - y[right - 1]) / (y[right] - y[right - 1]), 1.0)
            reached[curve] = x[right - 1] + share * (x[right] - x[right - 1])
        return reached


_TUNING_POSITIONS = tuple(np.linspace(0.0, 1.0, 9).tolist())
_MOST_PROMPTS = 20_000
"""Questions, evenly spaced in the table, that settings are tuned on."""


@dataclass(frozen=True)
class Worth:
    """The worth of expected scores by which budgets are spent."""

    area: float
    """Under the curve; the mean score under one price."""
    by_prompt: Floats
    """(T,) mean score over budgets"""


Worths: TypeAlias = Callable[[Floats], Worth]


def counted(questions: int) -> npt.NDArray[np.intp]:
    """Return the questions to tune on, of this many."""
    return np.unique(np.linspace(0, questions - 1, min(questions, _MOST_PROMPTS)).round().astype(np.intp))


def worth_on(table: ScoreTable, *, on_average: bool = False) -> Worths:
    """Return a function that computes the worth of expected scores (T, M) of these questions.

    With `on_average` budgets are means over the questions rather than those of each.
    """
    costs = table.costs.mean(axis=0)
    limits = costs[:1] if table.one_price else budgets(costs, _TUNING_POSITIONS)
    few = counted(len(table.prompts))
    scores, paid = table.scores[few], table.costs[few]
    axis = cost_axis(float(costs.min()), float(costs.max()))

    def worth(expected: Floats) -> Worth:
        rows = expected if len(expected) == len(few) else expected[few]
        if on_average:
            means = spend_on_average(rows, costs, scores, paid, limits)
            earned, spent = means.scores, means.costs
        else:
            earned_and_spent = [earnings(rows, costs, scores, paid, float(limit)) for limit in limits]
            earned, spent = (np.stack(column, axis=1) for column in zip(*earned_and_spent, strict=True))
        curve = Curves(earned.mean(axis=0)[None], spent.mean(axis=0)[None])
        area = float(earned.mean()) if table.one_price else float(curve.areas(axis)[0])
        return Worth(area, earned.mean(axis=1))

    return worth


def earnings(
    expected: Floats, mean_costs: Floats, scores: Floats, costs: Floats, budget: float
) -> tuple[Floats, Floats]:
    """Return score and cost (T,) of each question under one budget: `spend` for all questions at once.

    Under one budget the optimum mixes at most two models, one within the budget and one beyond it: all such pairs are
    compared. Of equally good mixtures the cheaper model counts.
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
