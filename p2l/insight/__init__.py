"""Strengths and weaknesses: kinds of prompts on which a model is better or worse than overall. No torch."""

from __future__ import annotations

from p2l.insight.explain_report import Agreement, Cluster, Explanation, Observed, Strength
from p2l.insight.explanation import Rules, explain

__all__ = ["Agreement", "Cluster", "Explanation", "Observed", "Rules", "Strength", "explain"]
