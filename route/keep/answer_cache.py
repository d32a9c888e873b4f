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
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from p2l.common.files import parse_json

T = TypeVar("T")
_log = logging.getLogger("route")
_LONGEST_ENTRY = 2**20  # characters; a longer answer is hardly asked for again
_BUSY_SECONDS = 2.0
_REPLY_SECONDS = 0.5  # of a Redis: a request waits for it
_PAUSE_SECONDS = 5.0
"""After a failure, in which requests do without."""
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
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._redis = Redis.from_url(
            url, socket_timeout=_REPLY_SECONDS, socket_connect_timeout=_REPLY_SECONDS, retry=Retry(NoBackoff(), 0)
        )

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
        self.fault: str | None = None
        """Why it cannot be used; None: it can, as far as is known."""
        self._pause_ends = -math.inf
        self._seconds = seconds
        is_redis = location.startswith(("redis://", "rediss://"))
        self._store: _Store = _InRedis(location) if is_redis else _InFile(Path(location), int(most_mb * 2**20))

    @staticmethod
    def digest(*parts: Any) -> str:
        """Return the name of an entry."""
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def get(self, digest: str) -> Any:
        """Return an entry; None where there is none, or where `fault` says why the cache cannot be used."""

        async def read() -> Any:
            text = await self._store.read(digest)
            return None if text is None else parse_json(text)

        return await self._use("read", read)

    async def put(self, digest: str, answer: Any) -> None:
        """Keep an entry, unless it is too long."""
        text = json.dumps(answer)
        if len(text) <= _LONGEST_ENTRY:
            await self._use("written", lambda: self._store.write(digest, text, self._seconds))

    async def _use(self, how: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Use the store, unless that has failed a moment ago: a Redis that hangs would hold up every request."""
        if time.monotonic() < self._pause_ends:
            return None
        try:
            result = await work()
        except Exception as error:  # of two libraries, and of files on any disk
            self._pause_ends = time.monotonic() + _PAUSE_SECONDS
            if self.fault is None:
                _log.warning("the cache of answers cannot be %s, models are asked: %s", how, type(error).__name__)
            self.fault = type(error).__name__
            return None
        if self.fault is not None:
            self.fault = None
            _log.warning("the cache of answers can be used again")
        return result

    async def close(self) -> None:
        """Close file or connections."""
        with contextlib.suppress(Exception):
            await self._store.close()
