"""A data set whose stream leaves out the votes on some prompts, to judge models by.

A growing file does the same line by line (see p2l.online_training.live_votes), by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2l.online_training.stream import StaticStream, is_held_out

__all__ = ["HeldOut", "hold_out"]

_CHUNK = 1 << 16  # votes whose prompts are looked at together


@dataclass(frozen=True)
class HeldOut:
    """`HeldVotes` of a data set (see p2l.online_training.gate)."""

    stream: StaticStream
    places: NDArray[np.int64]
    """How many votes to train on came before each."""

    @property
    def model_list(self) -> list[str]:
        """Names that labels refer to."""
        return self.stream.model_list

    def up_to(self, place: int) -> int:
        """How many came before the run had `place` votes to train on."""
        return int(np.searchsorted(self.places, place, side="right"))

    def prompts(self, ids: NDArray[np.int64]) -> list[list[str]]:
        """The user's turns of each vote."""
        return self.stream.prompts(ids)

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """(n, 3) `[winner, loser, tie]`."""
        return np.asarray(self.stream.labels(ids), dtype=np.int32)


def hold_out(stream: StaticStream, share: float) -> tuple[StaticStream, HeldOut | None]:
    """The stream without the votes on `share` of the prompts, and those; all of it and None where share is zero."""
    if not share:
        return stream, None
    held = np.concatenate(
        [
            [
                is_held_out(prompt, share)
                for prompt in stream.prompts(np.arange(start, min(start + _CHUNK, len(stream))))
            ]
            for start in range(0, len(stream), _CHUNK)
        ]
    ).astype(bool)
    order = np.arange(len(stream)) if stream.order is None else stream.order
    places = np.cumsum(~held)[held]
    return StaticStream(stream.votes, order[~held]), HeldOut(StaticStream(stream.votes, order[held]), places)
