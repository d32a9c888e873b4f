"""A provider that answers as another model: who is told, what is booked, and where requests go then."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import HELLO, KEY, Running, a_router, model, served

TINY = "other-vendor/tiny-1b"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


class Impostor:
    """A provider of three protocols whose answers name the model that it is told to be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/messages", self.message)
        app.router.add_post("/v1/embeddings", self.embed)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        self.asked += 1
        frame = {"id": "c-1", "created": 1, "model": self.name, "system_fingerprint": "fp_9", "service_tier": "default"}
        if not (await request.json()).get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
            return web.json_response({**frame, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": USAGE},
        ]
        lines = [f"data: {json.dumps({**frame, **chunk})}\n\n" for chunk in chunks]
        return web.Response(text="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")

    async def message(self, request: web.Request) -> web.Response:
        self.asked += 1
        usage = {"input_tokens": 100, "output_tokens": 10, "service_tier": "standard"}
        message = {"id": "m", "type": "message", "role": "assistant", "model": self.name, "usage": usage}
        if not (await request.json()).get("stream"):
            content = [{"type": "text", "text": "hello"}]
            return web.json_response({**message, "content": content, "stop_reason": "end_turn"})
        events = [
            {"type": "message_start", "message": {**message, "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}},
            {"type": "message_stop"},
        ]
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        return web.Response(text="".join(lines), content_type="text/event-stream")

    async def embed(self, _: web.Request) -> web.Response:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        usage = {"prompt_tokens": 8, "total_tokens": 8}
        return web.json_response({"object": "list", "data": data, "model": self.name, "usage": usage})


FRONTIER = {"name": "frontier-1", "cost": 1, "price": {"input": 10, "output": 100}, "prior_coef": 9.0}
SMALL = {"name": "tiny-1b", "cost": 0.1, "price": {"input": 1, "output": 2}, "serves": ["embeddings"]}
Look = Callable[[Running, Impostor], Awaitable[None]]


def beside(folder: Path, look: Look, *, name: str = TINY, kind: str = "openai", **config: Any) -> None:
    """Let `look` see a router whose best model, `frontier`, is answered by an impostor."""

    async def main() -> None:
        impostor = Impostor(name)
        async with served(impostor.application()) as url:
            base = url if kind == "anthropic" else f"{url}/v1"
            changes = {**FRONTIER, **config.pop("frontier", {})}
            models = {"frontier": model(base, type=kind, **changes), "tiny": model(f"{url}/none", **SMALL)}
            async with a_router(folder, models, admin_key="admin-key-0123456789", **config) as router:
                await look(router, impostor)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_every_dialect_says_who_answered(
    tmp_path: Path, path: str, kind: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(router: Running, _: Impostor) -> None:
        body = {"input": "hello"} if path == "/v1/responses" else {"messages": HELLO, "max_tokens": 50}
        headers = {"authorization": f"Bearer {KEY}"}
        async with router.http.post(
            f"{router.url}{path}", json={**body, "model": "-", "stream": stream}, headers=headers
        ) as response:
            text = await response.text()
            assert response.headers["x-p2l-model"] == "frontier"
            assert response.headers["x-p2l-served-model"] == TINY
            assert response.headers["x-p2l-unexpected-model"] == "true"
        told = {"model": TINY, "is_expected": False}
        if kind == "openai":
            told |= {"fingerprint": "fp_9", "tier": "default"}
        field, _ = json.JSONDecoder().raw_decode(text.partition('"router_served":')[2].lstrip())
        assert field.items() >= told.items()
        _, metrics = await router.get("/metrics", "admin-key-0123456789")
        labels = f'p2l_router_served_total{{expected="no",model="frontier",served="{TINY}"}} 1.0'
        assert labels in metrics

    with caplog.at_level(logging.INFO):
        beside(tmp_path, look, kind=kind)
    lines = [record for record in caplog.records if record.getMessage() == "another model answered"]
    assert [vars(line)["fields"] for line in lines] == [{"model": "frontier", "asked": "frontier-1", "served": TINY}]
    [request] = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert (request.served_model, request.unexpected_model) == (TINY, True)
    # Booked at the price of the model that answered, which the configuration has.
    assert request.cost == pytest.approx((100 * 1 + 10 * 2) / 1e6)


def test_a_snapshot_of_the_model_is_no_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def look(router: Running, _: Impostor) -> None:
        raw = await router.client.chat.completions.with_raw_response.create(model="-", messages=HELLO)  # type: ignore[arg-type]
        assert raw.headers["x-p2l-served-model"] == "frontier-1-2026-01-02"
        assert "x-p2l-unexpected-model" not in raw.headers
        assert raw.parse().router_served["version"] == "2026-01-02"  # type: ignore[attr-defined]

    with caplog.at_level(logging.INFO):
        beside(tmp_path, look, name="frontier-1-2026-01-02")
    assert not [record for record in caplog.records if record.getMessage() == "another model answered"]
    [request] = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert request.cost == pytest.approx((100 * 10 + 10 * 100) / 1e6)


def test_names_that_the_configuration_lists_are_expected(tmp_path: Path) -> None:
    async def look(router: Running, _: Impostor) -> None:
        assert (await router.ask()).router_served["is_expected"]

    beside(tmp_path, look, frontier={"served_as": ["other-vendor/*"]}, unexpected_model="refuse")


def test_a_deployment_that_answers_as_another_model_is_left(tmp_path: Path) -> None:
    async def look(router: Running, impostor: Impostor) -> None:
        assert (await router.ask()).model == "frontier"  # told, and passed on
        assert (await router.ask()).model == "good"
        assert (await router.ask()).model == "good"
        assert impostor.asked == 1
        [breaker] = [each.breaker for each in router.service.fleet.deployments if each.name == "frontier"]
        breaker.succeeded()  # of a request that was under way
        assert breaker.is_blocked
        assert breaker.opens_in > 3000
        body = {"messages": [{"role": "user", "content": "hi"}], "direct_model": "frontier"}
        status, told, _ = await router.post("/v1/chat/completions", body)
        assert (status, "has answered as another model" in told["error"]["message"]) == (502, True)

    beside(tmp_path, look, unexpected_model="leave")


@pytest.mark.parametrize("stream", [False, True])
def test_its_answer_is_refused_and_the_next_model_answers(
    tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(router: Running, impostor: Impostor) -> None:
        if stream:
            chunks = [chunk async for chunk in await router.ask(stream=True)]
            assert {chunk.model for chunk in chunks} == {"good"}
        else:
            assert (await router.ask()).model == "good"
        assert impostor.asked == 1
        status, body, _ = await router.post("/v1/chat/completions", {"messages": HELLO, "direct_model": "frontier"})
        assert (status, body["error"]["code"]) == (502, "models_unavailable")

    with caplog.at_level(logging.INFO):
        beside(tmp_path, look, unexpected_model="refuse")
    requests = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert requests[0].faults == ("other_model",)


def test_a_refused_answer_is_told_with_the_name_where_no_other_model_may_answer(tmp_path: Path) -> None:
    async def look(router: Running, _: Impostor) -> None:
        status, body, _ = await router.post("/v1/chat/completions", {"messages": HELLO, "direct_model": "frontier"})
        assert (status, body["error"]["code"]) == (502, "provider_error")
        assert TINY in body["error"]["message"]

    beside(tmp_path, look, unexpected_model="refuse")


def test_both_answers_of_a_comparison_say_who_gave_them(tmp_path: Path) -> None:
    async def look(router: Running, _: Impostor) -> None:
        answer = await router.ask(extra_body={"compare": True})
        assert TINY in [each["model"] for each in answer.router_served]
        assert len(answer.router_served) == 2

    beside(tmp_path, look)


def test_embeddings_say_who_made_them(tmp_path: Path) -> None:
    async def look(router: Running, _: Impostor) -> None:
        status, body, headers = await router.post("/v1/embeddings", {"model": "frontier", "input": "hi"})
        assert (status, body["model"]) == (200, "frontier")
        assert (headers["x-p2l-served-model"], headers["x-p2l-unexpected-model"]) == (TINY, "true")

    beside(tmp_path, look, frontier={"serves": ["chat", "embeddings"]})


def test_a_listed_price_follows_the_snapshot_that_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def look(router: Running, _: Impostor) -> None:
        assert (await router.ask()).router_served["is_expected"] is False

    listed = {"name": "gpt-4o", "catalogue": "openai/gpt-4o", "price": "listed"}
    with caplog.at_level(logging.INFO):
        beside(tmp_path, look, name="gpt-4o-mini-2024-07-18", frontier=listed)
    [request] = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert request.cost == pytest.approx((100 * 0.15 + 10 * 0.60) / 1e6)
