"""Coefficients that a lake keeps beside its counts: where the fits of its next leaderboards begin.

A start is never a result: each leaderboard is fitted to its counts, and takes one Newton step where these are those of
the last run, a few where votes came. The figures are those of a fit from nothing to the square of the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import VoteError
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.counts import digest_of, mark_of, marked
from p2l.leaderboard.newton import Prior
from p2l.votes.lake import Lake

Floats = npt.NDArray[np.float64]
_MOST_BOARDS = 2_000  # the largest groups come first
_MOST = 100.0  # no coefficient of a fit is as far out
_ETA = ""


class Starts:
    """Coefficients by column and value, or by period, of leaderboards of one kind; without a lake there are none."""

    def __init__(self, lake: Lake | None = None, facts: Any = None) -> None:
        """Read those that the last run of the same kind, which `facts` tell, has kept."""
        self._lake, self._path = lake, f"_counts/{digest_of(['starts', facts])}.parquet"
        self._likelihood: str | None = None
        self._coefs: dict[tuple[str, str], dict[str, float]] = {}
        self._boards: list[tuple[str, str, Leaderboard]] = []
        if lake is not None and lake.files.get_file_info(f"{lake.root}/{self._path}").is_file:
            self._read(lake)

    def _read(self, lake: Lake) -> None:
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(f"{lake.root}/{self._path}", filesystem=lake.files)
            self._likelihood = mark_of(table, self._path).get("likelihood")
            columns = (table.column(name).to_pylist() for name in ("by", "value", "model", "coef"))
            for by, text, model, coef in zip(*columns, strict=True):
                if abs(coef) <= _MOST:
                    self._coefs.setdefault((by, text), {})[model] = coef
        except (VoteError, OSError, KeyError, TypeError, pa.ArrowException):
            self._coefs = {}  # a fit from nothing does as well

    def of(self, by: str, text: str, models: Sequence[str], likelihood: str, prior: Prior | None) -> Floats | None:
        """Return M coefficients, and eta behind them where there is one; None where nothing is kept."""
        coefs = self._coefs.get((by, text))
        if coefs is None or likelihood != self._likelihood:
            return None
        rest = np.zeros(len(models)) if prior is None or prior.coefs is None else prior.coefs
        start = [coefs.get(name, other) for name, other in zip(models, rest.tolist(), strict=True)]
        return np.array([*start, *([coefs[_ETA]] if _ETA in coefs else [])])

    def add(self, by: str, text: str, board: Leaderboard) -> None:
        """Note a leaderboard for the next run."""
        if self._lake is not None and len(self._boards) < _MOST_BOARDS and not board.effects:
            self._boards.append((by, text, board))

    def keep(self) -> None:
        """Write what was noted; a lake that cannot be written goes without."""
        import pyarrow.parquet as pq

        if self._lake is None or not self._boards:
            return
        rows = [
            (by, text, model, coef)
            for by, text, board in self._boards
            for model, coef in [
                *zip(board.models, board.coefs.tolist(), strict=True),
                *([] if board.eta is None else [(_ETA, board.eta)]),
            ]
        ]
        columns = dict(zip(("by", "value", "model", "coef"), map(list, zip(*rows, strict=True)), strict=True))
        try:
            with self._lake.output(self._path) as file:
                table = marked(pa.table(columns), {"likelihood": self._boards[0][2].likelihood})
                pq.write_table(table, file, compression="zstd")
        except (OSError, pa.ArrowException):
            return
