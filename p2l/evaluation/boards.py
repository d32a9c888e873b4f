"""Leaderboards that an evaluation fits to votes, as published.

A marginal leaderboard is the best fit without regularisation. Where there is none (a model that never lost, say), or
only at infinity, the default prior of `p2l.leaderboard` holds it, and a note says so.

Shapes: M models, N votes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConvergenceError, InputError
from p2l.leaderboard import Leaderboard, PairTable, Prior, fit_table, vote_table
from p2l.leaderboard.intervals import units_of
from p2l.leaderboard.pair_tables import components
from p2l.likelihood import counted, get
from p2l.metrics import Standing

Ints = npt.NDArray[np.integer[Any]]
_FREE = Prior(sd=math.inf)
WINNERS_OF_TIES = np.array([0, 2, 3])
"""Codes of `p2l.votes.schema.WINNERS` for the third entry of labels whose first model is model_a."""
HELD = (
    "These votes have no finite best fit (some model never lost or never won, or an outcome never happened), so a weak "
    "prior holds it (normal, standard deviation 5)."
)


def board_of_labels(
    labels: Ints, models: Sequence[str], likelihood: str, *, clusters: Any = None, intervals: bool = True, level: float
) -> Leaderboard:
    """Fit labels (N, 3), over the models that they hold; intervals are clustered by prompt.

    Raise InputError where no vote counts, or fewer than two models do.
    """
    rows = np.flatnonzero(counted(get(likelihood), labels))
    votes = labels[rows]
    present = np.unique(votes[:, :2])
    if not len(present):
        raise InputError(f"no vote counts under likelihood {likelihood}")
    place = np.full(len(models), -1, dtype=np.int64)
    place[present] = np.arange(len(present))
    a, b, winner = place[votes[:, 0]], place[votes[:, 1]], WINNERS_OF_TIES[votes[:, 2]]
    table = vote_table(a, b, winner, len(present))
    units = None if clusters is None else units_of(table, a, b, winner, None, np.asarray(clusters)[rows])
    names = [models[code] for code in present]
    return board_of_table(table, names, likelihood, units=units, intervals=intervals, level=level)


def board_of_table(
    table: PairTable,
    models: Sequence[str],
    likelihood: str,
    *,
    units: Any = None,
    intervals: bool = False,
    level: float = 0.95,
) -> Leaderboard:
    """Fit counted votes: the best fit, or, where there is none, the one that a weak prior holds."""
    options: dict[str, Any] = {"models": models, "likelihood": likelihood, "units": units, "level": level}
    options["intervals"] = "sandwich" if intervals else None
    if _may_be_free(table):
        try:
            return fit_table(table, prior=_FREE, **options)
        except ConvergenceError:
            pass
    board = fit_table(table, prior=Prior(), **options)
    return dataclasses.replace(board, notes=(HELD, *board.notes))


def _may_be_free(table: PairTable) -> bool:
    """Whether everyone has beaten (or tied with) everyone, directly or in a chain."""
    up, down = table.weights[:, [0, 2, 3]].sum(axis=1) > 0, table.weights[:, 1:].sum(axis=1) > 0
    beaten = np.concatenate([table.first[up], table.second[down]])
    beating = np.concatenate([table.second[up], table.first[down]])
    return bool((components(table.num_models, beaten, beating, directed=True) == 0).all())


def standing(board: Leaderboard, models: Sequence[str]) -> Standing:
    """Return a leaderboard as columns of `models`, NaN for those it does not know."""
    place = dict(zip(board.models, board.coefs.tolist(), strict=True))
    return Standing(np.array([place.get(name, math.nan) for name in models]), board.eta, board.gamma)
