"""What every buffer is: votes go in as they arrive, training batches of vote ids come out.

A buffer holds ids, model codes and times, never prompts. Its batches do not depend on how the stream is cut into calls
of `add`: one vote at a time, or all at once, gives the same batches in the same order.

Shapes: n votes of one call, in time order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import CheckpointError

# Saving buffers: parameters that must agree, parts under a prefix.


def check_state(state: Mapping[str, Any], own: Mapping[str, str | int | float]) -> None:
    """Refuse a state that was saved by another type of buffer, or with other parameters.

    Raises:
        CheckpointError: naming the parameter and both values.
    """
    for name, value in own.items():
        if name not in state:
            raise CheckpointError(f"buffer state: holds no {name!r}; it is the state of something else")
        saved = np.asarray(state[name]).item()
        if saved != value:
            raise CheckpointError(
                f"buffer state: saved with {name} {saved!r}, but now {name} is {value!r}; "
                "continue with what it was saved with, or start afresh"
            )


def with_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as a part of another."""
    return {prefix + name: value for name, value in state.items()}


def without_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The part that `with_prefix` put in."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


# How long votes wait in a buffer: exact in batches, within 0.4 % in seconds, in memory that does not grow with votes.
#
# The clock in batches is that of the stream: a vote arrives in batch (votes before it) // batch_size, and leaves in
# batch (votes before the one whose arrival completed its batch) // batch_size. What is drained leaves at the end of the
# stream. In seconds: the time of the newest vote that had arrived when it left, less its own.

_SHIFT = 45  # of the 52 bits of a float's fraction; the 7 left make bins of 1/128 of an octave
_LEAST, _MOST = 2.0**-10, 2.0**40  # seconds; what is shorter than a millisecond counts as none
_FIRST = int(np.float64(_LEAST).view(np.int64)) >> _SHIFT
_BINS = (int(np.float64(_MOST).view(np.int64)) >> _SHIFT) - _FIRST + 1


@dataclass(frozen=True)
class Lag:
    """Waiting times of the new votes given out; NaN where there were none, or none with a time."""

    votes: int
    """New votes given out."""
    median_batches: float
    p99_batches: float
    median_seconds: float
    p99_seconds: float
    most_waiting: int
    """Most votes that waited at once, the batch just completed included."""

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no NaN."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


class LagMeter:
    """Histograms of waiting times."""

    def __init__(self) -> None:
        self._batches: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._seconds: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)
        self._most_waiting = 0

    def record(self, batches: NDArray[np.int64], seconds: NDArray[np.float64]) -> None:
        """Take in the waiting times of votes that leave; seconds are NaN where unknown."""
        counts = np.bincount(batches, minlength=len(self._batches))
        counts[: len(self._batches)] += self._batches
        self._batches = counts
        timed = seconds[~np.isnan(seconds)]
        bins = (np.clip(timed, _LEAST, _MOST).view(np.int64) >> _SHIFT) - _FIRST
        self._seconds += np.bincount(bins, minlength=_BINS)

    def see_waiting(self, count: int) -> None:
        """Note how many wait now."""
        self._most_waiting = max(self._most_waiting, count)

    def summary(self, waiting: int) -> Lag:
        """The figures so far, while `waiting` votes still wait."""
        steps, times = self._batches, self._seconds
        return Lag(
            int(steps.sum()),
            float(_quantile(steps, 0.5)),
            float(_quantile(steps, 0.99)),
            _middle(_quantile(times, 0.5)),
            _middle(_quantile(times, 0.99)),
            max(self._most_waiting, waiting),
        )

    def state_dict(self) -> dict[str, Any]:
        """The histograms, for a buffer's state."""
        return {
            "lag.batches": self._batches.copy(),
            "lag.seconds": self._seconds.copy(),
            "lag.most_waiting": self._most_waiting,
        }

    def load_state_dict(self, state: Any) -> None:
        """Continue from a saved state."""
        self._batches = np.array(state["lag.batches"], dtype=np.int64)
        self._seconds = np.array(state["lag.seconds"], dtype=np.int64)
        self._most_waiting = int(state["lag.most_waiting"])


def _quantile(counts: NDArray[np.int64], share: float) -> float:
    """The least value with at least `share` of the counts at or below it; NaN when there are none."""
    below = np.cumsum(counts)
    return float(np.searchsorted(below, share * below[-1])) if below[-1] else float("nan")


def _middle(number: float) -> float:
    """Seconds at the middle of a bin."""
    if number != number or number == 0:
        return number
    low, high = (np.array([number, number + 1]).astype(np.int64) + _FIRST << _SHIFT).view(np.float64)
    return float((low + high) / 2)


