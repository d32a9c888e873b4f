"""What a killed router had under way is booked when it starts again: once, by the provider's word if it gave it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from benchmarks.billing.provider import serving
from benchmarks.billing.replicas import Replica
from benchmarks.recorded.traffic import standing_in
from route.keep.under_way import CallNotes, left_files, left_notes
from tests.route.router_helpers import a_router, served

PRICE = {"input": 1.0, "output": 10.0}
USAGE = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
TOLD = (100 * 1.0 + 40 * 10.0) / 1e6
KEY = {"authorization": "Bearer app"}


@dataclass
class Provider:
    """It answers whole requests, begins streams and does not end them, and may keep a record of each."""

    has_records: bool = False

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/generation", self.generation)
        return app

    async def complete(self, request: web.Request) -> web.StreamResponse:
        frame = {"id": "gen-1", "model": "m-1", "created": 1}
        if not (await request.json()).get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            return web.json_response({**frame, "choices": [choice], "usage": USAGE})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        delta = {"index": 0, "delta": {"content": "many words " * 40}}
        await response.write(f"data: {json.dumps({**frame, 'choices': [delta]})}\n\n".encode())
        await asyncio.sleep(60)
        return response

    async def generation(self, _: web.Request) -> web.Response:
        if not self.has_records:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        counts = {"native_tokens_prompt": 100, "native_tokens_completion": 40}
        return web.json_response({"data": {"id": "gen-1", "model": "m-1", **counts}})


@contextlib.asynccontextmanager
async def router(folder: Path, provider: Provider, kind: str) -> AsyncIterator[tuple[Replica, aiohttp.ClientSession]]:
    """A router in a process of its own, over this provider."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(provider.application()))
        endpoint = await stack.enter_async_context(standing_in(("only",)))
        model = {"name": "m-1", "type": kind, "base_url": f"{url}/v1", "api_key": "k", "cost": 0.001, "price": PRICE}
        keys = [{"key": "app", "name": "app", "spend_per_day": 10.0}]
        config = {"model_configs": {"only": model}, "keys": keys, "admin_key": "the-admin-key"}
        replica = Replica(folder / "router", endpoint.url)
        replica.configure({**config, "database": str(folder / "books.sqlite")})
        http = await stack.enter_async_context(aiohttp.ClientSession())
        replica.start()
        stack.push_async_callback(replica.stop)
        await replica.wait(http)
        yield replica, http


async def spent(replica: Replica, http: aiohttp.ClientSession, least: float) -> float:
    """What the key has spent, once it is so much."""
    amount = 0.0
    for _ in range(2000):
        amount = (await replica.spent(http))["app"]
        if amount >= least * (1 - 1e-9):
            break
        await asyncio.sleep(0.05)
    return amount


def body(*, stream: bool) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello"}], "stream": stream, "max_tokens": 1000}


async def killed_in_a_stream(folder: Path, provider: Provider, kind: str, least: float) -> tuple[float, Replica]:
    """Kill a router while a client reads a stream; return what is spent once it has started again."""
    async with router(folder, provider, kind) as (replica, http):
        url = f"{replica.url}/v1/chat/completions"
        async with http.post(url, json=body(stream=True), headers=KEY) as response:
            await response.content.readline()
            replica.kill()
        replica.start()
        await replica.wait(http)
        amount = await spent(replica, http, least)
        await replica.stop()
    return amount, replica


def booked_lines(replica: Replica) -> list[dict[str, object]]:
    return [line for line in replica.lines() if line["event"] == "a call of a killed worker was booked"]


def test_a_stream_that_a_kill_cuts_is_booked_by_the_provider_s_record(tmp_path: Path) -> None:
    amount, replica = asyncio.run(killed_in_a_stream(tmp_path, Provider(has_records=True), "openrouter", TOLD))
    assert amount == pytest.approx(TOLD)
    [line] = booked_lines(replica)
    assert (line["key"], line["model"], line["cost_is_estimated"]) == ("app", "only", False)
    assert not list(tmp_path.glob("**/*.calls/*"))


def test_without_a_record_it_is_booked_by_what_had_passed_through_and_marked(tmp_path: Path) -> None:
    least = 110 * 10.0 / 1e6  # 440 bytes of text
    amount, replica = asyncio.run(killed_in_a_stream(tmp_path, Provider(), "deepseek", 0.001))
    assert least <= amount or amount == pytest.approx(0.001)  # killed within a tenth of a second of its beginning
    [line] = booked_lines(replica)
    assert line["cost_is_estimated"] is True


def test_an_answer_whose_cost_was_not_in_the_database_yet_is_booked_once(tmp_path: Path) -> None:
    async def work() -> float:
        async with router(tmp_path, Provider(), "openai") as (replica, http):
            url = f"{replica.url}/v1/chat/completions"
            for number in range(2):  # of two answers one is in the database, and one in memory alone
                async with http.post(url, json=body(stream=False), headers=KEY) as response:
                    assert response.status == 200
                if number == 0:
                    await spent(replica, http, TOLD)
                    await asyncio.sleep(0.5)
            replica.kill()
            replica.start()
            await replica.wait(http)
            return await spent(replica, http, 2 * TOLD)

    assert asyncio.run(work()) == pytest.approx(2 * TOLD)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_off_after_its_head_is_booked_beside_the_next_one(tmp_path: Path, stream: bool) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        kind = "text/event-stream" if stream else "application/json"
        response = web.StreamResponse(headers={"content-type": kind, "content-length": "100"})
        await response.prepare(request)
        await response.write(b": thinking" if stream else b"{")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", breaks)
        async with served(app) as url:
            models = {"good": {"base_url": f"{url}/v1", "cost": 3.0, "price": PRICE}}
            async with a_router(tmp_path, models, retry_seconds=0) as router:
                async with router.http.post(
                    f"{router.url}/v1/chat/completions",
                    json=body(stream=stream),
                    headers={"authorization": "Bearer test-key"},
                ) as response:
                    assert (response.status, response.headers["x-p2l-model"]) == (200, "fair")
                    await response.read()
                [key] = router.service.ledger.names
                assert router.service.ledger.spent_of(key) >= 3.0 + 2.0

    asyncio.run(main())


def test_notes_of_a_living_worker_are_left_alone(tmp_path: Path) -> None:
    notes = CallNotes(tmp_path, "0123456789abcdef")
    notes.start()
    calls = [notes.begin({"model": f"model {number}"}, 0.5) for number in range(100)]
    assert all(calls)
    [path] = left_files(tmp_path)
    with left_notes(path) as left:
        assert left is None
    assert calls[3] is not None
    calls[3].settle(0.75, 9, is_told=True)
    for call in calls[4:]:
        assert call is not None
        call.end()
    notes.close(is_booked=False)
    with left_notes(path) as left:
        assert left is not None
        told = sorted((call.facts["model"], call.cost, call.batch) for call in left.calls)
    assert told == [("model 0", 0.5, None), ("model 1", 0.5, None), ("model 2", 0.5, None), ("model 3", 0.75, 9)]


def test_a_worker_that_has_booked_everything_leaves_no_file(tmp_path: Path) -> None:
    notes = CallNotes(tmp_path, "0123456789abcdef")
    notes.start()
    notes.close(is_booked=True)
    assert left_files(tmp_path) == []
