"""Who cast a vote, people or a judge: columns `source` and `voter` of a file of votes.

Shapes: N votes, M models, J judges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import listed, nearest
from p2l.common.errors import VoteError
from p2l.leaderboard.pair_tables import Covariates
from p2l.votes import VoteStore
from p2l.votes.splitting import hash_prompts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SOURCE = "source"
VOTER = "voter"
NETWORK = "network"
_MINUTES_OF_GROUP = 10
_PEOPLE = ("human", "people")
"""Names that the column `source` may have for people."""
PERSON = -1
"""The code of people among judges."""
_CALLED_JUDGE = re.compile(r"^judge[^A-Za-z]+", re.IGNORECASE)


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
        groups: what votes of people may have in common, by name, and codes (N,); -1 for nothing (`groups_of_votes`).
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
    groups: Mapping[str, Ints] = field(default_factory=dict)
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
        groups = {name: codes[rows] for name, codes in self.groups.items()}
        return replace(
            self, covariates=covariates, groups=groups, **{name: getattr(self, name)[rows] for name in names}
        )


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
    if SOURCE not in votes.columns:
        return []
    sources: dict[str | None, None] = {}
    for _, batch in votes.batches():
        sources |= dict.fromkeys(_texts(batch.column(SOURCE).unique()))
    return list(sources)


def by_people(votes: VoteStore, people: str | None) -> npt.NDArray[np.bool_]:
    """Return which votes (N,) people cast; all of them where there are no judges."""
    is_person = np.ones(len(votes), dtype=bool)
    if people is not None and SOURCE in votes.columns:
        for ids, batch in votes.batches():
            is_person[ids] = [text in (None, people) for text in _texts(batch.column(SOURCE))]
    return is_person


def sourced_votes(votes: VoteStore, people: str | None) -> SourcedVotes:
    """Return all votes of a store with who cast them; `people` is the source that people are called."""
    labels = votes.labels()
    side = np.where(labels[:, 0] == votes.pairs()[:, 0], 1.0, -1.0)
    judge, judges = _codes(votes, SOURCE, {None, people} if people is not None else None)
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
        groups=groups_of_votes(
            network=_codes(votes, NETWORK, {None})[0] if NETWORK in votes.columns else None,
            times=votes.tstamps(),
            prompts=hash_prompts(votes) if "prompt" in votes.columns else None,
        ),
    )


def groups_of_votes(*, network: Ints | None, times: Floats | None, prompts: npt.NDArray[Any] | None) -> dict[str, Ints]:
    """Return what votes may have in common: codes (N,) of networks, of ten minutes, of prompts; -1 for nothing."""
    groups = {} if network is None else {NETWORK: network}
    if times is not None and np.isfinite(times).any():
        timed = np.isfinite(times)
        minutes = np.floor(np.where(timed, times, 0.0) / (60.0 * _MINUTES_OF_GROUP))
        groups["minutes"] = np.where(timed, np.unique(minutes, return_inverse=True)[1].reshape(-1), -1)
    if prompts is not None:
        groups["prompt"] = np.unique(prompts, return_inverse=True)[1].reshape(-1)
    return groups


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
