"""What a policy does with a budget, and what comes of it.

A policy is a matrix of expected scores. Each prompt is a request of its own to the router's optimizer: its expected
scores, the mean training cost of each model, the budget. The mixture that the optimizer returns is then paid with the
true costs of this prompt and earns its true scores, in expectation, so no draw blurs the result.

Budgets are positions between the mean training cost of the cheapest model (0) and of the dearest (1) on a logarithmic
scale; at 0 every policy is the cheapest model.

Shapes: Q questions, M models, J budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from route.cost_optimizers import Mixture, Problem, get

__all__ = ["POSITIONS", "Spent", "budgets", "join", "spend", "spend_at_random"]

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
        optimizer: a name of `route.cost_optimizers.OPTIMIZERS`.

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
