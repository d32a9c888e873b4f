"""How much expected scores earn on the questions they are tuned on: the router's rule for all questions at once.

Under one budget the optimum mixes at most two models, one that costs no more than the budget and one that costs more
(`route.cost_optimizers`). Where so many settings are tried, all such pairs are compared for all questions together; the
earnings are those of the router's optimizer, question by question.

Shapes: T questions, M models, J budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from route.evaluation.curves import Axis, Curves
from route.evaluation.spending import budgets
from route.evaluation.table import ScoreTable

__all__ = ["MOST_PROMPTS", "Worth", "Worths", "counted", "earnings", "worth_on"]

Floats: TypeAlias = npt.NDArray[np.float64]

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
