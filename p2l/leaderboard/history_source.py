"""The history that `p2l leaderboard --over` prints: one pass through a file of votes, counted by period.

Memory holds a row for each distinct (period, pair, order, winner), however many votes there are.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.command import nearest, progress
from p2l.errors import InputError, VoteError
from p2l.leaderboard.counting import Tally
from p2l.leaderboard.history import History, history_of_tally
from p2l.leaderboard.periods import Over, parse_over, times_of
from p2l.leaderboard.sources import batches_of_votes, vote_codes
from p2l.votes.reader import VoteBatch
from p2l.votes.sources import open_source
from p2l.votes.stream import Source

__all__ = ["history_of_votes"]

Floats = npt.NDArray[np.float64]


def history_of_votes(args: argparse.Namespace) -> History:
    """The history of a file of votes, as the flags of the command say.

    Raises:
        InputError: votes or times that cannot be read, an unknown period, fewer than two models.
    """
    over = parse_over(args.over)
    source = open_source(args.votes)
    if args.time_column not in source.columns:
        raise VoteError(
            f"{source.name}: no column {args.time_column!r}{nearest(args.time_column, source.columns)} to tell periods "
            f"by; name it with --time-column; columns: {', '.join(source.columns)}"
        )
    counted = _Counted(over, args.time_column, drop_bad=args.drop_bad)
    columns = ["model_a", "model_b", "winner", args.time_column, *["weight"] * args.weighted]
    with progress(total=source.rows, description="votes", unit=" votes", quiet=args.quiet) as bar:
        for batch in batches_of_votes(source, list(dict.fromkeys(columns)), drop_bad=args.drop_bad):
            counted.add(batch, weighted=args.weighted)
            bar.update(len(batch))
    return counted.history(source, args)


@dataclasses.dataclass
class _Counted:
    """Votes by period, as they are read."""

    over: Over
    column: str
    drop_bad: bool
    tally: Tally = dataclasses.field(default_factory=Tally)
    names: dict[str, int] = dataclasses.field(default_factory=dict)
    codes: dict[int, int] = dataclasses.field(default_factory=dict)
    dropped: int = 0
    timeless: int = 0

    def add(self, batch: VoteBatch, *, weighted: bool) -> None:
        """Count a batch."""
        times = times_of(batch.batch.column(self.column), self.over)
        timed = np.isfinite(times)
        if not timed.all() and not self.drop_bad:
            raise self._no_time(batch, int(np.argmin(timed)))
        self.dropped += batch.dropped
        self.timeless += int((~timed).sum())
        a, b, winner, weights = vote_codes(batch, self.names, weighted=weighted)
        indices, place = np.unique(self.over.index(times[timed]), return_inverse=True)
        codes = [self.codes.setdefault(int(index), len(self.codes)) for index in indices]
        group = np.array(codes, dtype=np.int64)[place.reshape(-1)]
        self.tally.add(group, a[timed], b[timed], winner[timed], weights[timed])

    def _no_time(self, batch: VoteBatch, row: int) -> VoteError:
        value = batch.batch.column(self.column)[row].as_py()
        return VoteError(
            f"{batch.place(row)}: {self.column} {value!r:.40} is no time; give seconds since 1970, an ISO date, or "
            "text such as 2025-06 or 2025-W23, or add --drop-bad to leave out such rows"
        )

    def history(self, source: Source, args: argparse.Namespace) -> History:
        """The leaderboards of all periods, and what was left out."""
        if not self.codes:
            raise VoteError(f"{source.name}: no vote has a time in column {self.column!r}")
        options: dict[str, Any] = {
            "intervals": None if args.intervals == "none" else args.intervals,
            "level": args.level,
            "seed": args.seed,
        }
        fixed: dict[str, Any] = {"mode": args.periods, "likelihood": args.likelihood or "bt", "shrink": args.shrink}

        def shown(indices: Any) -> Any:
            return progress(indices, description=f"{self.over.unit}s", quiet=args.quiet)

        try:
            history = history_of_tally(
                self.tally, self.codes, list(self.names), over=self.over, each=shown, **fixed, **options
            )
        except InputError as error:
            raise VoteError(f"{source.name}: {error}") from error
        return dataclasses.replace(history, notes=(*history.notes, *self._left_out()))

    def _left_out(self) -> list[str]:
        notes = []
        if self.dropped:
            notes.append(f"{self.dropped:,} rows that are no votes were left out.")
        if self.timeless:
            notes.append(f"{self.timeless:,} votes without a time were left out.")
        return notes
