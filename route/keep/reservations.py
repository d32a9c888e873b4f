"""Budgets of keys for a day: reserved before a request is sent, settled when its cost is known.

Workers draw leases from the database: the sum of a day's spend and of all leases never exceeds the key's limit, so no
number of workers and of parallel requests does. A request reserves its worst case within its worker's lease, most often
without a transaction, since a lease is larger than what was asked for. What a worker does not use it gives back after a
second; the lease of a worker that was killed expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from route.keep.database import LEASE_SECONDS as LEASE_SECONDS
from route.keep.database import Connection
from route.keep.under_way import CallNote

RENEW_SECONDS = 10.0
IDLE_SECONDS = 1.0
"""How long a worker keeps what it has leased and does not use."""
PATIENCE = 5.0
"""Seconds that a request waits for others of its key to be settled, where the key's day does not cover all of them."""
_POLL = 0.1  # seconds between two looks at what other workers hold
OF_FREE, OF_LIMIT = 8, 64
"""A lease beyond what is needed is at most these parts of what is free, and of the whole limit."""
_ROUNDING = 1e-9  # of the limit; sums of many costs are not exact


class LimitsUnavailableError(Exception):
    """The Redis in which limits are shared cannot be asked."""


class Lease(NamedTuple):
    """An amount that the database granted, and the state of the key's day there."""

    granted: float
    spent: float
    elsewhere: float
    """Leased by other workers."""


def draw_lease(
    connection: Connection,
    worker: str,
    place: tuple[int, str],
    *,
    limit: float,
    need: float,
    now: float,
    lost_seconds: float = 0.0,
) -> Lease:
    """Lease as much of the day of a key as is needed, or what is left of it; inside a transaction.

    After an outage that began `lost_seconds` ago, leases that expired in it count: their spend may not be written yet.
    """
    connection.lock("ledger")  # before the first look, so that spend and leases are of one moment
    # A lease that expires later than any can was written by a worker whose clock had jumped ahead.
    bounds = (now - lost_seconds, now + 2 * LEASE_SECONDS)
    connection.execute("DELETE FROM leases WHERE expires < ? OR expires > ?", bounds)
    row = connection.execute("SELECT cost FROM spend WHERE day = ? AND key = ?", place).fetchone()
    spent = 0.0 if row is None else float(row[0])
    rows = connection.execute("SELECT worker, amount FROM leases WHERE day = ? AND key = ?", place).fetchall()
    free = limit - spent - sum(amount for _, amount in rows)
    granted = max(0.0, min(free, max(need, min(free / OF_FREE, limit / OF_LIMIT))))
    if granted:
        connection.execute(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?) ON CONFLICT (worker, day, key) DO UPDATE SET "
            "amount = leases.amount + excluded.amount, expires = excluded.expires",
            (worker, *place, granted, now + LEASE_SECONDS),
        )
    return Lease(granted, spent, sum(amount for owner, amount in rows if owner != worker))


def hold_leases(connection: Connection, worker: str, amounts: Mapping[tuple[int, str], float], *, now: float) -> None:
    """Write down what a worker has leased elsewhere, in place of what is there; inside a transaction."""
    connection.lock("ledger")
    connection.executemany(
        "INSERT INTO leases VALUES (?, ?, ?, ?, ?) ON CONFLICT (worker, day, key) DO UPDATE SET "
        "amount = excluded.amount, expires = excluded.expires",
        [(worker, *place, amount, now + LEASE_SECONDS) for place, amount in amounts.items()],
    )


def shrink_leases(
    connection: Connection,
    worker: str,
    amounts: dict[tuple[int, str], float],
    *,
    now: float,
    lost_seconds: float = 0.0,
) -> None:
    """Take what was spent or given back off the leases of a worker, and renew them; inside a transaction."""
    connection.executemany(
        "UPDATE leases SET amount = CASE WHEN amount > ? THEN amount - ? ELSE 0 END "
        "WHERE worker = ? AND day = ? AND key = ?",
        [(amount, amount, worker, *place) for place, amount in amounts.items()],
    )
    connection.execute("UPDATE leases SET expires = ? WHERE worker = ?", (now + LEASE_SECONDS, worker))
    connection.execute("DELETE FROM leases WHERE amount <= 0 OR expires < ?", (now - lost_seconds,))


