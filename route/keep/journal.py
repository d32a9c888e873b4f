"""Votes, and the answers that they are about, on this machine's disk while the database's server is gone.

Each is in the file before its client has an answer, and delivered once the server is back, in one transaction for many:
what is there already changes nothing, so that a router that is killed in between delivers it again without counting it
twice. The file is bounded: answers without a vote leave first, the oldest before others; votes are refused where their
key, or all keys together, have too many, and never forgotten.
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
from route.keep.usage import DAY

T = TypeVar("T")
_MOST_VOTES = 100_000
_MOST_VOTES_OF_KEY = 10_000
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


class JournalQuotaError(Exception):
    """A key has as many votes in the journal as it may; the text is for the client."""


class Journal:
    """One file, which several workers of a machine may share; used by one thread of this process."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self.path = path
        self.waiting = 0
        """Votes that wait to be delivered, as far as this worker has seen."""
        self.is_empty = False
        """Whether nothing waits, as far as this worker has seen."""
        self.additions = 0
        """Entries that this worker has added."""
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

    async def add_answers(self, rows: Callable[[], Sequence[Sequence[Any]]]) -> None:
        """Write answers, which are made in the thread, onto the disk; raise JournalError where there is no room.

        An answer's row begins with its request, its time and its key.
        """
        await self._change(lambda connection: self._add_answers(connection, rows()))

    async def add_vote(
        self, vote: Sequence[Any], answer: Callable[[], Sequence[Any]] | None = None, most: int | None = None
    ) -> None:
        """Write a vote onto the disk, in place of an earlier one on its request, with its answer where that is known.

        A vote's row is its request, the verdict, the key and the time. Raise JournalQuotaError where its key has voted
        `most` times on this day or has too many votes that wait, JournalError where there is no room.
        """
        await self._change(lambda connection: self._add_vote(connection, vote, answer, most))

    async def waiting_by_key(self) -> dict[str, int]:
        """Return how many votes of each key wait."""
        query = "SELECT key, count(*) FROM entries WHERE kind = 'vote' GROUP BY key ORDER BY key"
        return dict(await self._change(lambda connection: connection.execute(query).fetchall()))

    async def discard(self) -> int:
        """Remove all votes that wait, as an administrator may; return how many."""
        query = "DELETE FROM entries WHERE kind = 'vote'"
        return await self._change(lambda connection: connection.execute(query).rowcount)

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction, in the thread; raise JournalError if it cannot be written."""
        try:
            return await self._in_thread(lambda: self._transaction(work))
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
        columns = {row[1] for row in connection.execute("PRAGMA table_info(entries)")}
        for number, name in ((0, "request_id"), (2, "key")):  # files of earlier versions have them in the rows alone
            if name not in columns:
                connection.execute(f"ALTER TABLE entries ADD COLUMN {name} TEXT")
                connection.execute(f"UPDATE entries SET {name} = json_extract(row, '$[{number}]')")
            connection.execute(f"CREATE INDEX IF NOT EXISTS entries_{name} ON entries (kind, {name})")
        self._count()

    def _count(self) -> None:
        assert self._connection is not None
        query = "SELECT count(*) FROM entries WHERE kind = 'vote'"
        self.waiting = self._connection.execute(query).fetchone()[0]
        self.is_empty = self._connection.execute("SELECT 1 FROM entries LIMIT 1").fetchone() is None

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcome = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        self._count()
        return outcome

    def _add_answers(self, connection: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> None:
        self._insert(connection, "answer", rows)
        query = "SELECT count(*), coalesce(sum(length(row)), 0) FROM entries WHERE kind = 'answer'"
        count, size = connection.execute(query).fetchone()
        if count > _MOST_ANSWERS or size > _MOST_PROMPT_BYTES:
            # Half of them at once: to make room for one answer at a time would cost as much each.
            connection.execute(
                "DELETE FROM entries WHERE number IN (SELECT number FROM entries AS answers WHERE kind = 'answer' "
                "AND NOT EXISTS (SELECT 1 FROM entries WHERE kind = 'vote' AND request_id = answers.request_id) "
                "ORDER BY number LIMIT ?)",
                (max(1, count // 2),),
            )
            [left] = connection.execute(query.replace("count(*), ", "")).fetchone()
            if left > _MOST_PROMPT_BYTES:
                raise sqlite3.OperationalError(f"its answers that were voted on have over {_MOST_PROMPT_BYTES:,} bytes")

    def _add_vote(
        self,
        connection: sqlite3.Connection,
        vote: Sequence[Any],
        answer: Callable[[], Sequence[Any]] | None,
        most: int | None,
    ) -> None:
        request_id, _, key, when = vote
        same = "kind = 'vote' AND request_id = ? AND key = ?"
        if not connection.execute(f"DELETE FROM entries WHERE {same}", (request_id, key)).rowcount:
            [in_all] = connection.execute("SELECT count(*) FROM entries WHERE kind = 'vote'").fetchone()
            if in_all >= _MOST_VOTES:
                raise sqlite3.OperationalError(f"it holds {_MOST_VOTES:,} votes already")
            of_key = "SELECT count(*) FROM entries WHERE kind = 'vote' AND key = ?"
            if connection.execute(of_key, (key,)).fetchone()[0] >= _MOST_VOTES_OF_KEY:
                raise JournalQuotaError(f"this API key has {_MOST_VOTES_OF_KEY:,} votes that wait for the database")
            today = (key, when - when % DAY)
            of_today = f"{of_key} AND json_extract(row, '$[3]') >= ?"
            if most is not None and connection.execute(of_today, today).fetchone()[0] >= most:
                raise JournalQuotaError(f"this API key may vote on {most} answers a day")
        self._insert(connection, "vote", [vote])
        is_there = "SELECT 1 FROM entries WHERE kind = 'answer' AND request_id = ?"
        if answer is not None and connection.execute(is_there, (request_id,)).fetchone() is None:
            self._insert(connection, "answer", [answer()])

    def _insert(self, connection: sqlite3.Connection, kind: str, rows: Sequence[Sequence[Any]]) -> None:
        connection.executemany(
            "INSERT INTO entries (kind, row, request_id, key) VALUES (?, ?, ?, ?)",
            [(kind, json.dumps(row), row[0], row[2]) for row in rows],
        )
        self.additions += len(rows)

    def _next(self, after: tuple[str, int]) -> list[Entry]:
        assert self._connection is not None
        rows = self._connection.execute(
            "SELECT number, kind, row FROM entries WHERE (kind, number) > (?, ?) ORDER BY kind, number LIMIT ?",
            (*after, _ENTRIES_PER_DELIVERY),
        ).fetchall()
        return [Entry(number, kind, json.loads(row)) for number, kind, row in rows]

    def _forget(self, numbers: Sequence[int]) -> None:
        rows = [(number,) for number in numbers]
        self._transaction(lambda connection: connection.executemany("DELETE FROM entries WHERE number = ?", rows))
