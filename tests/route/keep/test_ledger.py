"""Keys, limits and spend: in memory, across workers, after a restart and after a kill."""

from __future__ import annotations

import asyncio
import math
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import ConfigError
from route.keep.ledger import KeyRecord, Ledger, Refusal, key_record
from route.keep.location import open_database
from route.keep.reservations import Reservation, Worst
from tests.route.keep.ledger_helpers import (
    NOON,
    Clock,
    database,
    ledger,
    new_database,
    new_ledger,
    rows,
    spend,
    worker,
)
from tests.route.keep.stores import every_database, every_store

DAY = 86_400.0


def test_a_key_is_known_by_what_it_is_and_nothing_of_it_is_kept() -> None:
    async def main() -> None:
        record = key_record("sk-secret", name="ops")
        async with ledger(record) as accounts:
            assert accounts.check("sk-secret") is record
            assert status(accounts.check(None)) == 401
            assert status(accounts.check("sk-secre")) == 401
            assert status(accounts.check("")) == 401
            assert status(accounts.check("sk-secret\ud800")) == 401
        assert "sk-secret" not in repr(record)
        assert record.digest not in repr(record)

    asyncio.run(main())


def test_keys_without_a_name_are_called_after_their_digest() -> None:
    one, other = key_record("a"), key_record("b")
    assert one.name.startswith("key-")
    assert one.name != other.name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([key_record("a", name="x"), key_record("a", name="y")], "listed twice"),
        ([key_record("a", name="x"), key_record("b", name="x")], "'x' is given to two keys"),
    ],
)
def test_keys_that_cannot_be_told_apart_are_refused(keys: list[KeyRecord], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ledger(keys, new_database())


def test_a_key_may_be_kept_to_some_models() -> None:
    async def main() -> None:
        record = key_record("k", models=["small", "tiny"])
        async with ledger(record) as accounts:
            assert await accounts.admit(record, ["tiny", "large", "small"]) == ("tiny", "small")
            refusal = await accounts.admit(record, ["large"])
            assert status(refusal) == 403

    asyncio.run(main())


@every_store
def test_a_day_is_spent_and_begins_anew_at_midnight() -> None:
    async def main() -> None:
        clock, record = Clock(), key_record("k", spend_per_day=1.0)
        async with ledger(record, clock=clock) as accounts:
            await spend(accounts, record, "m", 0.75)
            assert accounts.spent_of(record.name) == 0.75
            assert await accounts.admit(record, ["m"]) == ("m",)
            await spend(accounts, record, "m", 0.5)
            refusal = await accounts.admit(record, ["m"])
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code) == (429, "insufficient_quota")
            clock.now += refusal.retry_after or math.nan
            assert await accounts.admit(record, ["m"]) == ("m",)
            assert accounts.spent_of(record.name) == 0.0

    asyncio.run(main())


@given(
    gaps=st.lists(st.floats(0, 30), min_size=1, max_size=60),
    limit=st.integers(1, 12),
    flushes=st.sets(st.integers(0, 60)),
)
def test_no_sixty_seconds_see_more_requests_than_allowed(gaps: list[float], limit: int, flushes: set[int]) -> None:
    """Whether or not the database was written in between; and who waits as told is served."""

    async def main() -> None:
        clock, record = Clock(), key_record("k", requests_per_minute=limit)
        async with database() as opened:
            accounts = new_ledger([record], opened, clock=clock)
            await accounts.start()
            served: list[float] = []
            for number, gap in enumerate(gaps):
                clock.now += gap
                result = await accounts.admit(record, ["m"])
                if isinstance(result, Refusal):
                    assert (result.status, result.code) == (429, "rate_limit_exceeded")
                    assert 0 < (result.retry_after or 0) <= 61
                    clock.now += result.retry_after or 0
                    assert await accounts.admit(record, ["m"]) == ("m",)
                served.append(clock.now)
                if number in flushes:
                    assert await opened.flush()
            for end in served:
                assert sum(end - 60 < time <= end for time in served) <= limit

    asyncio.run(main())


