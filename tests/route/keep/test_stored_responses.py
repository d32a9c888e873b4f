"""Stored responses have a space of their own: they push out each other, and neither votes nor spend."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from route.keep import stored_responses as module
from route.keep.feedback import Feedback, ShownAnswer, StoredVote, Vote
from route.keep.sqlite import SqliteDatabase
from route.keep.stored_responses import NoRoomError, ResponseStore
from tests.route.keep.ledger_helpers import database, rows
from tests.route.keep.stores import every_database


def response(name: str, previous: str | None = None) -> dict[str, Any]:
    items = [{"id": f"item-of-{name}", "type": "message"}]
    return {"id": name, "object": "response", "previous_response_id": previous, "output": items}


def large(kilobytes: int) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": "x" * 1024 * kilobytes}]


@every_database
def test_the_oldest_of_a_key_leave_for_its_newer_ones_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with database(tmp_path / "router.sqlite") as opened:
            store = ResponseStore(opened, enabled=True, most_mb=1.0)
            await store.put("other", response("theirs"), large(600))
            for number in range(6):
                await store.put("ops", response(f"mine-{number}"), large(300))
            assert [len(await store.chain("ops", f"mine-{number}")) for number in range(6)] == [0, 0, 0, 1, 1, 1]
            assert len(await store.chain("other", "theirs")) == 1
            assert store.evicted == 3
            kept = await opened.read(lambda one: one.execute("SELECT count(*) FROM response_items").fetchone()[0])
            assert kept == 4  # what has left leaves nothing behind
            with pytest.raises(NoRoomError, match="of at most 1,048,576 that a key may keep"):
                await store.put("ops", response("too-large"), large(1100))
            assert len(await store.chain("ops", "mine-5")) == 1

    asyncio.run(main())
    assert "1 stored responses left before their time, to make room for one of key ops" in caplog.text


@every_database
def test_all_keys_together_have_a_space_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES_IN_ALL", 1_000_000)

    async def main() -> None:
        async with database(tmp_path / "router.sqlite") as opened:
            store = ResponseStore(opened, enabled=True, most_mb=100.0)
            for number in range(5):
                await store.put(f"key-{number}", response(f"of-{number}"), large(300))
            assert [len(await store.chain(f"key-{number}", f"of-{number}")) for number in range(5)] == [0, 0, 1, 1, 1]

    asyncio.run(main())
    [(size, texts)] = rows(
        tmp_path / "router.sqlite", "SELECT sum(size), sum(length(response) + length(items)) FROM responses"
    )
    assert size == texts


def test_a_disk_that_is_nearly_full_takes_votes_and_no_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with database(tmp_path / "router.sqlite") as opened:
            store, votes = ResponseStore(opened, enabled=True, most_mb=1.0), Feedback(opened)
            await votes.start()
            monkeypatch.setattr(SqliteDatabase, "room", lambda _: 10_000)
            with pytest.raises(NoRoomError, match="the disk is nearly full"):
                await store.put("ops", response("one"), large(10))
            await store.put("ops", response("small"), [])
            votes.remember(ShownAnswer("shown", "ops", ("ant", "bee"), 1.0))
            assert isinstance(await votes.vote(Vote("shown", "tie"), key="ops"), StoredVote)

    asyncio.run(main())


@every_database
def test_a_response_that_was_made_in_the_background_pushes_out_older_ones_and_not_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with database(tmp_path / "router.sqlite") as opened:
            store = ResponseStore(opened, enabled=True, most_mb=1.0)
            await store.put("ops", response("oldest"), large(300))
            await store.put("ops", response("made"), [])
            await store.put("ops", response("newest"), large(300))
            [stub] = await store.chain("ops", "made")
            made = {**response("made"), "text": "x" * 1024 * 600}
            await store.renew("ops", stub, made)
            kept = {name: await store.chain("ops", name) for name in ("oldest", "made", "newest")}
            assert {name: len(rows) for name, rows in kept.items()} == {"oldest": 0, "made": 1, "newest": 1}
            assert kept["made"][0].response == made
            assert store.evicted == 1

    asyncio.run(main())


def test_a_disk_that_is_nearly_full_takes_no_response_that_was_made_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with database(tmp_path / "router.sqlite") as opened:
            store = ResponseStore(opened, enabled=True, most_mb=1.0)
            await store.put("ops", response("made"), [])
            [stub] = await store.chain("ops", "made")
            monkeypatch.setattr(SqliteDatabase, "room", lambda _: 10_000)
            with pytest.raises(NoRoomError, match="the disk is nearly full"):
                await store.renew("ops", stub, {**response("made"), "text": "x" * 20_000})
            assert await store.chain("ops", "made") == [stub]

    asyncio.run(main())


def test_the_reserve_is_a_part_of_the_disk(tmp_path: Path) -> None:
    opened = SqliteDatabase(tmp_path / "router.sqlite")
    room = opened.room()
    assert room is not None
    stat = os.statvfs(tmp_path)
    assert room < stat.f_bavail * stat.f_frsize
    assert SqliteDatabase(None).room() is None
