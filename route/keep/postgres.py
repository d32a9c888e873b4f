"""The router's database on a PostgreSQL server, for any number of routers on any number of machines.

Connections are pooled. One that breaks is replaced and its transaction run once more, unless it broke in the midst of
its commit: a flush then looks up whether its number is in the table `flushes` before it writes anything again, so that
no sum is counted twice. A new connection may be one to a replica that has come in the server's place and is behind it:
what it lacks is written again, see `route.keep.failover`.

Text holds no NUL here; where a client sends one, it is stored and looked up as U+FFFD.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from p2l.common.errors import ConfigError
from route.keep.database import (
    FLUSH_SECONDS,
    Connection,
    Cursor,
    Database,
    DatabaseError,
    SchemaError,
    WriteBehind,
    without_password,
)
from route.keep.failover import Acknowledged, Lack

try:
    import psycopg
    from psycopg import errors
    from psycopg_pool import ConnectionPool, PoolTimeout
except ImportError as error:
    raise ConfigError("database: a postgresql:// URL needs the extra: pip install 'p2l[replicas]'") from error

_SHOWN = """
    request_id TEXT PRIMARY KEY, time DOUBLE PRECISION NOT NULL, key TEXT NOT NULL, model_a TEXT NOT NULL, model_b TEXT,
    version_a TEXT, version_b TEXT, propensity DOUBLE PRECISION NOT NULL, revision TEXT NOT NULL, prompt TEXT"""
_MIGRATIONS = (
    f"""
    CREATE TABLE usage (
        day BIGINT, model TEXT, key TEXT, answers BIGINT NOT NULL, measured BIGINT NOT NULL,
        prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, cost DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (day, model, key));
    CREATE TABLE spend (
        day BIGINT, key TEXT, cost DOUBLE PRECISION NOT NULL, flush BIGINT NOT NULL, PRIMARY KEY (day, key));
    CREATE INDEX spend_flush ON spend (flush);
    CREATE TABLE arrivals (
        second BIGINT, key TEXT, requests BIGINT NOT NULL, flush BIGINT NOT NULL, PRIMARY KEY (second, key));
    CREATE INDEX arrivals_flush ON arrivals (flush);
    CREATE TABLE tokens (
        second BIGINT, key TEXT, tokens BIGINT NOT NULL, flush BIGINT NOT NULL, PRIMARY KEY (second, key));
    CREATE INDEX tokens_flush ON tokens (flush);
    CREATE TABLE clock (flush BIGINT NOT NULL);
    INSERT INTO clock VALUES (0);
    CREATE TABLE leases (
        worker TEXT, day BIGINT, key TEXT, amount DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (worker, day, key));
    CREATE TABLE answers ({_SHOWN});
    CREATE INDEX answers_time ON answers (time);
    CREATE TABLE votes ({_SHOWN}, verdict TEXT NOT NULL, voted DOUBLE PRECISION NOT NULL,
        number BIGINT GENERATED ALWAYS AS IDENTITY);
    CREATE INDEX votes_time ON votes (time);
    CREATE INDEX votes_key ON votes (key, voted);
    CREATE INDEX votes_number ON votes (number);
    CREATE TABLE voters (secret BYTEA NOT NULL);
    CREATE TABLE conversations (conversation TEXT PRIMARY KEY, model TEXT NOT NULL, time DOUBLE PRECISION NOT NULL);
    CREATE INDEX conversations_time ON conversations (time);
    CREATE TABLE averages (revision TEXT NOT NULL, prompts BIGINT NOT NULL, coefs TEXT NOT NULL);
    CREATE TABLE responses (
        id TEXT PRIMARY KEY, key TEXT NOT NULL, time DOUBLE PRECISION NOT NULL, previous TEXT, response TEXT NOT NULL,
        items TEXT NOT NULL);
    CREATE INDEX responses_time ON responses (time);
    CREATE TABLE keys (
        name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, limits TEXT NOT NULL, created DOUBLE PRECISION NOT NULL,
        revoked DOUBLE PRECISION);
    CREATE TABLE changes (subject TEXT PRIMARY KEY, number BIGINT NOT NULL);
    CREATE TABLE flushes (worker TEXT PRIMARY KEY, number BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL);
    """,
    """
    ALTER TABLE answers ADD COLUMN stored DOUBLE PRECISION;
    ALTER TABLE responses ADD COLUMN size BIGINT NOT NULL DEFAULT 0;
    UPDATE responses SET size = octet_length(response) + octet_length(items);
    CREATE INDEX responses_key ON responses (key, time, size);
    """,
    """
    CREATE TABLE response_items (id TEXT, response TEXT, PRIMARY KEY (id, response));
    CREATE INDEX response_items_response ON response_items (response);
    """,
    """
    ALTER TABLE answers ADD COLUMN visitor TEXT, ADD COLUMN prefix TEXT, ADD COLUMN identity_revealed BIGINT;
    ALTER TABLE votes ADD COLUMN visitor TEXT, ADD COLUMN prefix TEXT, ADD COLUMN identity_revealed BIGINT,
        ADD COLUMN visitor_battles BIGINT, ADD COLUMN prefix_battles BIGINT;
    CREATE INDEX votes_prefix ON votes (prefix, voted);
    CREATE TABLE salts (period BIGINT PRIMARY KEY, salt BYTEA NOT NULL);
    CREATE TABLE visits (pseudonym TEXT PRIMARY KEY, battles BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL);
    CREATE INDEX visits_time ON visits (time);
    """,
    """
    CREATE TABLE bookings (worker TEXT PRIMARY KEY, number BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL);
    """,
)
"""One script per version of the schema, oldest first; a released one is never changed."""
T = TypeVar("T")
_NUMBER_FLUSH = (
    "INSERT INTO flushes VALUES (?, ?, ?) "
    "ON CONFLICT (worker) DO UPDATE SET number = excluded.number, time = excluded.time"
)
_CONNECTIONS = 4
# In which a connection has to be there.
_PATIENCE_SECONDS = 3.0
# Between two tries to connect, while the server is gone.
_TRY_SECONDS = 0.5
# After a router's last flush, and after the server's last return, until none of its flushes is in doubt.
_KEPT_FLUSH_SECONDS = 86_400.0
_DEFAULTS = {
    "connect_timeout": "3",
    "tcp_user_timeout": "10000",  # milliseconds until a server that does not acknowledge counts as gone
    "application_name": "p2l-route",
    "target_session_attrs": "read-write",  # of several hosts of a URL that which is no replica
    "options": "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=30000",
}
# Faults of the connection or of the moment, not of the statement: it is run once more.
_AGAIN = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, errors.ReadOnlySqlTransaction)
# Those of them that a server sends, so that its connection is well.
_CONNECTED = (errors.DeadlockDetected, errors.QueryCanceled, errors.LockNotAvailable)


class _Session:
    """A connection of psycopg as `Connection`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> Cursor:
        return self._connection.execute(_translated(query), _storable(parameters) if parameters else None)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object:
        parameters = [_storable(row) for row in rows]
        if parameters:
            with self._connection.cursor() as cursor:
                cursor.executemany(_translated(query), parameters)
        return None

    def lock(self, name: str) -> None:
        """Take an advisory lock of this schema until the transaction ends."""
        self.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '/' || ?, 0))", (name,))


