"""Report pairs: the leaderboards of a run from its preferences, for the pages."""

from __future__ import annotations

from coeval.analysis.results import PairBoardRow, PairsReport
from coeval.analysis.units import Loaded
from coeval.pairs.board import BoardOptions, boards, rows_of
from coeval.pairs.flips import flip_rows
from coeval.pairs.gathering import Gathered, Wanted, gather
from p2l.errors import InputError

__all__ = ["pairs_report"]

OPTIONS = BoardOptions(intervals="sandwich")
"""Intervals clustered by item, as of the bootstrap of `pairs-leaderboard` but without its time."""


def pairs_report(loaded: Loaded) -> PairsReport:
    """Leaderboards from verdicts on pairs, and from scores for tasks without them; empty with the reason if there are
    none."""
    rows: tuple[PairBoardRow, ...] = ()
    gathered, why = Gathered([]), ""
    try:
        gathered = gather(loaded.run, Wanted())
        rows = _rows(gathered)
    except InputError as error:
        why = str(error).removeprefix(f"{loaded.run.folder}: ")
    sources = [one.source for one in gathered.preferences]
    return PairsReport(
        loaded.header,
        OPTIONS.likelihood,
        native=sources.count("native"),
        derived=sources.count("derived"),
        self_judged=gathered.self_judged,
        why_none=why,
        rows=rows,
        flips=flip_rows(loaded.verdicts),
    )


def _rows(gathered: Gathered) -> tuple[PairBoardRow, ...]:
    found = boards(gathered.preferences, OPTIONS, gathered.attributes)
    return tuple(
        PairBoardRow(**{("student" if key == "model" else key): value for key, value in row.items()})
        for part, board in found.items()
        for row in rows_of(part, board)
    )
