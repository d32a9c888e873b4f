"""Two routers on one PostgreSQL and one Redis: what is done at one holds at the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.route.keep.stores import Store, a_store, why_not
from tests.route.router_helpers import HELLO, Running, a_router

ADMIN = {"authorization": "Bearer the-admin-key"}
LIMITED = {"authorization": "Bearer limited-key"}


@pytest.fixture
def shared() -> Iterator[Store]:
    """A schema and a prefix of this test's own."""
    reason = why_not("redis")
    if reason is not None:
        pytest.skip(reason)
    with a_store("redis") as store:
        yield store


async def with_two(folder: Path, store: Store, work: Any) -> None:
    config: dict[str, Any] = {
        "database": str(store.location(Path("shared"))),
        "shared_limits": store.limits,
        "admin_key": "the-admin-key",
        "sticky": True,
        "keys": [{"key": "limited-key", "name": "limited", "requests_per_minute": 3}],
    }
    folders = [folder / name for name in ("one", "two")]
    for each in folders:
        each.mkdir()
    async with a_router(folders[0], **config) as one, a_router(folders[1], **config) as two:
        await work(one, two)


def test_votes_keys_and_rates_hold_at_every_replica(tmp_path: Path, shared: Store) -> None:
    async def work(one: Running, two: Running) -> None:
        body = {"messages": HELLO}
        status, _, headers = await one.post("/v1/chat/completions", body)
        assert status == 200
        vote = {"request_id": headers["x-request-id"], "thumbs": "up"}
        status, stored, _ = await two.post("/v1/feedback", vote)
        assert (status, stored["pending"], stored["models"]) == (200, False, ["good"])
        status, made, _ = await one.post("/admin/keys", {"name": "app"}, ADMIN)
        assert status == 201
        bearer = {"authorization": f"Bearer {made['key']}"}
        assert (await two.post("/v1/chat/completions", body, bearer))[0] == 200
        statuses = [(await router.post("/v1/chat/completions", body, LIMITED))[0] for router in (one, two, one, two)]
        assert statuses == [200, 200, 200, 429]
        state = json.loads((await two.get("/ready"))[1])
        assert (state["database"], state["limits"], state["waiting_votes"]) == (True, True, 0)
        assert "p2l_router_limits_up 1.0" in (await two.get("/metrics", "the-admin-key"))[1]

    asyncio.run(with_two(tmp_path, shared, work))


def test_a_conversation_keeps_its_model_at_every_replica(tmp_path: Path, shared: Store) -> None:
    async def work(one: Running, two: Running) -> None:
        first = {"messages": HELLO, "cost": 2}
        _, answer, headers = await one.post("/v1/chat/completions", first)
        assert headers["x-p2l-model"] == "fair"
        assert await one.service.database.flush()
        turns = [*HELLO, answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
        _, _, headers = await two.post("/v1/chat/completions", {"messages": turns, "cost": 5})
        assert headers["x-p2l-model"] == "fair"

    asyncio.run(with_two(tmp_path, shared, work))
