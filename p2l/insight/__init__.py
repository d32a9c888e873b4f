"""Strengths and weaknesses: kinds of prompts on which a model is better or worse than overall. No torch."""

from __future__ import annotations

from p2l.insight.explain_report import Cluster, Explanation, Observed, Strength, VoteAgreement
from p2l.insight.explanation import Rules, explain

__all__ = ["Cluster", "Explanation", "Observed", "Rules", "Strength", "VoteAgreement", "explain"]
