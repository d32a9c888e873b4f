"""Command: `p2l buffer geometric|replay`, write the votes of a file in the order of a buffer.

Training on the output, from first to last with the global batch size that the report names, is training through the
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

from p2l.common import cli
from p2l.common.cli import add_command, counted, not_votes, parser, progress, whole
from p2l.common.errors import ConfigError, VoteError
from p2l.common.files import atomic_path, check_can_write
from p2l.online_training.buffer import Batches, Buffer, Ids, Lag, NewVotes

if TYPE_CHECKING:
    from p2l.online_training.buffers import BufferSettings
    from p2l.votes import VoteStore


_CHUNK_VOTES = 1 << 16  # that enter the buffer together, ids and times alone
_BLOCK_ROWS = 1 << 14  # that are in memory whole, and written together
_READING = {"how votes are read": ("--sort", "--drop-tail", "--drop-bad", "--dataset-split")}


def build_parser() -> argparse.ArgumentParser:
    """Return the flags: a command for each buffer."""
    top = parser("p2l buffer", "Write the votes of a file in the order in which online training takes them.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    flags = add_command(
        commands, "geometric", "Write votes in the order of the geometric buffer, with timestamps and lag."
    )
    _add_shared(flags)
    flags.add_argument("--gamma", type=float, default=0.995, help="how fast a model grows familiar, in (0, 1]")
    flags.add_argument("--epsilon", type=float, default=0.001, help="least chance to be used at once, in (0, 1]")
    flags.arrange({"the buffer": ("--gamma", "--epsilon"), **_READING})
    flags = add_command(commands, "replay", "Write votes with past ones replayed among them, with timestamps and lag.")
    _add_shared(flags)
    flags.add_argument("--epsilon", type=float, default=0.2, help="share of replayed votes in a batch, in (0, 1)")
    cli.add_limit(flags, "most votes ready to be replayed; by default all are")
    flags.add_argument("--min-batches", type=whole, default=5, metavar="N", help="batches before the first replay")
    flags.add_argument("--geometric", action="store_true", help="replay on top of the geometric buffer")
    flags.add_argument("--gamma", type=float, help="gamma of the geometric buffer; default 0.995")
    flags.add_argument(
        "--geometric-epsilon", type=float, metavar="P", help="epsilon of the geometric buffer; default 0.001"
    )
    drawn = ("--epsilon", "--limit", "--min-batches", "--geometric", "--gamma", "--geometric-epsilon")
    flags.arrange({"the buffer": drawn, **_READING})
    return top


def _add_shared(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--input", required=True, metavar="VOTES", help="hub id, save_to_disk folder, or a file of votes, oldest first"
    )
    cli.add_output(flags, "votes to write; the ending names the format", required=True)
    cli.add_stream_batch_size(flags, "new votes of a batch")
    cli.add_seed(flags, "of what is drawn; the same gives the same order in training", default=42)
    flags.add_argument("--sort", action="store_true", help="sort the votes by time first, rather than refuse them")
    flags.add_argument("--drop-tail", action="store_true", help="drop what waits at the end of the stream")
    cli.add_drop_bad(flags)
    cli.add_dataset_split(flags)
    cli.add_quiet(flags)


def main(argv: Sequence[str] | None = None) -> int | None:
    """Reorder a file of votes."""
    args = build_parser().parse_args(argv)
    from p2l.online_training.buffers import make_buffer
    from p2l.votes import open_votes
    from p2l.votes.reading import FaultyRowError
    from p2l.votes.sources import file_kind

    buffer = make_buffer(_settings(args), args.batch_size, args.seed)
    output = check_can_write(args.output, args.input)
    file_kind(output)
    try:
        store = open_votes(
            args.input, split=args.dataset_split, need_prompt=False, drop_bad=args.drop_bad, quiet=args.quiet
        )
    except FaultyRowError as error:
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are not votes") from error
    with store:
        print(_report(output, reorder(store, buffer, output, sort=args.sort, quiet=args.quiet), store.dropped_bad))
    return 0


def _settings(args: argparse.Namespace) -> BufferSettings:
    """Return the buffer that the flags describe; ConfigError for a value out of range, or flags of an absent buffer."""
    from pydantic import ValidationError

    from p2l.online_training.buffers import BufferSettings

    settings = {"type": args.command, "epsilon": args.epsilon, "drop_tail": args.drop_tail}
    if args.command == "geometric":
        settings |= {"gamma": args.gamma}
    else:
        below = {"gamma": args.gamma, "epsilon": args.geometric_epsilon}
        stated = {name: value for name, value in below.items() if value is not None}
        if stated and not args.geometric:
            raise ConfigError("--gamma and --geometric-epsilon belong to --geometric; add it, or remove them")
        on = {"type": "geometric" if args.geometric else "none", **stated}
        settings |= {"limit": args.limit, "min_batches": args.min_batches, "on": on}
    try:
        return BufferSettings.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        if problem["loc"] and problem["type"] != "value_error":
            message = f"{problem['loc'][-1]}: {message[0].lower()}{message[1:]}, got {problem['input']!r:.80}"
        raise ConfigError(message) from error


@dataclass(frozen=True)
class _Reordered:
    """Facts about the votes that were written."""

    votes: int
    batches: int
    global_batch_size: int
    """Votes of a whole batch, replayed ones included: what the training configuration has to multiply to."""
    dropped: int
    lag: Lag

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `<output>.lag.json`."""
        lag = {f"lag_{name}": value for name, value in self.lag.as_dict().items()}
        return {name: value for name, value in vars(self).items() if name != "lag"} | lag


