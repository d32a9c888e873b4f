"""Flags and work of the commands that write votes in the order of a buffer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.command import check_can_write, positive, whole
from p2l.errors import ConfigError, VoteError

if TYPE_CHECKING:
    from p2l.online_training.buffers import BufferSettings
    from p2l.online_training.reorder import Reordered

__all__ = ["ABOUT", "add_geometric", "add_replay", "run_geometric", "run_replay"]

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
    from p2l.online_training.reorder import reorder
    from p2l.votes import open_votes
    from p2l.votes.reader import FaultyRowError
    from p2l.votes.sources import file_kind

    known = {name: value for name, value in settings.items() if value is not None}
    made = _settings({**known, "drop_tail": args.drop_tail})
    buffer = make_buffer(made, args.batch_size, args.seed)
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
    from p2l.online_training.reorder import beside

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
