"""What a key may still spend: within a worker, across workers, after a kill."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from route.keep import reservations
from route.keep.database import Database
from route.keep.ledger import KeyRecord, Ledger, Refusal, key_record
from route.keep.reservations import LEASE_SECONDS, Reservation, Worst
from tests.conftest import seeds
from tests.route.keep.ledger_helpers import NOON, Clock, database, flushed, ledger, new_ledger, rows, worker
from tests.route.keep.stores import Store, every_store

DAY = 86_400


def exactly(cost: float) -> Worst:
    return Worst(cost, cost, cost)


async def reserved(accounts: Ledger, key: KeyRecord, worst: Worst) -> Reservation:
    reservation = await accounts.reserve(key, worst)
    assert isinstance(reservation, Reservation), reservation
    return reservation


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for each other only a little."""
    monkeypatch.setattr(reservations, "PATIENCE", 0.05)


@every_store
def test_what_is_reserved_cannot_be_reserved_again() -> None:
    async def main() -> None:
        key = key_record("k", spend_per_day=1.0)
        async with ledger(key) as accounts:
            first = await reserved(accounts, key, exactly(0.6))
            refusal = await accounts.reserve(key, exactly(0.6))
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code, refusal.retry_after) == (429, "insufficient_quota", 1.0)
            accounts.settle(first, "m", 0.1)
            second = await reserved(accounts, key, exactly(0.9))
            accounts.settle(second, "m", 0.9)
            assert accounts.spent_of(key.name) == pytest.approx(1.0)
            refusal = await accounts.reserve(key, exactly(0.1))
            assert isinstance(refusal, Refusal)
            assert refusal.retry_after == DAY / 2

    asyncio.run(main())


def test_a_request_waits_for_others_to_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(reservations, "PATIENCE", 3600.0)
        key = key_record("k", spend_per_day=1.0)
        async with ledger(key) as accounts:
            first = await reserved(accounts, key, exactly(0.6))
            waiting = [asyncio.ensure_future(accounts.reserve(key, exactly(0.45))) for _ in range(3)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in waiting)
            waiting[0].cancel()
            accounts.settle(first, "m", 0.0, answers=0)
            assert all(isinstance(one, Reservation) for one in await asyncio.gather(*waiting[1:]))

    asyncio.run(main())


@every_store
def test_where_the_worst_case_is_not_covered_less_is_reserved() -> None:
    async def main() -> None:
        key = key_record("k", spend_per_day=1.0)
        async with ledger(key) as accounts:
            alone = await reserved(accounts, key, Worst(5.0, 0.5, 0.1))
            assert alone.amount == pytest.approx(1.0)
            accounts.settle(alone, "m", 0.2)
            several = await asyncio.gather(*(accounts.reserve(key, Worst(5.0, 0.1, 0.05)) for _ in range(8)))
            amounts = [one.amount for one in several if isinstance(one, Reservation) and one.amount is not None]
            assert len(amounts) == 8
            assert min(amounts) >= 0.05
            assert sum(amounts) <= 0.8 + 1e-9

    asyncio.run(main())


@dataclass
class Fleet:
    """Workers of one file, and what their requests hold."""

    workers: list[tuple[Database, Ledger]]
    key: KeyRecord
    clock: Clock
    draw: random.Random
    held: list[tuple[Ledger, Reservation]] = field(default_factory=list)
    booked: float = 0.0

    async def act(self) -> None:
        """Reserve, settle, write or wait, by chance."""
        action = self.draw.random()
        opened, accounts = self.draw.choice(self.workers)
        if action < 0.5:
            most = self.draw.random() * self.draw.choice([0.01, 0.3])
            reservation = await accounts.reserve(self.key, Worst(most, most / 2, most / 4))
            if isinstance(reservation, Reservation):
                self.held.append((accounts, reservation))
        elif action < 0.8 and self.held:
            self.settle(self.draw.choice([0.0, 0.5, 1.0]))
        elif action < 0.95:
            assert await flushed(opened)
        else:
            self.clock.now += self.draw.random() * 3

    def settle(self, share: float) -> None:
        """Settle a request for a share of what it reserved."""
        accounts, reservation = self.held.pop(self.draw.randrange(len(self.held)))
        cost = (reservation.amount or 0.0) * share
        accounts.settle(reservation, "m", cost)
        self.booked += cost

    @property
    def most(self) -> float:
        """What is booked, and will be booked at most."""
        return self.booked + sum(reservation.amount or 0.0 for _, reservation in self.held)


