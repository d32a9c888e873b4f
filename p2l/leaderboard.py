"""Leaderboards with intervals, fitted from votes or aggregated from per-prompt coefficients. NumPy and SciPy only."""

from __future__ import annotations

from p2l.aggregate import aggregate
from p2l.board import Leaderboard, to_score
from p2l.fit import fit, fit_labels, fit_table
from p2l.objective import Prior
from p2l.pair_table import PairTable, vote_table
from p2l.win_rates import win_rates

__all__ = [
    "Leaderboard",
    "PairTable",
    "Prior",
    "aggregate",
    "fit",
    "fit_labels",
    "fit_table",
    "to_score",
    "vote_table",
    "win_rates",
]
