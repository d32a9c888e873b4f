"""The votes that a run's model was trained on before, for replay: they have ids below zero.

Vote -1 is the last of P past votes and -P the first. So places in the stream, which fingerprints, gates and the counts
of models refer to, are what they are without a past.

Shapes: n votes asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.online_training.stream import VoteStream
from p2l.votes import VoteStore, open_votes_together

Ids = Sequence[int] | NDArray[np.int64]


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
        wanted = np.asarray(ids, dtype=np.int64)
        before = np.flatnonzero(wanted < 0)
        after = np.flatnonzero(wanted >= 0)
        entries: list[Any] = [None] * len(wanted)
        for places, source, shift in ((before, past, len(self.past)), (after, stream, 0)):
            if len(places):
                for place, entry in zip(places.tolist(), source(wanted[places] + shift), strict=True):
                    entries[place] = entry
        return entries
