"""A replica that is behind takes the place of PostgreSQL: what was acknowledged is written again, or told."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from route.keep import failover
from route.keep.database import Database
from route.keep.feedback import Feedback, ShownAnswer, StoredVote, Vote
from route.keep.journal import Journal
from route.keep.ledger import Ledger, key_record
from route.keep.location import open_database
from route.keep.reservations import Reservation
from route.keep.stored_keys import StoredKeys, limit_key, revoke_key
from tests.route.keep.test_outages import exactly, flushed_at_last, rows, until
from tools.services import Servers, ServiceError

LIMITED = key_record("limited", name="limited", spend_per_day=100.0)


@pytest.fixture
def pair() -> Iterator[tuple[Servers, Servers]]:
    """A PostgreSQL, and one that copies it."""
    pytest.importorskip("psycopg", reason="needs `pip install 'p2l[replicas]'`")
    with tempfile.TemporaryDirectory() as folder:  # of pytest's own, another user may enter none
        primary = Servers(Path(folder) / "primary")
        try:
            primary.start_postgres()
            replica = primary.copied(Path(folder) / "replica")
        except ServiceError as error:
            primary.stop()
            pytest.skip(f"no PostgreSQL of its own can be started: {error}")
        yield primary, replica
        for server in (primary, replica):
            server.stop()
            shutil.rmtree(server.folder, ignore_errors=True)


class Worker:
    """A router's accounts, votes and keys in its database."""

    def __init__(self, pair: tuple[Servers, Servers], journal: Path) -> None:
        hosts = ",".join(f"127.0.0.1:{server.postgres_port}" for server in pair)
        self.database: Database = open_database(f"postgresql://postgres@{hosts}/test", flush_seconds=0.05)
        self.ledger = Ledger([LIMITED], self.database)
        self.votes = Feedback(self.database, journal=Journal(journal))
        self.keys = StoredKeys(self.database, self.ledger)

    async def start(self) -> None:
        await self.database.start()
        for part in (self.keys, self.ledger, self.votes):
            await part.start()

    async def close(self) -> None:
        for part in (self.ledger, self.votes, self.keys, self.database):
            await part.close()

    async def spend(self, amount: float) -> None:
        reservation = await self.ledger.reserve(LIMITED, exactly(amount))
        assert isinstance(reservation, Reservation)
        self.ledger.settle(reservation, "m", amount)
        assert await self.database.flush()

    async def show(self) -> str:
        """An answer that was shown, and is in the database."""
        request_id = self.votes.ids.new()
        self.votes.remember(ShownAnswer(request_id, "ops", ("ant", "bee"), 0.5))
        assert await self.database.flush()
        return request_id

    async def vote(self, request_id: str) -> None:
        stored = await self.votes.vote(Vote(request_id, "first"), key="ops")
        assert isinstance(stored, StoredVote)
        assert not stored.pending


async def fall_behind(primary: Servers, replica: Servers) -> None:
    """Let a replica have all there is by now, and nothing of what comes."""
    import psycopg

    with psycopg.connect(primary.postgres_url, autocommit=True) as session:
        [position] = session.execute("SELECT pg_current_wal_lsn()").fetchone() or ()
    with psycopg.connect(replica.postgres_url, autocommit=True) as session:
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        while session.execute(query, (position,)).fetchone() != (True,):
            await asyncio.sleep(0.02)
        session.execute("ALTER SYSTEM SET primary_conninfo = ''")
        session.execute("SELECT pg_reload_conf()")
        while session.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() != (0,):
            await asyncio.sleep(0.02)


async def promoted(primary: Servers, replica: Servers, *workers: Worker) -> None:
    """End the one, and let the other take its place; all workers have found it when this returns."""
    primary.kill_postgres()
    for worker in workers:
        await until(lambda worker=worker: worker.database.fault is not None)
    await asyncio.to_thread(replica.promote)
    for worker in workers:
        await flushed_at_last(worker.database)


