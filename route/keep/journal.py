"""Votes, and the answers that they are about, on this machine's disk while the database's server is gone.

Each is in the file before its client has an answer, and delivered once the server is back, in one transaction for many:
what is there already changes nothing, so that a router that is killed in between delivers it again without counting it
twice. The file is bounded: the oldest answers leave first, and votes are refused when it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from p2l.common.errors import ConfigError

T = TypeVar("T")
_MOST_VOTES = 100_000
_MOST_ANSWERS = 100_000
_MOST_PROMPT_BYTES = 256 << 20
# Entries of one transaction: each is a lookup and a row, and votes of clients wait for its lock.
_ENTRIES_PER_DELIVERY = 500
_APPLICATION_ID = 0x50324C4A  # "P2LJ" marks the file as a journal


class Entry(NamedTuple):
    """A vote or an answer that waits."""

    number: int
    kind: str
    """vote or answer."""
    row: list[Any]


class JournalError(Exception):
    """The journal is full, or its disk is."""


class Journal:
    """One file, which several workers of a machine may share; used by one thread of this process."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self.path = path
        self.waiting = 0
        """Votes that wait to be delivered, as far as this worker has seen."""
        self.is_empty = False
        """Whether nothing waits, as far as this worker has seen."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="route-journal")
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Open or create the file, readable by its owner alone; raise ConfigError if it cannot be used."""
        try:
            await self._in_thread(self._open)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"journal: {self.path}: cannot be used: {error}") from error

    async def close(self) -> None:
        """Close the file; what waits in it is delivered when the router starts again."""
        if self._connection is not None:
            await self._in_thread(self._connection.close)
            self._connection = None
        self._thread.shutdown()

    async def add(self, kind: str, rows: Callable[[], Sequence[Sequence[Any]]]) -> None:
        """Write rows, which are made in the thread, onto the disk; raise JournalError where there is no room."""
        try:
            await self._in_thread(lambda: self._add(kind, rows()))
        except sqlite3.Error as error:
            raise JournalError(str(error)) from error

    async def next(self, after: tuple[str, int] = ("", 0)) -> list[Entry]:
        """Return the oldest entries, answers before votes, after the one of a kind and number."""
        with contextlib.suppress(sqlite3.Error):
            return await self._in_thread(lambda: self._next(after))
        return []

    async def forget(self, entries: Sequence[Entry]) -> None:
        """Remove entries that were delivered."""
        with contextlib.suppress(sqlite3.Error):  # they are delivered once more, which changes nothing
            await self._in_thread(lambda: self._forget([entry.number for entry in entries]))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
        self._connection = connection
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise sqlite3.DatabaseError("it is a database of another kind; choose another path")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, "
            "row TEXT NOT NULL)"
        )
        self._count()

    def _count(self) -> None:
        assert self._connection is not None
        query = "SELECT count(*) FROM entries WHERE kind = 'vote'"
        self.waiting = self._connection.execute(query).fetchone()[0]
        self.is_empty = self._connection.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None

    def _add(self, kind: str, rows: Sequence[Sequence[Any]]) -> None:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            if kind == "vote":
                self._count()
                if self.waiting + len(rows) > _MOST_VOTES:
                    raise sqlite3.OperationalError(f"it holds {_MOST_VOTES:,} votes already")
            texts = [(kind, json.dumps(row)) for row in rows]
            connection.executemany("INSERT INTO entries (kind, row) VALUES (?, ?)", texts)
            if kind == "answer":
                query = "SELECT count(*), coalesce(sum(length(row)), 0) FROM entries WHERE kind = 'answer'"
                count, size = connection.execute(query).fetchone()
                if count > _MOST_ANSWERS or size > _MOST_PROMPT_BYTES:
                    # Half of them at once, the oldest: to make room for one answer at a time would cost as much each.
                    connection.execute(
                        "DELETE FROM entries WHERE number IN "
                        "(SELECT number FROM entries WHERE kind = 'answer' ORDER BY number LIMIT ?)",
                        (max(1, count // 2),),
                    )
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        self._count()

    def _next(self, after: tuple[str, int]) -> list[Entry]:
        assert self._connection is not None
        rows = self._connection.execute(
            "SELECT number, kind, row FROM entries WHERE (kind, number) > (?, ?) ORDER BY kind, number LIMIT ?",
            (*after, _ENTRIES_PER_DELIVERY),
        ).fetchall()
        return [Entry(number, kind, json.loads(row)) for number, kind, row in rows]

    def _forget(self, numbers: Sequence[int]) -> None:
        assert self._connection is not None
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("DELETE FROM entries WHERE number = ?", [(number,) for number in numbers])
        self._connection.execute("COMMIT")
        self._count()
