"""The ledger: who may ask, how often, for how much money a day, and what was spent.

Every question is answered from memory, without waiting. Sums are written to the database every 100 ms, and what other
workers wrote there is read in the same transaction: workers share limits, each seeing the others at most two such
intervals late. See `route.storage.database` for what a crash can lose.

A day is a day of UTC. A minute is any 60 seconds, counted by whole seconds. Spend is known when an answer ends; until
then its worst case is reserved, exactly across workers, see `route.storage.reservations`. A request belongs to the day
on which it was reserved.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple, TypeVar

from p2l.common.access import digest_of, matches
from p2l.common.errors import ConfigError
from route.storage.database import Database, WriteBehind
from route.storage.reservations import (
    IDLE_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Lease,
    Purse,
    Reservation,
    Shortage,
    Worst,
    draw_lease,
    shrink_leases,
)

K = TypeVar("K")
DAY = 86_400
"""Seconds."""
WINDOW = 61
"""Whole seconds that any 60 seconds can touch."""
MAX_IN_FLIGHT = 1000
"""Requests of a key that a worker answers at once, where the configuration does not say."""
_AHEAD = 5  # seconds that the clock of another worker may be ahead
_KEPT_DAYS = 1  # of spend, before today: a worker's clock may be late
_MOST = 2**53  # more tokens than any answer has, and still exact


@dataclass(frozen=True)
class Usage:
    """The usage of answers; `measured` of the `answers` came with token counts."""

    answers: int
    measured: int
    prompt_tokens: int
    completion_tokens: int
    cost: float

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, answers: int, cost: float, prompt_tokens: int | None, completion_tokens: int | None) -> Usage:
        """Return the usage of one request; it is measured only with both counts, and only with possible ones."""
        counts = (prompt_tokens, completion_tokens)
        if any(count is None or not 0 <= count <= _MOST for count in counts):
            return cls(answers, 0, 0, 0, cost)
        return cls(answers, answers, prompt_tokens or 0, completion_tokens or 0, cost)


@dataclass
class Sums:
    """Sums that are not in the database yet; the names are those of keys."""

    usage: dict[tuple[int, str, str], Usage] = field(default_factory=dict)
    """By (day, model, name)."""
    spend: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (day, name)."""
    arrivals: dict[tuple[int, str], int] = field(default_factory=dict)
    """By (second, name)."""
    leases: dict[tuple[int, str], float] = field(default_factory=dict)
    """Spent or given back of what this worker has leased, by (day, name)."""
    renew: bool = False
    """Whether the leases of this worker are renewed, though nothing of them was spent."""

    def __bool__(self) -> bool:
        return bool(self.usage or self.spend or self.arrivals or self.leases or self.renew)

    def add(self, other: Sums) -> None:
        """Add every sum of another one."""
        for name in ("usage", "spend", "arrivals", "leases"):
            for place, amount in getattr(other, name).items():
                _add(getattr(self, name), place, amount)


def _add(sums: dict[K, Any], place: K, amount: Any) -> None:
    sums[place] = sums[place] + amount if place in sums else amount


class News(NamedTuple):
    """Rows as they are in the database now, this worker's own additions included."""

    flush: int
    """Number of the last transaction that is in here."""
    spend: list[tuple[int, str, float]]
    arrivals: list[tuple[int, str, int]]