@dataclass(frozen=True)
class Worst:
    """The range of costs that a request may have."""

    most: float
    """Cost with the longest possible answer."""
    enough: float
    """Cost with an answer that is long for this model: where many requests share what is left, each gets this."""
    least: float
    """Cost with the shortest answer that is worth a call."""


NOTHING = Worst(0.0, 0.0, 0.0)


@dataclass
class Reservation:
    """An amount that is reserved for one attempt at an answer."""

    key: str
    day: int
    amount: float | None = None
    """None: the key has no limit, so that nothing was reserved."""
    places: tuple[tuple[int, str], ...] = ()
    """Days and accounts that it is reserved from: the key's, its team's, those of budgets."""
    team: str | None = None
    counts_tokens: bool = False
    """Whether the key has a limit of tokens a minute."""
    settled: bool = False
    note: CallNote | None = None
    """Outlives this process, if that is killed before the cost is in the database."""


class Shortage(NamedTuple):
    """Why nothing was reserved."""

    spent: bool
    """Whether the day is over for such a request; otherwise others of the key hold what is left."""


@dataclass
class Purse:
    """This worker's lease of one key's day, and how much of it requests have reserved."""

    limit: float
    draw: Callable[[float], Awaitable[Lease]]
    """Leases at least an amount, if that much is left."""
    spent: Callable[[], float]
    """Returns the spend of the key on this day, as far as this worker knows."""
    clock: Callable[[], float] = time.time
    held: float = 0.0
    """Leased, and neither spent nor given back."""
    reserved: float = 0.0
    used: float = 0.0
    """When something was reserved last."""
    _waiting: int = 0
    _demand: float = 0.0
    _elsewhere: float = 0.0
    _spent_by_all: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is leased, but for what rounding has left."""
        return self.held <= self._slack

    @property
    def free(self) -> float:
        """Return what is leased and not reserved."""
        return self.held - self.reserved

    async def reserve(self, worst: Worst) -> float | Shortage:
        """Reserve the worst case or, where that is not there, less of it; requests wait for each other in turn.

        Raise DatabaseError if no lease can be drawn.
        """
        if not self._waiting and self._covers(worst.most):
            return self._take(worst.most)
        late = asyncio.get_running_loop().time() + PATIENCE
        self._waiting += 1
        self._demand += worst.most
        try:
            async with self._turn:
                while True:
                    if not self._covers(self._demand):
                        # A request whose client leaves must not lose a lease that is being drawn.
                        await asyncio.shield(asyncio.ensure_future(self._lease()))
                    share = min(worst.most, max(worst.enough, self.free / self._waiting))
                    if self._covers(share):
                        return self._take(share)
                    left = self.limit - max(self.spent(), self._spent_by_all)
                    if left + self._slack < worst.least:
                        return Shortage(spent=True)
                    patience = late - asyncio.get_running_loop().time()
                    alone = self.reserved <= self._slack and self._elsewhere <= self._slack
                    if patience <= 0 or alone:
                        # The rest of the day is lent to one request: it may be all that this key has left.
                        left = min(self.free, self.limit - self.spent() - self.reserved)
                        return self._take(left) if self._covers(worst.least) else Shortage(spent=alone)
                    self._settled.clear()
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._settled.wait(), min(_POLL, patience))
        finally:
            self._waiting -= 1
            self._demand -= worst.most

    async def _lease(self) -> None:
        lease = await self.draw(self._demand - self.free)
        self.held += lease.granted
        self._elsewhere, self._spent_by_all = lease.elsewhere, lease.spent

    @property
    def _slack(self) -> float:
        return self.limit * _ROUNDING

    def _covers(self, amount: float) -> bool:
        # What an answer has cost beyond its reservation is in no lease.
        left = self.limit - self.spent() - self.reserved
        return min(self.free, left) + self._slack >= amount

    def _take(self, amount: float) -> float:
        self.reserved += amount
        self.used = self.clock()
        return amount

    def settle(self, amount: float, cost: float) -> float:
        """Release a reservation of `amount` that has cost `cost`; return the share that the lease covers."""
        self.reserved -= amount
        # A provider that does not keep to the limit of the answer can cost more than there was.
        cost = min(cost, self.held)
        self.held -= cost
        self._settled.set()
        return cost

    def give_back(self) -> float:
        """Return what is not reserved, and hold it no longer; nothing while a request waits for it."""
        amount = 0.0 if self._waiting else max(0.0, self.free)
        self.held -= amount
        return amount
