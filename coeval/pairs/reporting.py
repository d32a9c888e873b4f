"""Report pairs: the leaderboards of a run from its preferences, for the pages.

Intervals come from the sandwich formula, clustered by item: close to those of the bootstrap of `pairs-leaderboard`,
without its time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coeval.analysis.results import PairBoardRow, PairsReport
from coeval.analysis.units import Loaded
from coeval.pairs.board import OVERALL, Slice, rows_of
from coeval.pairs.columns import Votes, votes_of
from coeval.pairs.derive import Rule
from coeval.pairs.flips import flip_rows
from coeval.pairs.gathering import Wanted, why_none
from p2l.errors import InputError
from p2l.leaderboard import Leaderboard, fit

__all__ = ["pairs_report"]

LIKELIHOOD = "rk"


def pairs_report(loaded: Loaded) -> PairsReport:
    """Leaderboards from verdicts on pairs, and from scores for tasks without them; empty with the reason if there are
    none."""
    votes, is_native = votes_of(loaded, Rule())
    students = [loaded.matching("judge", "student")[votes.judge] == model for model in (votes.model_a, votes.model_b)]
    fair = ~(students[0] | students[1])
    native, derived = (int((fair & kind).sum()) for kind in (is_native, ~is_native))
    rows: tuple[PairBoardRow, ...] = ()
    why = "" if fair.any() else why_none(Wanted(), len(votes), loaded.skipped)
    try:
        rows = tuple(_rows(loaded, votes.where(fair))) if fair.any() else ()
    except InputError as error:
        why = str(error)
    self_judged = int((~fair).sum()) if fair.any() else 0
    return PairsReport(
        loaded.header, LIKELIHOOD, native, derived, self_judged, why, rows=rows, flips=flip_rows(loaded.verdicts)
    )


def _rows(loaded: Loaded, votes: Votes) -> Iterator[PairBoardRow]:
    """Overall, then by task and by each of its attributes' values, by name."""
    yield from _board_rows(Slice(OVERALL), _board(loaded, votes))
    for task in np.unique(votes.task).tolist():
        mine = votes.where(votes.task == task)
        parts = {Slice(loaded.tasks[task]): mine}
        rows, values = loaded.grouped(mine, "attribute")
        for value in np.unique(values).tolist():
            parts[Slice(loaded.tasks[task], loaded.attribute_names[value])] = mine.where(rows[values == value])
        for key, part in sorted(parts.items(), key=lambda item: item[0]):
            try:
                yield from _board_rows(key, _board(loaded, part))
            except InputError:  # none of them counts
                continue


def _board(loaded: Loaded, votes: Votes) -> Leaderboard:
    known, places = np.unique(np.stack([votes.model_a, votes.model_b]), return_inverse=True)
    a, b = places.reshape(2, -1)
    models = [loaded.students[code] for code in known.tolist()]
    return fit(a, b, votes.winner, models=models, likelihood=LIKELIHOOD, clusters=votes.datapoint)


def _board_rows(part: Slice, board: Leaderboard) -> Iterator[PairBoardRow]:
    for row in rows_of(part, board):
        yield PairBoardRow(**{("student" if key == "model" else key): value for key, value in row.items()})
