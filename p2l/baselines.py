"""What a per-prompt model must beat: one leaderboard for all prompts, and one for each category.

Shapes: N votes, M models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2l.leaderboard import Leaderboard, Prior, fit_labels

__all__ = ["Forecast", "marginal", "per_category"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int32]
CATEGORY_SD = 1.0
"""How far, in coefficients, a category's leaderboard is expected to lie from the overall one."""


@dataclass(frozen=True)
class Forecast:
    """What is said of N votes before they are counted: coefs (N, M), eta (N,) and gamma (N,), or None without them."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None = None


def marginal(train: Labels, num_votes: int, models: Sequence[str], likelihood: str) -> Forecast:
    """The single leaderboard that fits the training labels (n, 3) best, for each of `num_votes` votes."""
    return _repeat(fit_labels(train, models=models, likelihood=likelihood, intervals=None), num_votes)


def per_category(
    train: Labels,
    train_categories: NDArray[np.object_],
    categories: NDArray[np.object_],
    models: Sequence[str],
    likelihood: str,
) -> Forecast:
    """A leaderboard for each category, shrunk towards the overall one; the overall one where a category is new.

    Args:
        train: labels (n, 3) of the training votes.
        train_categories: (n,) category of each training vote.
        categories: (N,) category of each vote to forecast.
        models: names, in the order of the labels.
        likelihood: its name.
    """
    overall = fit_labels(train, models=models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=CATEGORY_SD)
    forecast = _repeat(overall, len(categories))
    for category in np.unique(categories):
        votes = train[train_categories == category]
        if not len(votes):
            continue
        board = fit_labels(votes, models=models, likelihood=likelihood, intervals=None, prior=prior)
        here = categories == category
        forecast.coefs[here] = board.coefs
        for values, value in ((forecast.eta, board.eta), (forecast.gamma, board.gamma)):
            if values is not None and value is not None:
                values[here] = value
    return forecast


def _repeat(board: Leaderboard, count: int) -> Forecast:
    def column(value: float | None) -> Floats | None:
        return None if value is None else np.full(count, value)

    return Forecast(np.tile(board.coefs, (count, 1)), column(board.eta), column(board.gamma))
