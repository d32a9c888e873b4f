"""Votes: the schema, one reader for every source, random access to more votes than memory holds.

for batch in read_votes("votes.parquet"): ...         # stream, validated
with open_votes("votes.jsonl") as store: ...          # random access by row id
columns = read_columns("votes.csv", ["model_a", "model_b", "winner"])
codes = encode_votes(columns["model_a"], columns["model_b"], columns["winner"])

What cannot be used as votes raises a `VoteError` that names the file and the row, line or column.
"""

from __future__ import annotations

from p2l.votes.kinds.self_names import SelfNames
from p2l.votes.reading import VoteBatch, read_columns, read_votes
from p2l.votes.schema import WINNERS, TextCodes, VoteCodes, encode_column, encode_votes, translate_labels
from p2l.votes.store import VoteStore, open_votes, open_votes_together

__all__ = [
    "WINNERS",
    "SelfNames",
    "TextCodes",
    "VoteBatch",
    "VoteCodes",
    "VoteStore",
    "encode_column",
    "encode_votes",
    "open_votes",
    "open_votes_together",
    "read_columns",
    "read_votes",
    "translate_labels",
]
