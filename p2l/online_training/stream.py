"""Where online training gets its votes: a data set in time order or a growing file, without what is held out of it.

A vote's id is its place in the stream, from 0. Models are numbered in order of first appearance there, after those that
the run starts with; so the models known after any number of votes are a prefix of the list, and a label never changes.

Shapes: n votes of `ids`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import listed
from p2l.common.errors import VoteError
from p2l.online_training.live_votes import Ids, LiveVotes, is_held_out
from p2l.votes import VoteStore, open_votes_together

_CHUNK_VOTES = 1 << 18  # in a pass over the stream
_CHUNK_PROMPTS = 1 << 16  # whose text is in memory at a time


VoteStream: TypeAlias = VoteStore | LiveVotes
"""Votes as they come, the same ones in the same order for every process of a run.

Names are only added to `model_list`, at the end, in order of first appearance. `wait_for(count)` returns fewer than
`count` where the stream has ended for good; every process calls it the same number of times with the same counts. Of a
stream that `grows` no step is read ahead of its time.
"""


@dataclass(frozen=True)
class StepFacts:
    """Where the stream stood when the votes of a step were chosen."""

    arrived: int
    """Votes taken from the stream."""
    waiting: int
    """Of these, the ones that the buffer holds back."""
    models: int
    """Length of the model list: the models of the votes that have arrived, and those the run began with."""
    lag: Mapping[str, float] = field(default_factory=dict)
    """Waiting times of the votes of the steps so far; see `Lag`."""


def in_time_order(votes: VoteStore, vote_order: str, known_models: Sequence[str] = ()) -> VoteStore:
    """Return a data set as a stream that numbers its models by first appearance, after `known_models`.

    `vote_order` is `time`: as they stand, or VoteError unless every vote has a time and none is older than the one
    before it; `sort`: sorted by time, equal times as they stand; `given`: as they stand, whatever their times.
    """
    hint = "; add the time of each vote, or set 'vote_order: given' if the rows are in the order to learn in"
    order = None if vote_order == "given" else time_order(votes, sort=vote_order == "sort", hint=hint)
    stream = votes if order is None else votes.subset(order)
    first_models = set(known_models)
    newcomers: dict[str, None] = {}  # in order of first appearance, model_a before model_b
    for start in range(0, len(stream), _CHUNK_VOTES):
        pairs = stream.pairs(np.arange(start, min(start + _CHUNK_VOTES, len(stream)))).ravel()
        codes, first = np.unique(pairs, return_index=True)
        names = [stream.model_list[code] for code in codes[np.argsort(first)]]
        newcomers |= dict.fromkeys(name for name in names if name not in first_models)
    # Labels are positions in this list, and stay what they are as more models come.
    stream.relist([*known_models, *newcomers])
    return stream


def time_order(votes: VoteStore, *, sort: bool, hint: str = "") -> NDArray[np.int64] | None:
    """Return the ids in order of time (equal times as they stand), or None when they stand so.

    VoteError, naming the vote, if one has no time (`hint` says what to do), or is out of order and not to be sorted.
    """
    last = -np.inf
    is_sorted = True
    for start in range(0, len(votes), _CHUNK_VOTES):
        times = votes.tstamps(np.arange(start, min(start + _CHUNK_VOTES, len(votes))))
        if times is None:
            columns = listed(votes.columns)
            raise VoteError(f"{votes.name}: no column 'tstamp' to tell the order of votes; columns: {columns}{hint}")
        missing = np.flatnonzero(~np.isfinite(times))
        if len(missing):
            number = start + missing[0] + 1
            raise VoteError(f"{votes.name}: vote {number} has no tstamp; add its time in seconds since 1970")
        # The last time of the chunk before counts too.
        late = np.flatnonzero(np.diff(times, prepend=last) < 0)
        if len(late) and not sort:
            raise VoteError(
                f"{votes.name}: vote {start + late[0] + 1} is older than the one before it; add --sort to sort by "
                f"time, or sort the file"
            )
        is_sorted &= not len(late)
        last = times[-1]
    return None if is_sorted else np.argsort(np.asarray(votes.tstamps()), kind="stable")


def published_order(model_list: Sequence[str], began_with: int) -> list[str]:
    """Return the models in the order of published folders: sorted.

    Where the first `began_with`, those of the model that the run began with, are in an order that somebody chose, they
    stay so, and newer ones follow, sorted.
    """
    first = list(model_list[:began_with])
    return sorted(model_list) if first == sorted(first) else [*first, *sorted(model_list[began_with:])]


@dataclass(frozen=True)
class HeldOut:
    """The votes of a data set that are kept for judging models, oldest first."""

    votes: VoteStore
    places: NDArray[np.int64] = field(repr=False)
    """Number of votes to train on that came before each."""

    def up_to(self, place: int) -> int:
        """Return how many came before the run had `place` votes to train on."""
        return int(np.searchsorted(self.places, place, side="right"))


def hold_out(stream: VoteStore, share: float) -> tuple[VoteStore, HeldOut | None]:
    """Return the stream without the votes on `share` of the prompts, and those; where it is zero, all and None."""
    if not share:
        return stream, None
    held = np.empty(len(stream), dtype=bool)
    for start in range(0, len(stream), _CHUNK_PROMPTS):
        ids = np.arange(start, min(start + _CHUNK_PROMPTS, len(stream)))
        held[ids] = [is_held_out(prompt, share) for prompt in stream.prompts(ids)]
    places = np.cumsum(~held)[held]
    return stream.subset(np.flatnonzero(~held)), HeldOut(stream.subset(np.flatnonzero(held)), places)


# The votes that a run's model was trained on before, for replay, have ids below zero: -1 is the last of P past votes,
# -P the first. So places in the stream, which fingerprints, gates and the counts of models refer to, are what they are
# without a past.


def open_past(path: str, model_list: Sequence[str]) -> VoteStore:
    """Open the past votes between models of this list; VoteError where there are none."""
    return open_votes_together(path, model_list=model_list, drop_unknown=True)


@dataclass(frozen=True)
class StreamWithPast:
    """The votes of a stream, and below zero those before it."""

    past: VoteStore
    stream: VoteStream

    def __len__(self) -> int:
        return len(self.stream)

    def prompts(self, ids: Ids) -> list[list[str]]:
        """Return the user's turns of each vote."""
        return self.gathered(ids, self.past.prompts, self.stream.prompts)

    def rows(self, ids: Ids) -> list[dict[str, Any]]:
        """Return all columns of each vote."""
        return self.gathered(ids, self.past.rows, self.stream.rows)

    def labels(self, ids: Ids) -> NDArray[Any]:
        """Return `[winner, loser, tie]` (n, 3) int32."""
        return np.array(self.gathered(ids, self.past.labels, self.stream.labels), dtype=np.int32).reshape(-1, 3)

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """Return weights (n,)."""
        return np.array(self.gathered(ids, self.past.weights, self.stream.weights), dtype=np.float64)

    def gathered(self, ids: Ids, past: Callable[[Any], Any], stream: Callable[[Any], Any]) -> list[Any]:
        """Return what both sources have of some votes, in the order of the ids; each reads places of its own."""
        places = np.asarray(ids, dtype=np.int64)
        is_past = places < 0
        entries: list[Any] = [None] * len(places)
        for rows, read, shift in (
            (np.flatnonzero(is_past), past, len(self.past)),
            (np.flatnonzero(~is_past), stream, 0),
        ):
            if len(rows):
                for row, entry in zip(rows.tolist(), read(places[rows] + shift), strict=True):
                    entries[row] = entry
        return entries
