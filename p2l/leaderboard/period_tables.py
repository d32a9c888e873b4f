"""Tables of pairs by period, alone or added up, from the counts of one pass through the votes.

Shapes: U distinct (period, model a, model b, winner), P pairs that met at any time, M models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.leaderboard.counting import Tally
from p2l.leaderboard.pair_table import PairTable

__all__ = ["PeriodTable", "period_tables"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class PeriodTable(NamedTuple):
    """The votes of a period, or up to its end."""

    code: int
    """The period's code in the tally."""
    votes: int
    """Of the period alone."""
    table: PairTable
    models: list[str]
    """Those with votes in the table, sorted."""


def period_tables(
    tally: Tally, codes: Sequence[int], names: Sequence[str], *, cumulative: bool
) -> Iterator[PeriodTable]:
    """The table of each period, in the order of `codes`; a period costs the order of its distinct votes and of P.

    Args:
        tally: the votes, its groups the periods.
        codes: the tally's groups in order of time.
        names: name of each model code.
        cumulative: add to each table all those before it.
    """
    order = sorted(range(len(names)), key=lambda code: names[code])
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    cells = [tally.cells(code) for code in codes]
    pairs = [_pairs(rank[a], rank[b], winner, len(names)) for a, b, winner, _ in cells]
    known = np.unique(np.concatenate([pair for pair, _ in pairs]))
    total: Floats = np.zeros((3, 4 * len(known)))
    for code, (pair, column), (*_, sums) in zip(codes, pairs, cells, strict=True):
        place = np.searchsorted(known, pair) * 4 + column
        here: Floats = np.stack([np.bincount(place, row, total.shape[1]).astype(np.float64) for row in sums])
        total = total + here if cumulative else here
        table, seen = _table(known, total, len(names))
        yield PeriodTable(code, round(float(sums[0].sum())), table, [names[order[model]] for model in seen])


def _pairs(a: Ints, b: Ints, winner: Ints, num_models: int) -> tuple[Ints, Ints]:
    """Number of each pair whichever was shown first, and the winner's column seen from its lower model."""
    column = np.where((a > b) & (winner < 2), 1 - winner, winner)
    return np.minimum(a, b) * num_models + np.maximum(a, b), column


def _table(known: Ints, sums: Floats, num_models: int) -> tuple[PairTable, Ints]:
    """The table over the models that have votes, and which these are."""
    votes, weights, squares = sums.reshape(3, -1, 4)
    used = votes.sum(axis=1) > 0
    first, second = np.divmod(known[used], num_models)
    seen = np.unique(np.concatenate([first, second]))
    place = np.full(num_models, -1, dtype=np.int64)
    place[seen] = np.arange(len(seen))
    table = PairTable(len(seen), place[first], place[second], weights[used], squares[used], votes[used])
    return table, seen
