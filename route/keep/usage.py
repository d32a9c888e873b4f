"""Usage of keys: sums of spend, requests and tokens on their way to the database, and counts by the minute.

Workers only ever add to rows. Rows of `spend`, `arrivals` and `tokens` carry the number of the transaction that changed
them last, so that a worker reads only what changed since its own last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from route.keep.database import Connection
from route.keep.under_way import CallNote

K = TypeVar("K")
WINDOW = 61
"""Whole seconds that any 60 seconds can touch."""
AHEAD = 5  # seconds that the clock of another worker may be ahead
DAY = 86_400
"""Seconds."""
_KEPT_DAYS = 1  # of spend, before today: a worker's clock may be late
_MOST_TOKENS = 2**53  # more than any answer has, and still exact as a float


@dataclass(frozen=True)
class Usage:
    """The usage of answers; `measured` of the `answers` came with token counts."""

    answers: int
    measured: int
    prompt_tokens: int
    completion_tokens: int
    cost: float

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.answers + other.answers,
            self.measured + other.measured,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
        )

    @classmethod
    def of(cls, answers: int, cost: float, prompt_tokens: int | None, completion_tokens: int | None) -> Usage:
        """Return the usage of one request; it is measured only with both counts, and only with possible ones."""
        counts = (prompt_tokens, completion_tokens)
        if any(count is None or not 0 <= count <= _MOST_TOKENS for count in counts):
            return cls(answers, 0, 0, 0, cost)
        return cls(answers, answers, prompt_tokens or 0, completion_tokens or 0, cost)


@dataclass
class Sums:
    """Sums that are not in the database yet, by tuples as named below; `name` is that of a key."""

    usage: dict[tuple[int, str, str], Usage] = field(default_factory=dict)
    """By (day, model, name)."""
    spend: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (day, name)."""
    arrivals: dict[tuple[int, str], int] = field(default_factory=dict)
    """By (second, name)."""
    tokens: dict[tuple[int, str], int] = field(default_factory=dict)
    """By (second, name)."""
    leases: dict[tuple[int, str], float] = field(default_factory=dict)
    """Spent or given back of what this worker has leased, by (day, name)."""
    renew: bool = False
    """Whether the leases of this worker are renewed, though nothing of them was spent."""
    notes: list[CallNote] = field(default_factory=list)
    """Of the calls that the sums hold."""
    number: int = 0
    """Of the batch, among those of its worker."""

    def __bool__(self) -> bool:
        return bool(self.usage or self.spend or self.arrivals or self.tokens or self.leases or self.renew)

    def add(self, other: Sums) -> None:
        """Add every sum of another one."""
        for name in ("usage", "spend", "arrivals", "tokens", "leases"):
            for place, amount in getattr(other, name).items():
                add_to(getattr(self, name), place, amount)
        self.notes.extend(other.notes)


def add_to(sums: dict[K, Any], place: K, amount: Any) -> None:
    """Add an amount to the sum of a place."""
    sums[place] = sums[place] + amount if place in sums else amount


class News(NamedTuple):
    """Rows as they are in the database now, this worker's own additions included."""

    flush: int
    """Number of the last transaction that is in here."""
    spend: list[tuple[int, str, float]]
    arrivals: list[tuple[int, str, int]]
    tokens: list[tuple[int, str, int]]
    released: Mapping[tuple[int, str], float] = MappingProxyType({})
    """Spent or given back of what this worker has leased, by (day, name), in the database from now on."""


