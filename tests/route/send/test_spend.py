"""Spend that cannot be slipped: by many requests at once, by leaving early, by asking for more than was reserved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from route.config import ModelConfig
from route.keep.reservations import Reservation
from route.providers.base import JSON
from route.providers.usage import TokenCounts
from route.request.chat import ChatRequest, parse_chat
from route.request.fields import request_for
from route.send.charges import Bounds, Charge, limited
from route.send.pace import Heard
from tests.route.router_helpers import HELLO, Running, a_router, served

PRICE = {"input": 1.0, "output": 10.0}
"""Per million tokens: an answer of 100 tokens costs 0.001."""
PATH = "/v1/chat/completions"


@dataclass
class Upstream:
    """A provider that obeys `max_tokens` and `n`, and knows what it has made."""

    tokens: int = 100
    seconds: float = 0.02
    """Of a whole answer, or of each token."""
    with_usage: bool = True
    thinking_seconds: float = 0.0
    """Before the first token of a stream."""
    made: list[int] = field(default_factory=list)
    """Tokens of each answer so far."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or self.tokens
        return await (self.stream if body.get("stream") else self.whole)(
            request, min(self.tokens, limit), body.get("n") or 1
        )

    def usage(self, tokens: int) -> Any:
        return (
            {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": tokens + 3} if self.with_usage else None
        )

    async def whole(self, _: web.Request, tokens: int, choices: int) -> web.StreamResponse:
        self.made.append(tokens * choices)
        await asyncio.sleep(self.seconds)
        message = {"role": "assistant", "content": " word" * tokens}
        answers = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(choices)]
        return web.json_response({"id": "c", "choices": answers, "usage": self.usage(tokens * choices)})

    async def stream(self, request: web.Request, tokens: int, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(self.thinking_seconds)
        self.made.append(0)
        for number in range(tokens + 1):
            finish = "stop" if number == tokens else None
            choice = {"index": 0, "delta": {} if finish else {"content": " word"}, "finish_reason": finish}
            await response.write(f"data: {json.dumps({'id': 'c', 'choices': [choice]})}\n\n".encode())
            self.made[-1] += finish is None
            await asyncio.sleep(self.seconds)
        await response.write(
            f"data: {json.dumps({'id': 'c', 'choices': [], 'usage': self.usage(tokens)})}\n\n".encode()
        )
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def metered(
    folder: Path, upstream: Upstream, *, model: Any = None, **key: Any
) -> AsyncIterator[tuple[Running, dict[str, str]]]:
    """A router whose best model is this upstream, and the headers of a limited key."""
    app = web.Application()
    app.router.add_post(PATH, upstream.complete)
    keys = [{"key": "limited", "name": "limited", **key}]
    async with served(app) as url:
        good = {"base_url": f"{url}/v1", "cost": 0.001, "price": PRICE, **(model or {})}
        async with a_router(folder, {"good": {k: v for k, v in good.items() if v is not None}}, keys=keys) as router:
            yield router, {"authorization": "Bearer limited"}


def spent(router: Running) -> float:
    return router.service.ledger.spent_of("limited")


async def until_idle(router: Running) -> None:
    """Wait until every request is charged."""
    while router.service.ledger._in_flight["limited"]:
        await asyncio.sleep(0.01)


def run(main: Any) -> None:
    asyncio.run(main())


@pytest.mark.parametrize("price", [None, PRICE], ids=["cost", "price"])
def test_parallel_requests_do_not_spend_more_than_the_day_has(tmp_path: Path, price: Any) -> None:
    async def main() -> None:
        model = {"price": price, "cost": 0.01}
        async with metered(tmp_path, Upstream(tokens=1000), model=model, spend_per_day=0.05) as (router, key):
            body = {"messages": HELLO}
            answers = await asyncio.gather(*(router.post(PATH, body, key) for _ in range(300)))
            assert {status for status, _, _ in answers} == {200, 429}
            assert {told["error"]["code"] for status, told, _ in answers if status == 429} == {"insufficient_quota"}
            assert 0.04 < spent(router) <= 0.05 + 1e-9

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_many_clients_at_once_can_use_nearly_all_of_the_day(tmp_path: Path, stream: bool) -> None:
    """Although the worst case of each is 40 times what it costs, and a good part of the day."""

    async def main() -> None:
        upstream = Upstream(seconds=0.0005 if stream else 0.05)
        limit = 0.05 if stream else 0.2
        async with metered(tmp_path, upstream, model={"longest_answer": 4000}, spend_per_day=limit) as (router, key):
            lowered = []

            async def ask_on() -> None:
                while True:
                    async with router.http.post(
                        f"{router.url}{PATH}", json={"messages": HELLO, "stream": stream}, headers=key
                    ) as response:
                        await response.read()
                        if response.status == 429:
                            return
                        assert response.status == 200
                        lowered.append(int(response.headers.get("x-p2l-max-tokens", 0)))

            await asyncio.gather(*(ask_on() for _ in range(32)))
            assert 0.95 * limit <= spent(router) <= limit + 1e-9
            assert any(lowered)
            sent = [body.get("max_tokens", 0) for body in upstream.bodies]
            assert sorted(sent) == sorted(lowered)

    run(main)


def test_a_client_that_leaves_a_stream_pays_for_what_was_made(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream(tokens=10_000, seconds=0.001)
        model = {"longest_answer": 20_000}
        async with metered(tmp_path, upstream, model=model, spend_per_day=5) as (router, key):
            body = {"messages": HELLO, "stream": True}
            async with router.http.post(f"{router.url}{PATH}", json=body, headers=key) as response:
                while upstream.made == [] or upstream.made[0] < 300:
                    assert await response.content.readline()
            await until_idle(router)
            made = upstream.made[0] * PRICE["output"] / 1e6
            assert 0.5 * made <= spent(router) <= 2 * made

    run(main)


def test_a_client_that_leaves_after_hidden_thoughts_pays_for_them(tmp_path: Path) -> None:
    """The first text comes after seconds in which the provider made tokens that it does not show."""

    async def main() -> None:
        upstream = Upstream(tokens=10_000, seconds=0.001, thinking_seconds=3.0)
        model = {"longest_answer": 20_000}
        async with metered(tmp_path, upstream, model=model, spend_per_day=5) as (router, key):
            body = {"messages": HELLO, "stream": True}
            async with router.http.post(f"{router.url}{PATH}", json=body, headers=key) as response:
                while upstream.made == [] or upstream.made[0] < 20:
                    assert await response.content.readline()
            await until_idle(router)
            # Of three seconds one and a half are the provider's usual wait; a hundred tokens a second are thoughts.
            assert spent(router) >= (upstream.made[0] * 0.5 + 140) * PRICE["output"] / 1e6

    run(main)


def test_a_client_that_leaves_a_whole_answer_pays_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream(tokens=5000, seconds=0.3)
        async with metered(tmp_path, upstream, spend_per_day=5) as (router, key):
            body = {"messages": HELLO, "n": 2, "max_tokens": 5000}
            asking = asyncio.ensure_future(router.post(PATH, body, key))
            while not upstream.made:
                await asyncio.sleep(0.01)
            asking.cancel()
            await until_idle(router)
            assert spent(router) == pytest.approx(0.1 + 3e-6)

    run(main)


def test_a_client_that_leaves_before_anything_came_pays_an_average_answer(tmp_path: Path) -> None:
    async def main() -> None:
        for price, stream in ((None, False), (None, True), (PRICE, True)):
            upstream = Upstream(seconds=30.0)
            model = {"price": price, "cost": 0.25}
            async with metered(tmp_path, upstream, model=model, spend_per_day=5) as (router, key):
                asking = asyncio.ensure_future(router.post(PATH, {"messages": HELLO, "stream": stream, "n": 2}, key))
                while not upstream.bodies:
                    await asyncio.sleep(0.01)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await until_idle(router)
                if price is None:
                    assert spent(router) == pytest.approx(0.5)
                else:
                    assert 0 < spent(router) <= 0.1

    run(main)


def test_answers_without_counts_are_counted_here(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream(with_usage=False, seconds=0.0)
        async with metered(tmp_path, upstream, spend_per_day=5) as (router, key):
            for stream in (False, True):
                before = spent(router)
                async with router.http.post(
                    f"{router.url}{PATH}", json={"messages": HELLO, "stream": stream}, headers=key
                ) as response:
                    await response.read()
                await until_idle(router)
                assert 0.0005 <= spent(router) - before <= 0.002

    run(main)


def test_every_choice_of_a_stream_is_paid(tmp_path: Path) -> None:
    async def main() -> None:
        async with metered(tmp_path, Upstream(seconds=0), model={"price": None}, spend_per_day=5) as (router, key):
            body = {"messages": HELLO, "stream": True, "n": 3}
            async with router.http.post(f"{router.url}{PATH}", json=body, headers=key) as response:
                await response.read()
            await until_idle(router)
            assert spent(router) == pytest.approx(0.003)

    run(main)


def test_an_answer_that_takes_too_long_is_not_free(tmp_path: Path) -> None:
    """It is charged by the provider, and a client can ask for as long a one as it likes."""

    async def main() -> None:
        upstream = Upstream(seconds=30.0)
        async with metered(tmp_path, upstream, spend_per_day=5) as (router, key):
            config = router.service.config
            fast = config.model_copy(update={"timeouts": config.timeouts.model_copy(update={"answer": 0.1})})
            object.__setattr__(router.service.dispatcher, "config", fast)
            status, _, _ = await router.post(PATH, {"messages": HELLO, "direct_model": "good"}, key)
            assert status == 504
            assert spent(router) >= 0.001

    run(main)


def test_a_request_may_not_cost_more_than_its_keys_ceiling(tmp_path: Path) -> None:
    async def main() -> None:
        upstream = Upstream(tokens=10**6)
        model = {"cost": 0.05, "longest_answer": 10**6}
        async with metered(tmp_path, upstream, model=model, max_cost_per_request=0.1) as (router, key):
            for more in ({}, {"cost": 100}, {"direct_model": "good"}, {"max_tokens": 10**6}, {"n": 4}):
                before = spent(router)
                status, _, headers = await router.post(PATH, {"messages": HELLO, **more}, key)
                assert status == 200
                assert 0 < spent(router) - before <= 0.1
                assert int(headers["x-p2l-max-tokens"]) == upstream.bodies[-1]["max_tokens"]
            for more in (
                {"direct_model": "fair"},
                {"n": 1000},
                {"messages": [{"role": "user", "content": "a" * 10**5}]},
            ):
                status, told, _ = await router.post(PATH, {"messages": HELLO, **more}, key)
                assert (status, told["error"]["code"]) == (400, "cost_ceiling_exceeded")
            _, told, _ = await router.post("/v1/route", {"messages": HELLO, "cost": 100}, key)
            assert told["budget"] == 0.1
            assert told["probabilities"] == {"good": 1.0}

    run(main)


def test_a_comparison_keeps_to_the_ceiling_as_a_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with metered(tmp_path, Upstream(), model={"price": None, "cost": 1}, max_cost_per_request=3) as (
            router,
            key,
        ):
            status, told, _ = await router.post(PATH, {"messages": HELLO, "compare": True}, key)
            assert status == 200
            assert {choice["message"]["model"] for choice in told["choices"]} == {"good", "poor"}
            assert spent(router) == 2

    run(main)


def test_requests_under_way_are_capped_and_counted_down(tmp_path: Path) -> None:
    async def main() -> None:
        async with metered(tmp_path, Upstream(seconds=0.2), max_in_flight=2) as (router, key):
            for _ in range(2):
                answers = await asyncio.gather(*(router.post(PATH, {"messages": HELLO}, key) for _ in range(5)))
                assert sorted(status for status, _, _ in answers) == [200, 200, 429, 429, 429]
                refused = next(answer for answer in answers if answer[0] == 429)
                assert refused[1]["error"]["code"] == "rate_limit_exceeded"
                assert refused[2]["retry-after"] == "1"
            assert (await router.post(PATH, b"{", key))[0] == 400
            assert (await router.post(PATH, {"messages": HELLO}, key))[0] == 200

    run(main)


def test_a_length_that_says_nothing_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            for field in ("n", "max_tokens", "max_completion_tokens"):
                for number in (-1, 0, True, 1.5, "100000", 10**400, [1]):
                    status, told, _ = await router.post(PATH, {"messages": HELLO, field: number})
                    assert (status, told["error"]["param"]) == (400, field)

    run(main)


def incoming(**body: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": HELLO, **body}).encode(), {}, {}, by_name=False)


def bounds(request: ChatRequest, **model: Any) -> Bounds:
    config = ModelConfig(name="m", type="mock", cost=1, price={"input": 1e6, "output": 1e6}, **model)
    return Bounds.of(config, request, request_for(config, request)[0])


@pytest.mark.parametrize(
    ("body", "model", "longest"),
    [
        ({}, {}, 4096),
        ({}, {"longest_answer": 9000}, 9000),
        ({"max_tokens": 10_000}, {"longest_answer": 9000}, 9000),
        ({"max_tokens": 10, "max_completion_tokens": 20}, {}, 20),
        ({}, {"max_tokens": 7}, 7),
        ({"max_tokens": 8}, {"max_tokens": 7}, 8),
        ({}, {"extra_fields": {"max_tokens": 6}}, 6),
    ],
)
def test_the_longest_answer_is_what_request_and_configuration_allow(body: Any, model: Any, longest: int) -> None:
    assert bounds(incoming(**body), **model).longest == longest


def test_no_prompt_has_more_tokens_than_are_reserved_for_it() -> None:
    text = "\u0e01" * 100  # three bytes each
    request = incoming(messages=[{"role": "user", "content": text}])
    assert bounds(request).prompt >= 300
    assert bounds(request, system_prompt="x" * 5000).prompt >= 5300
    assert bounds(request, context_window=200).prompt == 200
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    pictured = bounds(incoming(messages=[{"role": "user", "content": [image, image]}]))
    assert 100_000 <= pictured.prompt <= 110_000
    document = {"type": "file", "file": {"file_data": "data:text/plain;base64," + "A" * 10**6}}
    assert bounds(incoming(messages=[{"role": "user", "content": [document]}])).prompt >= 10**6


@pytest.mark.parametrize(
    "document",
    [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "document", "source": {"type": "url", "url": "https://host/book.pdf"}},
        {"type": "video_url", "video_url": {"url": "https://host/film.mp4"}},
    ],
)
def test_of_a_document_that_the_provider_fetches_nobody_knows_the_length(document: Any) -> None:
    request = incoming(messages=[{"role": "user", "content": [document]}])
    assert bounds(request).prompt >= 10**6
    assert bounds(request, context_window=200_000).prompt == 200_000


def test_a_limit_is_lowered_under_the_names_that_a_request_uses() -> None:
    assert limited({"max_completion_tokens": 50}, 20) == {"max_completion_tokens": 20}
    assert limited({"max_tokens": 5, "max_completion_tokens": 50}, 20) == {"max_tokens": 5, "max_completion_tokens": 20}
    assert limited({}, 20) == {"max_tokens": 20}


def test_an_answer_that_nobody_saw_costs_what_could_be_made_in_its_time() -> None:
    config = ModelConfig(name="m", type="openai", api_key="k", cost=0.001, price=PRICE)
    charge = Charge("m", config, incoming(), Reservation("k", 0, amount=0.02), choices=2)
    assert charge.cost() == pytest.approx(0.002)
    charge.started -= 5.0
    assert charge.cost() == pytest.approx(0.01, rel=0.1)
    charge.started -= 500.0
    assert charge.cost() == 0.02
    charge.count([{"delta": {"content": "word" * 100}}])
    assert charge.cost() == 0.02  # what came after so long may have been thought about all the time
    assert charge.is_estimated
    charge = Charge("m", config, incoming(), Reservation("k", 0, amount=0.02), choices=2)
    charge.count([{"delta": {"content": "word" * 100}}])
    assert charge.cost() == pytest.approx(0.001, rel=0.01)
    charge.take_usage({"usage": {"prompt_tokens": 10, "completion_tokens": 300}})
    assert charge.cost() == pytest.approx(0.00301)
    charge.count([{"delta": {"content": "more"}}])
    assert charge.cost() == pytest.approx(0.00302)


@pytest.mark.parametrize("longest", [3, 100])
def test_300_requests_at_once_book_no_more_than_the_day_holds(tmp_path: Path, longest: int) -> None:
    """Providers keep to the limit of the answer that the router sends, as the mock does."""

    async def main() -> None:
        price = {"input": 1, "output": 10}
        script = {"tokens": 60, "latency": 0.02}
        models = {"only": {"name": "m", "type": "mock", "cost": 1e-4, "price": price, "options": script}}
        keys = [{"key": "limited", "name": "limited", "spend_per_day": 0.005}]
        async with a_router(tmp_path, models=models, keys=keys) as router:

            async def ask() -> int:
                body = {"messages": HELLO, "direct_model": "only", "max_tokens": longest}
                return (await router.post("/v1/chat/completions", body, {"authorization": "Bearer limited"}))[0]

            statuses = await asyncio.gather(*(ask() for _ in range(300)))
            assert set(statuses) == {200, 429}
            await until_idle(router)
            assert router.service.ledger.spent_of("limited") <= 0.005 * (1 + 1e-9)

    asyncio.run(main())


def test_a_stream_of_which_nothing_came_costs_what_its_deployment_makes_in_such_a_time() -> None:
    config = ModelConfig(name="m", type="openai", api_key="k", cost=0.0, price=PRICE, longest_answer=5000)
    charge = Charge("m", config, incoming(stream=True), Reservation("k", 0))
    for _ in range(20):
        charge.pace.observe(TokenCounts(10, 1100, reasoning=1000), Heard(400, 0, wait=2.0, seconds=3.0, pieces=9))
    charge.started -= 4.0
    assert charge.cost() >= 4.0 * 500 * PRICE["output"] / 1e6
    charge.ended = charge.started + 2.0  # however late it is booked
    assert charge.cost() == pytest.approx(2.1 * 500 * PRICE["output"] / 1e6, rel=0.01)
    charge.ended = charge.started + 100.0
    assert charge.cost() == pytest.approx(5000 * PRICE["output"] / 1e6, rel=0.01)  # which is its limit


CLAUDE_BEGINS: list[JSON] = [
    {
        "type": "message_start",
        "message": {"id": "m", "model": "good-1", "usage": {"input_tokens": 400, "cache_read_input_tokens": 600}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}},
]
GEMINI_BEGINS: list[JSON] = [
    {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "so"}]}}],
        "usageMetadata": {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 600,
            "candidatesTokenCount": 1,
            "thoughtsTokenCount": 700,
            "totalTokenCount": 1701,
        },
    }
]


