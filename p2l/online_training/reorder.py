"""Write the votes of a file in the order in which a buffer gives them out.

Training on the result, from first to last with the global batch size that the report names, is training through the
buffer: same seed, same order. Rows keep all columns; a replayed vote is there twice. Beside the votes lie
`<output>.timestamps.json` (see `p2l timestamps`) and `<output>.lag.json`. All are there when the command ends, or none.

Memory: what waits in the buffer and 16,384 rows; with `sort`, also 16 bytes a vote. The rows wait on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2l.command import atomic_path, progress
from p2l.errors import VoteError
from p2l.online_training.buffer import Batches, Buffer, NewVotes
from p2l.online_training.end_times import EndTimes
from p2l.online_training.lag import Lag

if TYPE_CHECKING:
    from p2l.votes import VoteStore

__all__ = ["Reordered", "batches_of", "beside", "reorder", "time_order"]

_CHUNK = 1 << 16  # votes that enter the buffer together
_BLOCK = 1 << 14  # rows that are written together
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Reordered:
    """What was written."""

    votes: int
    batches: int
    global_batch_size: int
    """Votes of a whole batch, replayed ones included: what the training configuration has to multiply to."""
    dropped: int
    lag: Lag

    def as_dict(self) -> dict[str, Any]:
        """For `<output>.lag.json`."""
        return {
            "votes": self.votes,
            "batches": self.batches,
            "global_batch_size": self.global_batch_size,
            "dropped": self.dropped,
            **{f"lag_{name}": value for name, value in self.lag.as_dict().items()},
        }


def reorder(store: VoteStore, buffer: Buffer, output: Path, *, sort: bool = False, quiet: bool = True) -> Reordered:
    """Write the votes of a store through a buffer.

    Args:
        sort: bring the votes into the order of time first, rather than refuse those that are not.

    Raises:
        VoteError: a vote has no time, or lies before the one ahead of it.
        InputError: a file cannot be written.
    """
    from p2l.votes.writer import open_writer

    order = time_order(store, sort=sort)
    ends = EndTimes(buffer.full_size)
    votes = batches = 0
    with ExitStack() as files:
        lag_path, times_path = (files.enter_context(atomic_path(path)) for path in beside(output))
        write = files.enter_context(open_writer(output, store.schema))
        bar = files.enter_context(progress(description="write", unit="votes", quiet=quiet))
        for block in _blocks(batches_of(store, buffer, order)):
            ids = np.concatenate(block)
            write(store.take(ids))
            ends.see(_times(store, ids))
            votes, batches = votes + len(ids), batches + len(block)
            bar.update(len(ids))
        if not votes:
            raise VoteError(
                f"{store.name}: {len(store):,} votes fill no batch of {buffer.batch_size:,}; nothing to write"
            )
        done = Reordered(votes, batches, buffer.full_size, buffer.dropped, buffer.lag)
        lag_path.write_text(json.dumps(done.as_dict(), indent=1), encoding="utf-8")
        times_path.write_text(json.dumps(ends.by_batch(), indent=1), encoding="utf-8")
    return done


def batches_of(store: VoteStore, buffer: Buffer, order: Ids | None = None) -> Iterator[NDArray[np.int64]]:
    """The batches that a buffer makes of all votes, drained at the end."""
    for start in range(0, len(store), _CHUNK):
        end = min(start + _CHUNK, len(store))
        ids = np.arange(start, end) if order is None else order[start:end]
        pairs = store.labels(ids)  # winner and loser: which of them is model_a does not matter here
        yield from buffer.add(NewVotes(ids, pairs[:, 0], pairs[:, 1], _times(store, ids)))
    yield from buffer.drain()


def time_order(store: VoteStore, *, sort: bool) -> Ids | None:
    """Ids in the order of time (equal times as they come), or None when that is the order they have.

    Raises:
        VoteError: a vote has no time, or without `sort` lies before the one ahead of it; the message names it.
    """
    last, is_sorted = -np.inf, True
    for start in range(0, len(store), _CHUNK):
        times = _times(store, np.arange(start, min(start + _CHUNK, len(store))))
        early = np.diff(times, prepend=last) < 0
        if early.any():
            is_sorted = False
            if not sort:
                vote = start + int(early.argmax()) + 1
                raise VoteError(
                    f"{store.name}: vote {vote} is older than the one before it; add --sort to sort by time"
                )
        last = times[-1]
    if is_sorted:
        return None
    return np.argsort(_times(store, np.arange(len(store))), kind="stable")


def _times(store: VoteStore, ids: Ids) -> NDArray[np.float64]:
    times = store.tstamps(ids)
    if times is None:
        raise VoteError(
            f"{store.name}: no column 'tstamp' to tell the order of votes; columns: {', '.join(store.columns)}"
        )
    if np.isnan(times).any():
        raise VoteError(f"{store.name}: vote {ids[np.isnan(times).argmax()] + 1} has no tstamp")
    return times


def _blocks(batches: Iterator[NDArray[np.int64]]) -> Iterator[Batches]:
    """Batches, as many together as make a block."""
    block: Batches = []
    rows = 0
    for batch in batches:
        block.append(batch)
        rows += len(batch)
        if rows >= _BLOCK:
            yield block
            block, rows = [], 0
    if block:
        yield block


def beside(output: Path) -> tuple[Path, Path]:
    """The files of lag and of timestamps that belong to a file of reordered votes."""
    return output.with_name(output.name + ".lag.json"), output.with_name(output.name + ".timestamps.json")
