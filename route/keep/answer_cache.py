"""Answers kept for requests that come again word for word at temperature 0: in a SQLite file or in Redis.

An entry is found by a digest of everything that counts: whose key it was (unless all may share), the model and its
configuration, the whole request as it would go to the provider, and its form. Prompts are not kept, and a cache that
cannot be read or written costs no request: it is asked without.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from p2l.common.files import parse_json

T = TypeVar("T")
_log = logging.getLogger("route")
_LONGEST_ENTRY = 2**20  # characters; a longer answer is hardly asked for again
_BUSY_SECONDS = 2.0
_PREFIX = "p2l:answer:"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, expires REAL NOT NULL, size INTEGER NOT NULL, answer TEXT);
CREATE INDEX IF NOT EXISTS answers_by_time ON answers (expires);
"""


class _Store(Protocol):
    async def read(self, digest: str) -> str | None: ...

    async def write(self, digest: str, answer: str, seconds: float) -> None: ...

    async def close(self) -> None: ...


class _InFile:
    """A SQLite file, which the workers of one machine share."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Open nothing yet."""
        self._path, self._most_bytes = path, most_bytes
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(self._in_thread, work)

    def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._path.touch(mode=0o600)
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            self._connection = connection
        with self._connection:
            return work(self._connection)

    async def read(self, digest: str) -> str | None:
        query = "SELECT answer FROM answers WHERE digest = ? AND expires > ?"
        row = await self._run(lambda connection: connection.execute(query, (digest, time.time())).fetchone())
        return None if row is None else str(row[0])

    async def write(self, digest: str, answer: str, seconds: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            now = time.time()
            connection.execute("DELETE FROM answers WHERE expires <= ?", (now,))
            row = (digest, now + seconds, len(answer), answer)
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)
            [size] = connection.execute("SELECT SUM(size) FROM answers").fetchone()
            while size > self._most_bytes:  # those that would leave first
                oldest = "SELECT digest, size FROM answers ORDER BY expires, rowid LIMIT 1"
                old_digest, old_size = connection.execute(oldest).fetchone()
                connection.execute("DELETE FROM answers WHERE digest = ?", (old_digest,))
                size -= old_size

        await self._run(write)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _InRedis:
    """A Redis, which replicas share; how much it keeps is its own `maxmemory`."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet."""
        from redis.asyncio import Redis

        self._redis = Redis.from_url(url, socket_timeout=_BUSY_SECONDS, socket_connect_timeout=_BUSY_SECONDS)

    async def read(self, digest: str) -> str | None:
        text = await self._redis.get(_PREFIX + digest)
        return text.decode() if isinstance(text, bytes) else text

    async def write(self, digest: str, answer: str, seconds: float) -> None:
        await self._redis.set(_PREFIX + digest, answer, px=max(1, int(seconds * 1000)))

    async def close(self) -> None:
        await self._redis.aclose()


class AnswerCache:
    """The answers of one configuration's cache."""

    def __init__(self, location: str, *, seconds: float, most_mb: float, across_keys: bool) -> None:
        """Keep answers for some seconds, in a file at most `most_mb` MiB of them; open nothing yet."""
        self.across_keys = across_keys
        self._seconds = seconds
        is_redis = location.startswith(("redis://", "rediss://"))
        self._store: _Store = _InRedis(location) if is_redis else _InFile(Path(location), int(most_mb * 2**20))

    @staticmethod
    def digest(*parts: Any) -> str:
        """Return the name of an entry."""
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def get(self, digest: str) -> Any:
        """Return an entry; None where there is none."""
        try:
            text = await self._store.read(digest)
            return None if text is None else parse_json(text)
        except Exception as error:  # of two libraries, and of files on any disk
            _log.warning("the cache of answers cannot be read: %s", type(error).__name__)
            return None

    async def put(self, digest: str, answer: Any) -> None:
        """Keep an entry, unless it is too long."""
        text = json.dumps(answer)
        if len(text) > _LONGEST_ENTRY:
            return
        try:
            await self._store.write(digest, text, self._seconds)
        except Exception as error:
            _log.warning("the cache of answers cannot be written: %s", type(error).__name__)

    async def close(self) -> None:
        """Close file or connections."""
        with contextlib.suppress(Exception):
            await self._store.close()
