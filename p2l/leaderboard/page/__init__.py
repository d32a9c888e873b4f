"""The page of a leaderboard: one HTML file that opens offline, with its intervals, categories and history."""

from __future__ import annotations

from p2l.leaderboard.page.report import leaderboard_report

__all__ = ["leaderboard_report"]
