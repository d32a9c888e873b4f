"""What a router finds in PostgreSQL of its own after it wrote nothing for long, or after a commit in doubt was made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from route.keep.database import DatabaseError
from route.keep.ledger import Ledger, key_record
from route.keep.location import open_database
from route.keep.reservations import Reservation
from tests.route.keep.ledger_helpers import NEVER, spend
from tests.route.keep.test_outages import close, exactly, flushed_at_last, rows
from tools.services import Servers


def test_spend_of_a_router_whose_row_was_tidied_away_is_not_written_again(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off for longer than rows of routers are kept, while others went on."""
    kept_seconds = 1.0
    monkeypatch.setattr("route.keep.postgres._KEPT_FLUSH_SECONDS", kept_seconds)

    async def main() -> None:
        key = key_record("tidied", name="tidied")
        databases = [open_database(alive.postgres_url, flush_seconds=NEVER) for _ in range(2)]
        ledgers = [Ledger([key], database) for database in databases]
        for part in (*databases, *ledgers):
            await part.start()
        await spend(ledgers[0], key, "m", 5.0)
        assert await databases[0].flush()
        await asyncio.sleep(kept_seconds + 0.5)
        await spend(ledgers[1], key, "m", 1.0)
        assert await databases[1].flush()
        alive.kill_postgres()
        await asyncio.to_thread(alive.start_postgres)
        for _ in range(2):  # the first finds the server, the second looks what it lacks
            await flushed_at_last(databases[0])
        await close(databases, ledgers)

    asyncio.run(main())
    assert rows(alive, "SELECT cost FROM spend WHERE key = 'tidied'") == [(6.0,)]


def test_a_router_with_nothing_to_write_is_not_taken_for_one_that_has_ended(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_seconds = 2.0
    monkeypatch.setattr("route.keep.postgres._KEPT_FLUSH_SECONDS", kept_seconds)

    async def main() -> None:
        key = key_record("idle", name="idle")
        databases = [open_database(alive.postgres_url, flush_seconds=seconds) for seconds in (0.05, NEVER)]
        ledgers = [Ledger([key], database) for database in databases]
        for part in (*databases, *ledgers):
            await part.start()
        await spend(ledgers[0], key, "m", 5.0)
        assert await databases[0].flush()
        await asyncio.sleep(kept_seconds + 0.5)
        await spend(ledgers[1], key, "m", 1.0)
        assert await databases[1].flush()
        assert rows(alive, "SELECT count(*) FROM flushes") == [(2,)]
        await close(databases, ledgers)

    asyncio.run(main())


def test_a_lease_is_as_large_as_what_is_held_after_a_commit_in_doubt_that_was_made(
    alive: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        key = key_record("made", name="made", spend_per_day=10.0)
        database = open_database(alive.postgres_url, flush_seconds=NEVER)
        await database.start()
        accounts = Ledger([key], database)
        await accounts.start()
        spent, held = [await accounts.reserve(key, exactly(amount)) for amount in (4.0, 3.0)]
        assert isinstance(spent, Reservation)
        assert isinstance(held, Reservation)
        accounts.settle(spent, "m", 4.0)

        def break_after_the_commit(connection: Any) -> None:
            connection.commit()
            raise DatabaseError("the connection broke during a commit", in_doubt=True)

        with monkeypatch.context() as patched:
            patched.setattr("route.keep.postgres._commit", break_after_the_commit)
            assert not await database.flush()
        alive.kill_postgres()
        await asyncio.to_thread(alive.start_postgres)
        await flushed_at_last(database)
        assert rows(alive, "SELECT amount FROM leases WHERE key = 'made'") == [(3.0,)]
        await close([database], [accounts])

    asyncio.run(main())
    assert rows(alive, "SELECT cost FROM spend WHERE key = 'made'") == [(4.0,)]
