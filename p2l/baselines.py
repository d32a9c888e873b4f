"""What a per-prompt model must beat: one leaderboard for all prompts, and one for each category.

Shapes: N votes, M models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from p2l.leaderboard import Leaderboard, Prior, fit_labels, fit_table
from p2l.leaderboard.counting import Tally

if TYPE_CHECKING:
    from p2l.votes import VoteStore

__all__ = ["Forecast", "marginal", "marginal_board", "marginal_boards", "per_category"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int32]
CATEGORY_SD = 1.0
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Forecast:
    """What is said of N votes before they are counted: coefs (N, M), eta (N,) and gamma (N,), or None without them."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None = None


def marginal(train: Labels, num_votes: int, models: Sequence[str], likelihood: str) -> Forecast:
    """The single leaderboard that fits the training labels (n, 3) best, for each of `num_votes` votes."""
    return _repeat(fit_labels(train, models=models, likelihood=likelihood, intervals=None), num_votes)


def marginal_board(votes: VoteStore, likelihood: str, *, weighted: bool = False) -> Leaderboard:
    """The single leaderboard that fits all votes of a store best, its models those of the store.

    Memory holds a count for each pair of models and winner, and a block of votes. Models without a vote are at zero.
    """
    return marginal_boards(votes, likelihood, weighted=weighted)[0]


def marginal_boards(
    votes: VoteStore, likelihood: str, *, weighted: bool = False, sds: Sequence[float] = ()
) -> list[Leaderboard]:
    """`marginal_board`, then one for each of `sds`: held towards equal models by a prior of this standard deviation.

    With few votes on many models the best fit follows chance, and one of these forecasts other votes better.
    """
    table, names = _count(votes, weighted=weighted).table(0, votes.model_list)
    best = fit_table(table, models=names, likelihood=likelihood, intervals=None)
    priors = [Prior(coefs=np.zeros(len(names)), eta=best.eta, sd=sd) for sd in sds]
    held = [fit_table(table, models=names, likelihood=likelihood, intervals=None, prior=prior) for prior in priors]
    return [_with_all_models(board, votes.model_list) for board in (best, *held)]


def _count(votes: VoteStore, *, weighted: bool) -> Tally:
    tally = Tally()
    for start in range(0, len(votes), _BLOCK):
        ids = np.arange(start, min(start + _BLOCK, len(votes)))
        first, second, tie = votes.labels(ids).T.astype(np.int64)
        weights = votes.weights(ids) if weighted else np.ones(len(ids))
        tally.add(np.zeros(len(ids), dtype=np.int64), first, second, np.array([0, 2, 3])[tie], weights)
    return tally


def _with_all_models(board: Leaderboard, models: Sequence[str]) -> Leaderboard:
    place = {name: float(coef) for name, coef in zip(board.models, board.coefs, strict=True)}
    coefs = np.array([place.get(name, 0.0) for name in models])
    unknown = np.full(len(coefs), np.nan)
    return replace(board, models=list(models), coefs=coefs, lower=unknown, upper=unknown, votes=None)


def per_category(
    train: Labels,
    train_categories: NDArray[np.object_],
    categories: NDArray[np.object_],
    models: Sequence[str],
    likelihood: str,
    *,
    sd: float = CATEGORY_SD,
) -> Forecast:
    """A leaderboard for each category, shrunk towards the overall one; the overall one where a category is new.

    Args:
        train: labels (n, 3) of the training votes.
        train_categories: (n,) category of each training vote.
        categories: (N,) category of each vote to forecast.
        models: names, in the order of the labels.
        likelihood: its name.
        sd: how far, in coefficients, a category's leaderboard is expected to lie from the overall one.
    """
    overall = fit_labels(train, models=models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=sd)
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
