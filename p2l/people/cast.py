"""Votes of people with who cast them, and what they have in common: networks, minutes, prompts.

Shapes: N votes, n votes of a batch, V voters, M models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.people.evidence import VoterEvidence
from p2l.people.voters import NETWORK, SOURCE, VOTER, SourcedVotes, groups_of_votes
from p2l.votes.reading import model_codes, read_votes
from p2l.votes.rows import Source
from p2l.votes.schema import WINNERS, name_lookup, numbers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MAX_PER_MINUTE = 20  # votes, faster than anybody reads


@dataclass(frozen=True)
class CastVotes:
    """Votes of people with who cast them.

    Attributes:
        models: M names. first, second: (N,) positions in it, as they were shown.
        winner: (N,) positions in `p2l.votes.WINNERS`.
        voters: V names. voter: (N,) positions in it; -1 for a vote without a name.
        groups: what votes may have in common, by name: "network", "minutes", "prompt"; codes (N,), -1 for nothing.
        times: (N,) seconds since 1970; NaN where they are not known.
    """

    models: list[str]
    first: Ints
    second: Ints
    winner: Ints
    voters: list[str]
    voter: Ints
    groups: Mapping[str, Ints]
    times: Floats

    def __len__(self) -> int:
        return len(self.winner)

    @cached_property
    def evidence(self) -> VoterEvidence:
        """The votes as what is asked of their voters."""
        lost = self.winner == 1
        winner, loser = np.where(lost, self.second, self.first), np.where(lost, self.first, self.second)
        labels = np.column_stack([winner, loser, np.maximum(self.winner - 1, 0)])
        return VoterEvidence(self.voters, self.voter, labels, np.where(lost, -1.0, 1.0), self.models, self.groups)


class CastReader:
    """Votes as they are read: `add` each batch, then ask for `votes`."""

    def __init__(self) -> None:
        """Begin without votes."""
        self._voters: dict[str, int] = {}
        self._networks: dict[str, int] = {}
        self._sources: dict[str, int] = {}
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def add(self, batch: Any, first: Ints, second: Ints, winner: Ints, prompts: npt.NDArray[Any] | None) -> None:
        """Add an Arrow batch: codes (n,) of both models, places in WINNERS, and hashes of the prompts, if any."""
        names = batch.schema.names
        part: dict[str, npt.NDArray[Any]] = {
            "first": np.asarray(first, dtype=np.int32),
            "second": np.asarray(second, dtype=np.int32),
            "winner": np.asarray(winner, dtype=np.int8),
        }
        for column, codes in ((VOTER, self._voters), (NETWORK, self._networks), (SOURCE, self._sources)):
            part[column] = np.full(len(batch), -1, dtype=np.int32)
            if column in names:
                part[column] = _codes_of(batch.column(column), codes)
        part["time"] = numbers(batch.column("tstamp")) if "tstamp" in names else np.full(len(batch), np.nan)
        part["prompt"] = np.zeros(len(batch), dtype=np.uint64) if prompts is None else np.asarray(prompts, np.uint64)
        self._has_prompts = prompts is not None
        self._parts.append(part)

    def votes(self, models: Sequence[str], people: str | None = None) -> CastVotes:
        """Return the votes of people, whom the column `source` calls `people`; of all, if there are no judges."""
        if not self._parts:
            empty = np.zeros(0, dtype=np.int64)
            return CastVotes(list(models), empty, empty, empty, [], empty, {}, np.zeros(0))
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        if people is not None:
            is_person = np.isin(columns[SOURCE], [-1, self._sources.get(people, -1)])
            columns = {name: column[is_person] for name, column in columns.items()}
        return _cast(
            list(models),
            [columns[name].astype(np.int64) for name in ("first", "second", "winner")],
            list(self._voters),
            columns[VOTER].astype(np.int64),
            network=columns[NETWORK].astype(np.int64) if self._networks else None,
            times=columns["time"],
            prompts=columns["prompt"] if self._has_prompts else None,
        )


def cast_of_source(source: Source, people: str | None = None, *, drop_bad: bool = False) -> CastVotes:
    """Return the votes of a source in one pass, without their prompts."""
    reader, models = CastReader(), dict[str, int]()
    wanted = ["model_a", "model_b", "winner", *({VOTER, NETWORK, SOURCE, "tstamp"} & set(source.columns))]
    for votes in read_votes(source, columns=wanted, drop_bad=drop_bad):
        first, second = (model_codes(votes.batch.column(name), models) for name in ("model_a", "model_b"))
        won = votes.batch.column("winner").dictionary_encode()
        winner = name_lookup(won.dictionary.to_pylist(), WINNERS)[won.indices.to_numpy(zero_copy_only=False)]
        reader.add(votes.batch, first, second, winner, None)
    return reader.votes(list(models), people)


def cast_of_sources(votes: SourcedVotes) -> CastVotes:
    """Return the votes of people among votes of several sources."""
    kept = votes.take(votes.by_people)
    is_second = kept.side < 0
    first, second = (np.where(is_second, kept.labels[:, 1 - place], kept.labels[:, place]) for place in (0, 1))
    winner = np.where(kept.labels[:, 2] > 0, kept.labels[:, 2] + 1, is_second)
    times = np.full(len(kept), np.nan)
    return CastVotes(kept.models, first, second, winner, kept.voters, kept.voter, kept.groups, times)


def _codes_of(column: Any, codes: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return codes (n,) of an Arrow column by a table that grows; -1 where there is no value, or several."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        return np.full(len(column), -1, dtype=np.int32)
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    table = [-1 if text is None else codes.setdefault(str(text), len(codes)) for text in texts]
    places = encoded.indices.fill_null(len(table)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*table, -1], dtype=np.int32)[places])


def bursts(votes: CastVotes) -> list[str]:
    """Return a line for each voter with more votes within one minute than anybody reads."""
    timed = np.flatnonzero(np.isfinite(votes.times) & (votes.voter >= 0))
    order = timed[np.lexsort((votes.times[timed], votes.voter[timed]))]
    busiest: dict[int, int] = {}  # most votes within a minute
    start = 0
    who, when = votes.voter[order].tolist(), votes.times[order].tolist()
    for end in range(len(order)):
        while who[start] != who[end] or when[end] - when[start] > 60.0:
            start += 1
        if end - start + 1 >= _MAX_PER_MINUTE:
            busiest[who[end]] = max(busiest.get(who[end], 0), end - start + 1)
    return [f"{votes.voters[code]}: {number} votes within a minute" for code, number in sorted(busiest.items())]


def cast_votes(
    models: list[str],
    first: Ints,
    second: Ints,
    winner: Ints,
    voter: Sequence[str | None],
    *,
    network: Sequence[str | None] | None = None,
    times: Floats | None = None,
    prompts: npt.NDArray[Any] | None = None,
) -> CastVotes:
    """Return votes with who cast them; `times` (N,) are seconds (NaN: unknown), `prompts` (N,) hashes."""
    codes, names = _coded(voter)
    return _cast(
        models,
        [first, second, winner],
        names,
        codes,
        network=None if network is None else _coded(network)[0],
        times=np.full(len(codes), np.nan) if times is None else times,
        prompts=prompts,
    )


def _cast(
    models: list[str],
    outcomes: Sequence[Ints],
    voters: list[str],
    voter: Ints,
    *,
    network: Ints | None,
    times: Floats,
    prompts: npt.NDArray[Any] | None,
) -> CastVotes:
    groups = groups_of_votes(network=network, times=times, prompts=prompts)
    first, second, winner = outcomes
    return CastVotes(models, first, second, winner, voters, voter, groups, times)


def _coded(texts: Sequence[str | None]) -> tuple[Ints, list[str]]:
    """Return codes (N,) of texts, -1 for None, and the texts in the order of their codes."""
    places: dict[str, int] = {}
    codes = [-1 if text is None else places.setdefault(text, len(places)) for text in texts]
    return np.array(codes, dtype=np.int64), list(places)
