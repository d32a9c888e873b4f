"""Coefficients that a lake keeps beside its counts: where the fits of its next leaderboards begin.

A start is never a result: each leaderboard is fitted to its counts, and takes one Newton step where these are those of
the last run, a few where votes came. The figures are those of a fit from nothing to the square of the last step.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from p2l.common.errors import VoteError
from p2l.common.files import parse_json
from p2l.leaderboard.board import Leaderboard
from p2l.leaderboard.counts import digest_of
from p2l.leaderboard.newton import Prior
from p2l.votes.lake import Lake

Floats = npt.NDArray[np.float64]
_MOST_COEFS = 1_000_000  # the largest groups come first
_MOST = 100.0  # no coefficient of a fit is as far out


class Starts:
    """Coefficients by column and value, or by period, of leaderboards of one kind; without a lake there are none."""

    def __init__(self, lake: Lake | None = None, facts: Any = None) -> None:
        """Read those that the last run of the same kind, which `facts` tell, has kept."""
        self._lake, self._path = lake, f"_counts/{digest_of(['starts', facts])}.json"
        self._likelihood: str | None = None
        self._coefs: dict[tuple[str, str], tuple[dict[str, float], float | None]] = {}
        self._number = 0
        self._boards: list[tuple[str, str, Leaderboard]] = []
        if lake is not None and lake.files.get_file_info(f"{lake.root}/{self._path}").is_file:
            self._read(lake)

    def _read(self, lake: Lake) -> None:
        try:
            kept = parse_json(lake.read(self._path))
            for by, text, coefs, eta in kept["boards"]:
                own = {name: float(coef) for name, coef in coefs.items() if abs(coef) <= _MOST}
                self._coefs[by, text] = own, float(eta) if eta is not None and abs(eta) <= _MOST else None
            self._likelihood = kept["likelihood"]
        except (VoteError, OSError, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
            self._coefs = {}  # a fit from nothing does as well

    def of(self, by: str, text: str, models: Sequence[str], likelihood: str, prior: Prior | None) -> Floats | None:
        """Return M coefficients, and eta behind them where there is one; None where nothing is kept."""
        coefs, eta = self._coefs.get((by, text), ({}, None))
        if not coefs or likelihood != self._likelihood:
            return None
        rest = np.zeros(len(models)) if prior is None or prior.coefs is None else prior.coefs
        start = [coefs.get(name, other) for name, other in zip(models, rest.tolist(), strict=True)]
        return np.array([*start, *([] if eta is None else [eta])])

    def add(self, by: str, text: str, board: Leaderboard) -> None:
        """Note a leaderboard for the next run."""
        self._number += len(board.models)
        if self._lake is not None and self._number <= _MOST_COEFS and not board.effects:
            self._boards.append((by, text, board))

    def keep(self) -> None:
        """Write what was noted; a lake that cannot be written goes without."""
        if self._lake is None or not self._boards:
            return
        boards = [
            [by, text, dict(zip(board.models, board.coefs.tolist(), strict=True)), board.eta]
            for by, text, board in self._boards
        ]
        about = {"likelihood": self._boards[0][2].likelihood, "boards": boards}
        with contextlib.suppress(OSError, pa.ArrowException):
            self._lake.write(self._path, json.dumps(about).encode())
