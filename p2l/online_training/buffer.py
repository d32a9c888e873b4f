"""Every buffer: votes go in as they arrive, training batches of vote ids come out.

A buffer holds ids, model codes and times, never prompts. Its batches do not depend on how the stream is cut into calls
of `add`: one vote at a time, or all at once, gives the same batches in the same order.

Shapes: n votes of one call, in time order.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import CheckpointError

if TYPE_CHECKING:
    from p2l.online_training.stream import VoteStream

Ids: TypeAlias = NDArray[np.int64]
Batches: TypeAlias = "list[Ids]"
State: TypeAlias = "Mapping[str, Any]"
"""Arrays, numbers and texts by name; `np.savez` saves it without pickle."""
RECORD = np.dtype([("id", "<i8"), ("arrival", "<i8"), ("tstamp", "<f8")])
"""A waiting vote: its id, how many votes arrived before it, its time."""
Records: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True)
class NewVotes:
    """Votes as they arrive, in time order."""

    ids: Ids  # (n,) what the batches will name them by
    model_a: NDArray[np.int32]  # (n,) positions in the model list, which is in order of first appearance
    model_b: NDArray[np.int32]  # (n,)
    tstamp: NDArray[np.float64]  # (n,) seconds, NaN where unknown

    @classmethod
    def of(cls, votes: VoteStream, ids: Ids) -> NewVotes:
        """Read what a buffer needs of these votes."""
        pairs, times = votes.pairs(ids).astype(np.int32), votes.tstamps(ids)
        return cls(
            ids=ids,
            model_a=pairs[:, 0],
            model_b=pairs[:, 1],
            tstamp=np.full(len(ids), np.nan) if times is None else times,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> NewVotes:
        return NewVotes(self.ids[rows], self.model_a[rows], self.model_b[rows], self.tstamp[rows])


@dataclass(frozen=True)
class Lag:
    """Waiting times of the new votes of the batches so far; NaN where there were none, or none with a time."""

    votes: int
    """New votes in batches."""
    median_batches: float
    p99_batches: float
    median_seconds: float
    p99_seconds: float
    most_waiting: int
    """Most votes that waited at once, the batch just completed included."""

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the figures for JSON, with None in place of NaN."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


class Buffer(ABC):
    """Decides when each vote is trained on."""

    batch_size: int
    """New votes of a batch."""
    full_size: int
    """Votes of a whole batch, replayed ones included: the global batch size of a training run."""
    _clock: StreamClock
    _parameters: dict[str, str | int | float]
    """Type and settings, which must be the same where a saved state is loaded."""

    @abstractmethod
    def add(self, votes: NewVotes) -> Batches:
        """Add votes that have arrived; return the batches that are complete now, in order."""

    @abstractmethod
    def drain(self) -> Batches:
        """Return what still waits, in full batches (the last may be smaller); nothing waits afterwards."""

    def remember(self, ids: Ids) -> None:  # noqa: B027 - only a replay buffer draws from the past
        """Let these votes of the past be drawn again; called once, before the first vote and before a saved state."""

    @property
    def waiting(self) -> int:
        """Votes that have arrived and are in no batch yet."""
        return self._clock.waiting

    @property
    def dropped(self) -> int:
        """Votes that will never be in a batch (`drop_tail`)."""
        return self._clock.dropped

    @property
    def lag(self) -> Lag:
        """Waiting times of the new votes of the batches so far."""
        return self._clock.lag

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the batches still to come; see `State`."""
        return {**self._parameters, **self._state()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state; CheckpointError if it is that of another type of buffer or other parameters."""
        for name, value in self._parameters.items():
            if name not in state:
                raise CheckpointError(f"buffer state: holds no {name!r}; it is the state of something else")
            saved = np.asarray(state[name]).item()
            if saved != value:
                raise CheckpointError(
                    f"buffer state: saved with {name} {saved!r}, but now {name} is {value!r}; "
                    "continue with what it was saved with, or start afresh"
                )
        self._load(state)

    @abstractmethod
    def _state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load(self, state: State) -> None: ...


# Bins of waiting times are floats without the last 45 of the 52 bits of their fraction: 1/128 of an octave each.
_DROPPED_BITS = 45
_MIN_SECONDS = 2.0**-10  # what is shorter than a millisecond counts as none
_MAX_SECONDS = 2.0**40
_FIRST_BIN = int(np.float64(_MIN_SECONDS).view(np.int64)) >> _DROPPED_BITS
_BINS = (int(np.float64(_MAX_SECONDS).view(np.int64)) >> _DROPPED_BITS) - _FIRST_BIN + 1


class StreamClock:
    """Counts votes as they arrive and leave, and measures how long they wait.

    A vote arrives in batch (votes before it) // batch_size, and leaves in batch (votes before the one whose arrival
    completed its batch) // batch_size; what is drained leaves at the end of the stream. In seconds it waits for the
    time of the newest vote at that moment, less its own. The histograms are exact in batches and within 0.4 % in
    seconds, in memory that does not grow with votes.
    """

    def __init__(self, batch_size: int, *, drop_tail: bool) -> None:
        self._size = batch_size
        self._drop_tail = drop_tail
        self.arrived = 0
        self.dropped = 0
        self._gone = 0
        self._most_waiting = 0
        self._newest = float("nan")
        self._batches: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._seconds: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)

    @property
    def waiting(self) -> int:
        """Votes that arrived and neither left nor were dropped."""
        return self.arrived - self._gone - self.dropped

    @property
    def lag(self) -> Lag:
        """See `Buffer.lag`."""
        return Lag(
            votes=int(self._batches.sum()),
            median_batches=_quantile(self._batches, 0.5),
            p99_batches=_quantile(self._batches, 0.99),
            median_seconds=_middle(_quantile(self._seconds, 0.5)),
            p99_seconds=_middle(_quantile(self._seconds, 0.99)),
            most_waiting=max(self._most_waiting, self.waiting),
        )

    def arrive(self, votes: NewVotes) -> Records:
        """Count votes in."""
        records = np.empty(len(votes), dtype=RECORD)
        records["id"], records["tstamp"] = votes.ids, votes.tstamp
        records["arrival"] = np.arange(self.arrived, self.arrived + len(votes))
        self.arrived += len(votes)
        if len(votes):
            self._newest = float(votes.tstamp[-1])
        return records

    def leave(self, batches: Sequence[Records], arrived: Records) -> Batches:
        """Count full batches out: batch i leaves as vote `arrived[i]` comes."""
        if not batches:
            return []
        votes = np.concatenate(batches)
        until = np.repeat(arrived["arrival"], self._size)
        self._record(
            until // self._size - votes["arrival"] // self._size,
            np.repeat(arrived["tstamp"], self._size) - votes["tstamp"],
        )
        # As each batch became complete, the votes of the batches before it had left.
        gone = self._gone + self.dropped + np.arange(len(batches)) * self._size
        self._most_waiting = max(self._most_waiting, int((arrived["arrival"] + 1 - gone).max()))
        self._gone += len(votes)
        return [batch["id"].copy() for batch in batches]

    def finish(self, rest: Records) -> Batches:
        """Count out what still waits, at the end of the stream; with `drop_tail`, as dropped."""
        self._most_waiting = max(self._most_waiting, self.waiting)
        if self._drop_tail:
            self.dropped += len(rest)
            return []
        last = max(self.arrived - 1, 0) // self._size
        self._record(last - rest["arrival"] // self._size, self._newest - rest["tstamp"])
        self._gone += len(rest)
        return [rest["id"][start : start + self._size].copy() for start in range(0, len(rest), self._size)]

    def _record(self, batches: NDArray[np.int64], seconds: NDArray[np.float64]) -> None:
        """Count the waiting times of votes that leave; seconds are NaN where unknown."""
        counts = np.bincount(batches, minlength=len(self._batches))
        counts[: len(self._batches)] += self._batches
        self._batches = counts
        # Histograms, since a run may take any number of votes.
        timed = seconds[~np.isnan(seconds)]
        bins = (np.clip(timed, _MIN_SECONDS, _MAX_SECONDS).view(np.int64) >> _DROPPED_BITS) - _FIRST_BIN
        self._seconds += np.bincount(bins, minlength=_BINS)

    def state_dict(self, waiting: Records) -> dict[str, Any]:
        """Return everything, and the votes that wait, for a buffer's state."""
        return {
            "arrived": self.arrived,
            "gone": self._gone,
            "dropped": self.dropped,
            "newest": self._newest,
            "lag.batches": self._batches.copy(),
            "lag.seconds": self._seconds.copy(),
            "lag.most_waiting": self._most_waiting,
            # Plain arrays: `np.load` without pickle reads no records.
            **{f"waiting.{name}": waiting[name].copy() for name in RECORD.names or ()},
        }

    def load_state_dict(self, state: State) -> Records:
        """Continue from a saved state; return the votes that waited."""
        self.arrived = int(state["arrived"])
        self._gone = int(state["gone"])
        self.dropped = int(state["dropped"])
        self._newest = float(state["newest"])
        self._batches = np.array(state["lag.batches"], np.int64)
        self._seconds = np.array(state["lag.seconds"], np.int64)
        self._most_waiting = int(state["lag.most_waiting"])
        waiting = np.empty(len(state["waiting.id"]), dtype=RECORD)
        for name in RECORD.names or ():
            waiting[name] = state[f"waiting.{name}"]
        return waiting


def _quantile(counts: NDArray[np.int64], share: float) -> float:
    """Return the least value with at least `share` of the counts at or below it; NaN when there are none."""
    below = np.cumsum(counts)
    return float(np.searchsorted(below, share * below[-1])) if below[-1] else float("nan")


def _middle(number: float) -> float:
    """Return the seconds at the middle of a bin."""
    if number != number or number == 0:  # NaN, or a wait too short to count
        return number
    low, high = (np.array([number, number + 1]).astype(np.int64) + _FIRST_BIN << _DROPPED_BITS).view(np.float64)
    return float((low + high) / 2)


def with_prefix(prefix: str, state: State) -> dict[str, Any]:
    """Return a state whose names begin with `prefix`, to be part of another."""
    return {prefix + name: value for name, value in state.items()}


def without_prefix(prefix: str, state: State) -> dict[str, Any]:
    """Return the part that `with_prefix` put in."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


@contextmanager
def saved_arrays(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the arrays that `np.savez` wrote; CheckpointError if the file is damaged, or the block misses one in it."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: missing, damaged or cut short ({error}); copy the checkpoint again") from error
