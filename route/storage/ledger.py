"""Who may ask, how often, for how much money a day, and what was spent.

Every question is answered from memory, in microseconds and without waiting. What happened is written to the database
every 100 ms, in its thread, and what other workers wrote there is read in the same transaction: workers share limits,
each seeing the others at most two such intervals late. See `route.storage.database` for what a crash can lose.

A day is a day of UTC. A minute is any 60 seconds, counted by whole seconds. Spend is known when an answer ends, so a
key can exceed its spend per day by the requests it has in flight.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from p2l.common.errors import ConfigError
from p2l.common.web import digest_of, matches
from route.storage.database import Database

# What the ledger gathers, and the statements that add it to the database and read what other workers added.
#
# Everything is a sum, so that workers only ever add to the rows of the others. Rows of `spend` and `arrivals` bear the
# number of the transaction that changed them last: a worker reads only what changed since its own last look.

DAY = 86_400
"""Seconds."""
WINDOW = 61
"""Whole seconds that any 60 seconds can touch."""
_KEPT_DAYS = 1  # of spend, before today: a worker's clock may be late
_MOST = 2**53  # more tokens than any answer has, and still exact


class Usage(NamedTuple):
    """What answers used; `measured` of the `answers` came with token counts."""

    answers: int
    measured: int
    prompt_tokens: int
    completion_tokens: int
    cost: float

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        return Usage(
            self.answers + other.answers,
            self.measured + other.measured,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )

    @classmethod
    def of(cls, answers: int, cost: float, prompt_tokens: int | None, completion_tokens: int | None) -> Usage:
        """Of the answers to one request; they are measured only with both counts, and only with possible ones."""
        counts = (prompt_tokens, completion_tokens)
        if any(count is None or not 0 <= count <= _MOST for count in counts):
            return cls(answers, 0, 0, 0, cost)
        return cls(answers, answers, prompt_tokens or 0, completion_tokens or 0, cost)


@dataclass
class Gathered:
    """What happened and is not in the database yet."""

    usage: dict[tuple[int, str, str], Usage] = field(default_factory=dict)
    """By (day, model, name of the key)."""
    spend: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (day, name of the key)."""
    arrivals: dict[tuple[int, str], int] = field(default_factory=dict)
    """By (second, name of the key)."""

    def __bool__(self) -> bool:
        return bool(self.usage or self.spend or self.arrivals)

    def add_usage(self, day: int, model: str, key: str, usage: Usage) -> None:
        """One more sum of a model and a key."""
        place = (day, model, key)
        known = self.usage.get(place)
        self.usage[place] = usage if known is None else known.plus(usage)

    def add_spend(self, day: int, key: str, cost: float) -> None:
        """More spend of a key."""
        self.spend[day, key] = self.spend.get((day, key), 0.0) + cost

    def add_arrivals(self, second: int, key: str, requests: int) -> None:
        """More requests of a key."""
        self.arrivals[second, key] = self.arrivals.get((second, key), 0) + requests

    def add(self, other: Gathered) -> None:
        """Everything that another one holds."""
        for (day, model, key), usage in other.usage.items():
            self.add_usage(day, model, key, usage)
        for (day, key), cost in other.spend.items():
            self.add_spend(day, key, cost)
        for (second, key), requests in other.arrivals.items():
            self.add_arrivals(second, key, requests)


class News(NamedTuple):
    """Rows as they are in the database now, this worker's own additions included."""

    flush: int
    """Number of the last transaction that is in here."""
    spend: list[tuple[int, str, float]]
    arrivals: list[tuple[int, str, int]]


