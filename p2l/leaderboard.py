"""Leaderboards with intervals, fitted from votes or aggregated from per-prompt coefficients. NumPy and SciPy only."""

from __future__ import annotations

from p2l.win_rates import win_rates

__all__ = ["win_rates"]
