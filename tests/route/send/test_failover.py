"""The scenarios of a provider that fails, one test each: what the client gets, from which model, and what it cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.route.router_helpers import HELLO, Running, a_router, model, served

QUICK = {"timeouts": {"connect": 1, "first_token": 0.6, "answer": 0.6, "stall": 0.6, "total": 20}}
"""For providers that say nothing."""
PREFILL = [*HELLO, {"role": "assistant", "content": "Sure:"}]
Look = Callable[[Running], Awaitable[None]]


def against(folder: Path, troubles: list[str], look: Look, **config: Any) -> None:
    """Let the best of three models meet these troubles, in order."""

    async def main() -> None:
        async with a_router(folder, scripts={"good": {"failures": troubles}}, **config) as router:
            await look(router)

    asyncio.run(main())


async def answers(router: Running, model: str, attempts: list[str], messages: Any = HELLO) -> None:
    """Whole and streamed answers are complete and come from `model`, after these attempts; the troubles come twice."""
    whole = await router.ask(messages)
    assert whole.choices[0].message.content == f"I am {model}"
    assert whole.choices[0].finish_reason == "stop"
    for deployment in router.service.fleet.deployments:  # so that the second request meets what the first one met
        deployment.breaker.succeeded()
    chunks = [chunk async for chunk in await router.ask(messages, stream=True, stream_options={"include_usage": True})]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == f"I am {model}"
    assert {chunk.model for chunk in chunks} == {whole.model} == {model}
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 3
    assert whole.router_decision["attempts"] == chunks[0].router_decision["attempts"] == attempts
    assert {deployment.in_flight for deployment in router.service.fleet.deployments} == {0}


@pytest.mark.parametrize("trouble", ["rate-limit", "rate-limit:0.2", "status:500", "status:503"])
def test_a_short_rate_limit_or_a_single_server_error_is_waited_for(tmp_path: Path, trouble: str) -> None:
    async def look(router: Running) -> None:
        await answers(router, "good", ["good", "good"])

    against(tmp_path, [trouble, "ok", trouble], look)


@pytest.mark.parametrize("trouble", ["rate-limit:20", "reset", "silence", "slow:5", "credentials", "status:404"])
def test_what_waiting_does_not_mend_is_answered_by_the_next_model(tmp_path: Path, trouble: str) -> None:
    async def look(router: Running) -> None:
        await answers(router, "fair", ["good", "fair"])

    against(tmp_path, [trouble, trouble], look, **(QUICK if trouble in ("silence", "slow:5") else {}))


def test_an_outage_costs_one_more_try_once_and_not_for_every_request(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        first, *others = [await router.ask() for _ in range(3)]
        assert first.router_decision["attempts"] == ["good", "good", "fair"]
        assert [other.router_decision["attempts"] for other in others] == [["good", "fair"]] * 2

    against(tmp_path, ["status:503"] * 4, look)


@pytest.mark.parametrize("messages", [HELLO, PREFILL], ids=["", "prefill"])
@pytest.mark.parametrize("trouble", ["cut", "stall", "malformed", "no-done"])
def test_a_stream_that_breaks_after_its_beginning_ends_with_an_error(
    tmp_path: Path, trouble: str, messages: Any
) -> None:
    async def look(router: Running) -> None:
        chunks: list[Any] = []
        with pytest.raises(openai.APIError):
            await collect(await router.ask(messages, stream=True), chunks)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert "I am good".startswith(text)  # nothing twice, and nothing of another model
        assert text
        assert not [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert router.counts() == {"good": 1, "fair": 0, "poor": 0}
        assert {deployment.in_flight for deployment in router.service.fleet.deployments} == {0}

    against(tmp_path, [trouble], look, **(QUICK if trouble == "stall" else {}))


async def collect(stream: Any, chunks: list[Any]) -> None:
    async for chunk in stream:
        chunks.append(chunk)


def test_a_stream_without_done_but_with_its_finish_reason_is_complete(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        body = {"messages": HELLO, "stream": True}
        headers = {"authorization": "Bearer test-key"}
        async with router.http.post(f"{router.url}/v1/chat/completions", json=body, headers=headers) as response:
            events = [line[6:] for line in (await response.text()).split("\n\n") if line]
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "stop"

    against(tmp_path, ["no-mark"], look)


@pytest.mark.parametrize("trouble", ["cut", "stall", "malformed"])
def test_a_whole_answer_that_breaks_off_comes_from_the_next_model(tmp_path: Path, trouble: str) -> None:
    async def look(router: Running) -> None:
        assert (await router.ask()).router_decision["attempts"] == ["good", "fair"]

    against(tmp_path, [trouble], look, **(QUICK if trouble == "stall" else {}))


def test_a_prompt_that_is_too_long_for_a_model_goes_to_another(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        await answers(router, "fair", ["good", "fair"])

    against(tmp_path, ["context-length"] * 2, look)


def test_refused_content_is_the_clients_to_know_at_once(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await router.ask(stream=stream)
            assert caught.value.code == "content_filter"
        assert router.counts() == {"good": 2, "fair": 0, "poor": 0}
        assert not router.service.fleet.failing()

    against(tmp_path, ["content-filter"] * 2, look)


def test_a_model_that_refuses_a_prefill_is_replaced(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        await answers(router, "fair", ["good", "fair"], PREFILL)

    against(tmp_path, ["prefill"] * 2, look)


def test_a_model_that_flaps_is_in_use_again_within_30_seconds_of_its_recovery(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        now = 1000.0
        for deployment in router.service.fleet.deployments:
            deployment.breaker.clock = lambda: now
        for _ in range(3):  # it fails, comes back and fails again
            router.mocks["good"].fail_next(*["reset"] * 5)
            assert [(await router.ask()).model for _ in range(6)] == ["fair"] * 6
            now += 30.0
            assert [(await router.ask()).model for _ in range(3)] == ["good"] * 3
        assert len(router.mocks["good"].bodies) == 3 * (5 + 3)  # nothing is asked while it rests

    against(tmp_path, [], look)


def test_model_usage_and_cost_are_those_of_the_model_that_stepped_in(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        router.mocks["fair"].pieces = ["a", " b", " c", " d", " e"]
        raw = await router.client.chat.completions.with_raw_response.create(model="-", messages=HELLO)
        answer = raw.parse()
        assert (raw.headers["x-p2l-model"], raw.headers["x-p2l-cost"]) == ("fair", "2")
        assert (answer.model, answer.usage.completion_tokens) == ("fair", 5)
        _, metrics = await router.get("/metrics")
        assert 'p2l_router_cost_total{model="fair"} 2.0' in metrics
        assert 'p2l_router_cost_total{model="good"}' not in metrics
        assert 'p2l_router_tokens_total{kind="completion",model="fair"} 5.0' in metrics

    against(tmp_path, ["reset"], look)


ERROR_IN_CHOICE = {"index": 0, "finish_reason": "error", "error": {"code": 502, "message": "upstream broke"}}


def broken_in_a_choice(partial: str) -> web.Application:
    """A provider that answers with status 200 and an error inside the choice, after the `partial` text if streamed."""
    about = {"id": "c1", "created": 1, "model": "m"}

    async def complete(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            choice = {**ERROR_IN_CHOICE, "message": {"role": "assistant", "content": "Partial ans"}}
            return web.json_response({**about, "object": "chat.completion", "choices": [choice]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        choices: list[dict[str, Any]] = [{**ERROR_IN_CHOICE, "delta": {}}]
        if partial:
            choices.insert(0, {"index": 0, "delta": {"role": "assistant", "content": partial}, "finish_reason": None})
        for choice in choices:
            chunk = {**about, "object": "chat.completion.chunk", "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_post("/chat/completions", complete)
    return app


def beside_broken(folder: Path, partial: str, look: Look) -> None:
    """Let the best of three models be a provider with an error in its choices."""

    async def main() -> None:
        async with served(broken_in_a_choice(partial)) as url:
            good = {"good": {**model(url), "cost": 3.0}}
            async with a_router(folder, models=good) as router:
                await look(router)

    asyncio.run(main())


def test_an_error_inside_a_choice_is_a_failure_and_the_next_model_answers(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        whole = await router.ask()
        assert whole.choices[0].message.content == "I am fair"
        chunks = [chunk async for chunk in await router.ask(stream=True)]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "I am fair"
        for answer in (whole, chunks[0]):
            assert answer.router_decision["attempts"][-1] == "fair"

    beside_broken(tmp_path, "", look)


def test_an_error_inside_a_choice_after_some_text_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    async def look(router: Running) -> None:
        chunks: list[Any] = []
        with pytest.raises(openai.APIError):
            await collect(await router.ask(stream=True), chunks)
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Partial"
        assert not [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]

    beside_broken(tmp_path, "Partial", look)
