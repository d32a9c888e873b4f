"""How far a live run trusts the voters of its stream: by the one test of voters, at rising numbers of votes.

The votes that have arrived are examined (`p2l.people.collusion`) whenever there are a fifth more of them. What a vote
weighs depends on the number that have arrived alone, so that a run that was stopped goes on as if it had not been.
Gates judge by held-out votes of voters who were trusted before: somebody who comes with many new names judges nothing.

Shapes: n votes of `ids`, V voters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2l.online_training.live_votes import Ids, LineVotes, LiveVotes
from p2l.people import CastVotes, Examination, examine
from p2l.people.runs import VoteAdjustments
from p2l.people.voters import groups_of_votes

_FEWEST_VOTES = 100
_GROWTH = 1.2  # between two examinations
_MOST_VOTES = 200_000  # the newest, which are examined
_FEWEST_EARLIER = 3  # votes of a voter, from which on he is known


class LiveTrust:
    """What votes of each voter of a stream weigh."""

    def __init__(self, stream: LiveVotes, tell: Callable[[str], None]) -> None:
        """Trust everybody until votes say otherwise."""
        self._stream = stream
        self._tell = tell
        self._examined = 0
        self._table: NDArray[np.float64] = np.ones(0)  # weight by code of the voter
        self._votes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # by code of the voter, when last examined
        self._said = ""

    def update(self, arrived: int) -> None:
        """Examine the first votes of the stream, as many as are due when so many have arrived."""
        due = _due(arrived)
        if due == self._examined:
            return
        self._examined = due
        examination = self._examine(due)
        voters = self._stream.voters
        self._table = np.array([examination.weights.get(name, 1.0) for name in voters], dtype=np.float64)
        verdict = examination.verdict
        if verdict and verdict != self._said:
            self._tell(f"after {due:,} votes: {verdict}")
        self._said = verdict

    def _examine(self, count: int) -> Examination:
        ids = np.arange(max(0, count - _MOST_VOTES), count)
        stream = self._stream
        labels, pairs = stream.labels(ids), stream.pairs(ids).astype(np.int64)
        codes = stream.voter_codes(ids).astype(np.int64)
        self._votes = np.bincount(codes[codes >= 0], minlength=len(stream.voters))
        networks = stream.network_codes(ids).astype(np.int64)
        times = stream.tstamps(ids)
        groups = groups_of_votes(network=networks if (networks >= 0).any() else None, times=times, prompts=None)
        winner = np.where(labels[:, 2] > 0, labels[:, 2] + 1, labels[:, 0] != pairs[:, 0])
        # Names come with the votes: those of later ones are no voters yet.
        known, places = np.unique(codes, return_inverse=True)
        names = stream.voters
        voters = [names[code] for code in known[known >= 0].tolist()]
        voter = places.reshape(-1) - int((known < 0).any())
        models = list(stream.model_list)
        return examine(CastVotes(models, pairs[:, 0], pairs[:, 1], winner, voters, voter, groups, times))

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """Return what votes (n,) weigh; one for those before the stream, whose ids are below zero."""
        places = np.asarray(ids, dtype=np.int64)
        weights = np.ones(len(places))
        rows = np.flatnonzero(places >= 0)
        codes = self._stream.voter_codes(places[rows])
        is_examined = (codes >= 0) & (codes < len(self._table))
        weights[rows[is_examined]] = self._table[codes[is_examined]]
        return weights

    def take(self, ids: Any) -> VoteAdjustments:
        """Return the weights of votes as a trainer takes them: all are of people."""
        size = len(ids)
        return VoteAdjustments(torch.ones(size), torch.zeros(size, 3), self.weights(ids))

    def trusted(self, held: LineVotes, ids: Ids) -> NDArray[np.bool_]:
        """Return which votes (n,) are of voters whose earlier votes were trusted; all of them where none has a name."""
        codes = held.voter_codes(ids)
        if not (codes >= 0).any():
            return np.ones(len(codes), dtype=bool)
        places = {name: code for code, name in enumerate(self._stream.voters)}
        of_stream = np.array([*(places.get(name, -1) for name in held.voters), -1], dtype=np.int64)[codes]
        votes = np.append(self._votes, np.zeros(len(places) + 1 - len(self._votes), dtype=np.int64))
        weights = np.append(self._table, np.zeros(len(places) + 1 - len(self._table)))
        return (of_stream >= 0) & (votes[of_stream] >= _FEWEST_EARLIER) & (weights[of_stream] >= 0.5)


def _due(arrived: int) -> int:
    """Return how many votes are examined when so many have arrived."""
    due, following = 0, _FEWEST_VOTES
    while following <= arrived:
        due, following = following, math.ceil(following * _GROWTH)
    return due
