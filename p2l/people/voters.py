"""How far each voter is to be trusted: the chance that the votes are those of a person, given what the others say.

A voter is a person, who votes as the others' leaderboard has it, or is rigged in one of these ways:

    random       outcomes as often as all votes have them, whatever the models
    a side       the answer shown first, or second, but for a few votes
    a model      one model whenever it is shown, but for a few votes; else half a person, half random

The chances follow by Bayes' rule from all votes of the voter, and how many people there are from all voters (EM). No
voter counts for more than `LARGEST_SHARE` of the votes of people, or `LEAST_CAP` votes where that is less.

Shapes: N votes, V voters, M models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LARGEST_SHARE, LEAST_CAP = 0.01, 20
_FAITHFUL = 0.95  # share of its votes that a rigged voter casts as rigged
_PEOPLE, _VOTERS = 9.0, 10.0  # what is believed of how many are people before any vote: 9 of 10 voters
_RANDOM, _SIDE, _MODEL = 0.25, 0.125, 0.5  # of the rigged; two sides, and any model
_ROUNDS, _CLOSE = 50, 1e-4


@dataclass(frozen=True)
class Voter:
    """A voter and what is made of the votes."""

    name: str
    votes: int
    trust: float
    """Chance that these are the votes of a person."""
    weight: float
    """What a vote of this voter counts."""


@dataclass(frozen=True)
class VoterEvidence:
    """What the votes of people say of their voters, whatever the leaderboard is.

    Attributes:
        names: of the V voters.
        voter: (N,) positions in `names`; -1 for a vote without a name.
        labels: (N, 3) `[winner, loser, tie]`. side: (N,) 1 where the winner was shown first, else -1.
    """

    names: list[str]
    voter: Ints
    labels: npt.NDArray[np.integer]
    side: Floats
    num_models: int

    def voters(self, log_likelihood: Floats) -> list[Voter]:
        """Return the voters; `log_likelihood` (N,) is that of each vote by what the others say."""
        if not self.names:
            return []
        trust = _people(self._rigged(log_likelihood), self._sums(log_likelihood))
        votes = np.bincount(self.voter[self.voter >= 0], minlength=len(self.names))
        cap = max(float(LEAST_CAP), LARGEST_SHARE * len(self.voter))
        weights = trust * np.minimum(1.0, cap / np.maximum(votes, 1))
        rows = zip(self.names, votes.tolist(), trust.tolist(), weights.tolist(), strict=True)
        return [Voter(*row) for row in rows]

    def _sums(self, values: Floats) -> Floats:
        known = self.voter >= 0
        return np.asarray(np.bincount(self.voter[known], values[known], len(self.names)), dtype=np.float64)

    def _rigged(self, honest: Floats) -> Floats:
        """Return log of the chance (V,) of each voter's votes if they are rigged, all ways taken together."""
        decided, first = self.labels[:, 2] == 0, self.side > 0
        random = _random(self.labels[:, 2])
        ways = [np.log(_RANDOM) + self._sums(random)]
        for shown_first in (True, False):
            chosen = decided & (first == shown_first)
            ways.append(np.log(_SIDE) + self._sums(_obeyed(chosen, random)))
        ways.append(np.log(_MODEL / self.num_models) + self._for_a_model(decided, random, honest))
        return np.asarray(np.logaddexp.reduce(ways, axis=0))

    def _for_a_model(self, decided: npt.NDArray[np.bool_], random: Floats, honest: Floats) -> Floats:
        """Return log of the sum, over models, of the chance (V,) of votes that are rigged for the model."""
        else_so = np.logaddexp(honest, random) + np.log(0.5)
        cells, gains = list[Ints](), list[Floats]()
        for place in (0, 1):
            own = _obeyed(decided & (place == 0), random) - else_so
            known = self.voter >= 0
            cells.append(self.voter[known] * self.num_models + self.labels[known, place])
            gains.append(own[known])
        cell, at = np.unique(np.concatenate(cells), return_inverse=True)
        shown = np.bincount(at, np.concatenate(gains))
        voter = cell // self.num_models
        # Models that were never shown to the voter add nothing to the chance of votes without any.
        unseen = self.num_models - np.bincount(voter, minlength=len(self.names))
        total = np.log(np.maximum(unseen, 1e-300))
        np.logaddexp.at(total, voter, shown)
        return np.asarray(total + self._sums(else_so))


def _obeyed(obeys: npt.NDArray[np.bool_], random: Floats) -> Floats:
    """Return the log-likelihood (N,) of votes that are cast as rigged but for a few, which are random."""
    rest = np.log(1.0 - _FAITHFUL) + random
    return np.asarray(np.where(obeys, np.logaddexp(np.log(_FAITHFUL), rest), rest))


def _random(ties: npt.NDArray[np.integer]) -> Floats:
    """Return the log-likelihood (N,) of votes that are cast at random, both sides alike; `ties` (N,) of the labels."""
    counts = np.bincount(ties, minlength=3) + 1.0
    shares = counts / counts.sum() / np.array([2.0, 1.0, 1.0])
    return np.asarray(np.log(shares)[ties])


def _people(rigged: Floats, honest: Floats) -> Floats:
    """Return the chance (V,) of each voter to be a person, by the log-likelihoods of the votes."""
    share = _PEOPLE / _VOTERS
    for _ in range(_ROUNDS):
        odds = np.clip(honest - rigged + np.log(share) - np.log1p(-share), -500.0, 500.0)
        trust = 1.0 / (1.0 + np.exp(-odds))
        before, share = share, float((trust.sum() + _PEOPLE) / (len(trust) + _VOTERS))
        if abs(share - before) < _CLOSE:
            break
    return np.asarray(trust)
