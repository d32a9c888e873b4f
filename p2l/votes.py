"""Votes: the schema, one reader for every source, random access to more votes than memory holds."""

from __future__ import annotations

from p2l.vote_codes import WINNERS, Encoded, VoteCodes, encode_column, encode_votes, translate_labels

__all__ = ["WINNERS", "Encoded", "VoteCodes", "encode_column", "encode_votes", "translate_labels"]
