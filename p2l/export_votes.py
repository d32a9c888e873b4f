"""Command: `p2l export-votes`: the votes that a router has gathered, as training data.

A row is an answer of two models (`compare: true`) that was voted on: prompt, model_a and model_b as they were shown,
winner, tstamp (when they were shown), propensity (probability that these two were shown), model_version (of both, null
where the router's configuration states none), question_id (the request's id). Thumbs compare nothing and are left out.

The file of the router is read by its schema, also while routers are writing to it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2l.command import check_can_write, parser, run
from p2l.errors import InputError

__all__ = ["PAIR_COLUMNS", "Exported", "build_parser", "export_votes", "main", "router_database", "vote_of"]

_WINNER = {"first": "model_a", "second": "model_b", "tie": "tie", "both_bad": "tie (bothbad)"}
_ROWS_AT_ONCE = 10_000
PAIR_COLUMNS = "prompt, model_a, model_b, verdict, time, propensity, version_a, version_b, request_id"
"""Columns of the router's table `votes` that make a vote, in the order of `vote_of`."""


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


@contextlib.contextmanager
def router_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A router's database as it is at this moment, whatever is written meanwhile.

    Raises:
        InputError: there is no such file, or it is no database of a router.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the `database` of the router's configuration")
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as the database of a router: {error}") from error


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


def vote_of(
    prompt: str | None,
    model_a: str,
    model_b: str,
    verdict: str,
    time: float,
    propensity: float,
    version_a: str | None,
    version_b: str | None,
    request_id: str,
    *,
    prompts: bool = True,
) -> dict[str, Any]:
    """A row of PAIR_COLUMNS as a vote of the schema."""
    vote: dict[str, Any] = {"model_a": model_a, "model_b": model_b, "winner": _WINNER[verdict]}
    vote |= {"tstamp": time, "propensity": propensity, "question_id": request_id}
    vote["model_version"] = None if version_a is None and version_b is None else [version_a, version_b]
    if prompts:
        vote["prompt"] = json.loads(prompt or "null")
    return vote


if __name__ == "__main__":
    run(main)
