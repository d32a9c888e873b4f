"""All metrics in one place: of predicted votes, of leaderboards, calibration, and their intervals.

`METRICS` and `LEADERBOARD_METRICS` hold every metric once, by name; `simple_metrics` and `leaderboard_metrics` compute
them. NumPy only; a million votes take about a second.
"""

from __future__ import annotations

from p2l.common.bootstrap import Interval, bootstrap_mean, bootstrap_ratio, bootstrap_skill
from p2l.metrics.about import ABOUT, About, about
from p2l.metrics.calibration import Point, Reliability, expected_calibration_error, joined_points
from p2l.metrics.leaderboards import LEADERBOARD_METRICS, Comparison, Standing, compare, leaderboard_metrics
from p2l.metrics.votes import METRICS, Metric, ScoredVotes, evaluate, reliability, simple_metrics, skill, vote_values

__all__ = [
    "ABOUT",
    "LEADERBOARD_METRICS",
    "METRICS",
    "About",
    "Comparison",
    "Interval",
    "Metric",
    "Point",
    "Reliability",
    "ScoredVotes",
    "Standing",
    "about",
    "bootstrap_mean",
    "bootstrap_ratio",
    "bootstrap_skill",
    "compare",
    "evaluate",
    "expected_calibration_error",
    "joined_points",
    "leaderboard_metrics",
    "reliability",
    "simple_metrics",
    "skill",
    "vote_values",
]
