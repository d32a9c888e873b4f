"""Where online training gets its votes: the protocol, and a data set (a `VoteStore`) in time order.

A vote's id is its place in the stream, from 0. Models are numbered in order of first appearance there, after those that
the run starts with; so the models known after any number of votes are a prefix of the list, and a label never changes.

Shapes: n votes asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import listed
from p2l.common.errors import VoteError
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.schema import hash_turns

if TYPE_CHECKING:
    from p2l.training.trainer import StepResult, Trainer


Ids = Sequence[int] | NDArray[np.int64] | None
_HELD_SEED = 0x9A7E  # which prompts are held out has nothing to do with any other use of their hashes
_CHUNK_VOTES = 1 << 18  # in a pass over the stream
_CHUNK_PROMPTS = 1 << 16


class StopRequestedError(Exception):
    """Raised by `wait_for` where a signal asks the run to stop: it saves a checkpoint, the stream has not ended."""


class VoteStream(Protocol):
    """Votes as they come. Every process of a run must see the same ones in the same order."""

    @property
    def name(self) -> str:
        """Its name in messages: the path or URL that the user gave."""

    @property
    def model_list(self) -> list[str]:
        """All models known by now; names are only added, at the end, in order of first appearance."""

    @property
    def has_weights(self) -> bool:
        """Whether votes have a weight."""

    @property
    def grows(self) -> bool:
        """Whether more votes may come; then no step is read ahead of its time."""

    def __len__(self) -> int:
        """Votes that are there by now."""

    def wait_for(self, count: int) -> int:
        """Wait until `count` votes are there, or no more will come; return min(count, votes there).

        Fewer than `count` means that the stream has ended for good. Every process calls this the same number of times
        with the same counts, and must get the same number back.
        """

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """Return the user's turns of each vote."""

    def labels(self, ids: Ids = None) -> NDArray[Any]:
        """Return `[winner, loser, tie]` (n, 3) int32, positions in `model_list`."""

    def pairs(self, ids: Ids = None) -> NDArray[np.int32]:
        """Return the positions (n, 2) of model_a and model_b in `model_list`."""

    def weights(self, ids: Ids = None) -> NDArray[np.float64]:
        """Return weights (n,); ones where there are none."""

    def tstamps(self, ids: Ids = None) -> NDArray[np.float64] | None:
        """Return seconds (n,); None when votes have no time."""

    def rows(self, ids: Ids = None) -> list[dict[str, Any]]:
        """Return all columns of each vote."""


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
    """How long the votes of the steps so far have waited; see `Lag`."""


class Publisher(Protocol):
    """Work beside the steps, such as serving the newest weights; every process calls each method."""

    def begin(self, step: int, arrived: int, trainer: Trainer, *, began_with: int = 0) -> None:
        """Called once before the first step of this process; `step` are done, and `arrived` votes had come.

        `began_with` are the models that the run knew before its first vote.
        """

    def after_step(self, result: StepResult, facts: StepFacts, trainer: Trainer) -> None:
        """Called after each optimizer step, and after its checkpoint if there is one.

        `trainer.engine.model.model_list` is the list of this step; `write_model` of `p2l.training.run_folder` makes a
        model folder.
        """

    def publish(self, step: int, arrived: int, trainer: Trainer) -> None:
        """Called after a step where another model takes the place of the run's own."""

    def finish(self, trainer: Trainer) -> None:
        """Called once after the last step."""


def in_time_order(votes: VoteStore, vote_order: str, known_models: Sequence[str] = ()) -> VoteStore:
    """Return a data set as a stream that numbers its models by first appearance, after `known_models`.

    `vote_order` is `time`: as they stand, or VoteError unless every vote has a time and none is older than the one
    before it; `sort`: sorted by time, equal times as they stand; `given`: as they stand, whatever their times.
    """
    hint = "; add the time of each vote, or set 'vote_order: given' if the rows are in the order to learn in"
    order = None if vote_order == "given" else time_order(votes, sort=vote_order == "sort", hint=hint)
    stream = votes if order is None else votes.subset(order)
    known = set(known_models)
    newcomers: dict[str, None] = {}  # in order of first appearance, model_a before model_b
    for start in range(0, len(stream), _CHUNK_VOTES):
        pairs = stream.pairs(np.arange(start, min(start + _CHUNK_VOTES, len(stream)))).ravel()
        codes, first = np.unique(pairs, return_index=True)
        names = [stream.model_list[code] for code in codes[np.argsort(first)]]
        newcomers |= dict.fromkeys(name for name in names if name not in known)
    stream.relist([*known_models, *newcomers])
    return stream


def time_order(votes: VoteStore, *, sort: bool, hint: str = "") -> NDArray[np.int64] | None:
    """Return the ids in order of time (equal times as they stand), or None when they stand so.

    VoteError, naming the vote, if one has no time (`hint` says what to do), or is out of order and not to be sorted.
    """
    last, is_sorted = -np.inf, True
    for start in range(0, len(votes), _CHUNK_VOTES):
        times = votes.tstamps(np.arange(start, min(start + _CHUNK_VOTES, len(votes))))
        if times is None:
            columns = listed(votes.columns)
            raise VoteError(f"{votes.name}: no column 'tstamp' to tell the order of votes; columns: {columns}{hint}")
        missing = np.flatnonzero(~np.isfinite(times))
        if len(missing):
            number = start + missing[0] + 1
            raise VoteError(f"{votes.name}: vote {number} has no tstamp; add its time in seconds since 1970")
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


def is_held_out(prompt: list[str], share: float) -> bool:
    """Return whether votes on this prompt are held out, at this share of all prompts; the same in every run."""
    return share > 0 and hash_turns(prompt, _HELD_SEED) < share * 2.0**64


@dataclass(frozen=True)
class HeldOut:
    """The votes of a data set that are kept for judging models, oldest first."""

    votes: VoteStore
    places: NDArray[np.int64] = field(repr=False)
    """How many votes to train on came before each."""

    @property
    def model_list(self) -> list[str]:
        """The models of the whole stream."""
        return self.votes.model_list

    def prompts(self, ids: Ids = None) -> list[list[str]]:
        """Return the user's turns of each vote."""
        return self.votes.prompts(ids)

    def labels(self, ids: Ids = None) -> NDArray[Any]:
        """Return `[winner, loser, tie]` (n, 3) int32."""
        return self.votes.labels(ids)

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
        return self._rows(ids, self.past.prompts, self.stream.prompts)

    def rows(self, ids: Ids) -> list[dict[str, Any]]:
        """Return all columns of each vote."""
        return self._rows(ids, self.past.rows, self.stream.rows)

    def labels(self, ids: Ids) -> NDArray[Any]:
        """Return `[winner, loser, tie]` (n, 3) int32."""
        return np.array(self._rows(ids, self.past.labels, self.stream.labels), dtype=np.int32).reshape(-1, 3)

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """Return weights (n,)."""
        return np.array(self._rows(ids, self.past.weights, self.stream.weights), dtype=np.float64)

    def _rows(self, ids: Ids, past: Callable[[Any], Any], stream: Callable[[Any], Any]) -> list[Any]:
        """Return what both sources have of some votes, in the order of the ids."""
        places = np.asarray(ids, dtype=np.int64)
        before, after = np.flatnonzero(places < 0), np.flatnonzero(places >= 0)
        entries: list[Any] = [None] * len(places)
        for rows, read, shift in ((before, past, len(self.past)), (after, stream, 0)):
            if len(rows):
                for row, entry in zip(rows.tolist(), read(places[rows] + shift), strict=True):
                    entries[row] = entry
        return entries