Batches: TypeAlias = "list[NDArray[np.int64]]"
State: TypeAlias = "Mapping[str, Any]"
"""Arrays, numbers and texts by name; `np.savez` takes it and gives it back without pickle."""


@dataclass(frozen=True)
class NewVotes:
    """Votes as they arrive, in time order."""

    ids: NDArray[np.int64]  # (n,) what the batches will name them by
    model_a: NDArray[np.int32]  # (n,) positions in the model list, which is in order of first appearance
    model_b: NDArray[np.int32]  # (n,)
    tstamp: NDArray[np.float64]  # (n,) seconds, NaN where unknown

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> NewVotes:
        return NewVotes(self.ids[part], self.model_a[part], self.model_b[part], self.tstamp[part])


class Buffer(Protocol):
    """Decides when each vote is trained on."""

    batch_size: int
    """New votes of a batch."""

    @property
    def full_size(self) -> int:
        """Votes of a whole batch, replayed ones included: the global batch size of a training run."""
        ...

    def add(self, votes: NewVotes) -> Batches:
        """Take in votes that have arrived; returns the batches that are complete now, in order."""
        ...

    def drain(self) -> Batches:
        """Give out what still waits, in full batches (the last may be smaller); nothing waits afterwards."""
        ...

    @property
    def waiting(self) -> int:
        """Votes that have arrived and were not given out yet."""
        ...

    @property
    def dropped(self) -> int:
        """Votes that will never be given out (`drop_tail`)."""
        ...

    @property
    def lag(self) -> Lag:
        """How long the new votes given out so far have waited."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the batches still to come; see `State`."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: it is the state of another type of buffer, or of other parameters.
        """
        ...


# What every buffer keeps of the votes that wait, and the clock that tells how long they did.

RECORD = np.dtype([("id", "<i8"), ("arrival", "<i8"), ("tstamp", "<f8")])
"""A vote that waits: its id, how many votes arrived before it, its time."""
Records = np.ndarray[Any, np.dtype[Any]]


class StreamClock:
    """Counts votes as they arrive and leave, and measures their lag."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size
        self._meter = LagMeter()
        self._newest = float("nan")
        self.arrived = 0
        self.gone = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Votes that arrived and neither left nor were dropped."""
        return self.arrived - self.gone - self.dropped

    @property
    def lag(self) -> Lag:
        """See `Buffer.lag`."""
        return self._meter.summary(self.waiting)

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
        self._meter.record(
            until // self._size - votes["arrival"] // self._size,
            np.repeat(arrived["tstamp"], self._size) - votes["tstamp"],
        )
        gone = self.gone + self.dropped + np.arange(len(batches)) * self._size
        self._meter.see_waiting(int((arrived["arrival"] + 1 - gone).max()))
        self.gone += len(votes)
        return [batch["id"].copy() for batch in batches]

    def finish(self, rest: Records, *, drop: bool) -> Batches:
        """Count out what still waits, at the end of the stream; with `drop`, as lost."""
        self._meter.see_waiting(self.waiting)
        if drop:
            self.dropped += len(rest)
            return []
        last = max(self.arrived - 1, 0) // self._size
        self._meter.record(last - rest["arrival"] // self._size, self._newest - rest["tstamp"])
        self.gone += len(rest)
        return cut(rest["id"].copy(), self._size)

    def state_dict(self) -> dict[str, Any]:
        """For a buffer's state."""
        return {
            "arrived": self.arrived,
            "gone": self.gone,
            "dropped": self.dropped,
            "newest": self._newest,
            **self._meter.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.arrived, self.gone, self.dropped = (int(state[name]) for name in ("arrived", "gone", "dropped"))
        self._newest = float(state["newest"])
        self._meter.load_state_dict(state)


class ClockedBuffer:
    """What a buffer with a clock tells of its votes; see `Buffer`."""

    _clock: StreamClock

    @property
    def waiting(self) -> int:
        """See `Buffer.waiting`."""
        return self._clock.waiting

    @property
    def dropped(self) -> int:
        """See `Buffer.dropped`."""
        return self._clock.dropped

    @property
    def lag(self) -> Lag:
        """See `Buffer.lag`."""
        return self._clock.lag


def cut(ids: NDArray[np.int64], size: int) -> Batches:
    """Full batches in order, and a last smaller one."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def state_of_records(records: Records) -> dict[str, Any]:
    """Waiting votes as plain arrays."""
    return {f"waiting.{name}": records[name].copy() for name in RECORD.names or ()}


def records_of_state(state: Mapping[str, Any]) -> Records:
    """The votes that `state_of_records` saved."""
    records = np.empty(len(state["waiting.id"]), dtype=RECORD)
    for name in RECORD.names or ():
        records[name] = state[f"waiting.{name}"]
    return records