@every_store
@pytest.mark.parametrize("seed", seeds(4))
def test_no_workers_together_exceed_a_day(tmp_path: Path, seed: int) -> None:
    """Requests of any size, settled in any order for at most what was reserved, over three workers of one file."""

    async def main() -> None:
        path, key, clock = tmp_path / "router.sqlite", key_record("k", spend_per_day=1.0), Clock()
        async with database(path) as one, database(path) as two, database(path) as three:
            workers = [(opened, new_ledger([key], opened, clock=clock)) for opened in (one, two, three)]
            fleet = Fleet(workers, key, clock, random.Random(seed))
            for _, accounts in workers:
                await accounts.start()
            for _ in range(150):
                await fleet.act()
                assert fleet.most <= 1.0 + 1e-6
            while fleet.held:
                fleet.settle(0.0)
            for _, accounts in workers:
                await accounts.close()
        assert rows(path, "SELECT * FROM leases WHERE amount > 1e-9") == []
        [(spent,)] = rows(path, "SELECT coalesce(sum(cost), 0) FROM spend")
        assert spent == pytest.approx(fleet.booked)

    asyncio.run(main())


def with_two_workers(path: Path, work: Callable[[Ledger, Ledger, KeyRecord, Clock, Database], Awaitable[None]]) -> None:
    async def main() -> None:
        key, clock = key_record("k", spend_per_day=1.0), Clock()
        async with database(path) as one, database(path) as two:
            here, there = (new_ledger([key], opened, clock=clock) for opened in (one, two))
            await here.start()
            await there.start()
            await work(here, there, key, clock, one)

    asyncio.run(main())


@every_store
def test_an_idle_worker_gives_back_what_it_holds(tmp_path: Path) -> None:
    async def work(here: Ledger, there: Ledger, key: KeyRecord, clock: Clock, of_here: Database) -> None:
        here.settle(await reserved(here, key, exactly(0.9)), "m", 0.0)
        assert isinstance(await there.reserve(key, exactly(0.5)), Refusal)
        clock.now += 2
        assert await flushed(of_here)
        await reserved(there, key, exactly(0.99))

    with_two_workers(tmp_path / "router.sqlite", work)


@every_store
def test_the_lease_of_a_worker_that_is_gone_expires_and_a_living_ones_does_not(tmp_path: Path) -> None:
    async def work(here: Ledger, there: Ledger, key: KeyRecord, clock: Clock, of_here: Database) -> None:
        kept = await reserved(here, key, exactly(0.9))
        for _ in range(10):
            clock.now += LEASE_SECONDS / 2
            assert await flushed(of_here)  # alive
            assert isinstance(await there.reserve(key, exactly(0.5)), Refusal)
        clock.now += LEASE_SECONDS + 1
        await reserved(there, key, exactly(0.99))
        here.settle(kept, "m", 0.5)

    with_two_workers(tmp_path / "router.sqlite", work)


@every_store
def test_a_request_belongs_to_the_day_on_which_it_was_reserved(tmp_path: Path) -> None:
    async def main() -> None:
        path, clock, key = tmp_path / "router.sqlite", Clock(), key_record("k", spend_per_day=1.0)
        async with ledger(key, path=path, clock=clock) as accounts:
            late = await reserved(accounts, key, exactly(0.8))
            clock.now += DAY / 2 + 1
            today = await reserved(accounts, key, exactly(1.0))
            accounts.settle(late, "m", 0.8)
            accounts.settle(today, "m", 1.0)
            assert accounts.spent_of(key.name) == 1.0
        day = int(NOON // DAY)
        assert rows(path, "SELECT day, cost FROM spend ORDER BY day") == [(day, 0.8), (day + 1, 1.0)]

    asyncio.run(main())


def test_a_limited_key_waits_for_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        limited, free = key_record("k", spend_per_day=1.0), key_record("f")
        async with database(tmp_path / "router.sqlite") as opened:
            accounts = new_ledger([limited, free], opened, clock=Clock())
            await accounts.start()
            await opened.run(lambda connection: connection.execute("ALTER TABLE leases RENAME TO away"))
            refusal = await accounts.reserve(limited, exactly(0.1))
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code) == (503, "database_unavailable")
            assert isinstance(await accounts.reserve(free, exactly(0.1)), Reservation)
            await opened.run(lambda connection: connection.execute("ALTER TABLE away RENAME TO leases"))
            await reserved(accounts, limited, exactly(0.1))

    asyncio.run(main())


