"""Command: `p2l-route migrate`: move what a router's SQLite file holds to a PostgreSQL database, while no router runs.

All of it is written in one transaction: a kill leaves the server as it was. Limits of the last minute and reservations
stay behind, for they are over when the router starts again.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common.cli import add_config, parser, run
from p2l.common.errors import ConfigError, InputError
from route.keep.feedback import COLUMNS

if TYPE_CHECKING:
    from route.keep.database import Connection

_TABLES = {
    "usage": "day, model, key, answers, measured, prompt_tokens, completion_tokens, cost",
    "spend": "day, key, cost, flush",
    "answers": f"{COLUMNS}, stored",
    "votes": f"{COLUMNS}, verdict, voted, visitor_battles, prefix_battles",
    "salts": "period, salt",
    "visits": "pseudonym, battles, time",
    "conversations": "conversation, model, time",
    "averages": "revision, prompts, coefs",
    "keys": "name, digest, limits, created, revoked",
    "responses": "id, key, time, previous, response, items, size",
    "response_items": "id, response",
}
"""Columns by table, as both databases have them; rows in the order in which they were written."""
_ROWS_AT_ONCE = 1000


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("p2l-route migrate", "Move what a router's SQLite file holds to a PostgreSQL database.")
    flags.add_argument("--from", dest="source", required=True, metavar="FILE", help="the router's SQLite file")
    add_config(flags, "configuration whose `database` is a postgresql:// URL", "-c", required=True)
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    from p2l.common.config import read_yaml
    from route.keep.location import location_in

    database = read_yaml(args.config).get("database")
    if not isinstance(database, str) or not database.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"{args.config}: database: must be the postgresql:// URL to move to")
    try:
        url = location_in(database)
    except ValueError as error:
        raise ConfigError(f"{args.config}: database: {error}") from None
    counts = migrate(Path(args.source), url)
    width = max(map(len, counts))
    print("\n".join(f"{table:{width}}  {count:>10,}" for table, count in counts.items()))
    return None


def migrate(source: Path, url: str) -> dict[str, int]:
    """Copy every table; return the rows of each. InputError for a source that cannot be read or a target that has rows.

    The secret behind the pseudonyms of voters moves too, so that exports stay the same.
    """
    import asyncio

    from route.keep.database import DatabaseError, SchemaError
    from route.keep.location import open_database
    from route.keep.sqlite import check_schema, prepare

    if not source.is_file():
        raise InputError(f"{source}: no such file; name the `database` of the router's configuration until now")

    async def move(file: sqlite3.Connection) -> dict[str, int]:
        target = open_database(url)
        await target.start()
        try:
            return await target.run(lambda connection: _copy(file, connection, target.name))
        finally:
            await target.close()

    try:
        with closing(sqlite3.connect(source, check_same_thread=False, isolation_level=None)) as file:
            check_schema(file)
            file.execute("BEGIN IMMEDIATE")  # no router writes meanwhile
            prepare(file)  # of an earlier version; nothing of it is committed
            return asyncio.run(move(file))
    except (sqlite3.Error, SchemaError) as error:
        raise InputError(f"{source}: cannot be read as the database of a router: {error}") from error
    except DatabaseError as error:
        raise InputError(f"the database cannot be written, and nothing was moved: {error}") from error


def _copy(file: sqlite3.Connection, target: Connection, name: str) -> dict[str, int]:
    target.lock("votes")
    for table in ("votes", "usage", "keys"):
        if target.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
            raise InputError(f"{name}: its table {table} has rows already; move to an empty database or schema")
    counts = {}
    for table, columns in _TABLES.items():
        marks = ", ".join("?" * len(columns.split(", ")))
        count = 0
        order = " ORDER BY rowid" if table == "votes" else ""  # in which runs follow them
        cursor = file.execute(f"SELECT {columns} FROM {table}{order}")
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            target.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
            count += len(rows)
        [(moved,)] = target.execute(f"SELECT count(*) FROM {table}").fetchall()
        if moved != count:
            raise InputError(f"table {table}: {moved:,} of {count:,} rows were moved; nothing is kept of it, try again")
        counts[table] = count
    secret = file.execute("SELECT secret FROM voters").fetchone()
    target.execute("UPDATE voters SET secret = ?", (secret[0],))
    flush = file.execute("SELECT flush FROM clock").fetchone()
    target.execute("UPDATE clock SET flush = ?", (flush[0],))
    for subject, number in file.execute("SELECT subject, number FROM changes").fetchall():
        target.execute("INSERT INTO changes VALUES (?, ?) ON CONFLICT (subject) DO NOTHING", (subject, number))
    return counts


if __name__ == "__main__":
    run(main)
