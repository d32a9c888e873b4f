"""Command: `p2l export-votes`: the votes that a router has gathered, as training data.

A row is an answer of two models (`compare: true`) that was voted on: prompt, model_a and model_b as they were shown,
winner, tstamp (when they were shown), propensity (probability that these two were shown), model_version (of both, null
where the router's configuration states none), question_id (the request's id). Thumbs compare nothing and are left out.

The file of the router is read by its schema, also while routers are writing to it.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2l.command import check_can_write, parser, run
from p2l.errors import InputError
from p2l.router_database import PAIR_COLUMNS, router_database, vote_of

__all__ = ["Exported", "build_parser", "export_votes", "main"]

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Exported:
    """How many votes were written, and how many were not."""

    written: int
    without_prompt: int
    """Left out because their prompts were not stored."""
    thumbs: int
    """Left out because they compare nothing."""


def build_parser() -> argparse.ArgumentParser:
    """The flags of `p2l export-votes`."""
    flags = parser("p2l export-votes", "Write the votes that a router has gathered as training data, oldest first.")
    flags.add_argument("--database", required=True, metavar="FILE", help="the router's database")
    flags.add_argument("--output", required=True, metavar="FILE", help="votes to write: .parquet, .jsonl(.gz) or .csv")
    flags.add_argument(
        "--without-prompts",
        action="store_true",
        help="leave the prompts out and write every vote: enough for leaderboards, not for training",
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    done = export_votes(args.database, args.output, prompts=not args.without_prompts)
    print(f"{args.output}: {done.written:,} votes{_left_out(done)}")
    return None


def _left_out(done: Exported) -> str:
    parts = []
    if done.without_prompt:
        parts.append(f"{done.without_prompt:,} without a stored prompt (--without-prompts writes them)")
    if done.thumbs:
        parts.append(f"{done.thumbs:,} thumbs")
    return f"; left out: {', '.join(parts)}" if parts else ""


def export_votes(database: str | Path, output: str | Path, *, prompts: bool = True) -> Exported:
    """Write the votes of a router's database to a file whose ending names the format; memory stays bounded.

    With `prompts`, votes whose prompt was not stored are left out; without, there is no column `prompt`.

    Raises:
        InputError: the database is missing, no router's or without votes, or the output cannot be written.
        VoteError: the ending of `output` names no format.
    """
    from p2l.votes.writer import write_votes

    check_can_write(output)
    with router_database(Path(database)) as connection:
        done = _counts(connection, prompts=prompts)
        if not done.written:
            raise InputError(f"{database}: holds no votes to write{_left_out(done)}")
        schema = _schema(prompts=prompts)
        write_votes(_batches(connection, schema, prompts=prompts), schema, output)
    return done


def _counts(connection: sqlite3.Connection, *, prompts: bool) -> Exported:
    pairs, stored, votes = connection.execute(
        "SELECT count(model_b), coalesce(sum(model_b IS NOT NULL AND prompt IS NOT NULL), 0), count(*) FROM votes"
    ).fetchone()
    written = stored if prompts else pairs
    return Exported(written, pairs - written, votes - pairs)


def _schema(*, prompts: bool) -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            *([("prompt", pa.list_(pa.string()))] if prompts else []),
            ("model_a", pa.string()),
            ("model_b", pa.string()),
            ("winner", pa.string()),
            ("tstamp", pa.float64()),
            ("propensity", pa.float64()),
            ("model_version", pa.list_(pa.string())),
            ("question_id", pa.string()),
        ]
    )


def _batches(connection: sqlite3.Connection, schema: Any, *, prompts: bool) -> Iterator[Any]:
    import pyarrow as pa

    rows = connection.execute(
        f"SELECT {PAIR_COLUMNS} FROM votes "
        f"WHERE model_b IS NOT NULL {'AND prompt IS NOT NULL' if prompts else ''} ORDER BY time, request_id"
    )
    while some := rows.fetchmany(_ROWS_AT_ONCE):
        yield pa.RecordBatch.from_pylist([vote_of(*row, prompts=prompts) for row in some], schema)


if __name__ == "__main__":
    run(main)