def test_what_a_promoted_replica_lacks_is_written_again(
    pair: tuple[Servers, Servers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = pair
    voted: list[str] = []

    async def main() -> None:
        here, there = (Worker(pair, tmp_path / f"{number}.journal") for number in range(2))
        for worker in (here, there):
            await worker.start()
        await here.spend(10.0)
        await here.keys.add("early", {})
        await here.keys.add("changed", {"spend_per_day": 5.0})
        before = await there.show()
        await fall_behind(primary, replica)
        await here.spend(30.0)
        await there.spend(20.0)
        await here.keys.add("late", {})
        await here.keys.change(lambda connection: revoke_key(connection, "early", now=1e9))
        await here.keys.change(lambda connection: limit_key(connection, "changed", {"spend_per_day": 2.0}))
        voted.extend([before, await there.show(), await there.show()])
        await there.vote(voted[0])  # whose answer the replica has
        await there.vote(voted[1])
        await here.vote(voted[2])  # whose answer another worker has to write again
        await promoted(primary, replica, here, there)
        await until(lambda: all(w.votes.journal is not None and w.votes.journal.is_empty for w in (here, there)))
        await until(lambda: {*there.keys.valid} == {"late", "changed"} == {*here.keys.valid})
        granted = 60.0
        for worker in (here, there, here, there):
            rest = await worker.ledger.reserve(LIMITED, exactly(25.0))
            if isinstance(rest, Reservation):
                granted += rest.amount or 0.0
                worker.ledger.settle(rest, "m", rest.amount or 0.0)
        assert granted <= 100.0 + 1e-6
        assert granted > 80.0
        revoked = await here.keys.change(lambda connection: revoke_key(connection, "late", now=2e9))
        assert revoked.name == "late"
        await until(lambda: there.keys.valid == ["changed"])
        for worker in (here, there):
            await worker.close()
        assert rows(replica, "SELECT sum(cost), sum(answers) FROM usage")[0][0] == pytest.approx(granted)
        assert rows(replica, "SELECT cost FROM spend")[0][0] == pytest.approx(granted)

    with caplog.at_level(logging.ERROR, logger="route"):
        asyncio.run(main())
    assert sorted(rows(replica, "SELECT request_id, verdict FROM votes")) == sorted((each, "first") for each in voted)
    assert rows(replica, "SELECT name, revoked FROM keys ORDER BY name") == [
        ("changed", None), ("early", 1e9), ("late", 2e9)
    ]  # fmt: skip
    assert rows(replica, "SELECT limits FROM keys WHERE name = 'changed'") == [('{"spend_per_day": 2.0}',)]
    told = [record.getMessage() for record in caplog.records if "written again" in record.getMessage()]
    assert len(told) == 2
    assert not any("lost" in line for line in told)


@pytest.mark.slow
def test_what_is_too_old_to_be_written_again_is_told(
    pair: tuple[Servers, Servers], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(failover, "KEPT_SECONDS", 0.2)
    primary, replica = pair

    async def main() -> None:
        worker = Worker(pair, tmp_path / "journal")
        await worker.start()
        await fall_behind(primary, replica)
        await worker.spend(10.0)
        await asyncio.sleep(0.3)
        await worker.spend(5.0)
        await promoted(primary, replica, worker)
        await worker.close()

    with caplog.at_level(logging.ERROR, logger="route"):
        asyncio.run(main())
    assert rows(replica, "SELECT cost FROM spend") == [(5.0,)]
    [told] = [record.getMessage() for record in caplog.records if "written again" in record.getMessage()]
    assert "of the other writes are lost" in told


@pytest.mark.slow
def test_a_server_that_only_restarts_lacks_nothing_and_nothing_is_written_twice(
    pair: tuple[Servers, Servers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    primary, _ = pair

    async def main() -> None:
        worker = Worker(pair, tmp_path / "journal")
        await worker.start()
        await worker.spend(10.0)
        request_id = await worker.show()
        await worker.vote(request_id)
        primary.kill_postgres()
        await until(lambda: worker.database.fault is not None)
        await asyncio.to_thread(primary.start_postgres)
        await flushed_at_last(worker.database)
        await worker.close()

    with caplog.at_level(logging.ERROR, logger="route"):
        asyncio.run(main())
    assert rows(primary, "SELECT cost FROM spend") == [(10.0,)]
    assert rows(primary, "SELECT count(*) FROM votes") == [(1,)]
    assert not [record for record in caplog.records if "written again" in record.getMessage()]
