"""A router and its Redis with the wire between them cut: nobody is told, and nothing arrives."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from route.keep.ledger import Ledger, key_record
from route.keep.location import open_database
from route.keep.reservations import Reservation
from tests.route.keep.test_outages import close, exactly, flushed_at_last, until
from tools.services import Servers


class Wire:
    """A connection to a server that can be cut without its ends being told: what is sent stays on the way."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.whole = asyncio.Event()
        self.whole.set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._connect, "127.0.0.1")
        return int(self.server.sockets[0].getsockname()[1])

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.whole.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._carry(source, target))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await self.whole.wait()
                target.write(data)
                await target.drain()
        target.close()

    async def close(self) -> None:
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.slow
def test_a_redis_behind_a_cut_wire_holds_nobody_up_and_no_day_is_overspent(alive: Servers) -> None:
    """A partition: no connection is refused and none closed, and what was sent before arrives after."""

    async def main() -> None:
        wire = Wire(alive.redis_port)
        port = await wire.start()
        key = key_record("cut", name="cut", spend_per_day=100.0)
        databases, ledgers = [], []
        for number in range(2):  # the first alone is cut off
            database = open_database(alive.postgres_url, flush_seconds=0.05)
            await database.start()
            url = f"redis://127.0.0.1:{alive.redis_port if number else port}/0?prefix=cut"
            accounts = Ledger([key], database, shared_limits=url, grace=0.5)
            await accounts.start()
            databases.append(database)
            ledgers.append(accounts)
        here, there = ledgers
        spent = await here.reserve(key, exactly(30.0))
        assert isinstance(spent, Reservation)
        wire.whole.clear()
        here.settle(spent, "m", 30.0)
        held = await asyncio.wait_for(here.reserve(key, exactly(40.0)), 30)
        assert isinstance(held, Reservation)
        here.settle(held, "m", 40.0)
        for database in databases:
            await flushed_at_last(database)
        wire.whole.set()
        await until(lambda: here.shared is not None and here.shared.fault is None)
        granted = 70.0
        for accounts in (there, here, there, here):
            rest = await accounts.reserve(key, exactly(20.0))
            granted += (rest.amount or 0.0) if isinstance(rest, Reservation) else 0.0
        assert granted <= 100.0 + 1e-6
        await close(databases, ledgers)
        await wire.close()

    asyncio.run(main())
