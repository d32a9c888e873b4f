"""What every buffer is: votes go in as they arrive, training batches of vote ids come out.

A buffer holds ids, model codes and times, never prompts. Its batches do not depend on how the stream is cut into calls
of `add`: one vote at a time, or all at once, gives the same batches in the same order.

Shapes: n votes of one call, in time order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.online_training.lag import Lag

__all__ = ["Batches", "Buffer", "NewVotes", "State"]

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
