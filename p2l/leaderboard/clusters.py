"""Votes that were not cast independently: those of one person, or on one prompt.

Shapes: N votes of a batch.

Intervals need to know which votes belong together, so every vote stays in memory here, with 29 bytes for each group
that it is in; without clusters a leaderboard keeps counts alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.errors import VoteError
from p2l.leaderboard.intervals import Units, units_of
from p2l.leaderboard.pair_table import Ints, PairTable
from p2l.votes.schema import hash_turns

__all__ = ["ClusteredVotes"]

Floats = npt.NDArray[np.float64]
_KINDS = ["<i8", "<i4", "<i4", "i1", "<f8", "<i4"]


class ClusteredVotes:
    """The votes of each group with their clusters; add batches, then ask for `units`."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._numbers: dict[Any, int] = {}
        self._parts: list[list[npt.NDArray[Any]]] = []
        self._joined: list[npt.NDArray[Any]] | None = None

    def number(self, values: Any) -> Ints:
        """Number (N,) of the cluster that each value of an Arrow column names; a vote without one stands alone.

        Raises:
            VoteError: values of this type cannot name clusters.
        """
        if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
            keys = [None if turns is None else hash_turns(turns) for turns in values.to_pylist()]
        elif pa.types.is_nested(values.type):
            raise VoteError(f"column {self.column!r} holds {values.type}, which cannot name clusters")
        else:
            keys = values.to_pylist()
        fresh = (self._numbers.setdefault(object() if key is None else key, len(self._numbers)) for key in keys)
        return np.fromiter(fresh, dtype=np.int64, count=len(keys))

    def add(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, weights: Floats, cluster: Ints) -> None:
        """Keep a batch of votes, all (N,)."""
        columns = (group, model_a, model_b, winner, weights, cluster)
        self._parts.append([column.astype(kind) for column, kind in zip(columns, _KINDS, strict=True)])

    def units(self, group: int, table: PairTable, recode: Ints) -> Units:
        """The votes of one group as units of its table.

        Args:
            group: its code.
            table: its pairs.
            recode: position in the table of each model code.
        """
        if self._joined is None:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            order = np.argsort(joined[0], kind="stable")
            self._joined, self._parts = [column[order] for column in joined], []
        start, end = np.searchsorted(self._joined[0], [group, group + 1])
        _, a, b, winner, weights, cluster = (column[start:end] for column in self._joined)
        return units_of(table, recode[a], recode[b], winner, weights, cluster)
