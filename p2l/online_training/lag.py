"""How long votes wait in a buffer: exact in batches, within 0.4 % in seconds, in memory that does not grow with votes.

The clock in batches is that of the stream: a vote arrives in batch (votes before it) // batch_size, and leaves in batch
(votes before the one whose arrival completed its batch) // batch_size. What is drained leaves at the end of the stream.
In seconds: the time of the newest vote that had arrived when it left, less its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lag", "LagMeter"]

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
        known = seconds[~np.isnan(seconds)]
        bins = (np.clip(known, _LEAST, _MOST).view(np.int64) >> _SHIFT) - _FIRST
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
