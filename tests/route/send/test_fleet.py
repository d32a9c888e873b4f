"""Deployments of one model: which one is asked, their limits, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from p2l.common.errors import ConfigError
from route.config import load_config
from route.providers.base import Fault, ProviderError
from route.providers.mock import Mock, Script, running
from route.send.fleet import Deployment, Target, make_fleet
from tests.route.router_helpers import a_router
from tests.route.send.test_breaker import Clock

HEAD = """\
model_configs:
  pair:
    name: usual
    type: openai
    api_key: first-key
    cost: 1
"""


def target(folder: Path, text: str, *, workers: int = 1, clock: Clock | None = None) -> Target:
    """The model of a configuration, on a clock of the test."""
    path = folder / "router.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    pair = make_fleet(load_config(path), {}, workers=workers).targets["pair"]
    for deployment in pair.deployments:
        deployment.breaker.clock = clock or Clock()
    return pair


def picked(pair: Target) -> str:
    deployment = pair.pick(stream=False)
    return "" if deployment is None else deployment.label


def two(balance: str, a: str = "", b: str = "") -> str:
    return f"    balance: {balance}\n    deployments:\n      a: {{{a}}}\n      b: {{{b}}}\n"


def test_weights_divide_the_requests(tmp_path: Path) -> None:
    pair = target(tmp_path, two("weight", "weight: 3"))
    counts = Counter(picked(pair) for _ in range(4000))
    assert 2800 < counts["a"] < 3200


def test_the_fewest_requests_under_way_for_the_weight(tmp_path: Path) -> None:
    pair = target(tmp_path, two("in_flight", "weight: 2"))
    for _ in range(30):
        deployment = pair.pick(stream=False)
        assert deployment is not None
        deployment.begin()
    assert [deployment.in_flight for deployment in pair.deployments] == [20, 10]
    for _ in range(20):
        pair.deployments[0].end()
    assert picked(pair) == "a"


def test_the_fastest_and_one_that_was_not_measured_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    pair = target(tmp_path, two("latency"), clock=clock)
    a, b = pair.deployments
    a.measure(0.2, stream=False)
    assert picked(pair) == "b"  # nobody has measured it yet
    b.begin()
    assert picked(pair) == "a"  # it is being measured
    b.measure(0.1, stream=False)
    b.end()
    assert {picked(pair) for _ in range(20)} == {"b"}
    clock.now += 61
    b.measure(0.1, stream=False)
    assert picked(pair) == "a"  # which may have become faster


def test_a_deployment_takes_no_more_than_its_limits(tmp_path: Path) -> None:
    clock = Clock()
    text = two("weight", "requests_per_minute: 4", "max_in_flight: 1")
    pair = target(tmp_path, text, workers=2, clock=clock)
    a, b = pair.deployments
    assert a.per_minute == 2  # its share of two workers
    a.begin()
    clock.now += 20
    a.begin()
    assert a.is_blocked
    assert a.free_in == 40
    assert {picked(pair) for _ in range(20)} == {"b"}
    b.begin()
    assert picked(pair) == ""
    clock.now += 40
    assert picked(pair) == "a"
    b.end()
    assert not b.is_blocked


def test_each_has_a_breaker_of_its_own(tmp_path: Path) -> None:
    pair = target(tmp_path, two("weight"))
    a, b = pair.deployments
    a.breaker.failed(ProviderError(Fault.RATE_LIMIT, "no", retry_after=7.0))
    assert {picked(pair) for _ in range(20)} == {"b"}
    b.breaker.failed(ProviderError(Fault.RATE_LIMIT, "no", retry_after=9.0))
    assert picked(pair) == ""
    assert min(each.free_in for each in pair.deployments) == 7


def test_a_deployment_inherits_what_it_does_not_set_but_no_key_for_another_address(tmp_path: Path) -> None:
    elsewhere = "base_url: 'https://elsewhere.example/v1'"
    pair = target(tmp_path, two("weight", "name: other, api_key: second-key", elsewhere))
    a, b = pair.deployments
    assert (a.config.name, a.config.api_key, a.config.type) == ("other", "second-key", "openai")
    assert (b.config.name, b.config.api_key) == ("usual", None)
    assert a.provider is not b.provider


def test_a_mistake_names_the_deployment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_configs\.pair\.deployments\.b: .*nowhere"):
        target(tmp_path, two("weight", "", "type: nowhere"))
    with pytest.raises(ConfigError, match=r":9: key 'model_configs\.pair\.deployments\.b\.wait': unknown|unknown key"):
        target(tmp_path, two("weight", "", "wait: 3"))
    with pytest.raises(ConfigError) as caught:
        target(tmp_path, two("weight", "", "api_key: [sk-very-secret]"))
    assert "sk-very-secret" not in str(caught.value)


def test_another_deployment_answers_at_once_and_the_model_is_not_left(tmp_path: Path) -> None:
    async def main() -> None:
        second = Mock(Script.of({"text": "I am good too"}), remembered=10)
        async with running(second) as url:
            places: dict[str, Any] = {"one": {"weight": 1000000}, "two": {"base_url": url, "api_key": "k2"}}
            scripts = {"good": {"failures": ["credentials", "reset", "rate-limit:30"]}}
            async with a_router(tmp_path, {"good": {"deployments": places}}, scripts=scripts) as router:
                for _ in range(4):  # the last one does not ask the one that rests
                    answer = await router.ask()
                    assert answer.choices[0].message.content == "I am good too"
                    assert answer.model == "good"
                assert router.counts() == {"good": 3, "fair": 0, "poor": 0}
                _, ready = await router.get("/ready")
                assert '"blocked": []' in ready.replace('":[', '": [')

    asyncio.run(main())


def test_when_all_deployments_are_full_the_next_model_answers_and_then_429(tmp_path: Path) -> None:
    async def main() -> None:
        full: dict[str, Any] = {"deployments": {"only": {"requests_per_minute": 1}}}
        async with a_router(tmp_path, {"good": full, "fair": full, "poor": full}) as router:
            assert [(await router.ask()).model for _ in range(3)] == ["good", "fair", "poor"]
            with pytest.raises(openai.RateLimitError) as caught:
                await router.ask()
            assert 50 < int(caught.value.response.headers["retry-after"]) <= 60
            status, _ = await router.get("/ready")
            assert status == 200  # full is not ill

    asyncio.run(main())


def test_requests_under_way_are_counted_until_their_streams_end(tmp_path: Path) -> None:
    async def main() -> None:
        places = {"deployments": {"only": {"max_in_flight": 1}}}
        slow = {"good": {"text": None, "tokens": 20, "token_seconds": 0.02}}
        async with a_router(tmp_path, {"good": places}, scripts=slow) as router:
            stream = await router.ask(stream=True)
            first = await anext(aiter(stream))
            assert first.model == "good"
            assert (await router.ask()).model == "fair"
            async for _ in stream:
                pass
            only: Deployment = router.service.fleet.targets["good"].deployments[0]
            while only.in_flight:
                await asyncio.sleep(0.01)
            assert (await router.ask()).model == "good"

    asyncio.run(main())


def test_a_deployment_takes_no_more_tokens_than_its_limit(tmp_path: Path) -> None:
    clock = Clock()
    pair = target(tmp_path, two("weight", "tokens_per_minute: 200", "tokens_per_minute: 200"), workers=2, clock=clock)
    a, b = pair.deployments
    assert a.tokens_per_minute == 100  # its share of two workers
    a.use(60)
    clock.now += 20
    a.use(30)
    assert not a.is_blocked
    a.use(20)
    assert (a.is_blocked, a.free_in) == (True, 40)
    assert {picked(pair) for _ in range(20)} == {"b"}
    clock.now += 40
    assert not a.is_blocked
    b.use(1000)
    assert {picked(pair) for _ in range(20)} == {"a"}


def test_prompts_and_answers_count_at_their_deployment(tmp_path: Path) -> None:
    async def main() -> None:
        places = {"deployments": {"only": {"tokens_per_minute": 6}}}
        async with a_router(tmp_path, {"good": places}) as router:
            # A prompt of two tokens (four bytes are one), an answer of three words.
            assert [(await router.ask()).model for _ in range(3)] == ["good", "good", "fair"]

    asyncio.run(main())
