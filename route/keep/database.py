"""The router's database: one interface over SQLite and PostgreSQL.

Events gather in memory and are written every 100 ms, all in one transaction, in which each worker also reads what the
others have written. No request waits for a disk: work runs in threads. SQL is written once, in what both databases
understand, with `?` for parameters; `Connection.lock` is what it takes beyond that.

A process that is killed loses the events since its last transaction: at most 100 ms plus the time of one transaction.
Costs of calls are not lost: `route.keep.under_way` has them until they are in the database.
While the database cannot be written, events stay in memory.

Processes tell each other through it, too, that keys or a configuration have changed: each subject has a number, which
grows with every change, and workers see a new one within 100 ms. What has changed they read themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

# Tables; keys of clients are there by name, prompts only with `store_prompts: true` and in responses that are kept.
#
# | table | one row is |
# |---|---|
# | usage | the answers of a model to a key on one day (days since 1970, UTC); `measured` ones came with token counts |
# | spend | what a key, or all keys of a team (`team:NAME`), spent on one day |
# | leases | what a worker may spend of a key's or a team's day, beyond what is in `spend`, until it expires |
# | arrivals | the requests of a key in one second, of the last minute |
# | answers | an answer of the last day, as it was shown; one of an outage is kept for a day after it was `stored` |
# | votes | an answer that was voted on |
# | voters | the only one: the secret from which exports make pseudonyms of keys |
# | salts | the only one: the salt of visitors' pseudonyms of these thirty days |
# | visits | how many battles a visitor of the arena, or all of an address prefix, began, by pseudonym |
# | conversations | the model that answered a conversation last |
# | averages | the only one: the average leaderboard of the prompts scored last, which decides without scores |
# | keys | a key that was made while the router ran: its digest and limits |
# | changes | how often something has changed that other processes have to read again |
# | tokens | the tokens of a key in one second, of the last minute |
# | responses | a response of the Responses API and the input that was new in its request, for 30 days |
# | response_items | an output item of such a response, which a later request may refer to |
# | bookings | a worker's last batch of sums: what is noted of later ones, if it is killed, is still to be booked |
# | clock | the only one: the last transaction that changed spend, arrivals or tokens, whose rows carry its number |

T = TypeVar("T")
FLUSH_SECONDS = 0.1
"""How long events wait in memory."""
LEASE_SECONDS = 30.0
"""How long a worker that no longer writes keeps what it has leased of a key's day."""
_LOGGER = logging.getLogger("route")


class DatabaseError(Exception):
    """The database cannot be read or written now; the text names no password."""

    def __init__(self, message: str, *, in_doubt: bool = False) -> None:
        """Say why; `in_doubt`: the connection broke during a commit, which may have been made."""
        super().__init__(message)
        self.in_doubt = in_doubt


class SchemaError(Exception):
    """The database belongs to another program, or to a newer version of this one; the text does not name it."""


def without_password(error: BaseException, url: str) -> str:
    """Return the first line of an error without the password of a URL, which drivers may repeat."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    password = urlsplit(url).password
    # libpq repeats a malformed URL as it was written, the server names the password that it decoded.
    for secret in {password, unquote(password)} if password else ():
        text = text.replace(secret, "***")
    return text


class Cursor(Protocol):
    """Rows of a statement."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""

    def fetchmany(self, size: int, /) -> list[Any]:
        """Return the next rows, at most `size`."""


class Connection(Protocol):
    """A connection inside a transaction."""

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run a statement with a `?` for each parameter."""

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Run a statement for each row."""

    def lock(self, name: str) -> None:
        """Keep other transactions from passing the lock of this name until this one ends."""


class WriteBehind:
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

    # A buffer that only listens to other workers overrides `read` and `absorb`, one that only writes the first three.

    def take(self) -> Any:
        """Return what has gathered since the last call (falsy: nothing) and start anew; in the event loop."""
        return None

    def write(self, connection: Connection, _batch: Any) -> Any:
        """Write a batch, then read as `read` does; in a thread, inside a transaction."""
        return self.read(connection)

    def give_back(self, batch: Any) -> None:
        """Gather a batch again that could not be written; in the event loop."""

    def read(self, _connection: Connection) -> Any:
        """Read what other workers wrote; in a thread."""
        return None

    def absorb(self, _news: Any) -> None:
        """Take over what `write` or `read` returned; in the event loop."""

    # Of servers that a replica may take the place of, see `route.keep.failover`.

    def size(self, _batch: Any) -> int:
        """Return the bytes of the texts in a batch."""
        return 0

    def recover(self, _connection: Connection, _batch: Any) -> int:
        """Write again what this worker knows besides batches and a new server may not; return how much that was.

        In a thread, inside a transaction; `batch` was taken and will be written after it, None: nothing will.
        """
        return 0


_Batches: TypeAlias = list[tuple[WriteBehind, Any]]