@lru_cache(maxsize=256)
def _translated(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def _storable(parameters: Sequence[Any]) -> list[Any]:
    return [each.replace("\0", "\ufffd") if isinstance(each, str) and "\0" in each else each for each in parameters]


class PostgresDatabase(Database):
    """A pool of connections, each used by one thread at a time."""

    is_remote = True
    # Sums, keys and configurations that others changed.
    state_query = "SELECT flush, (SELECT sum(number) FROM changes) FROM clock"

    def __init__(self, url: str, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Connect to nothing yet."""
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        if parts.password is not None:
            parts = parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}")
        super().__init__(urlunsplit(parts), threads=_CONNECTIONS, flush_seconds=flush_seconds)
        self._url = url
        self._pool: ConnectionPool[Any] | None = None
        self._renewal = threading.Lock()
        self._is_gone = False
        self._tried = 0.0
        self._worker = secrets.token_hex(8)
        self._number = 0
        """Number of this worker's last flush."""
        self._noted = 0.0
        """The time in this worker's row of `flushes`, in seconds since 1970."""
        self._acknowledged = Acknowledged()
        self._server = self._caught_up = 0
        """How often a connection was replaced, and of which of them it is known what its server lacks."""
        self._tidied = 0.0
        """When rows of other routers were removed last, or this one found the server."""

    def _open(self) -> None:
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # it repeats what is logged here, many times
        try:
            with psycopg.connect(self._url, **self._settings()) as connection:
                prepare(_Session(connection))
            self._pool, self._tidied = self._new_pool(), time.monotonic()
        except (psycopg.Error, PoolTimeout, SchemaError) as error:
            self._close()
            raise ConfigError(f"database: {self.name}: cannot be used: {without_password(error, self._url)}") from None

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _settings(self) -> dict[str, Any]:
        parameters = psycopg.conninfo.conninfo_to_dict(self._url)
        settings = {name: default for name, default in _DEFAULTS.items() if name not in parameters}
        if "options" in parameters:  # of two settings of one option the server takes the last, which is the user's
            settings["options"] = f"{_DEFAULTS['options']} {parameters['options']}"
        return settings

    def _new_pool(self) -> ConnectionPool[Any]:
        psycopg.connect(self._url, **self._settings()).close()  # a pool waits, where this fails at once
        # Its own threads need not reconnect: the flush looks after a server that is gone.
        pool = ConnectionPool(
            self._url, kwargs=self._settings(), min_size=1, max_size=_CONNECTIONS, open=False, reconnect_timeout=0.1
        )
        try:
            pool.open(wait=True, timeout=_PATIENCE_SECONDS)
        except BaseException:
            pool.close()
            raise
        return pool

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        if self._is_gone:  # nobody waits for a timeout; the flush looks whether the server is back
            raise DatabaseError(self.fault or "the server is gone")
        before = self._pool
        try:
            return self._once(work)
        except _AGAIN as error:
            is_connected = isinstance(error, _CONNECTED)
        try:
            if not is_connected:
                self._renew(before)
            return self._once(work)
        except _AGAIN as error:
            self._is_gone = not isinstance(error, _CONNECTED)
            raise DatabaseError(without_password(error, self._url)) from None

    def _once(self, work: Callable[[Connection], T]) -> T:
        pool = self._pool
        if pool is None:
            raise DatabaseError("the database is not open")
        connection = pool.getconn(timeout=_PATIENCE_SECONDS)
        try:
            try:
                outcome = work(_Session(connection))
            except BaseException:
                if not connection.closed:
                    connection.rollback()
                raise
            _commit(connection)
            return outcome
        except _AGAIN:
            raise  # `_transaction` tries once more
        except psycopg.Error as error:
            raise DatabaseError(without_password(error, self._url)) from None
        finally:
            pool.putconn(connection)  # which discards a broken one

    def _renew(self, before: ConnectionPool[Any] | None) -> None:
        """Connect anew where the server answers; connections of one that was restarted are all broken."""
        with self._renewal:
            if self._pool is before:  # no other thread has done it
                pool = self._new_pool()
                self._server += 1  # before anybody has a connection
                self._pool, self._is_gone, self._tidied = pool, False, time.monotonic()
                if before is not None:
                    before.close(timeout=0)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """See `Database`; a server that may lack something gets that first."""
        if self._caught_up != self._server:
            await self.flush()
        return await super().run(work)

    def _write(self, batches: list[tuple[WriteBehind, Any]]) -> list[Any]:
        # Batches in doubt stay in doubt: given back to their buffers, they would be written twice.
        again, number = self._doubt is not None, self._number + 1
        has_batches = any(batch for _, batch in batches)
        if self._is_gone:
            self._try_again(is_in_doubt=again)
        # Well within the time after which others take this worker for one that has ended.
        is_due = self._number > 0 and time.time() - self._noted > _KEPT_FLUSH_SECONDS / 4
        if not (has_batches or is_due) and self._caught_up == self._server:
            return self._news(batches)
        server, noted = self._server, self._noted
        lack = Lack()

        def write(connection: Connection) -> list[Any]:
            nonlocal server, noted, lack
            server = self._server  # a connection that breaks is replaced, perhaps by one to another server
            is_made = again and self._last_flush(connection) == number  # the commit that broke
            waiting = [(buffer, None) for buffer, _ in batches] if is_made else batches
            lack = self._supplied(connection, waiting) if server != self._caught_up else Lack()
            if not is_made and (has_batches or is_due):
                noted = time.time()
                connection.execute(_NUMBER_FLUSH, (self._worker, number if has_batches else self._number, noted))
                self._tidy(connection)
            if not is_made and has_batches:
                return [buffer.write(connection, batch) for buffer, batch in batches]
            return [buffer.read(connection) for buffer, _ in batches]

        try:
            news = self._transaction(write)
        except DatabaseError as error:
            self._doubt = batches if has_batches and (error.in_doubt or again) else None
            raise DatabaseError(str(error), in_doubt=self._doubt is not None) from None
        self._caught_up, self._doubt, self._noted = server, None, noted
        if has_batches:
            self._number = number
            self._acknowledged.add(number, batches)
        lack.tell()
        return news

    def _last_flush(self, connection: Connection) -> int | None:
        """Return the number of this worker's last flush that the server has."""
        row = connection.execute("SELECT number FROM flushes WHERE worker = ?", (self._worker,)).fetchone()
        return None if row is None else int(row[0])

    def _supplied(self, connection: Connection, batches: list[tuple[WriteBehind, Any]]) -> Lack:
        """Write again what a new server lacks; return what that was."""
        last = self._last_flush(connection)
        # The row of a worker that was away for a day was tidied away: what it wrote is there, and would count twice.
        is_tidied = last is None and time.time() - self._noted > _KEPT_FLUSH_SECONDS
        known = self._number if is_tidied else last or 0
        again = self._acknowledged.after(known)
        if known < self._number:
            connection.execute(_NUMBER_FLUSH, (self._worker, self._number, time.time()))
        for flush in again:
            for buffer, batch in flush.batches:
                buffer.write(connection, batch)
        rows = sum(buffer.recover(connection, batch) for buffer, batch in batches)
        return Lack(max(0, self._number - known), len(again), rows)

    def _try_again(self, *, is_in_doubt: bool) -> None:
        """Look whether a server that was gone is back; raise DatabaseError if not, or if it is too early to look."""
        now = time.monotonic()
        if now - self._tried < _TRY_SECONDS:
            raise DatabaseError(self.fault or "the server is gone", in_doubt=is_in_doubt)
        self._tried = now
        try:
            self._renew(self._pool)
        except _AGAIN as error:
            raise DatabaseError(self.fault or without_password(error, self._url), in_doubt=is_in_doubt) from None

    def _tidy(self, connection: Connection) -> None:
        """Remove the rows of routers that have ended, once a day.

        Those of an outage may have a flush in doubt: they get a day to come back after the server does.
        """
        now = time.monotonic()
        if now - self._tidied > _KEPT_FLUSH_SECONDS:
            self._tidied = now
            connection.execute("DELETE FROM flushes WHERE time < ?", (time.time() - _KEPT_FLUSH_SECONDS,))


def _commit(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.commit()
    except psycopg.Error as error:
        raise DatabaseError(f"the connection broke during a commit: {type(error).__name__}", in_doubt=True) from None


def prepare(connection: Connection) -> None:
    """Migrate the schema to the newest version, one router at a time; raise SchemaError if it cannot be used."""
    connection.lock("schema")  # of several routers that start at once only one migrates
    versions = connection.execute("SELECT to_regclass(current_schema() || '.p2l_router')").fetchone()[0]
    version = 0
    if versions is not None:
        version = int(connection.execute("SELECT version FROM p2l_router").fetchone()[0])
    elif connection.execute("SELECT to_regclass(current_schema() || '.votes')").fetchone()[0] is not None:
        raise SchemaError("it holds tables of another program; choose another database or schema")
    if version > len(_MIGRATIONS):
        raise SchemaError(f"its version {version} is newer than this router knows; update the router")
    if version == len(_MIGRATIONS):
        return
    for script in _MIGRATIONS[version:]:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement)
    if version == 0:
        connection.execute("CREATE TABLE p2l_router (version BIGINT NOT NULL)")
        connection.execute("INSERT INTO p2l_router VALUES (0)")
        connection.execute("INSERT INTO voters VALUES (?)", (secrets.token_bytes(32),))
    connection.execute("UPDATE p2l_router SET version = ?", (len(_MIGRATIONS),))
