"""The service around the router: keys, limits, routes of operation, feedback, conversations."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from p2l.common.access import digest_of
from p2l.common.errors import ConfigError
from route.application.compare import propensity_of
from route.application.service import Service, check_together
from route.application.settings import Settings
from route.config import load_config
from route.routing.candidates import PairShares
from tests.route.router_helpers import COEFS, HELLO, Endpoint, a_router, model, served

KEYS = [
    {"key": "rich", "name": "rich"},
    {"key": "poor-man", "name": "poor", "cost": 1.0},
    {"key": "daily", "name": "daily", "spend_per_day": 6},
    {"key": "rare", "name": "rare", "requests_per_minute": 2},
    {"key": "one", "name": "one", "models": ["fair"]},
]


def run(main: Any) -> None:
    asyncio.run(main())


def test_every_route_but_those_of_operation_wants_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/route", "/v1/feedback"):
                async with router.http.post(f"{router.url}{path}", data=b"{") as response:
                    assert response.status == 401
                    told = (await response.json())["error"]
                    assert told["type"] == "authentication_error"
                    assert all(header in told["message"] for header in ("Authorization: Bearer KEY", "x-api-key: KEY"))
                status, told, _ = await router.post(path, b"{", {"authorization": "Bearer wrong"})
                assert (status, told["error"]["type"]) == (401, "authentication_error")
            assert (await router.get("/v1/models", None))[0] == 401
            for path in ("/health", "/ready", "/metrics", "/openapi.json"):
                assert (await router.get(path, None))[0] == 200

    run(main)


def test_nobody_is_sent_to_another_address_with_a_key(tmp_path: Path) -> None:
    """Behind a proxy that speaks TLS a redirect to http: would show the key."""

    async def main() -> None:
        async with a_router(tmp_path) as router:
            for path in ("/v1/chat/completions/", "/v1/feedback/", "//v1/feedback"):
                async with router.http.post(f"{router.url}{path}", data=b"{}", allow_redirects=False) as response:
                    assert response.status == 404
            async with router.http.get(f"{router.url}/metrics/", allow_redirects=False) as response:
                assert response.status == 404

    run(main)


def test_a_key_has_its_own_budget_models_and_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, keys=KEYS) as router:

            async def ask(key: str, **extra: Any) -> Any:
                return await router.client.with_options(api_key=key).chat.completions.create(
                    model="-", messages=HELLO, **extra
                )

            assert (await ask("rich")).model == "good"
            assert (await ask("poor-man")).model == "poor"
            assert (await ask("poor-man", extra_body={"cost": 2})).model == "fair"
            assert (await ask("one")).model == "fair"
            with pytest.raises(openai.PermissionDeniedError):
                await ask("one", extra_body={"direct_model": "good"})
            for _ in range(2):
                await ask("daily")
            with pytest.raises(openai.RateLimitError) as caught:
                await ask("daily")
            assert caught.value.code == "insufficient_quota"
            for _ in range(2):
                await ask("rare")
            with pytest.raises(openai.RateLimitError) as caught:
                await ask("rare")
            assert 0 < int(caught.value.response.headers["retry-after"]) <= 61

    run(main)


def test_spend_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"keys": [{"key": "daily", "name": "daily", "spend_per_day": 3}], "database": "route.sqlite"}
        async with a_router(tmp_path, **settings) as router:
            await router.client.with_options(api_key="daily").chat.completions.create(model="-", messages=HELLO)
        async with a_router(tmp_path, **settings) as router:
            with pytest.raises(openai.RateLimitError):
                await router.client.with_options(api_key="daily").chat.completions.create(model="-", messages=HELLO)

    run(main)


def test_a_large_body_is_refused_whether_its_length_is_declared_or_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, settings={"max_body_mb": 0.01}) as router:
            body = json.dumps({"messages": [{"role": "user", "content": "x" * 20_000}]}).encode()
            status, told, _ = await router.post("/v1/chat/completions", body)
            assert (status, told["error"]["code"]) == (413, "request_too_large")

            async def parts() -> Any:
                for start in range(0, len(body), 4096):
                    yield body[start : start + 4096]

            headers = {"authorization": "Bearer test-key"}
            async with router.http.post(f"{router.url}/v1/chat/completions", data=parts(), headers=headers) as response:
                assert response.status == 413

    run(main)


def test_unknown_paths_and_methods_are_told_in_openais_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            status, told, _ = await router.post("/v1/completions", {})
            assert (status, told["error"]["type"]) == (404, "invalid_request_error")
            status, told, _ = await router.post("/chat/completions", {})
            assert (status, told["error"]["code"]) == (404, "unknown_url")
            assert "no /chat/completions here" in told["error"]["message"]
            assert "the base URL of OpenAI's clients ends in /v1" in told["error"]["message"]
            status, text = await router.get("/v1/chat/completions")
            assert (status, json.loads(text)["error"]["message"]) == (405, "/v1/chat/completions takes POST, not GET")

    run(main)


def test_a_misspelt_model_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            for sent, hint in (
                ("goood", "no model 'goood' is configured (did you mean 'good'?)"),
                ("x" * 10**6, "xxx"),
            ):
                status, body, _ = await router.post("/v1/chat/completions", {"messages": HELLO, "direct_model": sent})
                assert status == 404
                assert hint in body["error"]["message"]
                assert len(body["error"]["message"]) < 200
            status, text = await router.get("/v1/models/p2l-rooter")
            assert status == 404
            assert "did you mean 'p2l-router'?" in text

    asyncio.run(main())


def test_models_are_listed_in_openais_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, keys=KEYS) as router:
            names = [model.id async for model in router.client.models.list()]
            assert names == ["p2l-router", "auto"]  # any other name changes nothing
            assert (await router.client.models.retrieve("auto")).owned_by == "p2l"
        async with a_router(tmp_path, keys=KEYS, settings={"direct_by_name": True}) as router:
            names = [model.id async for model in router.client.models.list()]
            assert names == ["p2l-router", "auto", "good", "fair", "poor"]
            assert (await router.client.models.retrieve("fair")).owned_by == "openai"
            with pytest.raises(openai.NotFoundError):
                await router.client.models.retrieve("nobody")
            mine = router.client.with_options(api_key="one")
            assert [model.id async for model in mine.models.list()] == ["p2l-router", "auto", "fair"]

    run(main)


def test_it_is_not_ready_while_every_model_fails(tmp_path: Path) -> None:
    async def main() -> None:
        fail = {"failure": "status:503", "failure_rate": 1.0}
        scripts = dict.fromkeys(("good", "fair", "poor"), fail)
        async with a_router(tmp_path, scripts=scripts, breaker={"failures": 1, "seconds": 60}) as router:
            assert (await router.get("/ready"))[0] == 200
            for _ in range(2):
                with pytest.raises(openai.InternalServerError):
                    await router.ask()
            status, text = await router.get("/ready")
            assert status == 503
            assert json.loads(text)["blocked"] == ["fair", "good", "poor"]
            assert router.counts() == {"good": 1, "fair": 1, "poor": 1}
            assert (await router.get("/health"))[0] == 200

    run(main)


def test_metrics_count_by_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": ["reset"]}}) as router:
            await router.ask()
            await router.ask()
            [_ async for _ in await router.ask(stream=True)]
            with pytest.raises(openai.BadRequestError):
                await router.ask(extra_body={"cost": 0})
            lines = (await router.get("/metrics"))[1].splitlines()
            for line in (
                'p2l_router_requests_total{model="fair",status="200"} 1.0',
                'p2l_router_requests_total{model="good",status="200"} 2.0',
                'p2l_router_requests_total{model="none",status="400"} 1.0',
                'p2l_router_errors_total{fault="connection",model="good"} 1.0',
                'p2l_router_fallbacks_total{instead_of="good",model="fair"} 1.0',
                'p2l_router_cost_total{model="good"} 6.0',
                'p2l_router_tokens_total{kind="completion",model="good"} 6.0',
                'p2l_router_request_seconds_count{model="good"} 2.0',
                'p2l_router_first_token_seconds_count{model="good"} 1.0',
                "p2l_router_running 0.0",
            ):
                assert line in lines
            assert [line for line in lines if line.startswith("p2l_router_spend_total") and line.endswith(" 8.0")]

    run(main)


def test_what_a_price_says_is_what_is_spent(tmp_path: Path) -> None:
    async def main() -> None:
        priced = {"good": {"price": {"input": 1e6, "output": 2e6}}}
        async with a_router(tmp_path, priced) as router:
            await router.ask()  # two words in, three out
            assert 'p2l_router_cost_total{model="good"} 8.0' in (await router.get("/metrics"))[1]

    run(main)


def test_logs_hold_neither_prompts_nor_answers_nor_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"good": {"failures": ["status:500"], "text": "top secret"}}) as router:
            await router.ask([{"role": "user", "content": "whisper this"}])
            [_ async for _ in await router.ask([{"role": "user", "content": "whisper this"}], stream=True)]
            with pytest.raises(openai.BadRequestError):
                await router.ask([{"role": "user", "content": "whisper this"}], extra_body={"cost": 0})

    caplog.set_level(logging.DEBUG, logger="route")
    run(main)
    told = " ".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "fault" in told
    for secret in ("whisper", "secret", "test-key", "upstream-key"):
        assert secret not in told


def test_two_answers_can_be_compared_and_voted_on(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"database": "route.sqlite", "store_prompts": True}
        async with a_router(tmp_path, **settings) as router:
            answer = await router.ask(extra_body={"compare": True})
            assert [choice.index for choice in answer.choices] == [0, 1]
            names = [choice.message.model for choice in answer.choices]
            assert "good" in names
            assert len(set(names)) == 2
            assert answer.usage.completion_tokens == 6
            vote = {"request_id": answer._request_id, "better": 1}
            status, told, _ = await router.post("/v1/feedback", vote)
            assert (status, told["models"]) == (200, names)
            for wrong, code, field in (
                ({}, 400, "request_id"),
                ({"request_id": "r"}, 400, None),
                ({"request_id": "r", "better": 2}, 400, "better"),
                ({"request_id": "r", "thumb": "up"}, 400, "thumb"),
                ({"request_id": answer._request_id, "thumbs": "up"}, 400, "thumbs"),
                ({"request_id": "req-0", "better": 0}, 404, "request_id"),
            ):
                status, told, _ = await router.post("/v1/feedback", wrong)
                assert (status, told["error"]["param"]) == (code, field)
        connection = sqlite3.connect(tmp_path / "route.sqlite")
        text = " ".join(connection.iterdump())
        connection.close()
        assert "hello there" in text

    run(main)


PLAN = PairShares({frozenset(("fair", "poor")): 0.1, frozenset(("fair", "cheap")): 0.5})


@pytest.mark.parametrize("explore", [0.0, 0.2])
@pytest.mark.parametrize("shares", [PairShares(), PLAN])
def test_the_propensities_of_all_pairs_sum_to_one(shares: PairShares, explore: float) -> None:
    mixture = {"good": 0.25, "fair": 0.75}
    candidates = {"fair", "poor", "cheap"}  # good is too dear by itself
    names = sorted({*mixture, *candidates})

    def decided(model: str) -> Any:
        drawn = explore / 3 if model in candidates else 0.0
        propensity = (1 - explore) * mixture.get(model, 0.0) + drawn
        return SimpleNamespace(model=model, probabilities=mixture, propensity=propensity)

    total = 0.0
    for pair in itertools.combinations(names, 2):
        told = {round(propensity_of(pair, decided(name), candidates, explore, shares), 12) for name in pair}
        assert len(told) == 1  # whichever of the two was the first choice
        total += told.pop()
    assert total == pytest.approx(1)


def test_the_second_answer_is_drawn_by_the_plan_of_pairs_and_a_reload_takes_a_new_plan(tmp_path: Path) -> None:
    plan = tmp_path / "pairs.csv"

    def write(fair: float, poor: float) -> None:
        rows = f"fair,good,1,{fair}\ngood,poor,1,{poor}\nfair,poor,1,0.1\n"
        plan.write_text(f"model_a,model_b,votes,propensity\n{rows}", encoding="utf-8")

    async def main() -> None:
        write(1e-9, 0.9)
        settings = {"database": "route.sqlite", "pairs": "pairs.csv"}
        async with a_router(tmp_path, **settings) as router:
            for second in ("poor", "fair"):
                names = {
                    choice.message.model
                    for _ in range(5)
                    for choice in (await router.ask(extra_body={"compare": True})).choices
                }
                assert names == {"good", second}
                write(0.9, 1e-9)
                await router.app.state.live.reload()
        with contextlib.closing(sqlite3.connect(tmp_path / "route.sqlite")) as connection:
            drawn = connection.execute("SELECT propensity FROM answers").fetchall()
        assert drawn == [(pytest.approx(1.0),)] * 10

    run(main)


def test_a_file_of_pairs_that_cannot_be_used_is_named_with_its_line_in_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("model_configs:\n  one: {name: o, type: mock, cost: 1}\npairs: none.csv\n", encoding="utf-8")
    settings = Settings(config=str(path), router_type="grk-endpoint", cost_optimizer="strict")
    with pytest.raises(ConfigError, match=r"router.yaml:3: pairs: .*none.csv cannot be read"):
        check_together(load_config(path), settings)


def test_without_scores_two_answers_are_compared_and_nothing_is_explored(tmp_path: Path) -> None:
    async def main() -> None:
        endpoint = Endpoint(COEFS, is_down=True)
        settings = {"database": "route.sqlite", "explore": 0.5, "static_order": ["fair"]}
        async with a_router(tmp_path, endpoint=endpoint, **settings) as router:
            answer = await router.ask(extra_body={"compare": True, "cost": 2})
            assert answer.router_decision["static"]
            health = json.loads((await router.get("/health"))[1])
            assert health == {"status": "ok", "static": True, "fallback": "static_order"}
            assert {choice.message.model for choice in answer.choices} == {"fair", "poor"}
            vote = {"request_id": answer._request_id, "better": 1}
            assert (await router.post("/v1/feedback", vote))[0] == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "route.sqlite")) as connection:
            assert connection.execute("SELECT propensity FROM answers").fetchall() == [(1.0,)]

    run(main)


def test_a_comparison_of_which_one_fails_is_a_plain_answer(tmp_path: Path) -> None:
    async def main() -> None:
        fail = {"failure": "status:503", "failure_rate": 1.0}
        async with a_router(tmp_path, scripts={"fair": fail, "poor": fail}, max_attempts=1) as router:
            answer = await router.ask(extra_body={"compare": True})
            assert [choice.message.model for choice in answer.choices] == ["good"]
            with pytest.raises(openai.BadRequestError):
                await router.ask(extra_body={"compare": True, "cost": 1})

    run(main)


def test_thumbs_on_a_single_answer_are_kept_for_its_key_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, keys=KEYS) as router:
            answer = await router.ask()
            vote = {"request_id": answer._request_id, "thumbs": "up"}
            assert (await router.post("/v1/feedback", vote))[0] == 200
            assert (await router.post("/v1/feedback", vote, {"authorization": "Bearer rich"}))[0] == 404
            chunks = await router.client.chat.completions.with_raw_response.create(
                model="-", messages=HELLO, stream=True
            )
            [_ async for _ in chunks.parse()]
            vote = {"request_id": chunks.headers["x-request-id"], "thumbs": "down"}
            assert (await router.post("/v1/feedback", vote))[0] == 200

    run(main)


def test_a_conversation_keeps_its_model_when_that_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        for sticky, expected in ((True, "good"), (False, "fair")):
            async with a_router(tmp_path, sticky=sticky) as router:
                first = await router.ask()
                assert first.model == "good"
                router.endpoint.coefs = {"good": 0.0, "fair": 1.0, "poor": 0.5}
                turns = [*HELLO, {"role": "assistant", "content": "I am good"}, {"role": "user", "content": "more"}]
                assert (await router.ask(turns)).model == expected
                assert (await router.ask(turns, extra_body={"cost": 2})).model == "fair"

    run(main)


def test_a_leaderboard_without_any_configured_model_refuses_to_start(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.yaml"
        path.write_text(json.dumps({"model_configs": {"stranger": model("http://127.0.0.1:9/v1")}}), "utf-8")
        async with served(Endpoint({"good": 1.0}).application()) as url:
            settings = Settings(str(path), "grk-endpoint", router_model_endpoint=url, api_keys=(digest_of("k"),))
            service = Service(load_config(path), settings)
            with pytest.raises(ConfigError, match="stranger"):
                await service.start()
            await service.close()

    run(main)
