"""Tables of the router's database, and how an older file becomes one of today.

| table | a row is |
|---|---|
| usage | answers that a key got of a model on one day (days since 1970, UTC); `measured` ones came with token counts |
| spend | what a key spent on one day |
| arrivals | requests of a key in one second, of the last minute |
| answers | an answer of the last day, as it was shown |
| votes | an answer that was voted on |
| conversations | which model answered a conversation last |
| clock | one row: the number of the last transaction that changed spend or arrivals; their rows bear it |

Keys are there by name. Texts of prompts are there only where the configuration says `store_prompts: true`.
"""

from __future__ import annotations

import sqlite3

__all__ = ["APPLICATION_ID", "SchemaError", "check_ours", "prepare"]

APPLICATION_ID = 0x50324C52
"""Marks the file as a database of the router ("P2LR")."""

_SHOWN = """
    request_id TEXT PRIMARY KEY, time REAL NOT NULL, key TEXT NOT NULL, model_a TEXT NOT NULL, model_b TEXT,
    version_a TEXT, version_b TEXT, propensity REAL NOT NULL, revision TEXT NOT NULL, prompt TEXT"""

_MIGRATIONS = (
    f"""
    CREATE TABLE usage (
        day INTEGER, model TEXT, key TEXT, answers INTEGER NOT NULL, measured INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost REAL NOT NULL,
        PRIMARY KEY (day, model, key)) WITHOUT ROWID;
    CREATE TABLE spend (
        day INTEGER, key TEXT, cost REAL NOT NULL, flush INTEGER NOT NULL, PRIMARY KEY (day, key)) WITHOUT ROWID;
    CREATE INDEX spend_flush ON spend (flush);
    CREATE TABLE arrivals (
        second INTEGER, key TEXT, requests INTEGER NOT NULL, flush INTEGER NOT NULL,
        PRIMARY KEY (second, key)) WITHOUT ROWID;
    CREATE INDEX arrivals_flush ON arrivals (flush);
    CREATE TABLE clock (flush INTEGER NOT NULL);
    INSERT INTO clock VALUES (0);
    CREATE TABLE answers ({_SHOWN});
    CREATE INDEX answers_time ON answers (time);
    CREATE TABLE votes ({_SHOWN}, verdict TEXT NOT NULL, voted REAL NOT NULL);
    CREATE INDEX votes_time ON votes (time);
    CREATE TABLE conversations (conversation TEXT PRIMARY KEY, model TEXT NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX conversations_time ON conversations (time);
    """,
)
"""One text per version of the file, oldest first; a text is never changed once it was released."""


class SchemaError(Exception):
    """The file is of another program, or of a newer version of this one; the text says so without naming it."""


def check_ours(connection: sqlite3.Connection) -> None:
    """Look before anything is changed.

    Raises:
        SchemaError: the file holds something, but not the tables of a router of today or before.
    """
    used = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if used and _pragma(connection, "application_id") != APPLICATION_ID:
        raise SchemaError("it is a database of another program; choose another path")
    version = _pragma(connection, "user_version")
    if version > len(_MIGRATIONS):
        raise SchemaError(f"its version {version} is newer than this router knows; update the router")


def prepare(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version, inside a transaction.

    Raises:
        SchemaError: another process has made something else of it meanwhile.
    """
    check_ours(connection)
    for script in _MIGRATIONS[_pragma(connection, "user_version") :]:
        for statement in script.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    number: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return number
