"""Write the votes of a file in the order in which a buffer gives them out.

Training on the result, from first to last with the global batch size that the report names, is training through the
buffer: same seed, same order. Rows keep all columns; a replayed vote is there twice. Beside the votes lie
`<output>.timestamps.json` (see `p2l timestamps`) and `<output>.lag.json`. All are there when the command ends, or none.

Memory: what waits in the buffer and 16,384 rows; with `sort`, also 16 bytes a vote. The rows wait on disk.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import parser, positive, progress, whole
from p2l.common.errors import ConfigError, VoteError
from p2l.common.files import atomic_path, check_can_write
from p2l.online_training.buffer import Batches, Buffer, Lag, NewVotes

if TYPE_CHECKING:
    from p2l.online_training.buffers import BufferSettings
    from p2l.votes import VoteStore


# Flags and work of the commands that write votes in the order of a buffer.

ABOUT = {
    "geometric": "Write votes in the order of the geometric buffer, with timestamps and lag.",
    "replay": "Write votes with past ones replayed among them, with timestamps and lag.",
}


def add_geometric(top: argparse.ArgumentParser) -> None:
    """The flags of the geometric buffer."""
    _add_shared(top)
    top.add_argument("--gamma", type=float, default=0.995, help="how fast a model grows familiar, in (0, 1]")
    top.add_argument("--epsilon", type=float, default=0.001, help="least chance to be used at once, in (0, 1]")


def add_replay(top: argparse.ArgumentParser) -> None:
    """The flags of the replay buffer."""
    _add_shared(top)
    top.add_argument("--epsilon", type=float, default=0.2, help="share of replayed votes in a batch, in (0, 1)")
    top.add_argument("--limit", type=positive, metavar="N", help="most votes ready to be replayed; by default all are")
    top.add_argument("--min-batches", type=whole, default=5, metavar="N", help="batches before the first replay")
    top.add_argument("--geometric", action="store_true", help="replay on top of the geometric buffer")
    top.add_argument("--gamma", type=float, help="gamma of the geometric buffer; default 0.995")
    top.add_argument(
        "--geometric-epsilon", type=float, metavar="P", help="epsilon of the geometric buffer; default 0.001"
    )


def run_geometric(args: argparse.Namespace) -> int:
    """Reorder as the flags say."""
    return _reorder(args, type="geometric", gamma=args.gamma, epsilon=args.epsilon)


def run_replay(args: argparse.Namespace) -> int:
    """Reorder as the flags say.

    Raises:
        ConfigError: flags of the geometric buffer without it.
    """
    if not args.geometric and (args.gamma, args.geometric_epsilon) != (None, None):
        raise ConfigError("--gamma and --geometric-epsilon belong to --geometric; add it, or remove them")
    on = {"type": "geometric" if args.geometric else "none", "gamma": args.gamma, "epsilon": args.geometric_epsilon}
    return _reorder(
        args,
        type="replay",
        epsilon=args.epsilon,
        limit=args.limit,
        min_batches=args.min_batches,
        on={name: value for name, value in on.items() if value is not None},
    )


def _add_shared(top: argparse.ArgumentParser) -> None:
    """The flags that the commands of all buffers share."""
    top.add_argument(
        "--input", required=True, metavar="VOTES", help="hub id, save_to_disk folder, or a file of votes, oldest first"
    )
    top.add_argument("--output", required=True, metavar="FILE", help="votes to write; the ending names the format")
    top.add_argument("--batch-size", type=positive, default=512, metavar="N", help="new votes of a batch")
    top.add_argument(
        "--seed", type=whole, default=42, help="of what is drawn; the same gives the same order in training"
    )
    top.add_argument("--sort", action="store_true", help="sort the votes by time first, rather than refuse them")
    top.add_argument("--drop-tail", action="store_true", help="drop what waits at the end of the stream")
    top.add_argument("--drop-bad", action="store_true", help="leave out rows that are no votes, and count them")
    top.add_argument("--dataset-split", default="train", metavar="NAME", help="which split of a data set with several")
    top.add_argument("--quiet", action="store_true", help="no progress bar")


def _reorder(args: argparse.Namespace, **settings: Any) -> int:
    """Reorder as the flags say, through the buffer of these settings; prints the report."""
    from p2l.online_training.buffers import make_buffer
    from p2l.votes import open_votes
    from p2l.votes.reading import FaultyRowError
    from p2l.votes.sources import file_kind

    stated = {name: value for name, value in settings.items() if value is not None}
    buffer_settings = _settings({**stated, "drop_tail": args.drop_tail})
    buffer = make_buffer(buffer_settings, args.batch_size, args.seed)
    output = check_can_write(args.output, args.input)
    file_kind(output)
    try:
        store = open_votes(
            args.input, split=args.dataset_split, need_prompt=False, drop_bad=args.drop_bad, quiet=args.quiet
        )
    except FaultyRowError as error:
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are no votes") from error
    with store:
        done = reorder(store, buffer, output, sort=args.sort, quiet=args.quiet)
        print(_report(output, done, store.dropped_bad))
    return 0


def _settings(values: dict[str, Any]) -> BufferSettings:
    from pydantic import ValidationError

    from p2l.online_training.buffers import BufferSettings

    try:
        return BufferSettings(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        if problem["loc"] and problem["type"] != "value_error":
            message = f"{problem['loc'][-1]}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"
        raise ConfigError(message) from error


def _report(output: Path, done: Reordered, left_out: int) -> str:
    lag = done.lag
    days = f"{lag.median_seconds / 86400:.3g} days, 99 % within {lag.p99_seconds / 86400:.3g}"
    return "\n".join(
        [
            f"{output}: {done.votes:,} votes in {done.batches:,} batches; train with a global batch size of "
            f"{done.global_batch_size:,}",
            f"{beside(output)[1]}: when each batch ended",
            f"waited: {lag.median_batches:,.0f} batches in the median, 99 % within {lag.p99_batches:,.0f} ({days}); "
            f"{lag.most_waiting:,} votes at most at once",
            *([f"dropped: {done.dropped:,} votes that waited at the end"] if done.dropped else []),
            *([f"left out: {left_out:,} rows that are no votes"] if left_out else []),
        ]
    )


# Command: `p2l buffer geometric|replay`: write votes in the order in which a buffer gives them out.


def build_parser() -> argparse.ArgumentParser:
    """A command for each buffer."""
    top = parser("p2l buffer", "Write the votes of a file in the order in which online training takes them.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, add in (("geometric", add_geometric), ("replay", add_replay)):
        add(
            commands.add_parser(
                name,
                help=ABOUT[name],
                description=ABOUT[name],
                formatter_class=top.formatter_class,
                allow_abbrev=False,
            )
        )
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    args = build_parser().parse_args(argv)
    return {"geometric": run_geometric, "replay": run_replay}[args.command](args)


# The times of votes, and when training batches of them ended.

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
    times_by_id = times_of_ids(tstamp_file) if tstamp_file is not None else {}
    with progress(description=f"read {source.name}", total=source.rows, unit="votes", quiet=quiet) as bar:
        for batch in read_votes(source, columns=[name]):
            times = _end_times(batch.batch.column(name), times_by_id if tstamp_file is not None else None)
            if np.isnan(times).any():
                where = batch.place(int(np.isnan(times).argmax()))
                raise VoteError(f"{where}: has no tstamp" + (f" in {tstamp_file}" if tstamp_file else ""))
            yield times
            bar.update(len(times))


def _end_times(column: Any, times_by_id: dict[str, float] | None) -> Times:
    from p2l.votes.schema import numbers

    if times_by_id is None:
        return np.asarray(numbers(column), dtype=np.float64)
    return np.array([times_by_id.get(str(value), np.nan) for value in column.to_pylist()])


def times_of_ids(path: str) -> dict[str, float]:
    """question_id: tstamp, of a file of JSON lines; held in memory.

    Raises:
        VoteError: the file cannot be read, or a line lacks one of the two.
    """
    times: dict[str, float] = {}
    try:
        with Path(path).expanduser().open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    times.update([_entry(line, f"{path}: line {number}")])
    except (OSError, UnicodeDecodeError) as error:
        raise VoteError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return times


def _entry(line: str, where: str) -> tuple[str, float]:
    try:
        row = json.loads(line)
        return str(row["question_id"]), float(row["tstamp"])
    except (ValueError, KeyError, TypeError) as error:
        raise VoteError(f"{where}: must be an object with question_id and tstamp, in seconds") from error


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
    from p2l.votes.writing import open_writer

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