@every_store
def test_an_answer_that_cost_more_than_was_reserved_is_booked_whole(tmp_path: Path) -> None:
    async def main() -> None:
        key = key_record("k", spend_per_day=1.0)
        async with ledger(key, path=tmp_path / "router.sqlite") as accounts:
            accounts.settle(await reserved(accounts, key, exactly(0.1)), "m", 0.7)
            await reserved(accounts, key, exactly(0.3))
            assert accounts.spent_of(key.name) == 0.7
            assert isinstance(await accounts.reserve(key, exactly(0.1)), Refusal)

    asyncio.run(main())


def test_a_reservation_is_settled_once() -> None:
    async def main() -> None:
        key = key_record("k", spend_per_day=1.0)
        async with ledger(key) as accounts:
            reservation = await reserved(accounts, key, exactly(0.1))
            accounts.settle(reservation, "m", 0.1)
            with pytest.raises(ValueError, match="once"):
                accounts.settle(reservation, "m", 0.1)

    asyncio.run(main())


SPENDING = """
import asyncio, sys
from pathlib import Path
from route.keep.database import Database
from route.keep.location import open_database
from route.keep.ledger import Ledger, key_record
from route.keep.reservations import Reservation, Worst

async def one(ledger, key):
    while True:
        reservation = await ledger.reserve(key, Worst(0.01, 0.005, 0.001))
        if not isinstance(reservation, Reservation):
            return
        await asyncio.sleep(0.001)
        ledger.settle(reservation, "m", min(reservation.amount, 0.004))

async def main():
    database, key = open_database(sys.argv[1]), key_record("k", name="ops", spend_per_day=1.0)
    await database.start()
    ledger = Ledger([key], database, shared_limits=sys.argv[2] or None, grace=0.0)
    await ledger.start()
    await asyncio.gather(*(one(ledger, key) for _ in range(16)))
    await ledger.close()
    await database.close()

asyncio.run(main())
"""


@every_store
def test_processes_that_spend_at_once_use_a_day_and_no_more(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "router.sqlite"
    words = (path, store.limits or "")
    with worker(SPENDING, *words) as one, worker(SPENDING, *words) as two, worker(SPENDING, *words) as three:
        for process in (one, two, three):
            process.communicate()
            assert process.returncode == 0
    [(spent,)] = rows(path, "SELECT sum(cost) FROM spend")
    assert 0.95 <= spent <= 1.0 + 1e-6


@every_store
def test_a_request_that_leaves_while_a_lease_is_drawn_loses_nothing(tmp_path: Path) -> None:
    async def work(here: Ledger, there: Ledger, key: KeyRecord, clock: Clock, of_here: Database) -> None:
        for _ in range(20):
            leaving = asyncio.ensure_future(here.reserve(key, exactly(0.9)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            leaving.cancel()
            for outcome in await asyncio.gather(leaving, return_exceptions=True):
                if isinstance(outcome, Reservation):  # it was there before the client left
                    here.settle(outcome, "m", 0.0)
        # A slow machine draws the last lease after its request has left: it comes back two idle seconds later.
        for _ in range(100):
            clock.now += 2
            await asyncio.sleep(0.05)
            assert await flushed(of_here)
            back = await there.reserve(key, exactly(1.0))
            if isinstance(back, Reservation):
                break
        assert isinstance(back, Reservation), back

    with_two_workers(tmp_path / "router.sqlite", work)
