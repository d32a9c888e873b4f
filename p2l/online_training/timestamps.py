"""Command: when the votes of each training batch ended, for evaluations that are aligned in time.

Writes `{"<batch>": {"end_tstamp": t}}`, batches from 0: t is the newest time of all votes up to the end of that batch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from p2l.common.cli import parser, positive, run
from p2l.common.files import atomic_path, check_can_write
from p2l.online_training.reorder import EndTimes, read_times


def build_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    top = parser("p2l timestamps", "Write when the votes of each training batch ended, for time-aligned evaluation.")
    top.add_argument("--chrono-train-data", required=True, metavar="FILE", help="the votes in the order of training")
    top.add_argument(
        "--tstamp-file", metavar="FILE", help="JSON lines of question_id and tstamp, for votes without a tstamp column"
    )
    top.add_argument("--batch-size", type=positive, default=512, metavar="N", help="votes of a training batch")
    top.add_argument("--output-file", required=True, metavar="FILE", help="JSON to write")
    top.add_argument("--quiet", action="store_true", help="no progress bar")
    return top


def main(argv: Sequence[str] | None = None) -> int | None:
    """Write the timestamps file."""
    args = build_parser().parse_args(argv)
    output = check_can_write(args.output_file, args.chrono_train_data, args.tstamp_file)
    ends = EndTimes(args.batch_size)
    for times in read_times(args.chrono_train_data, args.tstamp_file, quiet=args.quiet):
        ends.see(times)
    batches = ends.by_batch()
    with atomic_path(output) as temporary:
        temporary.write_text(json.dumps(batches, indent=1), encoding="utf-8")
    print(f"{output}: {len(batches):,} batches of {args.batch_size:,} votes")
    return 0


if __name__ == "__main__":
    run(main)