def write_sums(connection: sqlite3.Connection, sums: Sums, *, now: float) -> None:
    """Add sums to the rows, and delete what no limit needs any more; inside a transaction.

    Workers only ever add to rows. Rows of `spend` and `arrivals` carry the number of the transaction that changed them
    last, so that a worker reads only what changed since its own last flush.
    """
    connection.execute("UPDATE clock SET flush = flush + 1")
    flush = connection.execute("SELECT flush FROM clock").fetchone()[0]
    connection.executemany(
        """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
           answers = answers + excluded.answers, measured = measured + excluded.measured,
           prompt_tokens = prompt_tokens + excluded.prompt_tokens,
           completion_tokens = completion_tokens + excluded.completion_tokens, cost = cost + excluded.cost""",
        [(*place, *astuple(usage)) for place, usage in sums.usage.items()],
    )
    _add_to(connection, "spend (day, key, cost, flush)", "cost", sums.spend.items(), flush)
    _add_to(connection, "arrivals (second, key, requests, flush)", "requests", sums.arrivals.items(), flush)
    connection.execute("DELETE FROM spend WHERE day < ?", (int(now // DAY) - _KEPT_DAYS,))
    # Two windows: the clock of another worker may be late.
    connection.execute("DELETE FROM arrivals WHERE second < ?", (int(now) - 2 * WINDOW,))


def _add_to(
    connection: sqlite3.Connection, table: str, column: str, rows: Iterable[tuple[tuple[int, str], float]], flush: int
) -> None:
    connection.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?) "
        f"ON CONFLICT DO UPDATE SET {column} = {column} + excluded.{column}, flush = excluded.flush",
        [(*place, amount, flush) for place, amount in rows],
    )


@dataclass(frozen=True)
class KeyRecord:
    """An API key and its limits; the key itself is not kept."""

    name: str
    """In logs, metrics and the database."""
    digest: str = field(repr=False)
    """SHA-256 of the key, in hexadecimal."""
    spend_per_day: float | None = None
    """In the unit of the models' costs; None: no limit."""
    requests_per_minute: int | None = None
    models: frozenset[str] | None = None
    """Names of the models it may be answered by; None: all."""
    cost: float | None = None
    """Budget of its requests that name none."""
    max_cost_per_request: float | None = None
    """What one request may cost at most, whatever it asks for."""
    max_in_flight: int = MAX_IN_FLIGHT
    """Requests that one worker answers at once."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, for the client."""

    status: int
    """Of HTTP."""
    code: str
    """Of OpenAI's error object: invalid_api_key, rate_limit_exceeded, insufficient_quota, ..."""
    message: str
    retry_after: float | None = None
    """Seconds, where waiting helps."""


def key_record(
    key: str,
    *,
    name: str | None = None,
    spend_per_day: float | None = None,
    requests_per_minute: int | None = None,
    models: Collection[str] | None = None,
    cost: float | None = None,
    max_cost_per_request: float | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
) -> KeyRecord:
    """Return the record of a key of the configuration; an unnamed one is called after its digest."""
    digest = digest_of(key)
    allowed = None if models is None else frozenset(models)
    return KeyRecord(
        name or f"key-{digest[:12]}",
        digest,
        spend_per_day,
        requests_per_minute,
        allowed,
        cost,
        max_cost_per_request,
        max_in_flight,
    )


class Ledger(WriteBehind):
    """The accounts of all keys; used from one event loop."""

    def __init__(
        self, keys: Sequence[KeyRecord], database: Database, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Know these keys; raise ConfigError if two are equal or have the same name."""
        super().__init__(database, clock)
        self._keys = _by_digest(keys)
        self._gathered = Sums()
        self._spent: dict[tuple[int, str], float] = {}  # by (day, name): the database's sum and what has gathered
        self._arrivals: dict[str, dict[int, int]] = {}  # by name: requests by second
        self._seen = -1  # number of the last transaction whose rows are known
        self._worker = secrets.token_hex(8)
        self._purses: dict[tuple[int, str], Purse] = {}  # by (day, name)
        self._renewed = -math.inf
        self._in_flight = Counter[str]()

    def check(self, bearer: str | None) -> KeyRecord | Refusal:
        """Return the record of a request's key; refuse a request without one, or with a wrong one (401)."""
        if bearer is None:
            return Refusal(401, "invalid_api_key", "no API key: send the header 'Authorization: Bearer KEY'")
        record = self._keys.get(digest_of(bearer))
        if record is None or not matches(bearer, record.digest):
            return Refusal(401, "invalid_api_key", "wrong API key")
        return record

    def admit(self, key: KeyRecord, model_names: Sequence[str]) -> tuple[str, ...] | Refusal:
        """Count a request and return those of the models that may answer it, in the same order; or refuse it.

        403 if the key may use none of the models, 429 with `retry_after` if its minute or its day is used up.
        """
        models = tuple(name for name in model_names if key.models is None or name in key.models)
        if not models:
            return Refusal(403, "model_not_allowed", "this API key may not use the model")
        now = self._clock()
        refusal = self._too_much(key, now) or self._too_often(key, now)
        if refusal is not None:
            return refusal
        if key.requests_per_minute is not None:
            second = int(now)
            self._note(key.name, second, self._arrivals.get(key.name, {}).get(second, 0) + 1)
            _add(self._gathered.arrivals, (second, key.name), 1)
        return models

    def enter(self, key: KeyRecord) -> Refusal | None:
        """Count a request that this worker answers, until `leave`; or refuse it, if the key has too many of them."""
        if self._in_flight[key.name] >= key.max_in_flight:
            message = f"this API key has {key.max_in_flight} requests under way, as many as it may"
            return Refusal(429, "rate_limit_exceeded", message, 1.0)
        self._in_flight[key.name] += 1
        return None

    def in_flight(self, name: str) -> int:
        """Return the requests of a key that this worker answers now."""
        return self._in_flight[name]

    def leave(self, key: KeyRecord) -> None:
        """Count the end of a request."""
        self._in_flight[key.name] -= 1

    async def reserve(self, key: KeyRecord, worst: Worst) -> Reservation | Refusal:
        """Reserve what a request may cost, or less where the day holds no more; a reservation must be settled.

        Where other requests of the key hold what is left, it waits for them a few seconds. 429 if that does not help,
        503 if the database cannot say what is left.
        """
        now = self._clock()
        day = int(now // DAY)
        if key.spend_per_day is None:
            return Reservation(key.name, day)
        try:
            amount = await self._purse(key, day, key.spend_per_day, now).reserve(worst)
        except sqlite3.Error:
            return Refusal(
                503, "database_unavailable", "what this API key has spent cannot be read or written now", 1.0
            )
        if not isinstance(amount, Shortage):
            return Reservation(key.name, day, amount)
        if amount.spent:
            message = f"what is left of this API key's {key.spend_per_day:g} a day does not cover the request"
            return Refusal(429, "insufficient_quota", message, DAY - now % DAY)
        message = (
            f"other requests hold what is left of this API key's {key.spend_per_day:g} a day; come again when they end"
        )
        return Refusal(429, "insufficient_quota", message, 1.0)

    def _purse(self, key: KeyRecord, day: int, limit: float, now: float) -> Purse:
        place = day, key.name
        purse = self._purses.get(place)
        if purse is None:

            async def draw(need: float) -> Lease:
                return await self._database.run(
                    lambda connection: draw_lease(
                        connection, self._worker, place, limit=limit, need=need, now=self._clock()
                    )
                )

            purse = Purse(limit, draw, lambda: self._spent.get(place, 0.0), self._clock)
            self._purses[place] = purse
            self._renewed = max(self._renewed, now)
        if now > self._renewed + LEASE_SECONDS:  # expired: others may have leased it since
            for other in self._purses.values():
                other.give_back()
        return purse

    def settle(
        self,
        reservation: Reservation,
        model: str,
        cost: float,
        *,
        answers: int = 1,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """Release a reservation and book what the request has cost, on its day.

        Tokens are as the provider counts them; cost and tokens are those of all `answers` (choices) together. Raises
        ValueError for a cost that is negative or not a number.
        """
        if reservation.settled:
            raise ValueError("a reservation is settled once")
        reservation.settled = True
        place = reservation.day, reservation.key
        if cost or answers:
            self._book(place, model, Usage.of(answers, cost, prompt_tokens, completion_tokens))
        if reservation.amount is not None and (purse := self._purses.get(place)) is not None:
            leased = purse.settle(reservation.amount, cost)
            if leased:
                _add(self._gathered.leases, place, leased)

    def _book(self, place: tuple[int, str], model: str, usage: Usage) -> None:
        if not (math.isfinite(usage.cost) and usage.cost >= 0):
            raise ValueError(f"cost is {usage.cost!r}; it must be a finite number, zero or more")
        day, name = place
        _add(self._gathered.usage, (day, model, name), usage)
        for sums in (self._gathered.spend, self._spent):
            _add(sums, place, usage.cost)

    def spent_today(self, key: KeyRecord) -> float:
        """Return what a key has spent since midnight, UTC, as far as this worker knows."""
        return self._spent.get((self._today(), key.name), 0.0)

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
        # Later seconds are of a clock that was ahead and has jumped back: they must not lock the key until then.
        for second in [second for second in window if second > now + _AHEAD]:
            del window[second]
        recent = sorted((second, count) for second, count in window.items() if second > now - WINDOW)
        excess = sum(count for _, count in recent) + 1 - key.requests_per_minute
        if excess <= 0:
            return None
        message = f"this API key may ask {key.requests_per_minute} times a minute"
        return Refusal(429, "rate_limit_exceeded", message, _until_free(recent, excess, now))

    def _note(self, name: str, second: int, requests: int) -> None:
        """Set the requests of one second, and forget seconds that have left the window."""
        window = self._arrivals.setdefault(name, {})
        if second not in window:
            for old in [other for other in window if other <= second - WINDOW]:
                del window[old]
        window[second] = requests

    def take(self) -> Sums:
        """See `WriteBehind`."""
        self._return_leases(IDLE_SECONDS)
        batch, self._gathered = self._gathered, Sums()
        return batch

    async def close(self) -> None:
        """Give back what is leased, and write what has gathered; the database stays open."""
        self._return_leases(-math.inf)
        await super().close()

    def _return_leases(self, idle_seconds: float) -> None:
        """Give back what no request has reserved for so long, and renew the rest in time."""
        now = self._clock()
        for place, purse in list(self._purses.items()):
            if abs(now - purse.used) >= idle_seconds and (amount := purse.give_back()):
                _add(self._gathered.leases, place, amount)
            if place[0] < now // DAY - 1:
                del self._purses[place]
        holds = not all(purse.is_empty for purse in self._purses.values())
        # abs: a clock that jumped back would else renew nothing until it is there again.
        self._gathered.renew = holds and abs(now - self._renewed) >= RENEW_SECONDS

    def write(self, connection: sqlite3.Connection, batch: Sums) -> News:
        """See `WriteBehind`."""
        if batch:
            write_sums(connection, batch, now=self._clock())
        if batch.leases or batch.renew:
            shrink_leases(connection, self._worker, batch.leases, now=self._clock())
            self._renewed = self._clock()
        return self.read(connection)

    def read(self, connection: sqlite3.Connection) -> News:
        """Read the rows that other transactions changed since the last one that is known."""
        flush, seen = connection.execute("SELECT flush FROM clock").fetchone()[0], (self._seen,)
        spend = connection.execute("SELECT day, key, cost FROM spend WHERE flush > ?", seen).fetchall()
        arrivals = connection.execute("SELECT second, key, requests FROM arrivals WHERE flush > ?", seen).fetchall()
        return News(flush, spend, arrivals)

    def absorb(self, news: News) -> None:
        """See `WriteBehind`."""
        self._seen = news.flush
        today = self._today()
        self._spent = {place: cost for place, cost in self._spent.items() if place[0] >= today - 1}
        for day, name, cost in news.spend:
            self._spent[day, name] = cost + self._gathered.spend.get((day, name), 0.0)
        for second, name, requests in news.arrivals:
            self._note(name, second, requests + self._gathered.arrivals.get((second, name), 0))

    def give_back(self, batch: Sums) -> None:
        """See `WriteBehind`."""
        self._gathered.add(batch)


def _until_free(recent: Sequence[tuple[int, int]], excess: int, now: float) -> float:
    """Return the seconds until `excess` requests, oldest first, have left the window; at most a whole window."""
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
