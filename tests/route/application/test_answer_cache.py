"""The cache of answers: the same request at temperature 0 is answered once, and never from another key's answers."""

from __future__ import annotations

import asyncio
import logging
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from route.keep.answer_cache import AnswerCache
from route.providers.base import JSON
from tests.route.clients.scripted_providers import DONE, Provider
from tests.route.keep.stores import REDIS, why_not
from tests.route.router_helpers import KEY, Running, a_router, model, served

PRICE = {"price": {"input": 1e6, "output": 1e6}}
BODY: JSON = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def run(folder: Path, use: Any, *, cache: JSON | None = None, **more: Any) -> None:
    place = {"where": "answers.sqlite", **(cache or {})}

    async def main() -> None:
        async with a_router(folder, answer_cache=place, **more) as router:
            await use(router)

    asyncio.run(main())


async def ask(router: Running, key: str = KEY, **changes: Any) -> tuple[JSON, Any]:
    body = {name: part for name, part in {**BODY, **changes}.items() if part is not None}
    status, told, headers = await router.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
    assert status == 200, told
    return told, headers.get("x-p2l-answer-cache")


async def streamed(router: Running, path: str = "/v1/chat/completions", **changes: Any) -> tuple[str, Any]:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {**BODY, "stream": True, **changes}
    async with router.http.post(f"{router.url}{path}", json=body, headers=headers) as response:
        return await response.text(), response.headers.get("x-p2l-answer-cache")


