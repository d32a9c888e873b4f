"""Command: when the votes of each training batch ended, for evaluations that are aligned in time.

Writes `{"<batch>": {"end_tstamp": t}}`, batches from 0: t is the newest time of all votes up to the end of that batch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2l.common.cli import add_quiet, add_stream_batch_size, listed, parser, progress, run
from p2l.common.errors import VoteError
from p2l.common.files import atomic_path, check_can_write, parse_json
from p2l.online_training.reorder import EndTimes


def read_times(path: str, tstamp_file: str | None = None, *, quiet: bool = True) -> Iterator[NDArray[np.float64]]:
    """Yield the times of a source's votes, a batch at a time; VoteError, naming the vote, if one has no time.

    `tstamp_file` holds JSON lines of question_id and tstamp, for votes that have the former alone.
    """
    from p2l.votes import read_votes
    from p2l.votes.schema import numbers
    from p2l.votes.sources import open_source

    source = open_source(path)
    name = "tstamp" if tstamp_file is None else "question_id"
    if name not in source.columns:
        hint = "; give --tstamp-file FILE.jsonl, lines of question_id and tstamp" if tstamp_file is None else ""
        raise VoteError(f"{source.name}: no column {name!r}; columns: {listed(source.columns)}{hint}")
    times_by_id = None if tstamp_file is None else times_of_ids(tstamp_file)
    with progress(description=f"read {source.name}", total=source.rows, unit="votes", quiet=quiet) as bar:
        for batch in read_votes(source, columns=[name]):
            column = batch.batch.column(name)
            if times_by_id is None:
                times = np.asarray(numbers(column), dtype=np.float64)
            else:
                times = np.array([times_by_id.get(str(value), np.nan) for value in column.to_pylist()])
            if np.isnan(times).any():
                where = batch.place(int(np.isnan(times).argmax()))
                raise VoteError(f"{where}: has no tstamp" + (f" in {tstamp_file}" if tstamp_file else ""))
            yield times
            bar.update(len(times))


def times_of_ids(path: str) -> dict[str, float]:
    """Read `{question_id: tstamp}` from JSON lines into memory; VoteError if unreadable or one of them is missing."""
    times: dict[str, float] = {}
    try:
        with Path(path).expanduser().open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line)
                    times[str(row["question_id"])] = float(row["tstamp"])
                except (ValueError, KeyError, TypeError) as error:
                    raise VoteError(
                        f"{path}: line {number}: must be an object with question_id and tstamp, in seconds"
                    ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise VoteError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return times


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the command."""
    top = parser("p2l timestamps", "Write when the votes of each training batch ended, for time-aligned evaluation.")
    top.add_argument("--chrono-train-data", required=True, metavar="FILE", help="the votes in the order of training")
    top.add_argument(
        "--tstamp-file", metavar="FILE", help="JSON lines of question_id and tstamp, for votes without a tstamp column"
    )
    add_stream_batch_size(top, "votes of a training batch")
    top.add_argument("--output-file", required=True, metavar="FILE", help="JSON to write")
    add_quiet(top)
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Write the timestamps file."""
    args = build_parser().parse_args(argv)
    output = check_can_write(args.output_file, args.chrono_train_data, args.tstamp_file)
    ends = EndTimes(args.batch_size)
    for times in read_times(args.chrono_train_data, args.tstamp_file, quiet=args.quiet):
        ends.add(times)
    batches = ends.by_batch()
    with atomic_path(output) as temporary:
        temporary.write_text(json.dumps(batches, indent=1), encoding="utf-8")
    print(f"{output}: {len(batches):,} batches of {args.batch_size:,} votes")
    return 0


if __name__ == "__main__":
    run(main)
