"""Who cast a vote, people or a judge (columns `source` and `voter` of a file of votes), and how far to trust a voter.

Trust is the chance that a voter's votes are those of a person, given what the others say. A voter is a person, who
votes as the others' leaderboard has it, or is rigged in one of these ways:

    random       outcomes as often as all votes have them, whatever the models
    a side       the answer shown first, or second, but for a few votes
    a model      one model whenever it is shown, but for a few votes; else half a person, half random

The chances follow by Bayes' rule from all votes of the voter, and how many people there are from all voters (EM). No
voter counts for more than `LARGEST_SHARE` of the votes of people, or `LEAST_CAP` votes where that is less.

Shapes: N votes, V voters, M models, J judges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import listed, nearest
from p2l.common.errors import VoteError
from p2l.leaderboard.pair_tables import Covariates
from p2l.votes import VoteStore

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_SOURCE = "source"
VOTER = "voter"
_PEOPLE = ("human", "people")
"""Names that the column `source` may have for people."""
PERSON = -1
"""The code of people among judges."""
_CALLED_JUDGE = re.compile(r"^judge[^A-Za-z]+", re.IGNORECASE)
LARGEST_SHARE = 0.01
LEAST_CAP = 20
_FAITHFUL = 0.95  # share of its votes that a rigged voter casts as rigged
_PRIOR_PEOPLE, _PRIOR_VOTERS = 9.0, 10.0  # before any vote 9 of 10 voters are taken for people
# Shares of the rigged: random, each of the two sides, any model.
_RANDOM = 0.25
_SIDE = 0.125
_MODEL = 0.5
# Of the EM rounds for the share of people.
_MAX_ROUNDS = 50
_TOLERANCE = 1e-4


def organisation_of(name: str) -> str:
    """Return the organisation that a name tells: what stands before a slash, else its first word."""
    head, slash, _ = name.partition("/")
    return head.lower() if slash else re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]


@dataclass(frozen=True)
class SourcedVotes:
    """N votes, seen from the winner (of a tie: from the model shown first), with who cast them.

    Attributes:
        models: M names; `labels` are (N, 3) `[winner, loser, tie]`, positions in it.
        side: (N,) 1 where the winner was shown first, else -1.
        weights: (N,) of the file; ones where it has none.
        judges: J names. judge: (N,) positions in it; `PERSON` for votes of people.
        voters: names of the people. voter: (N,) positions in it; -1 for judges, and for people without a name.
        length: (N,) how much longer the winner's answer is, between -1 and 1; 0 where lengths are not known.
        own: (J, M) 1 for models of the judge's own family, else 0.
        covariates: of people's votes, their values (N, C) zero in verdicts of judges; None where there are none.
    """

    models: list[str]
    labels: npt.NDArray[Any]
    side: Floats
    weights: Floats
    judges: list[str]
    judge: Ints
    voters: list[str]
    voter: Ints
    length: Floats
    own: Floats
    covariates: Covariates | None = None

    def __len__(self) -> int:
        return len(self.judge)

    @property
    def by_people(self) -> npt.NDArray[np.bool_]:
        """Which votes (N,) people cast."""
        return np.asarray(self.judge == PERSON)

    def take(self, rows: npt.NDArray[Any]) -> SourcedVotes:
        """Return some votes (indices or mask)."""
        names = ("labels", "side", "weights", "judge", "voter", "length")
        covariates = self.covariates and replace(self.covariates, values=self.covariates.values[rows])
        return replace(self, covariates=covariates, **{name: getattr(self, name)[rows] for name in names})


def find_people(sources: Sequence[str | None], name: str | None, what: str) -> str | None:
    """Return the name of people among the different values of the column `source`; None if there are no judges.

    Votes without a source are people's. Without a `name`, and where none is human or people, the column says something
    else than who cast the votes. VoteError, about the votes called `what`, if nothing has the name.
    """
    there = sorted({source for source in sources if source is not None})
    if name is not None and not there:
        raise VoteError(f"{what}: no vote has a source; a column 'source' must say {name!r}, or name a judge")
    if name is not None and name not in there:
        raise VoteError(f"{what}: no vote has the source {name!r}{nearest(name, there)}; sources: {listed(there)}")
    people = name or next((usual for usual in _PEOPLE if usual in there), None)
    return people if any(source != people for source in there) else None


def sources_of(votes: VoteStore) -> list[str | None]:
    """Return the different sources of the votes; none without such a column."""
    if _SOURCE not in votes.columns:
        return []
    sources: dict[str | None, None] = {}
    for _, batch in votes.batches():
        sources |= dict.fromkeys(_texts(batch.column(_SOURCE).unique()))
    return list(sources)


def by_people(votes: VoteStore, people: str | None) -> npt.NDArray[np.bool_]:
    """Return which votes (N,) people cast; all of them where there are no judges."""
    is_person = np.ones(len(votes), dtype=bool)
    if people is not None and _SOURCE in votes.columns:
        for ids, batch in votes.batches():
            is_person[ids] = [text in (None, people) for text in _texts(batch.column(_SOURCE))]
    return is_person


def sourced_votes(votes: VoteStore, people: str | None) -> SourcedVotes:
    """Return all votes of a store with who cast them; `people` is the source that people are called."""
    labels = votes.labels()
    side = np.where(labels[:, 0] == votes.pairs()[:, 0], 1.0, -1.0)
    judge, judges = _codes(votes, _SOURCE, {None, people} if people is not None else None)
    voter, voters = _codes(votes, VOTER, {None})
    voter[judge != PERSON] = -1
    length = np.zeros(len(votes))
    if {"length_a", "length_b"} <= set(votes.columns):
        for ids, batch in votes.batches():
            pairs = zip(batch.column("length_a").to_pylist(), batch.column("length_b").to_pylist(), strict=True)
            length[ids] = [
                (a - b) / (abs(a) + abs(b))
                if isinstance(a, int | float) and isinstance(b, int | float) and abs(a) + abs(b) > 0
                else 0.0
                for a, b in pairs
            ]
    # Of one organisation, as far as the names tell.
    families = [organisation_of(_CALLED_JUDGE.sub("", name)) for name in judges]
    makers = [organisation_of(model) for model in votes.model_list]
    own = [[float(family != "" and family == maker) for maker in makers] for family in families]
    return SourcedVotes(
        models=list(votes.model_list),
        labels=labels,
        side=side,
        weights=votes.weights(),
        judges=judges,
        judge=judge,
        voters=voters,
        voter=voter,
        length=length * side,
        own=np.array(own, dtype=np.float64).reshape(len(judges), len(votes.model_list)),
    )


def _codes(votes: VoteStore, column: str, others: set[str | None] | None) -> tuple[Ints, list[str]]:
    """Return the codes (N,) of a column of text and its names, sorted; -1 for `others`, or where there is no column."""
    codes = np.full(len(votes), -1, dtype=np.int64)
    if others is None or column not in votes.columns:
        return codes, []
    places: dict[str | None, int] = {}
    for ids, batch in votes.batches():
        texts = _texts(batch.column(column))
        codes[ids] = [-1 if text in others else places.setdefault(text, len(places)) for text in texts]
    order = {name: rank for rank, name in enumerate(sorted(str(name) for name in places))}
    ranks = np.array([*(order[str(name)] for name in places), -1], dtype=np.int64)
    return ranks[codes], list(order)


def _texts(column: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in column.to_pylist()]


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
        decided, first = self.labels[:, 2] == 0, self.side > 0
        # Votes that are cast at random, both sides alike.
        counts = np.bincount(self.labels[:, 2], minlength=3) + 1.0
        random = np.log(counts / counts.sum() / np.array([2.0, 1.0, 1.0]))[self.labels[:, 2]]
        # Log of the chance (V,) of each voter's votes for each way of being rigged.
        ways = [np.log(_RANDOM) + self._sums(random)]
        for shown_first in (True, False):
            chosen = decided & (first == shown_first)
            ways.append(np.log(_SIDE) + self._sums(_obeyed(chosen, random)))
        ways.append(np.log(_MODEL / self.num_models) + self._for_a_model(decided, random, log_likelihood))
        trust = _people(np.asarray(np.logaddexp.reduce(ways, axis=0)), self._sums(log_likelihood))
        votes = np.bincount(self.voter[self.voter >= 0], minlength=len(self.names))
        cap = max(float(LEAST_CAP), LARGEST_SHARE * len(self.voter))
        weights = trust * np.minimum(1.0, cap / np.maximum(votes, 1))
        return [
            Voter(name=name, votes=int(votes[code]), trust=float(trust[code]), weight=float(weights[code]))
            for code, name in enumerate(self.names)
        ]

    def _sums(self, values: Floats) -> Floats:
        known = self.voter >= 0
        return np.asarray(np.bincount(self.voter[known], values[known], len(self.names)), dtype=np.float64)

    def _for_a_model(self, decided: npt.NDArray[np.bool_], random: Floats, honest: Floats) -> Floats:
        """Return log of the sum, over models, of the chance (V,) of votes that are rigged for the model."""
        else_so = np.logaddexp(honest, random) + np.log(0.5)
        cells, gains = list[Ints](), list[Floats]()
        for place in (0, 1):
            gain = _obeyed(decided & (place == 0), random) - else_so
            known = self.voter >= 0
            cells.append(self.voter[known] * self.num_models + self.labels[known, place])
            gains.append(gain[known])
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


def _people(rigged: Floats, honest: Floats) -> Floats:
    """Return the chance (V,) of each voter to be a person, by the log-likelihoods of the votes."""
    share = _PRIOR_PEOPLE / _PRIOR_VOTERS
    for _ in range(_MAX_ROUNDS):
        # exp overflows beyond 709.
        odds = np.clip(honest - rigged + np.log(share) - np.log1p(-share), -500.0, 500.0)
        trust = 1.0 / (1.0 + np.exp(-odds))
        before, share = share, float((trust.sum() + _PRIOR_PEOPLE) / (len(trust) + _PRIOR_VOTERS))
        if abs(share - before) < _TOLERANCE:
            break
    return np.asarray(trust)