def _report(output: Path, written: _Reordered, left_out: int) -> str:
    lag = written.lag
    days = f"{lag.median_seconds / 86400:.3g} days, 99 % within {lag.p99_seconds / 86400:.3g}"
    return "\n".join(
        [
            f"{output}: {counted(written.votes, 'vote')} in {_batches(written.batches)}; train with a global batch "
            f"size of {written.global_batch_size:,}",
            f"{beside(output)[1]}: when each batch ended",
            f"waited: {_batches(round(lag.median_batches))} in the median, 99 % within {lag.p99_batches:,.0f} "
            f"({days}); {counted(lag.most_waiting, 'vote')} at most at once",
            *([f"dropped: {counted(written.dropped, 'vote')} that waited at the end"] if written.dropped else []),
            *([f"left out: {not_votes(left_out)}"] if left_out else []),
        ]
    )


def _batches(number: int) -> str:
    return f"{number:,} {'batch' if number == 1 else 'batches'}"


class EndTimes:
    """The running maximum of times at the end of every batch; the times may come in any pieces."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size
        self._newest = -np.inf
        self._seen = 0
        self._ends: list[float] = []

    def add(self, times: NDArray[np.float64]) -> None:
        """Add the times of the next votes."""
        newest = np.maximum.accumulate(np.concatenate([[self._newest], times]))
        self._ends += newest[self._size - self._seen % self._size :: self._size].tolist()
        self._seen += len(times)
        self._newest = float(newest[-1])

    def by_batch(self) -> dict[str, dict[str, float]]:
        """Return the end of each batch, also of a last one that is not full."""
        last = [self._newest] if self._seen % self._size else []
        return {str(batch): {"end_tstamp": end} for batch, end in enumerate([*self._ends, *last])}


def reorder(store: VoteStore, buffer: Buffer, output: Path, *, sort: bool = False, quiet: bool = True) -> _Reordered:
    """Write the votes of a store through a buffer; InputError if a file cannot be written.

    VoteError if a vote has no time, or is out of order and not to be sorted (`sort`).
    """
    from p2l.online_training.stream import time_order
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
            ends.add(np.asarray(store.tstamps(ids)))  # there are times: `time_order` has seen to it
            votes, batches = votes + len(ids), batches + len(block)
            bar.update(len(ids))
        if not votes:
            there = counted(len(store), "vote")
            raise VoteError(f"{store.name}: {there} cannot fill a batch of {buffer.batch_size:,}; nothing to write")
        written = _Reordered(
            votes=votes,
            batches=batches,
            global_batch_size=buffer.full_size,
            dropped=buffer.dropped,
            lag=buffer.lag,
        )
        lag_path.write_text(json.dumps(written.as_dict(), indent=1), encoding="utf-8")
        times_path.write_text(json.dumps(ends.by_batch(), indent=1), encoding="utf-8")
    return written


def batches_of(store: VoteStore, buffer: Buffer, order: Ids | None = None) -> Iterator[Ids]:
    """Yield the batches that a buffer makes of all votes, drained at the end."""
    for start in range(0, len(store), _CHUNK_VOTES):
        end = min(start + _CHUNK_VOTES, len(store))
        yield from buffer.add(NewVotes.of(store, np.arange(start, end) if order is None else order[start:end]))
    yield from buffer.drain()


def _blocks(batches: Iterator[Ids]) -> Iterator[Batches]:
    """Yield lists of batches with the rows of a block."""
    block: Batches = []
    rows = 0
    for batch in batches:
        block.append(batch)
        rows += len(batch)
        if rows >= _BLOCK_ROWS:
            yield block
            block, rows = [], 0
    if block:
        yield block


def beside(output: Path) -> tuple[Path, Path]:
    """Return the files of lag and of timestamps that belong to a file of reordered votes."""
    return output.with_name(output.name + ".lag.json"), output.with_name(output.name + ".timestamps.json")