def write_gathered(connection: sqlite3.Connection, gathered: Gathered, *, now: float) -> None:
    """Add sums to the rows, and forget what no limit needs any more; inside a transaction."""
    connection.execute("UPDATE clock SET flush = flush + 1")
    flush = connection.execute("SELECT flush FROM clock").fetchone()[0]
    connection.executemany(
        """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
           answers = answers + excluded.answers, measured = measured + excluded.measured,
           prompt_tokens = prompt_tokens + excluded.prompt_tokens,
           completion_tokens = completion_tokens + excluded.completion_tokens, cost = cost + excluded.cost""",
        [(*place, *usage) for place, usage in gathered.usage.items()],
    )
    _add(connection, "spend (day, key, cost, flush)", "cost", gathered.spend.items(), flush)
    _add(connection, "arrivals (second, key, requests, flush)", "requests", gathered.arrivals.items(), flush)
    connection.execute("DELETE FROM spend WHERE day < ?", (int(now // DAY) - _KEPT_DAYS,))
    connection.execute("DELETE FROM arrivals WHERE second < ?", (int(now) - 2 * WINDOW,))


def _add(
    connection: sqlite3.Connection,
    table: str,
    column: str,
    sums: Iterable[tuple[tuple[int, str], float]],
    flush: int,
) -> None:
    connection.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?) "
        f"ON CONFLICT DO UPDATE SET {column} = {column} + excluded.{column}, flush = excluded.flush",
        [(*place, number, flush) for place, number in sums],
    )


def read_news(connection: sqlite3.Connection, *, since: int) -> News:
    """The rows that transactions after number `since` changed."""
    flush = connection.execute("SELECT flush FROM clock").fetchone()[0]
    spend = connection.execute("SELECT day, key, cost FROM spend WHERE flush > ?", (since,)).fetchall()
    arrivals = connection.execute("SELECT second, key, requests FROM arrivals WHERE flush > ?", (since,)).fetchall()
    return News(flush, spend, arrivals)


@dataclass(frozen=True)
class KeyRecord:
    """What a key may do; the key itself is not kept."""

    name: str
    """In logs, metrics and the database."""
    digest: str = field(repr=False)
    """SHA-256 of the key, in hexadecimal."""
    spend_per_day: float | None = None
    """In the unit of the models' costs; None: as much as it likes."""
    requests_per_minute: int | None = None
    models: frozenset[str] | None = None
    """Names of the models it may be answered by; None: all."""
    cost: float | None = None
    """Budget of its requests that state none."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, as the client hears it."""

    status: int
    """Of HTTP."""
    code: str
    """Of OpenAI's error object: invalid_api_key, rate_limit_exceeded, insufficient_quota, ..."""
    message: str
    retry_after: float | None = None
    """Seconds, where waiting helps."""


@dataclass(frozen=True)
class Admission:
    """A request that may be served."""

    key: KeyRecord
    models: tuple[str, ...]
    """Which of the models asked about may answer it, in the order asked."""


def key_record(
    key: str,
    *,
    name: str | None = None,
    spend_per_day: float | None = None,
    requests_per_minute: int | None = None,
    models: Collection[str] | None = None,
    cost: float | None = None,
) -> KeyRecord:
    """The record of a key as the configuration states it; unnamed keys are called after their digest."""
    digest = digest_of(key)
    allowed = None if models is None else frozenset(models)
    return KeyRecord(name or f"key-{digest[:12]}", digest, spend_per_day, requests_per_minute, allowed, cost)


class Ledger:
    """The accounts of all keys; used from one event loop."""

    def __init__(
        self, keys: Sequence[KeyRecord], database: Database, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since 1970, UTC.

        Raises:
            ConfigError: two keys are equal or have the same name.
        """
        self._keys = _by_digest(keys)
        self._database = database
        self._clock = clock
        self._gathered = Gathered()
        self._spent: dict[tuple[int, str], float] = {}  # by (day, name): the database's sum and what has gathered
        self._arrivals: dict[str, dict[int, int]] = {}  # by name: requests by second
        self._seen = -1  # number of the last transaction whose rows are known

    async def start(self) -> None:
        """Read what was spent and asked before, and keep the database up to date from now on."""
        await self._database.add(self)

    async def close(self) -> None:
        """Write what is not yet written; the database stays open."""
        await self._database.flush()

    def check(self, bearer: str | None) -> KeyRecord | Refusal:
        """Whose key this is: the text after `Bearer `, or None where there was none (401); 403 for a wrong one.

        The time it takes tells nothing about any key: keys are found by their digests.
        """
        if bearer is None:
            return Refusal(401, "invalid_api_key", "no API key: send the header 'Authorization: Bearer KEY'")
        record = self._keys.get(digest_of(bearer))
        if record is None or not matches(bearer, record.digest):
            return Refusal(403, "invalid_api_key", "wrong API key")
        return record

    def admit(self, key: KeyRecord, model_names: Sequence[str]) -> Admission | Refusal:
        """Whether this key may be served now, and by which of these models; counts the request if so.

        403 where none of the models is allowed, 429 with `retry_after` where the minute or the day is used up.
        """
        models = tuple(name for name in model_names if key.models is None or name in key.models)
        if not models:
            return Refusal(403, "model_not_allowed", "this API key may not use the model")
        now = self._clock()
        refusal = self._too_much(key, now) or self._too_often(key, now)
        if refusal is not None:
            return refusal
        if key.requests_per_minute is not None:
            self._count(key.name, int(now))
        return Admission(key, models)

    def charge(
        self,
        key: KeyRecord,
        model: str,
        cost: float,
        *,
        answers: int = 1,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """Book an answer when it has ended, or the part of it that has to be paid; tokens as the provider counts them.

        `answers` is the number of choices that a request was answered with (`n`); cost and tokens are of all of them.

        Raises:
            ValueError: the cost is negative or no number.
        """
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"cost is {cost!r}; it must be a finite number, zero or more")
        day = self._today()
        self._gathered.add_usage(day, model, key.name, Usage.of(answers, cost, prompt_tokens, completion_tokens))
        self._gathered.add_spend(day, key.name, cost)
        self._spent[day, key.name] = self._spent.get((day, key.name), 0.0) + cost

    def spent_today(self, key: KeyRecord) -> float:
        """What a key has spent since midnight, UTC, as far as this worker knows."""
        return self._spent.get((self._today(), key.name), 0.0)

    def spend_left(self, key: KeyRecord) -> float | None:
        """What a key may still spend today; None where it has no limit."""
        return None if key.spend_per_day is None else max(key.spend_per_day - self.spent_today(key), 0.0)

    def _today(self) -> int:
        return int(self._clock() // DAY)

    def _too_much(self, key: KeyRecord, now: float) -> Refusal | None:
        if key.spend_per_day is None or self.spent_today(key) < key.spend_per_day:
            return None
        message = f"this API key has spent its {key.spend_per_day:g} of today; the next day begins at midnight, UTC"
        return Refusal(429, "insufficient_quota", message, DAY - now % DAY)

    def _too_often(self, key: KeyRecord, now: float) -> Refusal | None:
        if key.requests_per_minute is None:
            return None
        window = self._arrivals.get(key.name, {})
        recent = sorted((second, count) for second, count in window.items() if second > now - WINDOW)
        excess = sum(count for _, count in recent) + 1 - key.requests_per_minute
        if excess <= 0:
            return None
        message = f"this API key may ask {key.requests_per_minute} times a minute"
        return Refusal(429, "rate_limit_exceeded", message, _until_free(recent, excess, now))

    def _count(self, name: str, second: int) -> None:
        self._note(name, second, self._arrivals.get(name, {}).get(second, 0) + 1)
        self._gathered.add_arrivals(second, name, 1)

    def _note(self, name: str, second: int, requests: int) -> None:
        """So many requests came in that second; what has left the window goes."""
        window = self._arrivals.setdefault(name, {})
        if second not in window:
            for old in [known for known in window if known <= second - WINDOW]:
                del window[old]
        window[second] = requests

    def take(self) -> Gathered:
        """See `route.storage.database.Part`."""
        taken, self._gathered = self._gathered, Gathered()
        return taken

    def write(self, connection: sqlite3.Connection, batch: Gathered) -> News:
        """See `route.storage.database.Part`."""
        if batch:
            write_gathered(connection, batch, now=self._clock())
        return self.read(connection)

    def read(self, connection: sqlite3.Connection) -> News:
        """See `route.storage.database.Part`."""
        return read_news(connection, since=self._seen)

    def absorb(self, news: News) -> None:
        """See `route.storage.database.Part`."""
        self._seen = news.flush
        today = self._today()
        self._spent = {place: cost for place, cost in self._spent.items() if place[0] >= today - 1}
        for day, name, cost in news.spend:
            self._spent[day, name] = cost + self._gathered.spend.get((day, name), 0.0)
        for second, name, requests in news.arrivals:
            self._note(name, second, requests + self._gathered.arrivals.get((second, name), 0))

    def give_back(self, batch: Gathered) -> None:
        """See `route.storage.database.Part`."""
        self._gathered.add(batch)


def _until_free(recent: Sequence[tuple[int, int]], excess: int, now: float) -> float:
    """Seconds until so many requests, oldest first, have left the window; a whole window where they never will."""
    for second, count in recent:
        excess -= count
        if excess <= 0:
            return second + WINDOW - now
    return float(WINDOW)


def _by_digest(keys: Sequence[KeyRecord]) -> Mapping[str, KeyRecord]:
    records = {record.digest: record for record in keys}
    if len(records) < len(keys):
        raise ConfigError("keys: one key is listed twice")
    name, times = max(Counter(record.name for record in keys).items(), key=lambda one: one[1], default=("", 0))
    if times > 1:
        raise ConfigError(f"keys: the name {name!r} is given to two keys")
    return records
