"""The times of votes, and when training batches of them ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.command import progress
from p2l.errors import VoteError

__all__ = ["EndTimes", "read_times", "times_of_ids"]

Times = NDArray[np.float64]


class EndTimes:
    """The running maximum of times at the end of every batch; takes the times in any pieces."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size
        self._newest = -np.inf
        self._seen = 0
        self._ends: list[float] = []

    def see(self, times: Times) -> None:
        """Take in the times of the next votes."""
        newest = np.maximum.accumulate(np.concatenate([[self._newest], times]))
        self._ends += newest[self._size - self._seen % self._size :: self._size].tolist()
        self._seen += len(times)
        self._newest = float(newest[-1])

    def by_batch(self) -> dict[str, dict[str, float]]:
        """Batch: its end; a last batch that is not full counts."""
        ends = self._ends + [self._newest] * (self._seen % self._size > 0)
        return {str(batch): {"end_tstamp": end} for batch, end in enumerate(ends)}


def read_times(path: str, tstamp_file: str | None = None, *, quiet: bool = True) -> Iterator[Times]:
    """The times of a source's votes, a batch of votes at a time.

    Args:
        path: any source of votes.
        tstamp_file: JSON lines of question_id and tstamp, for votes that have the former alone.

    Raises:
        VoteError: there is no such column, or a vote has no time; the message names it.
    """
    from p2l.votes import read_votes
    from p2l.votes.sources import open_source

    source = open_source(path)
    name = "tstamp" if tstamp_file is None else "question_id"
    if name not in source.columns:
        hint = "; give --tstamp-file FILE.jsonl, lines of question_id and tstamp" if tstamp_file is None else ""
        raise VoteError(f"{source.name}: no column {name!r}; columns: {', '.join(source.columns)}{hint}")
    known = times_of_ids(tstamp_file) if tstamp_file is not None else {}
    with progress(description=f"read {source.name}", total=source.rows, unit="votes", quiet=quiet) as bar:
        for batch in read_votes(source, columns=[name]):
            times = _times(batch.batch.column(name), known if tstamp_file is not None else None)
            if np.isnan(times).any():
                where = batch.place(int(np.isnan(times).argmax()))
                raise VoteError(f"{where}: has no tstamp" + (f" in {tstamp_file}" if tstamp_file else ""))
            yield times
            bar.update(len(times))


def _times(column: Any, known: dict[str, float] | None) -> Times:
    from p2l.votes.schema import numbers

    if known is None:
        return np.asarray(numbers(column), dtype=np.float64)
    return np.array([known.get(str(value), np.nan) for value in column.to_pylist()])


def times_of_ids(path: str) -> dict[str, float]:
    """question_id: tstamp, of a file of JSON lines; held in memory.

    Raises:
        VoteError: the file cannot be read, or a line lacks one of the two.
    """
    found: dict[str, float] = {}
    try:
        with Path(path).expanduser().open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found.update([_entry(line, f"{path}: line {number}")])
    except (OSError, UnicodeDecodeError) as error:
        raise VoteError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return found


def _entry(line: str, where: str) -> tuple[str, float]:
    try:
        row = json.loads(line)
        return str(row["question_id"]), float(row["tstamp"])
    except (ValueError, KeyError, TypeError) as error:
        raise VoteError(f"{where}: must be an object with question_id and tstamp, in seconds") from error
