"""What a router does while its PostgreSQL or its Redis is gone, and when they are back."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from route.keep import journal as journal_module
from route.keep.database import Database, DatabaseError
from route.keep.feedback import Feedback, ShownAnswer, StoredVote, Vote, VoteLimits
from route.keep.journal import Journal
from route.keep.ledger import Ledger, Refusal, key_record
from route.keep.location import open_database
from route.keep.reservations import Reservation, Worst
from tests.route.keep.ledger_helpers import NEVER, Clock, spend
from tools.services import Servers


def rows(servers: Servers, query: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(servers.postgres_url) as session:
        return session.execute(query.encode()).fetchall()


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def flushed_at_last(database: Database) -> None:
    while not await database.flush():
        await asyncio.sleep(0.1)


def answer(name: str) -> ShownAnswer:
    return ShownAnswer(name, "ops", ("ant", "bee"), 0.5, prompt=("What is a bee?",))


def test_votes_wait_on_the_disk_while_postgres_is_gone_and_are_delivered_once(alive: Servers, tmp_path: Path) -> None:
    ids = {}

    async def main() -> None:
        database = open_database(alive.postgres_url, flush_seconds=0.05)
        await database.start()
        votes = Feedback(database, store_prompts=True, journal=Journal(tmp_path / "journal.sqlite"))
        await votes.start()
        ids.update({name: votes.ids.new() for name in ("before", "during")})
        votes.remember(answer(ids["before"]))
        assert await database.flush()
        alive.kill_postgres()
        votes.remember(answer(ids["during"]))
        await until(lambda: database.fault is not None)
        for request_id in ids.values():
            stored = await votes.vote(Vote(request_id, "first"), key="ops")
            assert isinstance(stored, StoredVote)
            assert (stored.pending, stored.models) == (True, ())
        refusal = await votes.vote(Vote(ids["during"], "up"), key="ops")
        assert isinstance(refusal, Refusal)
        assert refusal.status == 400
        again = await votes.vote(Vote(ids["before"], "second"), key="ops")  # somebody changes their mind
        assert isinstance(again, StoredVote)
        with pytest.raises(DatabaseError):
            await database.read(lambda connection: connection.execute("SELECT 1").fetchone())
        assert votes.journal is not None
        assert votes.journal.waiting == 2  # one an answer
        alive.start_postgres()
        await until(lambda: votes.journal is not None and votes.journal.is_empty)
        stored = await votes.vote(Vote(ids["during"], "first"), key="ops")
        assert isinstance(stored, StoredVote)
        assert (stored.pending, stored.models, stored.replaced) == (False, ("ant", "bee"), False)
        await votes.close()
        await database.close()

    asyncio.run(main())
    verdicts = dict(rows(alive, "SELECT request_id, verdict FROM votes"))
    assert (verdicts[ids["before"]], verdicts[ids["during"]]) == ("second", "first")


@pytest.mark.parametrize("hours", [pytest.param(0, marks=pytest.mark.slow), 30])
def test_a_vote_waits_for_the_answer_that_another_router_has_in_memory(
    alive: Servers, tmp_path: Path, hours: int
) -> None:
    """However long the database and that router are away: time passes for all of them, and nothing expires by it."""
    clock = Clock(4e9 if hours else 3e9)
    ids = []

    async def main() -> None:
        databases = [open_database(alive.postgres_url, flush_seconds=seconds) for seconds in (0.05, NEVER)]
        for database in databases:
            await database.start()
        voted, shown = (
            Feedback(database, journal=Journal(tmp_path / f"{number}.journal"), clock=clock)
            for number, database in enumerate(databases)
        )
        await voted.start()
        alive.kill_postgres()
        ids.append(voted.ids.new())
        shown.remember(answer(ids[0]))
        await until(lambda: databases[0].fault is not None)
        stored = await voted.vote(Vote(ids[0], "tie"), key="ops")
        assert isinstance(stored, StoredVote)
        assert stored.pending
        clock.now += hours * 3600
        await asyncio.to_thread(alive.start_postgres)
        await until(lambda: databases[0].fault is None)
        await asyncio.sleep(1.0)  # more than one delivery
        assert rows(alive, f"SELECT verdict FROM votes WHERE request_id = '{ids[0]}'") == []
        await shown.start()
        await flushed_at_last(databases[1])
        await until(lambda: voted.journal is not None and voted.journal.is_empty)
        for part in (voted, shown, *databases):
            await part.close()

    asyncio.run(main())
    assert rows(alive, f"SELECT verdict FROM votes WHERE request_id = '{ids[0]}'") == [("tie",)]


def test_while_the_database_is_gone_invented_answers_are_refused_and_fill_nothing(
    alive: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_MOST_VOTES_OF_KEY", 3)
    clock = Clock(3e9)

    async def main() -> None:
        database = open_database(alive.postgres_url, flush_seconds=0.05)
        await database.start()
        votes = Feedback(database, journal=Journal(tmp_path / "journal.sqlite"), clock=clock)
        await votes.start()
        old = votes.ids.new()
        clock.now += 90_000
        alive.kill_postgres()
        await until(lambda: database.fault is not None)
        real = votes.ids.new()
        for invented in (f"{real[:-1]}{'0' if real[-1] != '0' else '1'}", "req-" + 40 * "0", "x", old):
            refusal = await votes.vote(Vote(invented, "first"), key="ops")
            assert isinstance(refusal, Refusal)
            assert refusal.status == 404
        # One key's votes leave room for those of others, and what it changes takes no more.
        for request_id in [votes.ids.new() for _ in range(3)]:
            for verdict in ("first", "second"):
                assert isinstance(await votes.vote(Vote(request_id, verdict), key="ops"), StoredVote)
        refusal = await votes.vote(Vote(votes.ids.new(), "first"), key="ops")
        assert isinstance(refusal, Refusal)
        assert refusal.status == 429
        assert isinstance(
            await votes.vote(Vote(votes.ids.new(), "first"), key="other", limits=VoteLimits(of_key=1)), StoredVote
        )
        refusal = await votes.vote(Vote(votes.ids.new(), "first"), key="other", limits=VoteLimits(of_key=1))
        assert isinstance(refusal, Refusal)
        assert refusal.status == 429
        assert votes.journal is not None
        assert await votes.journal.waiting_by_key() == {"ops": 3, "other": 1}
        assert await votes.journal.discard() == 4
        assert votes.journal.is_empty
        await votes.close()
        await database.close()

    asyncio.run(main())


def test_a_vote_has_its_answer_after_a_kill_right_behind_it(
    alive: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush that would have kept the answer never came."""
    ids = []

    async def killed() -> None:
        database = open_database(alive.postgres_url, flush_seconds=NEVER)
        await database.start()
        votes = Feedback(database, journal=Journal(tmp_path / "journal.sqlite"))
        await votes.start()
        alive.kill_postgres()
        ids.append(votes.ids.new())
        votes.remember(answer(ids[0]))
        monkeypatch.setattr(votes, "give_back", partial(setattr, votes, "_gathered"))
        assert isinstance(await votes.vote(Vote(ids[0], "first"), key="ops"), StoredVote)
        assert votes.journal is not None
        assert [entry.kind for entry in await votes.journal.next()] == ["answer", "vote"]
        votes._gathered.clear()
        await votes.close()
        await database.close()

    async def restarted() -> None:
        database = open_database(alive.postgres_url)
        await database.start()
        votes = Feedback(database, journal=Journal(tmp_path / "journal.sqlite"))
        await votes.start()
        await until(lambda: votes.journal is not None and votes.journal.is_empty)
        await votes.close()
        await database.close()

    asyncio.run(killed())
    alive.start_postgres()
    asyncio.run(restarted())
    assert rows(alive, f"SELECT verdict FROM votes WHERE request_id = '{ids[0]}'") == [("first",)]


