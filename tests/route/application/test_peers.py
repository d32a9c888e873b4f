"""Workers of one machine: ratings, open breakers and requests under way are those of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from route.keep.ledger import Refusal, key_record
from route.keep.workers import Peers, SharedCounts
from route.routing.offsets import Offsets
from tests.route.router_helpers import HELLO, KEY, Running, a_router

KNOWN = {"fair": 1.0, "poor": 0.0}


@pytest.fixture
def control() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="p2l-") as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def two_workers(tmp_path: Path, control: Path, **config: Any) -> AsyncIterator[tuple[Running, Running]]:
    settings = {"peers": str(control)}
    async with (
        a_router(tmp_path, settings=settings, database="shared.sqlite", **config) as first,
        a_router(tmp_path, settings=settings, database="shared.sqlite", **config) as second,
    ):
        yield first, second


def offsets_of(router: Running) -> Offsets:
    offsets = router.service.router.offsets
    assert offsets is not None
    return offsets


async def soon(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_a_rating_moves_the_offsets_of_all_workers_whichever_gets_it(tmp_path: Path, control: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path, control, coefs=KNOWN) as (first, second):
            one, other = offsets_of(first), offsets_of(second)
            for number, (asked, rated) in enumerate([(first, second), (second, first), (first, first)], start=1):
                _, answer, headers = await asked.post("/v1/chat/completions", {"messages": HELLO})
                vote = {"request_id": headers["x-request-id"], "thumbs": "down"}
                for _ in range(2):  # the same vote again changes nothing
                    status, *_ = await rated.post("/v1/feedback", vote)
                    assert status == 200
                while not one.beliefs()[""][2] == other.beliefs()[""][2] == number:
                    await asyncio.sleep(0.002)
                assert one.beliefs() == other.beliefs()
                assert answer["model"] in one.beliefs()
            async with a_router(tmp_path, settings={"peers": str(control)}, coefs=KNOWN) as third:
                late = offsets_of(third)
                await soon(lambda: late.beliefs() == one.beliefs())

    asyncio.run(main())


def test_a_breaker_opens_and_closes_in_every_worker(tmp_path: Path, control: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path, control) as (first, second):
            first.mocks["good"].fail_next(*["status:500"] * 20)
            while first.service.fleet.targets["good"].deployments[0].breaker.state == "closed":
                assert (await first.ask()).model == "fair"
            breaker = second.service.fleet.targets["good"].deployments[0].breaker
            await soon(lambda: breaker.state == "open")
            assert (await second.ask()).model == "fair"
            assert second.counts()["good"] == 0
            first.service.fleet.targets["good"].deployments[0].breaker.succeeded()
            await soon(lambda: breaker.state == "closed")
            assert (await second.ask()).model == "good"

    asyncio.run(main())


def test_requests_under_way_are_those_of_all_workers_where_a_limit_is_configured(tmp_path: Path, control: Path) -> None:
    async def main() -> None:
        models = {"good": {"deployments": {"main": {"max_in_flight": 1}}}}
        async with two_workers(tmp_path, control, models=models) as (first, second):
            mine, theirs = (each.service.fleet.targets["good"].deployments[0] for each in (first, second))
            limited, free = key_record(KEY, name="limited", max_in_flight=2), key_record("other", name="free")
            for ledger in (first.service.ledger, second.service.ledger):
                assert ledger.enter(free) is None
                assert ledger.enter(limited) is None
                await asyncio.sleep(0)
            await soon(lambda: isinstance(second.service.ledger.enter(limited), Refusal))
            first.service.ledger.leave(limited)
            mine.begin()
            await soon(lambda: theirs.is_full)
            assert second.service.ledger.enter(limited) is None
            mine.end()
            await soon(lambda: not theirs.is_full)

    asyncio.run(main())


def test_counts_of_a_worker_that_is_gone_are_forgotten_and_those_of_one_that_lives_are_not(control: Path) -> None:
    async def main() -> None:
        now = [0.0]
        here, there = Peers(control, clock=lambda: now[0]), Peers(control)
        counts, others = SharedCounts(here, "x"), SharedCounts(there, "x")
        await here.start()
        await there.start()
        others.set("a", 3)
        await soon(lambda: counts.elsewhere("a") == 3)
        now[0] = 4.0
        others.tell_all()
        await asyncio.sleep(0.01)
        now[0] = 8.0
        await soon(lambda: counts.elsewhere("a") == 3)
        now[0] = 20.0
        assert counts.elsewhere("a") == 0
        await there.close()
        here.tell("anything", None)
        assert [path.stem for path in control.glob("*.peer")] == [here.name]
        await here.close()
        assert list(control.iterdir()) == []

    asyncio.run(main())


def test_a_folder_without_sockets_leaves_workers_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        peers = Peers(tmp_path / "not there")
        await peers.start()
        peers.tell("anything", None)
        await peers.close()

    asyncio.run(main())
    assert "share neither" in caplog.text
