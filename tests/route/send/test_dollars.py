"""Budgets and ceilings in dollars, and what is booked, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from route.config import ModelConfig
from route.keep.reservations import Reservation
from route.providers.base import JSON
from route.providers.usage import read
from route.request.chat import ChatRequest
from route.send.charges import Charge
from tests.route.router_helpers import HELLO, Running, a_router, served

PRICES = {
    "good": {"cost": 0.03, "price": {"input": 0, "output": 100.0}},
    "fair": {"cost": 0.02, "price": {"input": 0, "output": 50.0}},
    "poor": {"cost": 0.001, "price": {"input": 0, "output": 2.0}},
}
KEY = {"key": "sk-team", "name": "team"}


async def decide(router: Running, **body: Any) -> tuple[int, Any]:
    status, answer, _ = await router.post("/v1/route", {"messages": HELLO, **body})
    return status, answer


def test_a_budget_in_dollars_is_measured_against_expected_dollars(tmp_path: Path) -> None:
    """With few tokens of answer even the dear model is cheap, which its `cost` does not know."""

    async def main() -> None:
        async with a_router(tmp_path, PRICES, settings={"cost_optimizer": "simple-lp"}) as router:
            _, decision = await decide(router, budget_usd=0.01, max_tokens=100)
            assert decision["model"] == "good"
            assert decision["in_dollars"] is True
            assert decision["costs"] == pytest.approx({"good": 0.01, "fair": 0.005, "poor": 0.0002})
            _, decision = await decide(router, budget_usd=0.0051, max_tokens=100)
            assert decision["expected_cost"] == pytest.approx(0.0051)
            status, told = await decide(router, cost=0.01, max_tokens=100)
            assert (status, told["in_dollars"]) == (200, False)
            assert told["costs"]["good"] == 0.03

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"budget_usd": 1, "cost": 1}, "invalid_value"),
        ({"budget_usd": -1}, "invalid_value"),
        ({"budget_usd": "1"}, "invalid_value"),
        ({"budget_usd": 0.00001}, "infeasible_budget"),
    ],
)
def test_a_budget_that_cannot_be_used_is_refused(tmp_path: Path, body: JSON, code: str) -> None:
    async def main() -> None:
        async with a_router(tmp_path, PRICES, settings={"cost_optimizer": "simple-lp"}) as router:
            status, told = await decide(router, **body)
            assert (status, told["error"]["code"]) == (400, code)

    asyncio.run(main())


def test_the_header_gives_a_budget_in_dollars_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, PRICES, settings={"cost_optimizer": "simple-lp"}) as router:
            body = {"messages": HELLO, "max_tokens": 10}
            _, told, _ = await router.post("/v1/route", body, {"x-p2l-budget-usd": "0.0001"})
            assert (told["budget"], told["in_dollars"]) == (0.0001, True)

    asyncio.run(main())


def test_strict_bounds_the_worst_case_of_a_long_prompt(tmp_path: Path) -> None:
    """Neither a long prompt nor a long answer may cost more than the budget says."""
    prices = {name: {"cost": cost, "price": {"input": cost * 1000, "output": cost * 1000}} for name, cost in
              (("good", 0.03), ("fair", 0.002), ("poor", 0.0001))}  # fmt: skip

    async def main() -> None:
        async with a_router(tmp_path, prices) as router:
            long = [{"role": "user", "content": "word " * 2000}]
            answer = await router.ask(long, extra_body={"budget_usd": 0.03, "max_tokens": 1000})
            assert answer.model == "fair", "10,000 bytes are at most 10,000 tokens: 0.3 dollars of the best model"
            status, told, _ = await router.post(
                "/v1/chat/completions", {"messages": long, "budget_usd": 0.0005, "max_tokens": 1000}
            )
            assert (status, told["error"]["code"]) == (400, "infeasible_budget")
            _, _, headers = await router.post("/v1/chat/completions", {"messages": HELLO, "budget_usd": 0.2})
            limit = int(headers["x-p2l-max-tokens"])
            assert headers["x-p2l-model"] == "good"
            assert limit * 30 / 1e6 <= 0.2
            assert router.last("good")["max_tokens"] == limit

    asyncio.run(main())


def test_the_ceiling_of_a_key_holds_on_average(tmp_path: Path) -> None:
    """Three-token answers cost 0.0003 at the best model, 0.000006 at the cheapest."""

    async def main() -> None:
        keys = [{**KEY, "budget_usd": 0.00012}]
        costs = {"good": 0.0004, "fair": 0.0002, "poor": 8e-6}
        prices = {name: {**settings, "cost": costs[name]} for name, settings in PRICES.items()}
        async with a_router(tmp_path, prices, keys=keys) as router:
            models = []
            for _ in range(150):
                _, answer, _ = await router.post(
                    "/v1/chat/completions", {"messages": HELLO}, {"authorization": "Bearer sk-team"}
                )
                models.append(answer["model"])
            spent = models.count("good") * 0.0003 + models.count("fair") * 0.00015 + models.count("poor") * 6e-6
            assert spent <= 0.00012 * 150 * 1.8, "at the beginning of a block it may be ahead"
            assert spent >= 0.00012 * 150 * 0.6
            assert (await router.ask()).model == "good", "another key has no ceiling"

    asyncio.run(main())


def test_a_ceiling_refuses_what_it_cannot_pay(tmp_path: Path) -> None:
    async def main() -> None:
        keys = [{**KEY, "budget_usd": 1e-9}]
        async with a_router(tmp_path, PRICES, keys=keys) as router:
            for extra in ({}, {"direct_model": "good"}):
                status, told, headers = await router.post(
                    "/v1/chat/completions", {"messages": HELLO, **extra}, {"authorization": "Bearer sk-team"}
                )
                assert (status, told["error"]["code"]) == (429, "insufficient_quota")
                assert headers["retry-after"] == "1"
            assert sum(router.counts().values()) == 0

    asyncio.run(main())


def answer(**usage: Any) -> JSON:
    return {
        "choices": [{"message": {"content": "x"}}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 10, **usage},
    }


def charge(**settings: Any) -> Charge:
    price = {"input": 10, "output": 100, "cached": 1}
    config = ModelConfig.model_validate({"name": "m", "type": "mock", "cost": 5, "price": price, **settings})
    return Charge(
        "m", config, ChatRequest({"messages": HELLO}, ("",), None, None, False, False, 9), Reservation("k", 0)
    )


def test_cached_tokens_are_booked_at_their_price() -> None:
    made = charge()
    made.complete(answer(prompt_tokens_details={"cached_tokens": 600}))
    assert made.cost() == pytest.approx((400 * 10 + 600 * 1 + 10 * 100) / 1e6)
    made.complete(answer(prompt_tokens_details={"cached_tokens": 5000}))
    assert made.cost() == pytest.approx((1000 * 1 + 10 * 100) / 1e6), "no more than there are"


def test_what_the_provider_says_is_booked_where_the_configuration_says_so() -> None:
    made = charge(reported_cost=True)
    made.complete(answer(cost=0.25))
    assert made.cost() == 0.25
    made.complete(answer())
    assert made.cost() == pytest.approx(0.011)
    plain = charge()
    plain.complete(answer(cost=0.25))
    assert plain.cost() == pytest.approx(0.011)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), "1", True, 1e9, None])
def test_no_nonsense_is_booked(cost: Any) -> None:
    assert read(answer(cost=cost)).dollars is None
    assert read(answer(prompt_tokens_details={"cached_tokens": cost})).cached == 0


def test_a_stream_says_what_was_cached_and_what_it_cost(tmp_path: Path) -> None:
    async def stream(_: web.Request) -> web.Response:
        events = [
            '{"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}',
            '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.125}}',
            "[DONE]",
        ]
        text = "".join(f"data: {event}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", stream)
        async with served(app) as url:
            models = {"good": {**PRICES["good"], "base_url": f"{url}/v1", "reported_cost": True}}
            async with a_router(tmp_path, models) as router:
                async for _ in await router.ask(stream=True):
                    pass
                await asyncio.sleep(0.05)
                _, metrics = await router.get("/metrics", None)
                assert 'p2l_router_cost_total{model="good"} 0.125' in metrics

    asyncio.run(main())