@every_store
def test_refused_requests_do_not_count() -> None:
    async def main() -> None:
        clock, record = Clock(), key_record("k", requests_per_minute=1)
        async with ledger(record, clock=clock) as accounts:
            assert await accounts.admit(record, ["m"]) == ("m",)
            for _ in range(5):
                assert status(await accounts.admit(record, ["m"])) == 429
                clock.now += 10
            clock.now += 11
            assert await accounts.admit(record, ["m"]) == ("m",)

    asyncio.run(main())


@every_store
def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        clock, path = Clock(), tmp_path / "router.sqlite"
        record = key_record("k", name="ops", spend_per_day=1.0, requests_per_minute=2)
        async with ledger(record, path=path, clock=clock) as accounts:
            await accounts.admit(record, ["m"])
            await accounts.admit(record, ["m"])
            await spend(accounts, record, "m", 0.4, prompt_tokens=10, completion_tokens=20)
            await spend(accounts, record, "m", 0.2)
        async with ledger(record, path=path, clock=clock) as accounts:
            assert accounts.spent_of(record.name) == pytest.approx(0.6)
            assert status(await accounts.admit(record, ["m"])) == 429
            await spend(accounts, record, "m", 0.4, prompt_tokens=1, completion_tokens=2)
            clock.now += 61
            assert getattr(await accounts.admit(record, ["m"]), "code", None) == "insufficient_quota"
        [usage] = rows(path, "SELECT model, key, answers, measured, prompt_tokens, completion_tokens, cost FROM usage")
        assert usage == ("m", "ops", 3, 2, 11, 22, pytest.approx(1.0))

    asyncio.run(main())


@every_store
def test_workers_share_limits_through_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        clock, path = Clock(), tmp_path / "router.sqlite"
        record = key_record("k", spend_per_day=1.0, requests_per_minute=3)
        async with database(path) as one, database(path) as two:
            here, there = (new_ledger([record], opened, clock=clock) for opened in (one, two))
            await here.start()
            await there.start()
            await here.admit(record, ["m"])
            await there.admit(record, ["m"])
            await there.admit(record, ["m"])
            await spend(here, record, "m", 0.5)
            await spend(there, record, "m", 0.25)
            assert here.spent_of(record.name) == 0.5
            for opened in (one, two, one):  # writes, writes and reads, reads
                assert await opened.flush()
            assert here.spent_of(record.name) == there.spent_of(record.name) == 0.75
            assert status(await here.admit(record, ["m"])) == status(await there.admit(record, ["m"])) == 429
            # What gathers after the others were read is on top of it.
            await spend(here, record, "m", 0.25)
            assert getattr(await here.admit(record, ["m"]), "code", None) == "insufficient_quota"

    asyncio.run(main())


