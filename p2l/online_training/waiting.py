"""What every buffer keeps of the votes that wait, and the clock that tells how long they did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.online_training.buffer import Batches, NewVotes
from p2l.online_training.lag import Lag, LagMeter

__all__ = ["RECORD", "ClockedBuffer", "Records", "StreamClock", "cut", "records_of_state", "state_of_records"]

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
