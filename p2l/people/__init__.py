"""Votes of people beside verdicts of judges: what each judge is made of, and how far each voter is to be trusted.

fit = fit_sources(sourced_votes(store, "human"), "grk")   # a leaderboard of what people say, and the judges' terms

NumPy and SciPy only.
"""

from __future__ import annotations

from p2l.people.cast import CastVotes, cast_votes
from p2l.people.collusion import Examination, examine
from p2l.people.evidence import Voter
from p2l.people.judges import JudgeTerms, SourceFit, VoteTerms, fit_sources
from p2l.people.voters import SourcedVotes, find_people, sourced_votes

__all__ = [
    "CastVotes",
    "Examination",
    "JudgeTerms",
    "SourceFit",
    "SourcedVotes",
    "VoteTerms",
    "Voter",
    "cast_votes",
    "examine",
    "find_people",
    "fit_sources",
    "sourced_votes",
]