@pytest.mark.slow
def test_what_is_leased_does_not_expire_while_nobody_can_renew_it(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another router leases what this one has spent and could not write down."""
    monkeypatch.setattr("route.keep.reservations.LEASE_SECONDS", 3.0)
    monkeypatch.setattr("route.keep.reservations.RENEW_SECONDS", 1.0)
    key = key_record("secret", name="leasing", spend_per_day=10.0)

    async def main() -> None:
        databases = [open_database(alive.postgres_url, flush_seconds=seconds) for seconds in (NEVER, 0.05)]
        first, second = (Ledger([key], database) for database in databases)
        for part in (*databases, first, second):
            await part.start()
        held = await first.reserve(key, Worst(10.0, 10.0, 10.0))
        assert isinstance(held, Reservation)
        alive.kill_postgres()
        await until(lambda: databases[1].fault is not None)
        first.settle(held, "ant", 10.0)
        await asyncio.sleep(4.0)  # the lease is over by then
        await asyncio.to_thread(alive.start_postgres)
        await until(lambda: databases[1].fault is None)
        refused = await second.reserve(key, Worst(5.0, 5.0, 5.0))
        assert isinstance(refused, Refusal)
        for part in (first, second, *databases):
            await part.close()

    asyncio.run(main())


def test_a_router_that_is_killed_delivers_its_votes_when_it_starts_again(alive: Servers, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"

    async def killed() -> None:
        journal = Journal(path)
        await journal.start()
        row = ["left", 4e9, "ops", "ant", "bee", None, None, 0.5, "", None]
        await journal.add_vote(["left", "tie", "ops", 4e9 + 1])
        await journal.add_answers(lambda: [row])
        await journal.close()

    async def restarted() -> None:
        database = open_database(alive.postgres_url)
        await database.start()
        votes = Feedback(database, journal=Journal(path))
        await votes.start()
        await until(lambda: votes.journal is not None and votes.journal.is_empty)
        await votes.close()
        await database.close()

    asyncio.run(killed())
    asyncio.run(restarted())
    assert rows(alive, "SELECT verdict, voted FROM votes WHERE request_id = 'left'") == [("tie", 4e9 + 1)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MOST_VOTES", 3)
    monkeypatch.setattr(journal_module, "_MOST_ANSWERS", 10)

    async def main() -> None:
        journal = Journal(tmp_path / "journal.sqlite")
        await journal.start()
        for number in range(3):
            await journal.add_vote([str(number), "tie", "ops", 1.0])
        with pytest.raises(journal_module.JournalError, match="3 votes already"):
            await journal.add_vote(["4", "tie", "ops", 1.0])
        for number in range(30):
            await journal.add_answers(lambda number=number: [[str(number), 1.0, "ops"]])
        entries = await journal.next()
        assert [entry.row[0] for entry in entries if entry.kind == "vote"] == ["0", "1", "2"]
        answers = [entry.row[0] for entry in entries if entry.kind == "answer"]
        assert len(answers) <= 10
        assert answers[:3] == ["0", "1", "2"]  # those that were voted on stay, others leave, the oldest first
        assert answers[-1] == "29"
        await journal.close()

    asyncio.run(main())


def test_sums_of_a_flush_that_broke_are_counted_once(alive: Servers) -> None:
    """The server dies again and again while it is written to; nothing is lost or counted twice."""

    async def main() -> float:
        database = open_database(alive.postgres_url, flush_seconds=0.01)
        await database.start()
        key = key_record("once", name="once")
        accounts = Ledger([key], database)
        await accounts.start()
        booked = 0.0
        for number in range(3):
            for _ in range(30):
                await spend(accounts, key, "m", 1.0)
                booked += 1.0
                await asyncio.sleep(0.002)
                if number and _ == 15:
                    await asyncio.to_thread(alive.kill_postgres)
                    await asyncio.to_thread(alive.start_postgres)
        await until(lambda: database.fault is None)
        await accounts.close()
        await database.close()
        return booked

    booked = asyncio.run(main())
    assert rows(alive, "SELECT sum(cost) FROM usage WHERE key = 'once'") == [(booked,)]
    assert rows(alive, "SELECT cost FROM spend WHERE key = 'once'") == [(booked,)]


@pytest.mark.slow
def test_sums_in_doubt_are_counted_once_however_often_the_server_is_missed(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is gone between a commit that broke and its repetition, for many tries of the flush."""

    async def main() -> None:
        database = open_database(alive.postgres_url, flush_seconds=0.01)
        await database.start()
        key = key_record("doubt", name="doubt")
        accounts = Ledger([key], database)
        await accounts.start()

        def break_the_commit(connection: Any) -> None:
            alive.kill_postgres()
            connection.close()
            raise DatabaseError("the connection broke during a commit", in_doubt=True)

        with monkeypatch.context() as patched:
            patched.setattr("route.keep.postgres._commit", break_the_commit)
            await spend(accounts, key, "m", 5.0)
            await until(lambda: database.fault is not None)
        await asyncio.sleep(2.5)  # more than one try to connect, and many flushes
        await asyncio.to_thread(alive.start_postgres)
        await until(lambda: database.fault is None)
        await accounts.close()
        await database.close()

    asyncio.run(main())
    assert rows(alive, "SELECT sum(cost) FROM usage WHERE key = 'doubt'") == [(5.0,)]
    assert rows(alive, "SELECT cost FROM spend WHERE key = 'doubt'") == [(5.0,)]


def test_sums_in_doubt_are_counted_once_after_an_outage_in_which_they_grew_old(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another router, which finds the server first, does not take the one that was away for one that has ended."""
    kept_seconds = 3.0
    monkeypatch.setattr("route.keep.postgres._KEPT_FLUSH_SECONDS", kept_seconds)

    async def main() -> None:
        key = key_record("aged", name="aged")
        database, other = (open_database(alive.postgres_url, flush_seconds=NEVER) for _ in range(2))
        await database.start()
        accounts = Ledger([key], database)
        await accounts.start()

        def break_after_the_commit(connection: Any) -> None:
            connection.commit()
            raise DatabaseError("the connection broke during a commit", in_doubt=True)

        with monkeypatch.context() as patched:
            patched.setattr("route.keep.postgres._commit", break_after_the_commit)
            await spend(accounts, key, "m", 5.0)
            assert not await database.flush()
        alive.kill_postgres()
        await asyncio.sleep(kept_seconds + 0.5)
        await asyncio.to_thread(alive.start_postgres)
        await other.start()
        others = Ledger([key], other)
        await others.start()
        await spend(others, key, "m", 1.0)
        assert await other.flush()
        await flushed_at_last(database)
        await close([database, other], [accounts, others])

    asyncio.run(main())
    assert rows(alive, "SELECT cost FROM spend WHERE key = 'aged'") == [(6.0,)]


async def two_ledgers(servers: Servers, name: str, without: str = "local") -> tuple[list[Database], list[Ledger], Any]:
    key = key_record(name, name=name, spend_per_day=100.0, requests_per_minute=5)
    databases = [open_database(servers.postgres_url, flush_seconds=0.05) for _ in range(2)]
    ledgers = []
    for database in databases:
        await database.start()
        url = f"{servers.redis_url}?prefix={name}"
        accounts = Ledger([key], database, shared_limits=url, without_shared=without, grace=0.5)
        await accounts.start()
        ledgers.append(accounts)
    return databases, ledgers, key


async def close(databases: list[Database], ledgers: list[Ledger]) -> None:
    for accounts in ledgers:
        await accounts.close()
    for database in databases:
        await database.close()


def exactly(cost: float) -> Worst:
    return Worst(cost, cost, cost)


def test_what_is_held_is_told_to_a_redis_that_comes_back_empty(alive: Servers) -> None:
    async def main() -> None:
        databases, (here, there), key = await two_ledgers(alive, "empty")
        spent = await here.reserve(key, exactly(30.0))
        assert isinstance(spent, Reservation)
        here.settle(spent, "m", 30.0)
        held = await there.reserve(key, exactly(40.0))
        assert isinstance(held, Reservation)
        assert await databases[0].flush()
        alive.kill_redis()
        await asyncio.to_thread(alive.start_redis)
        refusal = await here.reserve(key, exactly(35.0))
        assert isinstance(refusal, Refusal)
        assert refusal.status == 429
        rest = await here.reserve(key, exactly(30.0))
        assert isinstance(rest, Reservation)
        assert rest.amount == pytest.approx(30.0)
        await close(databases, [here, there])

    asyncio.run(main())


def test_without_redis_days_are_exact_through_the_database_and_rates_local(alive: Servers) -> None:
    async def main() -> None:
        databases, (here, there), key = await two_ledgers(alive, "local")
        held = await there.reserve(key, exactly(60.0))
        assert isinstance(held, Reservation)
        alive.kill_redis()
        assert await here.admit(key, ["m"]) == ("m",)
        assert here.shared is not None
        assert here.shared.fault is not None
        assert isinstance(await here.reserve(key, exactly(50.0)), Refusal)
        rest = await here.reserve(key, exactly(40.0))
        assert isinstance(rest, Reservation)
        statuses = [isinstance(await here.admit(key, ["m"]), tuple) for _ in range(6)]
        assert statuses == [True] * 4 + [False] * 2
        await asyncio.to_thread(alive.start_redis)
        await until(lambda: here.shared is not None and here.shared.fault is None)
        await until(lambda: there.shared is not None and there.shared.fault is None)
        assert isinstance(await there.reserve(key, exactly(1.0)), Refusal)  # all of it is held, and Redis knows
        await close(databases, [here, there])

    asyncio.run(main())


def test_limited_keys_are_refused_without_redis_where_the_configuration_says_so(alive: Servers) -> None:
    async def main() -> None:
        databases, ledgers, key = await two_ledgers(alive, "refused", "refuse")
        alive.kill_redis()
        for outcome in (await ledgers[0].admit(key, ["m"]), await ledgers[0].reserve(key, exactly(1.0))):
            assert isinstance(outcome, Refusal)
            assert (outcome.status, outcome.code) == (503, "limits_unavailable")
        free = key_record("free", name="free")
        assert await ledgers[0].admit(free, ["m"]) == ("m",)
        await close(databases, ledgers)

    asyncio.run(main())


def test_a_rate_is_exact_across_replicas_that_ask_at_once(alive: Servers) -> None:
    async def main() -> None:
        databases, ledgers, key = await two_ledgers(alive, "rate")
        outcomes = await asyncio.gather(*(ledgers[number % 2].admit(key, ["m"]) for number in range(40)))
        assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 5
        await close(databases, ledgers)

    asyncio.run(main())


def test_closing_ends_whatever_redis_is_just_asked(alive: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    from route.keep import redis_limits

    monkeypatch.setattr(redis_limits, "_SETTLE_SECONDS", 0.001)

    async def main() -> None:
        for number in range(200):
            limits = redis_limits.RedisLimits(f"{alive.redis_url}?prefix=closing", "worker")
            await limits.start()
            await asyncio.sleep(number % 40 / 8000)  # all moments of a call
            await limits.close()

    asyncio.run(main())


def test_no_message_has_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from p2l.common.errors import ConfigError

    async def main() -> None:
        with pytest.raises(ConfigError) as database:
            await open_database("postgresql://me:s3cr%40t@127.0.0.1:1/x").start()
        with pytest.raises(ConfigError) as limits:
            await Ledger(
                [], open_database(tmp_path / "x"), shared_limits="redis://:s3cr%40t@127.0.0.1:1/0"
            ).shared.start()  # type: ignore[union-attr]
        for error in (database, limits):
            assert "s3cr" not in str(error.value) + caplog.text
            assert "127.0.0.1:1" in str(error.value)

    asyncio.run(main())


def test_another_program_s_journal_is_left_alone(tmp_path: Path) -> None:
    from p2l.common.errors import ConfigError

    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE things (name TEXT)")
    other.close()

    async def main() -> None:
        journal = Journal(path)
        with pytest.raises(ConfigError, match=r"journal: .*another kind"):
            await journal.start()
        await journal.close()

    asyncio.run(main())


def test_a_journal_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA application_id = {journal_module._APPLICATION_ID}")
        file.execute(
            "CREATE TABLE entries (number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, row TEXT NOT NULL)"
        )
        file.execute("""INSERT INTO entries (kind, row) VALUES ('vote', '["one", "tie", "ops", 1.5, null]')""")
    file.close()

    async def main() -> None:
        journal = Journal(path)
        await journal.start()
        assert await journal.waiting_by_key() == {"ops": 1}
        await journal.close()

    asyncio.run(main())