class Database(ABC):
    """Transactions that run in threads, and a flush of all buffers every 100 ms."""

    is_remote = False
    """Whether it can be gone while this machine is well."""
    state_query: str
    """Returns a row that is another one after each transaction of another worker."""

    def __init__(self, name: str, *, threads: int, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Open nothing yet; messages call it by `name`, a path or a URL without its password."""
        self.name = name
        self.fault: str | None = None
        """Why it cannot be written now; None: it can."""
        self.flush_seconds = flush_seconds
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="route-database")
        self._buffers: list[WriteBehind] = []
        self._one_flush = asyncio.Lock()
        self._stop = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._doubt: _Batches | None = None
        """The batches of a flush of which nobody knows whether it was written."""
        self._written_at = time.monotonic()
        self._returned_at, self._left_at = -math.inf, 0.0
        self._state: Any = None
        """The last row of `state_query`."""

    async def start(self) -> None:
        """Open or create it, and write to it every 100 ms from now on; raise ConfigError if it cannot be used."""
        await self._in_thread(self._open)
        self._ticking = asyncio.create_task(self._tick(), name="route-database")

    async def close(self) -> None:
        """Write what has gathered and close it; a second call does nothing."""
        if self._ticking is None:
            return
        self._stop.set()
        await self._ticking
        self._ticking = None
        if not await self.flush():
            _LOGGER.error("the database was closed without what could not be written")
        await self._in_thread(self._close)
        self._threads.shutdown()

    async def add(self, buffer: WriteBehind) -> None:
        """Read for `buffer` once, and write and read for it with every flush from now on."""
        buffer.absorb(await self.read(buffer.read))
        self._buffers.append(buffer)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction, in a thread; raise DatabaseError if nothing of it was written."""
        return await self._in_thread(lambda: self._transaction(work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which changes nothing, in a thread; it waits for no other worker."""
        return await self._in_thread(lambda: self._reading(work))

    def room(self) -> int | None:
        """Return the bytes of its disk that large texts may still take, where the disk is this machine's.

        The rest is a reserve for votes and accounts.
        """
        return None

    async def flush(self) -> bool:
        """Write what has gathered; return whether it is on the disk."""
        return await asyncio.shield(self._flush())  # a cancelled caller must not lose a batch that was taken

    async def _flush(self) -> bool:
        async with self._one_flush:
            # Sums of a commit that may have been made must not mix with later ones: they go again as they were.
            batches = self._doubt
            if batches is None:
                batches = [(buffer, buffer.take()) for buffer in self._buffers]
            try:
                news = await self._in_thread(lambda: self._write(batches))
            except DatabaseError as error:
                if not error.in_doubt:
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

    @property
    def lost_seconds(self) -> float:
        """Return the seconds since the last write before an outage that lasts or has just ended; else 0.

        What expires in the database expires by clocks that go on while nobody can renew it.
        """
        now = time.monotonic()
        if self.fault:
            return now - self._written_at
        return now - self._left_at if now - self._returned_at < LEASE_SECONDS else 0.0

    def _notice(self, fault: str | None) -> None:
        now = time.monotonic()
        if self.fault and not fault:
            self._returned_at, self._left_at = now, self._written_at
        if not fault:
            self._written_at = now
        if fault and not self.fault:
            _LOGGER.error("the database cannot be written, accounts stay in memory: %s", fault)
        if self.fault and not fault:
            _LOGGER.warning("the database is written again")
        self.fault = fault

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, batches: _Batches) -> list[Any]:
        """Write batches, and read what others wrote; in a thread."""
        if any(batch for _, batch in batches):
            return self._transaction(lambda connection: [buffer.write(connection, batch) for buffer, batch in batches])
        return self._news(batches)

    def _news(self, batches: _Batches) -> list[Any]:
        """Read for each buffer where others have written since; else return nothing."""

        def look(connection: Connection) -> list[Any]:
            # One statement, ten times a second, in place of one for each buffer.
            state = connection.execute(self.state_query).fetchone()
            if state == self._state:
                return []
            news = [buffer.read(connection) for buffer, _ in batches]
            self._state = state
            return news

        return self._reading(look)

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit; raise DatabaseError otherwise."""

    def _reading(self, work: Callable[[Connection], T]) -> T:
        """Run `work` without waiting for writers."""
        return self._transaction(work)


def note_change(connection: Connection, subject: str) -> int:
    """Count a change, inside the transaction that makes it; return its number."""
    connection.execute(
        "INSERT INTO changes VALUES (?, 1) ON CONFLICT (subject) DO UPDATE SET number = changes.number + 1", (subject,)
    )
    return number_of(connection, subject)


def number_of(connection: Connection, subject: str) -> int:
    """Return the number of the last change of a subject; 0 before the first."""
    row = connection.execute("SELECT number FROM changes WHERE subject = ?", (subject,)).fetchone()
    return 0 if row is None else int(row[0])


class Changes(WriteBehind):
    """The changes that other processes tell of; used from one event loop."""

    def __init__(self, database: Database) -> None:
        """Listen to nothing yet."""
        super().__init__(database, time.time)
        self._handlers: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._numbers: dict[str, int] | None = None

    def on(self, subject: str, handle: Callable[[], None]) -> None:
        """Call a function after each change of a subject that this process does not tell of itself."""
        self._handlers[subject].append(handle)

    async def tell(self, subject: str) -> None:
        """Tell the others of a change; raise DatabaseError if the database cannot be written."""
        number = await self._database.run(lambda connection: note_change(connection, subject))
        if self._numbers is not None:
            self._numbers[subject] = number

    def read(self, connection: Connection) -> dict[str, int]:
        """Return the number of each subject."""
        return dict(connection.execute("SELECT subject, number FROM changes").fetchall())

    def absorb(self, news: dict[str, int]) -> None:
        """Call the functions of what has changed."""
        before, self._numbers = self._numbers, news
        if before is None:
            return  # the state at start
        for subject, number in news.items():
            # A lower one is that of a server which has come in place of one that was ahead.
            if number != before.get(subject, 0):
                for handle in self._handlers[subject]:
                    handle()