def write_sums(connection: Connection, sums: Sums, *, now: float) -> None:
    """Add sums to the rows, and delete what no limit needs any more; inside a transaction.

    Whoever holds the row of the clock is alone until the transaction ends, so that numbers are in the order of commits.
    """
    connection.execute("UPDATE clock SET flush = flush + 1")
    flush = connection.execute("SELECT flush FROM clock").fetchone()[0]
    connection.executemany(
        """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, model, key) DO UPDATE SET
           answers = usage.answers + excluded.answers, measured = usage.measured + excluded.measured,
           prompt_tokens = usage.prompt_tokens + excluded.prompt_tokens,
           completion_tokens = usage.completion_tokens + excluded.completion_tokens,
           cost = usage.cost + excluded.cost""",
        [(*place, *astuple(usage)) for place, usage in sums.usage.items()],
    )
    _add_to(connection, "spend", "day", "cost", sums.spend.items(), flush)
    _add_to(connection, "arrivals", "second", "requests", sums.arrivals.items(), flush)
    _add_to(connection, "tokens", "second", "tokens", sums.tokens.items(), flush)
    connection.execute("DELETE FROM spend WHERE day < ?", (int(now // DAY) - _KEPT_DAYS,))
    # Two windows: the clock of another worker may be late.
    for table in ("arrivals", "tokens"):
        connection.execute(f"DELETE FROM {table} WHERE second < ?", (int(now) - 2 * WINDOW,))


def _add_to(
    connection: Connection,
    table: str,
    when: str,
    column: str,
    rows: Iterable[tuple[tuple[int, str], float]],
    flush: int,
) -> None:
    connection.executemany(
        f"INSERT INTO {table} ({when}, key, {column}, flush) VALUES (?, ?, ?, ?) "
        f"ON CONFLICT ({when}, key) DO UPDATE SET {column} = {table}.{column} + excluded.{column}, "
        "flush = excluded.flush",
        [(*place, amount, flush) for place, amount in rows],
    )


def read_sums(connection: Connection, seen: int) -> News:
    """Read the rows that other transactions changed since the one with the number `seen`."""
    flush = connection.execute("SELECT flush FROM clock").fetchone()[0]
    spend = connection.execute("SELECT day, key, cost FROM spend WHERE flush > ?", (seen,)).fetchall()
    arrivals = connection.execute("SELECT second, key, requests FROM arrivals WHERE flush > ?", (seen,)).fetchall()
    tokens = connection.execute("SELECT second, key, tokens FROM tokens WHERE flush > ?", (seen,)).fetchall()
    return News(flush, spend, arrivals, tokens)


_NOTE_DAYS = 365
"""Days after which nobody starts any more who could book the notes of a worker."""
ALL_BOOKED = 2**62
"""Number of a batch above all others: nothing of a killed worker's notes is left to book."""


def note_batch(connection: Connection, worker: str, number: int, *, now: float) -> None:
    """Write down which of a worker's batches the database has last; inside the transaction that writes it."""
    connection.execute(
        "INSERT INTO bookings VALUES (?, ?, ?) ON CONFLICT (worker) DO UPDATE SET "
        "number = excluded.number, time = excluded.time",
        (worker, number, now),
    )


def last_batch(connection: Connection, worker: str) -> int:
    """Return the number of the last batch of a worker that the database has; 0 before the first."""
    row = connection.execute("SELECT number FROM bookings WHERE worker = ?", (worker,)).fetchone()
    return 0 if row is None else int(row[0])


def forget_batches(connection: Connection, *, now: float) -> None:
    """Remove the numbers of workers that ended so long ago that nobody asks for them."""
    connection.execute("DELETE FROM bookings WHERE time < ?", (now - _NOTE_DAYS * DAY,))


_MOST_IDLE_NAMES = 10_000


class Windows:
    """Requests or tokens of the last minute, by key and second; a minute is any 60 seconds."""

    def __init__(self) -> None:
        """Start with none."""
        self._sums: dict[str, dict[int, int]] = {}
        # Of all seconds that are kept, those that have left the window among them: no minute holds more.
        self._totals: dict[str, int] = {}
        self._swept_at = _MOST_IDLE_NAMES

    def add(self, name: str, second: int, amount: int) -> None:
        """Add to the sum of a second."""
        self.note(name, second, self._sums.get(name, {}).get(second, 0) + amount)

    def note(self, name: str, second: int, amount: int) -> None:
        """Set the sum of a second, and forget seconds that have left the window."""
        if name not in self._sums and len(self._sums) >= self._swept_at:
            self._sweep(second)
        window = self._sums.setdefault(name, {})
        if second not in window:  # at most once a second and key, so that no request looks at each second
            for expired in [start for start in window if start <= second - WINDOW]:
                self._forget(name, expired)
        self._totals[name] = self._totals.get(name, 0) + amount - window.get(second, 0)
        window[second] = amount

    def wait(self, name: str, now: float, *, most: int, more: int) -> float | None:
        """Return the seconds until `more` fit in `most` a minute, at most a whole window; None if they fit now."""
        if self._totals.get(name, 0) + more <= most:
            return None  # as for most requests, which need not look at each second
        window = self._sums.get(name, {})
        # A clock that was ahead and has jumped back must not lock the key until then.
        for second in [second for second in window if second > now + AHEAD]:
            self._forget(name, second)
        recent = sorted((second, amount) for second, amount in window.items() if second > now - WINDOW)
        excess = sum(amount for _, amount in recent) + more - most
        if excess <= 0:
            return None
        for second, amount in recent:
            excess -= amount
            if excess <= 0:
                return second + WINDOW - now
        return float(WINDOW)  # `more` alone exceeds the limit

    def _sweep(self, now: int) -> None:
        """Forget names whose window is empty: keys are few, networks of visitors are without number."""
        for name in [name for name, window in self._sums.items() if max(window, default=0) <= now - WINDOW]:
            del self._sums[name], self._totals[name]
        self._swept_at = max(_MOST_IDLE_NAMES, 2 * len(self._sums))

    def _forget(self, name: str, second: int) -> None:
        self._totals[name] -= self._sums[name].pop(second)
