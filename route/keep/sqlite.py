"""The router's database as one SQLite file, for one machine: several workers may open it (write-ahead log).

It must be on a local disk. Without a path everything is in memory and ends with the process. A power cut loses no more
than a kill (`synchronous = FULL`), a stop by SIGTERM nothing. A file that is full, or locked for over 5 s, cannot be
written.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from p2l.common.errors import ConfigError
from route.keep.database import FLUSH_SECONDS, Connection, Database, DatabaseError, SchemaError

_APPLICATION_ID = 0x50324C52
"""Marks the file as a database of the router: "P2LR"."""
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
    """
    CREATE INDEX votes_key ON votes (key, voted);
    CREATE TABLE voters (secret BLOB NOT NULL);
    INSERT INTO voters VALUES (randomblob(32));
    """,
    """
    CREATE TABLE leases (
        worker TEXT, day INTEGER, key TEXT, amount REAL NOT NULL, expires REAL NOT NULL,
        PRIMARY KEY (worker, day, key)) WITHOUT ROWID;
    """,
    """
    CREATE TABLE averages (revision TEXT NOT NULL, prompts INTEGER NOT NULL, coefs TEXT NOT NULL);
    """,
    """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY, key TEXT NOT NULL, time REAL NOT NULL, previous TEXT, response TEXT NOT NULL,
        items TEXT NOT NULL) WITHOUT ROWID;
    CREATE INDEX responses_time ON responses (time);
    """,
    """
    CREATE TABLE keys (
        name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, limits TEXT NOT NULL, created REAL NOT NULL, revoked REAL
    ) WITHOUT ROWID;
    CREATE TABLE changes (subject TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE tokens (
        second INTEGER, key TEXT, tokens INTEGER NOT NULL, flush INTEGER NOT NULL,
        PRIMARY KEY (second, key)) WITHOUT ROWID;
    CREATE INDEX tokens_flush ON tokens (flush);
    """,
    """
    ALTER TABLE answers ADD COLUMN stored REAL;
    ALTER TABLE responses ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
    UPDATE responses SET size = length(CAST(response AS BLOB)) + length(CAST(items AS BLOB));
    CREATE INDEX responses_key ON responses (key, time, size);
    """,
    """
    CREATE TABLE response_items (id TEXT, response TEXT NOT NULL, PRIMARY KEY (id, response)) WITHOUT ROWID;
    CREATE INDEX response_items_response ON response_items (response);
    """,
    """
    ALTER TABLE answers ADD COLUMN visitor TEXT;
    ALTER TABLE answers ADD COLUMN prefix TEXT;
    ALTER TABLE answers ADD COLUMN identity_revealed INTEGER;
    ALTER TABLE votes ADD COLUMN visitor TEXT;
    ALTER TABLE votes ADD COLUMN prefix TEXT;
    ALTER TABLE votes ADD COLUMN identity_revealed INTEGER;
    ALTER TABLE votes ADD COLUMN visitor_battles INTEGER;
    ALTER TABLE votes ADD COLUMN prefix_battles INTEGER;
    CREATE INDEX votes_prefix ON votes (prefix, voted);
    CREATE TABLE salts (period INTEGER PRIMARY KEY, salt BLOB NOT NULL);
    CREATE TABLE visits (pseudonym TEXT PRIMARY KEY, battles INTEGER NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX visits_time ON visits (time);
    """,
    """
    CREATE TABLE bookings (worker TEXT PRIMARY KEY, number INTEGER NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
    """,
)
"""One script per version of the file, oldest first; a released one is never changed."""


T = TypeVar("T")
_PAUSE_SECONDS = 0.02
_BUSY_SECONDS = 5.0
_RESERVED_BYTES = 512 * 2**20  # of the disk, where it is not a small one


class _Connection(sqlite3.Connection):
    """A connection whose transactions hold the lock of the file from their beginning."""

    def lock(self, _name: str) -> None:
        """Do nothing: BEGIN IMMEDIATE has let no other transaction in."""


def check_schema(connection: sqlite3.Connection) -> int:
    """Return the version of the file; raise SchemaError for tables of another program, or of a newer router."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise SchemaError("it is a database of another program; choose another path")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(_MIGRATIONS):
        raise SchemaError(f"its version {version} is newer than this router knows; update the router")
    return version


def prepare(connection: sqlite3.Connection) -> None:
    """Migrate the file to the newest version, inside a transaction; raise SchemaError as `check_schema` does."""
    # Checked once more, inside the transaction: another process may have written to the file since.
    for script in _MIGRATIONS[check_schema(connection) :]:
        for statement in script.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


class SqliteDatabase(Database):
    """One connection, used by one thread; transactions run one after the other."""

    state_query = "PRAGMA data_version"

    def __init__(self, path: Path | None = None, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Open nothing yet; a `path` of None is memory."""
        super().__init__(str(path), threads=1, flush_seconds=flush_seconds)
        self.path = path
        self._connection: _Connection | None = None

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcome = work(cast(Connection, connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error
        return outcome

    def _reading(self, work: Callable[[Connection], T]) -> T:
        try:
            return work(cast(Connection, self._opened()))
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    def room(self) -> int | None:
        """See `Database`."""
        if self.path is None:
            return None
        disk = shutil.disk_usage(self.path.parent)
        return disk.free - min(_RESERVED_BYTES, disk.total // 8)

    def _opened(self) -> _Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the database is not open")
        return self._connection

    def _open(self) -> None:
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Created here for its permissions, which SQLite gives its write-ahead log too.
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            connection = self._connection = sqlite3.connect(
                self.path or ":memory:",
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            check_schema(connection)  # before anything is changed
            _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            # A forgotten prompt must not stay in free pages of the file.
            connection.execute("PRAGMA secure_delete = ON")
            self._transaction(lambda connection: prepare(cast(sqlite3.Connection, connection)))
        except (OSError, sqlite3.Error, DatabaseError, SchemaError) as error:
            self._close()
            raise ConfigError(f"database: {self.path}: cannot be used: {error}") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; raise sqlite3.OperationalError where others hold the file for too long."""
    # Of two processes that switch at once SQLite refuses one without waiting, since each would wait for the other.
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS)
