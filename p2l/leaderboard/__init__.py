"""Leaderboards with intervals, fitted from votes or aggregated from per-prompt coefficients. NumPy and SciPy only."""

from __future__ import annotations

from p2l.leaderboard.aggregation import aggregate
from p2l.leaderboard.board import Leaderboard, to_score
from p2l.leaderboard.fitting import fit, fit_labels, fit_table
from p2l.leaderboard.history import History, fit_history
from p2l.leaderboard.newton import Prior
from p2l.leaderboard.pair_tables import Covariates, PairTable, vote_table
from p2l.likelihood import win_rates

__all__ = [
    "Covariates",
    "History",
    "Leaderboard",
    "PairTable",
    "Prior",
    "aggregate",
    "fit",
    "fit_history",
    "fit_labels",
    "fit_table",
    "to_score",
    "vote_table",
    "win_rates",
]
