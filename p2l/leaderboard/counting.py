"""Votes of a stream, counted per group: pair tables of a whole file and of each of its groups.

Shapes: N votes of a batch, U distinct (group, model a, model b, winner).

Memory holds one row per distinct combination, not per vote: for one leaderboard that is O(M^2) however long the
stream is; for personal leaderboards it is at most the number of votes, 32 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p2l.errors import VoteError
from p2l.leaderboard.pair_table import PairTable, table_from_keys

__all__ = ["Tally"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MODEL_BITS = 20
_GROUP_LIMIT = 1 << (62 - 2 * _MODEL_BITS)
_PENDING = 1 << 21


class Tally:
    """Counts of votes by group, pair and winner; add batches, then ask for tables."""

    def __init__(self) -> None:
        self._keys: Ints = np.empty(0, dtype=np.int64)
        self._sums: Floats = np.empty((3, 0))  # votes, weights, squared weights
        self._waiting: list[tuple[Ints, Floats]] = []
        self._number_waiting = 0

    def add(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, weights: Floats) -> None:
        """Count a batch of votes (N,); `group` and the models are codes of the caller's.

        Raises:
            VoteError: more groups or models than keys can number.
        """
        if len(group) and (group.max() >= _GROUP_LIMIT or max(model_a.max(), model_b.max()) >= 1 << _MODEL_BITS):
            raise VoteError(f"more than {_GROUP_LIMIT:,} groups or {1 << _MODEL_BITS:,} models")
        keys = ((group << _MODEL_BITS | model_a.astype(np.int64)) << _MODEL_BITS | model_b) << 2 | winner
        with np.errstate(over="ignore"):  # a fit refuses weights as far out as that
            self._waiting.append((keys, np.stack([np.ones(len(keys)), weights, weights**2])))
        self._number_waiting += len(keys)
        if self._number_waiting > max(_PENDING, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        sums = np.concatenate([self._sums, *(sums for _, sums in self._waiting)], axis=1)
        self._keys, place = np.unique(keys, return_inverse=True)
        self._sums = np.stack([np.bincount(place, row, len(self._keys)) for row in sums])
        self._waiting, self._number_waiting = [], 0

    def groups(self) -> dict[int, int]:
        """The groups and their number of votes."""
        self._merge()
        numbers, first = np.unique(self._keys >> (2 * _MODEL_BITS + 2), return_index=True)
        votes = np.add.reduceat(self._sums[0], first) if len(first) else np.empty(0)
        return {int(number): round(float(count)) for number, count in zip(numbers, votes, strict=True)}

    def table(self, group: int, names: Sequence[str]) -> tuple[PairTable, list[str]]:
        """The pair table of one group over the models that it holds votes of, and their names, sorted.

        Args:
            group: its code.
            names: name of each model code.
        """
        a, b, winner, (votes, weights, squares) = self.cells(group)
        seen = sorted({names[code] for code in np.unique(np.concatenate([a, b]))})
        position = {name: index for index, name in enumerate(seen)}
        recode = np.array([position.get(name, -1) for name in names], dtype=np.int64)
        local = (recode[a] * len(seen) + recode[b]) * 4 + winner
        if np.array_equal(votes, weights):
            return table_from_keys(local, votes, num_models=len(seen)), seen
        return table_from_keys(local, votes, weights, squares, num_models=len(seen)), seen

    def cells(self, group: int) -> tuple[Ints, Ints, Ints, Floats]:
        """The distinct votes of one group: codes of model a and b (U,), winner (U,) and sums (3, U).

        The sums are those of the votes, of their weights and of their squared weights.
        """
        if self._waiting:
            self._merge()
        start, end = np.searchsorted(self._keys, [group << (2 * _MODEL_BITS + 2), (group + 1) << (2 * _MODEL_BITS + 2)])
        keys = self._keys[start:end]
        mask = (1 << _MODEL_BITS) - 1
        return keys >> (_MODEL_BITS + 2) & mask, keys >> 2 & mask, keys & 3, self._sums[:, start:end]
