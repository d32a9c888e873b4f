"""The buffer that holds nothing back: votes are trained on in the order in which they come."""

from __future__ import annotations

from typing import Any

import numpy as np

from p2l.online_training.buffer import Batches, NewVotes, State
from p2l.online_training.buffer_state import check_state
from p2l.online_training.waiting import RECORD, ClockedBuffer, StreamClock, records_of_state, state_of_records

__all__ = ["StraightBuffer"]


class StraightBuffer(ClockedBuffer):
    """Every `batch_size` votes are a batch; the tail is a last smaller one."""

    def __init__(self, batch_size: int, *, drop_tail: bool = False) -> None:
        self.batch_size = self.full_size = batch_size
        self._drop_tail = drop_tail
        self._clock = StreamClock(batch_size)
        self._held = np.empty(0, dtype=RECORD)

    def add(self, votes: NewVotes) -> Batches:
        """See `Buffer.add`."""
        held = np.concatenate([self._held, self._clock.arrive(votes)])
        whole = len(held) - len(held) % self.batch_size
        self._held = held[whole:].copy()
        starts = range(0, whole, self.batch_size)
        return self._clock.leave(
            [held[start : start + self.batch_size] for start in starts],
            held[self.batch_size - 1 : whole : self.batch_size],
        )

    def drain(self) -> Batches:
        """See `Buffer.drain`."""
        rest, self._held = self._held, self._held[:0]
        return self._clock.finish(rest, drop=self._drop_tail)

    def _parameters(self) -> dict[str, str | int | float]:
        return {"type": "none", "batch_size": self.batch_size, "drop_tail": int(self._drop_tail)}

    def state_dict(self) -> dict[str, Any]:
        """See `Buffer.state_dict`."""
        return {**self._parameters(), **self._clock.state_dict(), **state_of_records(self._held)}

    def load_state_dict(self, state: State) -> None:
        """See `Buffer.load_state_dict`."""
        check_state(state, self._parameters())
        self._clock.load_state_dict(state)
        self._held = records_of_state(state)
