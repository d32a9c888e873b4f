"""Leaderboards of students from preferences, overall and by task, and how near a model's aggregate comes to them.

Intervals are bootstrapped over items: all preferences on one item are drawn together, since judges agree about it.

Shapes: M models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coeval.errors import RunInputError
from coeval.pairs.preference import WINNERS, Preference
from p2l.leaderboard import Leaderboard, fit, to_score
from p2l.metrics import leaderboard_metrics
from p2l.metrics.of_leaderboards import Standing

__all__ = ["OVERALL", "BoardOptions", "board", "boards", "compared", "rows_of"]

OVERALL = "overall"


@dataclass(frozen=True)
class BoardOptions:
    """How leaderboards are fitted."""

    likelihood: str = "rk"
    """`bt` drops ties; `rk` has them; `grk` tells ties of good from ties of bad answers."""
    intervals: str | None = "bootstrap"
    replicates: int = 200
    level: float = 0.95
    seed: int = 0


def boards(preferences: Sequence[Preference], options: BoardOptions) -> dict[str, Leaderboard]:
    """`overall` and each task -> its leaderboard; all have all models, in the order of their names.

    Raises:
        InputError: there are fewer than two models, or no preference counts.
    """
    models = sorted({name for one in preferences for name in (one.model_a, one.model_b)})
    found = {OVERALL: board(preferences, models, options)}
    for task in sorted({one.task for one in preferences}):
        found[task] = board([one for one in preferences if one.task == task], models, options)
    return found


def board(preferences: Sequence[Preference], models: Sequence[str], options: BoardOptions) -> Leaderboard:
    """One leaderboard.

    Raises:
        InputError: there are fewer than two models, or no preference counts.
    """
    place = {name: number for number, name in enumerate(models)}
    return fit(
        np.array([place[one.model_a] for one in preferences], dtype=np.int64),
        np.array([place[one.model_b] for one in preferences], dtype=np.int64),
        np.array([WINNERS.index(one.winner) for one in preferences], dtype=np.int64),
        models=models,
        likelihood=options.likelihood,
        clusters=np.array([one.datapoint for one in preferences]),
        intervals=options.intervals,
        seed=options.seed,
        level=options.level,
        replicates=options.replicates,
    )


def rows_of(name: str, found: Leaderboard) -> list[dict[str, Any]]:
    """A leaderboard as rows, best first: task, rank, model, score and its interval, win rate, votes."""
    lower, upper, scores, rates = to_score(found.lower), to_score(found.upper), to_score(found.coefs), found.win_rates()
    order = np.argsort(-found.coefs, kind="stable")
    return [
        {
            "task": name,
            "rank": rank,
            "model": found.models[place],
            "score": round(float(scores[place]), 1),
            "lower": _rounded(lower[place]),
            "upper": _rounded(upper[place]),
            "win_rate": round(float(rates[place]), 4),
            "votes": int(found.votes[place]) if found.votes is not None else None,
        }
        for rank, place in enumerate(order.tolist(), start=1)
    ]


def _rounded(value: float) -> float | None:
    return round(float(value), 1) if np.isfinite(value) else None


def compared(truth: Leaderboard, coefs: Mapping[str, float], eta: float | None = None) -> dict[str, Any]:
    """The metrics of a model's aggregate leaderboard against one fitted from preferences.

    Args:
        truth: fitted from preferences.
        coefs: model -> coefficient of the aggregate, such as of `p2l.leaderboard.aggregate`.
        eta: its tie parameter.

    Raises:
        RunInputError: fewer than two models are in both.
    """
    if sum(name in coefs for name in truth.models) < 2:
        raise RunInputError(f"the leaderboards share fewer than two models; one has {', '.join(truth.models)}")
    mine = Standing(truth.coefs, truth.eta, truth.gamma)
    other = Standing(np.array([coefs.get(name, np.nan) for name in truth.models]), eta)
    return leaderboard_metrics(mine, other, truth.models, likelihood=truth.likelihood)
