"""Leaderboards of any size as the command would compute them, with intervals, groups, a history and effects."""

from __future__ import annotations

import numpy as np

from p2l.leaderboard import History, Leaderboard
from p2l.leaderboard.board import Named
from p2l.leaderboard.covariates import Effect
from p2l.leaderboard.history import Over, Period
from p2l.leaderboard.report import Leaderboards

WIDTH = 1.959963984540054


def board(
    models: list[str], coefs: np.ndarray, sd: float | None = 0.1, *, likelihood: str = "grk", parts: int = 1
) -> Leaderboard:
    """A leaderboard whose coefficients err independently with a standard deviation; None for no intervals."""
    number = len(models)
    nothing = np.full(number, np.nan)
    ends = (nothing, nothing) if sd is None else (coefs - WIDTH * sd, coefs + WIDTH * sd)
    return Leaderboard(
        models=models,
        coefs=coefs,
        lower=ends[0],
        upper=ends[1],
        eta=0.5,
        gamma=None,
        likelihood=likelihood,
        loss=1.2,
        votes=np.arange(number) * 10 + 100,
        components=np.arange(number) % parts,
        notes=("A note.",),
        prior_sd=0.7,
        covariance=None if sd is None else np.eye(number) * sd**2,
        effects=(Effect("side", "difference", 0.2, 0.1, 0.3), Effect("judge = x", "eta", -0.1, np.nan, np.nan)),
    )


def leaderboards(
    models: list[str], columns: dict[str, list[str]] | None = None, *, periods: int = 0, sd: float | None = 0.1
) -> Leaderboards:
    """The leaderboard of all votes, one for each value of each column, and a history of some months."""
    rng = np.random.default_rng(0)
    coefs = np.linspace(1.5, -1.5, len(models))
    boards = [Named("", "all", 12_345, board(models, coefs, sd))]
    for by, values in (columns or {}).items():
        for size, value in enumerate(values):
            some = models[: max(2, len(models) - size)]
            moved = coefs[: len(some)] + rng.normal(scale=0.4, size=len(some))
            boards.append(Named(by, value, 1000 - size, board(some, moved, sd)))
    history = None
    if periods:
        over = Over("month")
        made = [
            Period(
                660 + month,
                over.label(660 + month),
                500,
                board(
                    models[: 2 + month], coefs[: 2 + month] + rng.normal(scale=0.1, size=len(models[: 2 + month])), sd
                ),
            )
            for month in range(periods)
        ]
        history = History(over, "cumulative", made, ("A note of the history.",))
    return Leaderboards("Leaderboard of votes.parquet", "votes", boards, history)