def test_a_repeat_costs_nothing_and_asks_nobody(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        first, is_kept = await ask(router)
        assert is_kept is None
        spent = router.service.ledger.spent_of(first_key(router))
        assert spent > 0
        again, is_kept = await ask(router)
        assert is_kept == "hit"
        assert again["choices"] == first["choices"]
        assert again["usage"] == first["usage"]
        assert router.counts()["good"] == 1
        assert router.service.ledger.spent_of(first_key(router)) == spent
        metrics = (await router.get("/metrics", None))[1]
        for outcome in ("hit", "miss"):
            assert f'p2l_router_answer_cache_total{{outcome="{outcome}"}} 1.0' in metrics

    run(tmp_path, use, models={"good": PRICE})
    assert stat.S_IMODE((tmp_path / "answers.sqlite").stat().st_mode) == 0o600


def first_key(router: Running) -> str:
    return router.service.ledger.records[0].name


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"temperature": None},
        {"seed": 1},
        {"top_p": 0.5},
        {"messages": [{"role": "user", "content": "hi "}]},
        {"messages": [{"role": "system", "content": "x"}, *BODY["messages"]]},
        {"max_tokens": 3},
        {"user": "ann"},
        {"direct_model": "fair"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_whatever_differs_counts(tmp_path: Path, changes: JSON) -> None:
    async def use(router: Running) -> None:
        await ask(router)
        for _ in range(2 if "temperature" in changes else 1):
            assert (await ask(router, **changes))[1] is None
        assert sum(router.counts().values()) > 1

    run(tmp_path, use)


@pytest.mark.parametrize("across_keys", [False, True])
def test_keys_share_only_where_that_is_allowed(tmp_path: Path, across_keys: bool) -> None:
    async def use(router: Running) -> None:
        await ask(router)
        assert (await ask(router, key="second-key-of-two"))[1] == ("hit" if across_keys else None)

    run(tmp_path, use, cache={"across_keys": across_keys}, keys=[{"key": "second-key-of-two", "name": "two"}])


def test_streams_are_kept_whole(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        first, is_kept = await streamed(router)
        assert is_kept is None
        again, is_kept = await streamed(router)
        assert is_kept == "hit"
        assert again == first
        assert (await ask(router))[1] is None  # another form
        assert router.counts()["good"] == 2

    run(tmp_path, use)


def test_a_stream_that_breaks_off_is_not_kept(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        assert "[DONE]" not in (await streamed(router))[0]
        text, is_kept = await streamed(router)
        assert is_kept is None
        assert "[DONE]" in text

    run(tmp_path, use, scripts={"good": {"failures": ["cut"]}})


def test_answers_of_other_protocols(tmp_path: Path) -> None:
    provider = Provider()
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    results: list[JSON] = []
    for number in range(3):
        use = {"type": "tool_use", "id": f"c{number}", "name": "look", "input": {}}
        results.append({"role": "assistant", "content": [use]})
        results.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}"}]})

    async def main() -> None:
        async with served(provider.application()) as url:
            claude = {"claude": model(url, type="anthropic", name="claude-opus-4-7")}
            async with a_router(tmp_path, claude, answer_cache={"where": "answers.sqlite"}) as router:
                body = {**BODY, "messages": [*BODY["messages"], *results], "max_tokens": 9, "tools": tools}
                body["direct_model"] = "claude"
                kept = []
                for _ in range(2):
                    _, told, headers = await router.post("/v1/messages", body)
                    assert told["content"] == [{"type": "text", "text": DONE}]
                    kept.append(headers.get("x-p2l-answer-cache"))
                assert kept == [None, "hit"]
                for _ in range(2):  # events pass as they come
                    assert (await streamed(router, "/v1/messages", **body))[1] is None

    asyncio.run(main())
    assert len(provider.received) == 3


def test_a_cache_that_cannot_be_used_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(router: Running) -> None:
        for _ in range(2):
            assert (await ask(router))[1] is None
        assert "the cache of answers cannot be read" in caplog.text

    with caplog.at_level(logging.WARNING, "route"):
        run(tmp_path, use, cache={"where": "no/such/folder/answers.sqlite"})


def test_a_redis_that_hangs_holds_up_one_request_in_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route.keep.answer_cache._REPLY_SECONDS", 0.1)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        place = {"where": f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"}
        async with a_router(tmp_path, answer_cache=place) as router:
            began = time.monotonic()
            for _ in range(3):
                assert (await ask(router))[1] is None
            assert time.monotonic() - began < 1.5
            metrics = (await router.get("/metrics", None))[1]
            assert 'p2l_router_answer_cache_total{outcome="failed"} 3.0' in metrics
            assert '"answer_cache":false' in (await router.get("/ready", None))[1]
        server.close()

    with caplog.at_level(logging.WARNING, "route"):
        asyncio.run(main())
    assert len([record for record in caplog.records if "cache of answers" in record.getMessage()]) == 1


def test_a_cache_that_comes_back_is_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route.keep.answer_cache._PAUSE_SECONDS", 0.0)

    async def main() -> None:
        cache = AnswerCache(str(tmp_path / "later" / "a.sqlite"), seconds=60, most_mb=1, across_keys=False)
        await cache.put("a", 1)
        assert cache.fault is not None
        (tmp_path / "later").mkdir()
        await cache.put("a", 1)
        assert (await cache.get("a"), cache.fault) == (1, None)
        await cache.close()

    with caplog.at_level(logging.WARNING, "route"):
        asyncio.run(main())
    assert "the cache of answers can be used again" in caplog.text


def test_replicas_share_a_redis(tmp_path: Path) -> None:
    reason = why_not("redis")
    if reason:
        pytest.skip(reason)

    async def use(router: Running) -> None:
        changes = {"seed": int(time.time())}
        assert (await ask(router, **changes))[1] is None
        assert (await ask(router, **changes))[1] == "hit"

    run(tmp_path, use, cache={"where": REDIS, "seconds": 5})


def test_entries_end_and_the_file_has_a_limit(tmp_path: Path) -> None:
    async def test() -> None:
        cache = AnswerCache(str(tmp_path / "a.sqlite"), seconds=0.05, most_mb=1, across_keys=False)
        await cache.put("a", {"x": 1})
        assert await cache.get("a") == {"x": 1}
        await asyncio.sleep(0.1)
        assert await cache.get("a") is None
        await cache.close()
        small = AnswerCache(str(tmp_path / "b.sqlite"), seconds=60, most_mb=0.001, across_keys=False)
        for name in ("a", "b", "c"):
            await small.put(name, "x" * 400)
        assert [await small.get(name) is not None for name in ("a", "b", "c")] == [False, True, True]
        await small.put("d", "x" * 2**20)
        assert await small.get("d") is None
        await small.close()

    asyncio.run(test())