@every_store
def test_what_cannot_be_written_stays_in_memory_until_it_can(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        path, record = tmp_path / "router.sqlite", key_record("k", name="ops", spend_per_day=1.0)
        async with database(path) as opened:
            accounts = new_ledger([record], opened, clock=Clock())
            await accounts.start()
            await opened.run(lambda connection: connection.execute("ALTER TABLE spend RENAME TO away"))
            for _ in range(3):
                await spend(accounts, record, "m", 0.4)
                assert not await opened.flush()
            assert opened.fault
            assert accounts.spent_of(record.name) == pytest.approx(1.2)
            assert status(await accounts.admit(record, ["m"])) == 429
            await opened.run(lambda connection: connection.execute("ALTER TABLE away RENAME TO spend"))
            assert await opened.flush()
            assert not opened.fault
            assert accounts.spent_of(record.name) == pytest.approx(1.2)
        assert rows(path, "SELECT key, cost FROM spend") == [("ops", pytest.approx(1.2))]
        assert rows(path, "SELECT answers FROM usage") == [(3,)]

    asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize("cost", [math.nan, math.inf, -0.1])
def test_a_cost_that_is_no_cost_is_refused(cost: float) -> None:
    async def main() -> None:
        record = key_record("k")
        async with ledger(record) as accounts:
            with pytest.raises(ValueError, match="finite"):
                await spend(accounts, record, "m", cost)

    asyncio.run(main())


def test_token_counts_that_no_answer_has_are_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        record, path = key_record("k"), tmp_path / "router.sqlite"
        async with ledger(record, path=path) as accounts:
            for tokens in (-1, 10**30, None):
                await spend(accounts, record, "m", 0.1, prompt_tokens=5, completion_tokens=tokens)
        assert rows(path, "SELECT answers, measured, completion_tokens FROM usage") == [(3, 0, 0)]

    asyncio.run(main())


@every_database
def test_what_no_limit_needs_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        clock, path = Clock(), tmp_path / "router.sqlite"
        record = key_record("k", spend_per_day=1.0, requests_per_minute=5)
        async with database(path) as opened:
            accounts = new_ledger([record], opened, clock=clock)
            await accounts.start()
            for _ in range(5):
                await accounts.admit(record, ["m"])
                await spend(accounts, record, "m", 0.1)
                await opened.flush()
                clock.now += DAY
        assert [len(rows(path, f"SELECT * FROM {table}")) for table in ("spend", "arrivals", "usage")] == [2, 1, 5]

    asyncio.run(main())


def test_the_file_is_its_owners_alone_and_only_a_routers(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "new" / "router.sqlite"
        async with ledger(key_record("k"), path=path):
            assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
        other = tmp_path / "other.sqlite"
        rows(other, "CREATE TABLE things (name TEXT)")
        text = tmp_path / "notes.txt"
        text.write_text("no database " * 100)
        newer = tmp_path / "newer.sqlite"
        async with ledger(key_record("k"), path=newer):
            pass
        rows(newer, "PRAGMA user_version = 99")
        for wrong, why in ((other, "another program"), (text, "not a database"), (newer, "newer"), (tmp_path, "")):
            with pytest.raises(ConfigError, match=f"{wrong.name}.*{why}"):
                await open_database(wrong).start()
        assert rows(other, "PRAGMA journal_mode") == [("delete",)]

    asyncio.run(main())


CHARGING = """
import asyncio, sys
from pathlib import Path
from route.keep.location import open_database
from route.keep.ledger import Ledger, key_record
from route.keep.reservations import NOTHING

charged = 0

class Teller:
    "Says how much was charged before the transaction that has just ended."
    def take(self): return charged
    def write(self, connection, batch): return batch
    def read(self, connection): return 0
    def absorb(self, news): print("written", news, flush=True)
    def give_back(self, batch): pass
    def size(self, batch): return 0
    def recover(self, connection, batch): return 0

async def main():
    global charged
    database, key = open_database(sys.argv[1]), key_record("k", name="ops")
    await database.start()
    ledger = Ledger([key], database)
    await ledger.start()
    await database.add(Teller())
    while charged != int(sys.argv[2]):
        reservation = await ledger.reserve(key, NOTHING)
        ledger.settle(reservation, "m", 1.0, prompt_tokens=1, completion_tokens=2)
        charged += 1
        print("charged", charged, flush=True)
        await asyncio.sleep(0.001)
    await database.close()

asyncio.run(main())
"""


@every_store
def test_a_kill_loses_at_most_what_happened_since_the_last_transaction(tmp_path: Path) -> None:
    """A transaction begins every 100 ms; it holds all that was charged before."""
    path = tmp_path / "router.sqlite"
    written, charged = charge_and_kill(path, after=6)
    [(requests, tokens, cost)] = rows(path, "SELECT answers, completion_tokens, cost FROM usage")
    assert written <= requests <= charged
    assert (tokens, cost) == (2 * requests, requests)
    assert rows(path, "SELECT cost FROM spend") == [(cost,)]


@pytest.mark.slow
def test_the_file_outlives_many_kills(tmp_path: Path) -> None:
    path, least, most = tmp_path / "router.sqlite", 0, 0
    for number in range(30):
        written, charged = charge_and_kill(path, after=number % 5)
        least, most = least + written, most + charged
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        [(requests,)] = rows(path, "SELECT coalesce(sum(answers), 0) FROM usage")
        assert least <= requests <= most
        least = requests


def charge_and_kill(path: Path, *, after: int) -> tuple[int, int]:
    """Kill a worker after so many transactions: charges known to be written, and the most that can have been."""
    with worker(CHARGING, path, -1) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while sum(line.startswith("written") for line in lines) < after:
            assert lines[-1], "the worker ended by itself"
            lines.append(process.stdout.readline())
        process.kill()
        lines += process.stdout.readlines()
    words = [line.split() for line in lines if line.endswith("\n")]
    counts = {which: max((int(n) for word, n in words if word == which), default=0) for which in ("written", "charged")}
    return counts["written"], counts["charged"] + 1  # the last one may not have been printed


@every_store
def test_workers_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "router.sqlite"
    with worker(CHARGING, path, 300) as one, worker(CHARGING, path, 300) as two, worker(CHARGING, path, 300) as three:
        for process in (one, two, three):
            process.communicate()
            assert process.returncode == 0
    assert rows(path, "SELECT sum(answers), sum(cost) FROM usage") == [(900, 900.0)]
    assert rows(path, "SELECT sum(cost) FROM spend") == [(900.0,)]


def test_it_writes_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        path, record = tmp_path / "router.sqlite", key_record("k")
        opened = new_database(path, flush_seconds=0.01)
        await opened.start()
        accounts = new_ledger([record], opened)
        await accounts.start()
        await spend(accounts, record, "m", 0.5)
        while not rows(path, "SELECT cost FROM spend"):
            await asyncio.sleep(0.005)
        await opened.close()
        await opened.close()

    asyncio.run(main())


@every_store
def test_who_asked_for_a_flush_may_go_without_losing_it(tmp_path: Path) -> None:
    async def main() -> None:
        path, record = tmp_path / "router.sqlite", key_record("k")
        opened = new_database(path)
        await opened.start()
        accounts = new_ledger([record], opened)
        await accounts.start()
        await spend(accounts, record, "m", 0.5)
        asking = asyncio.create_task(opened.flush())
        await asyncio.sleep(0)
        asking.cancel()
        await spend(accounts, record, "m", 0.25)
        await opened.close()
        assert rows(path, "SELECT cost FROM spend") == [(0.75,)]

    asyncio.run(main())


def status(result: object) -> int | None:
    return result.status if isinstance(result, Refusal) else None


@every_store
@pytest.mark.parametrize("jump", [3600.0, 90.0, 86_400.0 * 3])
def test_a_clock_that_jumps_ahead_and_back_locks_no_key(tmp_path: Path, jump: float) -> None:
    async def main() -> None:
        clock, record = Clock(), key_record("k", requests_per_minute=2, spend_per_day=10.0)
        async with ledger(record, path=tmp_path / "router.sqlite", clock=clock) as accounts:
            clock.now += jump
            for _ in range(2):
                assert await accounts.admit(record, ["m"]) == ("m",)
            worst = Worst(8.0, 8.0, 8.0)
            reservation = await accounts.reserve(record, worst)
            assert isinstance(reservation, Reservation)
            accounts.settle(reservation, "m", 1.0)
            await accounts.close()
            clock.now -= jump
            for _ in range(2):
                assert await accounts.admit(record, ["m"]) == ("m",)
            assert isinstance(await accounts.admit(record, ["m"]), Refusal)  # two a minute, as ever
            clock.now += 61
            assert await accounts.admit(record, ["m"]) == ("m",)

    asyncio.run(main())


@every_store
def test_a_lease_of_a_clock_that_jumped_holds_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        path, record = tmp_path / "router.sqlite", key_record("k", spend_per_day=10.0)
        ahead, clock = Clock(NOON + 3600.0), Clock()
        async with ledger(record, path=path, clock=ahead) as killed:
            assert isinstance(await killed.reserve(record, Worst(8.0, 8.0, 8.0)), Reservation)
            async with ledger(record, path=path, clock=clock) as accounts:
                assert isinstance(await accounts.reserve(record, Worst(9.0, 9.0, 9.0)), Reservation)

    asyncio.run(main())
