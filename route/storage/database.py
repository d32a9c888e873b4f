"""The router's one file: SQLite, written in a thread of its own, so that no request waits for a disk.

Events gather in memory and are written every 100 ms, all in one transaction, in which each worker also reads what the
others have written. Several workers may open one file (write-ahead log); it must be on a local disk. Without a path
everything is in memory and ends with the process.

A process that is killed loses the events since its last transaction: at most 100 ms plus the time of one transaction.
A power cut loses no more (`synchronous = FULL`), a stop by SIGTERM nothing. While the file cannot be written (disk
full, locked for over 5 s), events stay in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from p2l.common.errors import ConfigError

# The tables; keys of clients are there by name, prompts only with `store_prompts: true` and in responses that are kept.
#
# | table | one row is |
# |---|---|
# | usage | the answers of a model to a key on one day (days since 1970, UTC); `measured` ones came with token counts |
# | spend | what a key, or all keys of a team (`team:NAME`), spent on one day |
# | leases | what a worker may spend of a key's or a team's day, beyond what is in `spend`, until it expires |
# | arrivals | the requests of a key in one second, of the last minute |
# | answers | an answer of the last day, as it was shown |
# | votes | an answer that was voted on |
# | voters | the only one: the secret from which exports make pseudonyms of keys |
# | conversations | the model that answered a conversation last |
# | averages | the only one: the average leaderboard of the prompts scored last, which decides without scores |
# | keys | a key that was made while the router ran: its digest and limits |
# | changes | how often something has changed that other processes have to read again |
# | tokens | the tokens of a key in one second, of the last minute |
# | responses | a response of the Responses API and the input that was new in its request, for 30 days |
# | clock | the only one: the last transaction that changed spend, arrivals or tokens, whose rows carry its number |

APPLICATION_ID = 0x50324C52
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
)
"""One script per version of the file, oldest first; a released one is never changed."""


class SchemaError(Exception):
    """The file belongs to another program, or to a newer version of this one; the text says so without naming it."""


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise SchemaError if the file holds anything but the tables of this router or of an earlier one."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _pragma(connection, "application_id") != APPLICATION_ID:
        raise SchemaError("it is a database of another program; choose another path")
    version = _pragma(connection, "user_version")
    if version > len(_MIGRATIONS):
        raise SchemaError(f"its version {version} is newer than this router knows; update the router")


def prepare(connection: sqlite3.Connection) -> None:
    """Migrate the file to the newest version, inside a transaction; raise SchemaError as `check_schema` does."""
    check_schema(connection)  # again: another process may have written to it since
    for script in _MIGRATIONS[_pragma(connection, "user_version") :]:
        for statement in script.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    number: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return number


T = TypeVar("T")
FLUSH_SECONDS = 0.1
"""How long events wait in memory."""
_BUSY_SECONDS = 5.0
_LOGGER = logging.getLogger("route")


class WriteBehind(ABC):
    """Events of one kind that gather in the event loop and are written together with all others."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        """Write to `database`; `clock` returns seconds since 1970, UTC."""
        self._database = database
        self._clock = clock

    async def start(self) -> None:
        """Read what earlier runs and other workers wrote, and write what gathers every 100 ms from now on."""
        await self._database.add(self)

    async def close(self) -> None:
        """Write what has gathered; the database stays open."""
        await self._database.flush()

    @abstractmethod
    def take(self) -> Any:
        """Return what has gathered since the last call (falsy: nothing) and start anew; in the event loop."""

    @abstractmethod
    def write(self, connection: sqlite3.Connection, batch: Any) -> Any:
        """Write a batch, then read as `read` does; in the thread, inside a transaction."""

    @abstractmethod
    def give_back(self, batch: Any) -> None:
        """Gather a batch again that could not be written; in the event loop."""

    def read(self, _connection: sqlite3.Connection) -> Any:
        """Read what other workers wrote; in the thread."""
        return None

    def absorb(self, _news: Any) -> None:  # noqa: B027  (optional: only the ledger has news)
        """Take over what `write` or `read` returned; in the event loop."""


class Database:
    """One connection, used by one thread; transactions run one after the other."""

    def __init__(self, path: Path | None = None, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Open nothing yet; a `path` of None is memory."""
        self.path = path
        self.fault: str | None = None
        """Why the file cannot be written now; None: it can."""
        self.flush_seconds = flush_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="route-database")
        self._connection: sqlite3.Connection | None = None
        self._buffers: list[WriteBehind] = []
        self._version: int | None = None
        self._one_flush = asyncio.Lock()
        self._stop = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open or create the file, readable by its owner alone, and write to it every 100 ms from now on."""
        await self._in_thread(self._open)
        self._ticking = asyncio.create_task(self._tick(), name="route-database")

    async def close(self) -> None:
        """Write what has gathered and close the file; a second call does nothing."""
        if self._ticking is None:
            return
        self._stop.set()
        await self._ticking
        self._ticking = None
        if not await self.flush():
            _LOGGER.error("the database was closed without what could not be written")
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def add(self, buffer: WriteBehind) -> None:
        """Read for `buffer` once, and write and read for it with every flush from now on."""
        buffer.absorb(await self.read(buffer.read))
        self._buffers.append(buffer)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, in the thread; raise sqlite3.Error if nothing of it was written."""
        return await self._in_thread(lambda: self._transaction(work))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which changes nothing, in the thread; it waits for no other worker."""
        return await self._in_thread(lambda: work(self._opened()))

    async def flush(self) -> bool:
        """Write what has gathered; return whether it is on the disk."""
        return await asyncio.shield(self._flush())  # a cancelled caller must not lose a batch that was taken

    async def _flush(self) -> bool:
        async with self._one_flush:
            batches = [(buffer, buffer.take()) for buffer in self._buffers]
            try:
                news = await self._in_thread(lambda: self._write(batches))
            except sqlite3.Error as error:
                for buffer, batch in batches:
                    buffer.give_back(batch)
                self._notice(str(error))
                return False
            for (buffer, _), rows in zip(batches, news, strict=False):  # no news if no other worker has written
                buffer.absorb(rows)
            self._notice(None)
            return True

    async def _tick(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self.flush_seconds)
            await self.flush()

    def _notice(self, fault: str | None) -> None:
        if fault and not self.fault:
            _LOGGER.error("the database cannot be written, accounts stay in memory: %s", fault)
        if self.fault and not fault:
            _LOGGER.warning("the database is written again")
        self.fault = fault

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _write(self, batches: list[tuple[WriteBehind, Any]]) -> list[Any]:
        if any(batch for _, batch in batches):
            return self._transaction(lambda connection: [buffer.write(connection, batch) for buffer, batch in batches])
        connection = self._opened()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:  # no other worker has written since
            return []
        news = [buffer.read(connection) for buffer, _ in batches]
        self._version = version
        return news

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the database is not open")
        return self._connection

    def _open(self) -> None:
        try:
            self._connection = _connect(self.path)
            self._transaction(prepare)
        except (OSError, sqlite3.Error, SchemaError) as error:
            self._close()
            raise ConfigError(f"database: {self.path}: cannot be used: {error}") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives its log the same permissions
    connection = sqlite3.connect(
        path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    check_schema(connection)  # before anything is changed
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # a forgotten prompt must not stay in free pages of the file
    return connection
