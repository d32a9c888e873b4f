"""What people see of leaderboards: text for a terminal, files, and one page that opens offline."""

from __future__ import annotations

from p2l.leaderboard.report.ranking import Leaderboards
from p2l.leaderboard.report.sections import leaderboard_figures, leaderboard_report

__all__ = ["Leaderboards", "leaderboard_figures", "leaderboard_report"]
