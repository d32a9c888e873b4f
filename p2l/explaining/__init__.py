"""Strengths and weaknesses: kinds of prompts on which a model is better or worse than overall. No torch."""

from __future__ import annotations

from p2l.explaining.explanation import explain
from p2l.explaining.measuring import Rules
from p2l.explaining.result import Agreement, Cluster, Explanation, Observed, Strength

__all__ = ["Agreement", "Cluster", "Explanation", "Observed", "Rules", "Strength", "explain"]
