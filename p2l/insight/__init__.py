"""Strengths and weaknesses: kinds of prompts on which a model is better or worse than overall. No torch."""

from __future__ import annotations

from p2l.insight.explanation import explain
from p2l.insight.strengths import Cluster, Explanation, Observed, Rules, Strength, VoteAgreement

__all__ = ["Cluster", "Explanation", "Observed", "Rules", "Strength", "VoteAgreement", "explain"]
