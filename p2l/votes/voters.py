"""Voters who do not vote like people: always for one model, always for one side, or faster than anybody reads.

A voter's points for a model are compared with those that the other voters gave in the same pairs of models, and the
share of first answers with that of all votes; ties count half. Sums of many votes are nearly normal,

    z = sum (points - p) / sqrt(sum p (1 - p) (1 + n / m)),

where p is known from m votes of others beside the voter's n; votes with which no others compare tell nothing. Since
many voters and models are compared, Benjamini and Hochberg's procedure decides, at a false discovery rate of 1 %.
Nobody is accused by a few votes: a voter needs twenty, and ten on the model. A voter who differs need not mean ill: an
unusual taste looks the same.

Shapes: N votes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MIN_VOTES, _MIN_VOTES_ON_MODEL = 20, 10  # of a voter, below which nothing is concluded
_MAX_PER_MINUTE = 20
_FALSE_DISCOVERIES = 0.01
_POINTS = np.array([1.0, 0.0, 0.5, 0.5])  # of the first model, by the position in WINNERS
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OddVoter:
    """A voter who does not vote like people."""

    voter: str
    votes: int
    reason: str


@dataclass
class VoterCounts:
    """The votes of each voter, some twenty bytes a vote."""

    names: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int8], Floats]] = field(
        default_factory=list
    )

    def add(self, voters: list[Any], first: Ints, second: Ints, winner: Ints, times: Floats | None) -> None:
        """Add votes: who voted (None: unknown), codes of both models, position of the outcome in WINNERS, seconds."""
        rows = np.array([row for row, voter in enumerate(voters) if voter is not None], dtype=np.int64)
        if not len(rows):
            return
        codes = np.array([self.names.setdefault(str(voters[row]), len(self.names)) for row in rows.tolist()])
        seconds = np.full(len(rows), np.nan) if times is None else times[rows]
        sides = (first[rows].astype(np.int32), second[rows].astype(np.int32))
        self.parts.append((codes.astype(np.int32), *sides, winner[rows].astype(np.int8), seconds))

    def odd_ones(self, models: list[str]) -> list[OddVoter]:
        """Return the voters who do not vote like people, those with the most votes first."""
        if not self.parts:
            return []
        voter, first, second, winner, times = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        votes = np.bincount(voter, minlength=len(self.names))
        tests = [*_sides(voter, winner, votes), *_models(voter, first, second, _POINTS[winner], votes, models)]
        reasons: dict[int, list[str]] = {}
        for code, reason in [*_bursts(voter, times), *_discoveries(tests)]:
            reasons.setdefault(code, []).append(reason)
        names = list(self.names)
        odd = [OddVoter(names[code], int(votes[code]), ", ".join(texts)) for code, texts in reasons.items()]
        return sorted(odd, key=lambda voter: (-voter.votes, voter.voter))


_Test = tuple[int, str, float]
"""A voter, what there is to say, and how likely it is by chance."""


def _discoveries(tests: list[_Test]) -> list[tuple[int, str]]:
    """Return voter and reason of the tests that Benjamini and Hochberg's procedure finds."""
    ranked = sorted(tests, key=lambda test: test[2])
    step = _FALSE_DISCOVERIES / len(tests) if tests else 0.0
    last = max((rank for rank, test in enumerate(ranked, 1) if test[2] <= step * rank), default=0)
    return [(voter, reason) for voter, reason, _ in ranked[:last]]


def _sides(voter: NDArray[Any], winner: NDArray[Any], votes: Ints) -> list[_Test]:
    """Test whether a voter prefers a side more than all votes do."""
    decided = winner < 2
    count = np.bincount(voter[decided], minlength=len(votes))
    first = np.bincount(voter[decided & (winner == 0)], minlength=len(votes))
    total = first.sum()
    tests = []
    for code in np.flatnonzero((count >= _MIN_VOTES) & (count < count.sum())).tolist():
        others = count.sum() - count[code] + 2.0
        share = (total - first[code] + 1.0) / others
        variance = count[code] * share * (1.0 - share) * (1.0 + count[code] / others)
        z = (first[code] - count[code] * share) / math.sqrt(variance)
        side, number = ("first", first[code]) if z > 0 else ("second", count[code] - first[code])
        text = f"{number} of {count[code]} decided votes for the {side} answer"
        tests.append((code, text, math.erfc(abs(z) / math.sqrt(2.0))))
    return tests


def _models(
    voter: NDArray[Any], first: NDArray[Any], second: NDArray[Any], points: Floats, votes: Ints, models: list[str]
) -> list[_Test]:
    """Test whether a voter gives a model more points than the other voters give it in the same pairs."""
    size = len(models)
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    of_low = np.where(first < second, points, 1.0 - points)
    _, pair = np.unique(low * size + high, return_inverse=True)
    _, voter_pair = np.unique(voter.astype(np.int64) * (int(pair.max()) + 1) + pair, return_inverse=True)

    def others(values: Floats) -> Floats:
        return np.asarray(np.bincount(pair, values)[pair] - np.bincount(voter_pair, values)[voter_pair])

    known = others(np.ones(len(pair))) + 2.0
    expected = (others(of_low) + 1.0) / known
    spread = expected * (1.0 - expected) * (1.0 + np.bincount(voter_pair)[voter_pair] / known)
    told = np.flatnonzero(known > 2.5)
    voter, low, high, of_low, expected, spread = (
        column[told] for column in (voter, low, high, of_low, expected, spread)
    )
    tests = []
    keys = np.concatenate([voter.astype(np.int64) * size + low, voter.astype(np.int64) * size + high])
    gained = np.concatenate([of_low - expected, expected - of_low])
    won = np.concatenate([of_low, 1.0 - of_low])
    cells, cell = np.unique(keys, return_inverse=True)
    count = np.bincount(cell)
    surplus, variance, scored = (np.bincount(cell, values) for values in (gained, np.tile(spread, 2), won))
    enough = (count >= _MIN_VOTES_ON_MODEL) & (votes[cells // size] >= _MIN_VOTES)
    for place in np.flatnonzero(enough).tolist():
        z = surplus[place] / math.sqrt(variance[place])
        text = f"{scored[place]:g} of {count[place]} points for {models[int(cells[place] % size)]}"
        tests.append((int(cells[place] // size), text, 0.5 * math.erfc(z / math.sqrt(2.0))))
    return tests


def _bursts(voter: NDArray[Any], times: Floats) -> list[tuple[int, str]]:
    """Return the voters with many votes within one minute."""
    known = np.flatnonzero(np.isfinite(times))
    order = known[np.lexsort((times[known], voter[known]))]
    busiest: dict[int, int] = {}  # most votes within a minute
    start = 0
    who, when = voter[order].tolist(), times[order].tolist()
    for end in range(len(order)):
        while who[start] != who[end] or when[end] - when[start] > 60.0:
            start += 1
        if end - start + 1 >= _MAX_PER_MINUTE:
            busiest[who[end]] = max(busiest.get(who[end], 0), end - start + 1)
    return [(code, f"{number} votes within a minute") for code, number in busiest.items()]
