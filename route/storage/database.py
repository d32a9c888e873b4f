"""The router's one file: SQLite, written in a thread of its own, so that no request waits for a disk.

What happens is gathered in memory and written every 100 ms, everything in one transaction; in the same transaction each
worker reads what the others have written. Several workers may open one file (write-ahead log); it must be on a local
disk. Without a path everything is in memory and ends with the process.

What can be lost: a process that is killed loses what happened since its last transaction, so at most 100 ms plus the
time that one transaction takes. What was committed is on the disk (`synchronous = FULL`), so a power cut loses no more
than a kill. A stop by SIGTERM loses nothing. While the file cannot be written (disk full, locked for over 5 s), what
happens stays in memory and is written when it can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from p2l.common.errors import ConfigError

# Tables of the router's database, and how an older file becomes one of today.
#
# | table | a row is |
# |---|---|
# | usage | answers that a key got of a model on one day (days since 1970, UTC); `measured` ones came with token counts
# |
# | spend | what a key spent on one day |
# | arrivals | requests of a key in one second, of the last minute |
# | answers | an answer of the last day, as it was shown |
# | votes | an answer that was voted on |
# | conversations | which model answered a conversation last |
# | clock | one row: the number of the last transaction that changed spend or arrivals; their rows bear it |
#
# Keys are there by name. Texts of prompts are there only where the configuration says `store_prompts: true`.

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


T = TypeVar("T")
FLUSH_SECONDS = 0.1
"""How long what happened waits in memory."""
_BUSY_SECONDS = 5.0
_LOGGER = logging.getLogger("route")


class Part(Protocol):
    """Something that gathers what happens in the event loop and writes it with everything else."""

    def take(self) -> Any:
        """What has gathered since the last time (falsy: nothing); in the event loop."""
        ...

    def write(self, connection: sqlite3.Connection, batch: Any) -> Any:
        """Write it, and read what others wrote; in the thread, inside a transaction."""
        ...

    def read(self, connection: sqlite3.Connection) -> Any:
        """Only read what others wrote; in the thread."""
        ...

    def absorb(self, news: Any) -> None:
        """What `write` or `read` returned, in the event loop."""
        ...

    def give_back(self, batch: Any) -> None:
        """What was taken could not be written; in the event loop."""
        ...


class Database:
    """One connection, used by one thread; transactions run one after the other."""

    def __init__(self, path: Path | None = None, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Nothing is opened yet; a `path` of None is memory."""
        self.path = path
        self.fault: str | None = None
        """Why the file cannot be written now; None: it can."""
        self.flush_seconds = flush_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="route-database")
        self._connection: sqlite3.Connection | None = None
        self._parts: list[Part] = []
        self._version: int | None = None
        self._one_flush = asyncio.Lock()
        self._stop = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open or make the file, readable by its owner alone, and write to it every 100 ms from now on.

        Raises:
            ConfigError: it cannot be opened, is no database of the router, or of a newer one.
        """
        await self._in_thread(self._open)
        self._ticking = asyncio.create_task(self._tick(), name="route-database")

    async def close(self) -> None:
        """Write what is not yet written and close the file; closing twice is no mistake."""
        if self._ticking is None:
            return
        self._stop.set()
        await self._ticking
        self._ticking = None
        if not await self.flush():
            _LOGGER.error("the database was closed without what could not be written")
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def add(self, part: Part) -> None:
        """Write and read for `part` from now on; it has read once when this returns."""
        part.absorb(await self.read(part.read))
        self._parts.append(part)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one transaction, in the thread; it is on the disk when this returns.

        Raises:
            sqlite3.Error: nothing of it was written.
        """
        return await self._in_thread(lambda: self._transaction(work))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` that changes nothing, in the thread; it waits for no other worker.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        return await self._in_thread(lambda: work(self._opened()))

    async def flush(self) -> bool:
        """Write what has gathered now; whether it is on the disk when this returns."""
        return await asyncio.shield(self._flush())  # who asked may be cancelled; what was taken may not be lost

    async def _flush(self) -> bool:
        async with self._one_flush:
            taken = [(part, part.take()) for part in self._parts]
            try:
                news = await self._in_thread(lambda: self._write(taken))
            except sqlite3.Error as error:
                for part, batch in taken:
                    part.give_back(batch)
                self._notice(str(error))
                return False
            for (part, _), of_part in zip(taken, news, strict=False):
                part.absorb(of_part)
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

    def _write(self, taken: list[tuple[Part, Any]]) -> list[Any]:
        if any(batch for _, batch in taken):
            return self._transaction(lambda connection: [part.write(connection, batch) for part, batch in taken])
        connection = self._opened()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:  # nobody else has written, so there is nothing to read
            return []
        news = [part.read(connection) for part, _ in taken]
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
    check_ours(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # a prompt whose time is over is gone from the file
    return connection