@pytest.mark.parametrize(("type_", "begins", "made"), [("anthropic", CLAUDE_BEGINS, 1), ("gemini", GEMINI_BEGINS, 701)])
@pytest.mark.parametrize("path", [PATH, "/v1/messages"])
def test_a_cut_stream_is_booked_by_what_its_provider_counted_until_then(
    tmp_path: Path, type_: str, begins: list[JSON], made: int, path: str
) -> None:
    """Of the prompt also which part was read from a cache, which nobody else knows."""

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in begins:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await asyncio.sleep(600.0)
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", stream)
        price = {**PRICE, "cached": 0.1}
        keys = [{"key": "limited", "name": "limited", "spend_per_day": 5}]
        async with served(app) as url:
            good = {"type": type_, "base_url": url, "cost": 0.001, "price": price}
            async with a_router(tmp_path, {"good": good}, keys=keys) as router:
                [pace] = [each.activity.pace for each in router.service.fleet.deployments if each.name == "good"]
                for _ in range(20):  # of which nobody thought, so that time says nothing
                    pace.observe(TokenCounts(10, 100), Heard(400, 0, wait=1.0, seconds=2.0))
                body = {"messages": HELLO, "stream": True, "max_tokens": 2000, "direct_model": "good"}
                headers = {"authorization": "Bearer limited"}
                async with router.http.post(f"{router.url}{path}", json=body, headers=headers) as response:
                    while b"so" not in await response.content.readline():
                        pass
                await until_idle(router)
                told = (400 * 1.0 + 600 * 0.1 + made * 10.0) / 1e6
                assert told <= spent(router) <= told + 20 * 10.0 / 1e6

    run(main)


def test_the_log_has_what_failed_attempts_cost_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "route")

    async def main() -> None:
        upstream = Upstream(seconds=0.0)

        async def complete(request: web.Request) -> web.StreamResponse:
            if upstream.bodies:
                return await upstream.complete(request)
            upstream.bodies.append(await request.json())
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": thinking\n\n")
            assert request.transport is not None
            request.transport.abort()
            return response

        app = web.Application()
        app.router.add_post(PATH, complete)
        keys = [{"key": "limited", "name": "limited", "spend_per_day": 5}]
        async with served(app) as url:
            good = {"base_url": f"{url}/v1", "cost": 0.001, "price": PRICE}
            async with a_router(tmp_path, {"good": good}, keys=keys) as router:
                body = {"messages": HELLO, "stream": True, "direct_model": "good", "max_tokens": 500}
                headers = {"authorization": "Bearer limited"}
                async with router.http.post(f"{router.url}{PATH}", json=body, headers=headers) as response:
                    assert b"word" in await response.read()
                await until_idle(router)
                [line] = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
                assert len(upstream.bodies) == 2
                assert line.cost == pytest.approx(spent(router), rel=1e-5)
                assert line.cost > 0.001003  # which the answer alone cost

    run(main)
