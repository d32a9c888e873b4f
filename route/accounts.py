"""What the ledger gathers, and the statements that add it to the database and read what other workers added.

Everything is a sum, so that workers only ever add to the rows of the others. Rows of `spend` and `arrivals` bear the
number of the transaction that changed them last: a worker reads only what changed since its own last look.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["DAY", "WINDOW", "Gathered", "News", "Usage", "read_news", "write_gathered"]

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
