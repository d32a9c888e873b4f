"""Who cast a vote: the columns `source` (people, or the name of a judge) and `voter` of a file of votes.

Shapes: N votes, M models, J judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import listed, nearest
from p2l.common.errors import VoteError
from p2l.leaderboard.newcomers import organisation_of
from p2l.votes import VoteStore

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SOURCE, VOTER = "source", "voter"
PEOPLE = ("human", "people")
"""Names that the column `source` may have for people."""
PERSON = -1
"""The code of people among judges."""
_CALLED_JUDGE = re.compile(r"^judge[^A-Za-z]+", re.IGNORECASE)


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

    def __len__(self) -> int:
        return len(self.judge)

    @property
    def by_people(self) -> npt.NDArray[np.bool_]:
        """Which votes (N,) people cast."""
        return np.asarray(self.judge == PERSON)

    def take(self, rows: npt.NDArray[Any]) -> SourcedVotes:
        """Return some votes (indices or mask)."""
        names = ("labels", "side", "weights", "judge", "voter", "length")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


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
    people = name or next((one for one in PEOPLE if one in there), None)
    return people if any(one != people for one in there) else None


def sources_of(votes: VoteStore) -> list[str | None]:
    """Return the different sources of the votes; none without such a column."""
    if SOURCE not in votes.columns:
        return []
    found: dict[str | None, None] = {}
    for _, batch in votes.batches():
        found |= dict.fromkeys(_texts(batch.column(SOURCE).unique()))
    return list(found)


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
            length[ids] = list(_longer(*(batch.column(f"length_{one}").to_pylist() for one in "ab")))
    own = [[float(_is_own(one, model)) for model in votes.model_list] for one in judges]
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


def _longer(first: Sequence[Any], second: Sequence[Any]) -> Iterator[float]:
    for a, b in zip(first, second, strict=True):
        known = isinstance(a, int | float) and isinstance(b, int | float) and abs(a) + abs(b) > 0
        yield (a - b) / (abs(a) + abs(b)) if known else 0.0


def _is_own(judge: str, model: str) -> bool:
    """Whether a model is of the judge's family: of one organisation, as far as the names tell."""
    family = organisation_of(_CALLED_JUDGE.sub("", judge))
    return family != "" and family == organisation_of(model)
