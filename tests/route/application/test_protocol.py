"""Chat completions as the official client speaks them: what reaches the provider and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from route.providers.usage import read
from tests.route.router_helpers import COEFS, HELLO, Endpoint, a_router, model, served

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALLS = [{"id": f"call_{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(2)]


def completion(message: dict[str, Any], finish: str = "stop", **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    } | extra


def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | extra


@asynccontextmanager
async def scripted(folder: Path, answer: Any, **config: Any) -> AsyncIterator[tuple[Any, list[dict[str, Any]]]]:
    """A router to one upstream that gives `answer`, or the chunks of a list; and the bodies that came there."""
    bodies: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if not isinstance(answer, list):
            return web.json_response(answer)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each in answer:
            await response.write(f"data: {json.dumps(each)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    changes = config.pop("model", {})
    async with served(app) as url, a_router(folder, {"good": {"base_url": f"{url}/v1", **changes}}, **config) as router:
        yield router, bodies


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def test_what_shapes_the_answer_reaches_the_provider_untouched(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            given = {
                "temperature": 0,
                "seed": 7,
                "stop": ["\n"],
                "n": 2,
                "logprobs": True,
                "top_logprobs": 3,
                "response_format": {"type": "json_object"},
                "tools": [TOOL],
                "tool_choice": "auto",
                "parallel_tool_calls": True,
                "reasoning_effort": "low",
                "max_completion_tokens": 9,
                "extra_body": {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"a": [None]}, "cost": 9.5},
            }
            await router.ask(**given)
            sent = router.last("good")
            given |= given.pop("extra_body")
            del given["cost"]
            assert sent.items() >= given.items()
            assert sent["model"] == "good-1"
            assert sent["messages"] == HELLO
            assert not {"cost", "direct_model", "compare", "stream"} & sent.keys()

    run(main)


def test_sampling_of_the_configuration_is_for_what_the_request_leaves_open(tmp_path: Path) -> None:
    async def main() -> None:
        own = {
            "temp": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "max_tokens": 100,
            "system_prompt": "Be brief.",
            "extra_fields": {"safe": 1, "seed": 2},
            "pass_fields": ["safe"],
        }
        async with a_router(tmp_path, {"good": own}) as router:
            await router.ask()
            sent = router.last("good")
            assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["max_tokens"]) == (0.7, 0.9, 40, 100)
            assert (sent["safe"], sent["seed"]) == (1, 2)
            assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *HELLO]
            spoken = [{"role": "developer", "content": "Be long."}, *HELLO]
            await router.ask(spoken, temperature=0, max_completion_tokens=5, extra_body={"safe": 0})
            sent = router.last("good")
            assert sent["seed"] == 2
            assert (sent["temperature"], sent["safe"], sent["messages"]) == (0, 0, spoken)
            assert "max_tokens" not in sent

    run(main)


def test_tool_calls_refusals_and_finish_reasons_come_through(tmp_path: Path) -> None:
    async def main() -> None:
        said = completion({"tool_calls": CALLS, "refusal": "no"}, "tool_calls", system_fingerprint="f", extra=1)
        async with scripted(tmp_path, said) as (router, _):
            answer = await router.ask(tools=[TOOL])
            choice = answer.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert [call.id for call in choice.message.tool_calls] == ["call_0", "call_1"]
            assert (choice.message.refusal, choice.message.content, answer.extra) == ("no", None, 1)
            assert answer.usage.total_tokens == 12

    run(main)


def test_a_stream_loses_no_delta(tmp_path: Path) -> None:
    async def main() -> None:
        calls = [{"index": n, **call} for n, call in enumerate(CALLS)]
        given = [
            chunk({"role": "assistant", "content": None}),
            chunk({"tool_calls": [calls[0]]}),
            chunk({"tool_calls": [calls[1]]}),
            chunk({}),
            chunk({}, "tool_calls"),
            {**chunk({}), "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}},
        ]
        async with scripted(tmp_path, given) as (router, bodies):
            chunks = [each async for each in await router.ask(stream=True, stream_options={"include_usage": True})]
            assert len(chunks) == len(given)
            deltas = [each.choices[0].delta for each in chunks[:-1]]
            assert [call.id for delta in deltas for call in delta.tool_calls or []] == ["call_0", "call_1"]
            assert all(delta.model == "good" for delta in deltas)
            assert chunks[4].choices[0].finish_reason == "tool_calls"
            assert chunks[0].router_outputs.keys() == {"good", "fair", "poor"}
            assert not hasattr(chunks[1], "router_outputs")
            assert chunks[-1].usage.total_tokens == 12
            assert bodies[0]["stream_options"] == {"include_usage": True}

    run(main)


def test_usage_is_counted_although_the_client_did_not_ask_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            chunks = [each async for each in await router.ask(stream=True)]
            assert all(each.choices and each.usage is None for each in chunks)
            text = (await router.get("/metrics"))[1]
            assert 'p2l_router_tokens_total{kind="completion",model="good"} 3.0' in text

    run(main)


def test_the_answer_says_who_gave_it_and_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            raw = await router.client.chat.completions.with_raw_response.create(
                model="gpt-anything", messages=HELLO, extra_headers={"x-p2l-cost": "2.5"}
            )
            answer = raw.parse()
            assert (answer.model, answer.choices[0].message.model) == ("fair", "fair")
            assert answer.router_outputs.keys() == {"good", "fair", "poor"}
            decision = answer.router_decision
            assert (decision["budget"], decision["expected_cost"], decision["propensity"]) == (2.5, 2.0, 1.0)
            assert decision["strength"] is not None
            assert raw.headers["x-p2l-model"] == "fair"
            assert float(raw.headers["x-p2l-cost"]) == 2.0
            assert answer._request_id.startswith("req-")

    run(main)


@pytest.mark.parametrize("familiarity", [0.25, None])
def test_the_decision_says_how_familiar_the_prompt_is(tmp_path: Path, familiarity: float | None) -> None:
    async def main() -> None:
        async with a_router(tmp_path, endpoint=Endpoint(COEFS, familiarity=familiarity)) as router:
            answer = await router.ask()
            assert answer.router_decision["familiarity"] == familiarity
            assert answer.router_outputs.keys() == {"good", "fair", "poor"}
            chunks = [each async for each in await router.ask(stream=True)]
            assert chunks[0].router_decision["familiarity"] == familiarity

    run(main)


def test_the_budget_of_the_body_goes_before_that_of_the_header(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            answer = await router.ask(extra_body={"cost": 1}, extra_headers={"x-p2l-cost": "3"})
            assert answer.model == "poor"

    run(main)


def test_text_parts_are_what_is_routed_by_and_all_parts_are_sent(tmp_path: Path) -> None:
    async def main() -> None:
        parts = [
            {"type": "text", "text": "What is"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "text", "text": "this?"},
        ]
        messages = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": CALLS},
            {"role": "tool", "tool_call_id": "call_0", "content": "1"},
            {"role": "user", "content": "And now?"},
        ]
        async with a_router(tmp_path) as router:
            await router.ask(messages)
            assert router.endpoint.prompts == [["What is\nthis?", "And now?"]]
            assert router.last("good")["messages"] == messages

    run(main)


def test_a_model_is_called_by_name_and_no_other_steps_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, scripts={"poor": {"failures": ["credentials"]}}) as router:
            with pytest.raises(openai.InternalServerError):
                await router.ask(extra_body={"direct_model": "poor"})
            answer = await router.ask(extra_body={"direct_model": "poor"})
            assert (answer.model, answer.router_outputs) == ("poor", None)
            assert router.endpoint.prompts == []
            with pytest.raises(openai.NotFoundError):
                await router.ask(extra_body={"direct_model": "nobody"})

    run(main)


def test_model_calls_a_model_only_where_that_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        for by_name, expected in ((False, "good"), (True, "poor")):
            async with a_router(tmp_path, settings={"direct_by_name": by_name}) as router:
                create = router.client.chat.completions.create
                assert (await create(model="poor", messages=HELLO)).model == expected
                assert (await create(model="unknown", messages=HELLO)).model == "good"

    run(main)


def test_a_model_that_p2l_does_not_know_is_reached_by_name_alone_or_with_a_prior(tmp_path: Path) -> None:
    async def main() -> None:
        more = {"new": model("http://127.0.0.1:9/v1", cost=0.5), "bet": model("http://127.0.0.1:9/v1", cost=0.5)}
        more["bet"]["prior_coef"] = -3.0
        async with a_router(tmp_path, more, newcomers=False) as router:
            assert (await router.ask()).router_outputs.keys() == {"good", "fair", "poor", "bet"}
            with pytest.raises(openai.InternalServerError):
                await router.ask(extra_body={"direct_model": "new"})

    run(main)


def test_the_decision_alone_shows_the_whole_frontier(tmp_path: Path) -> None:
    async def main() -> None:
        flags = {"settings": {"cost_optimizer": "simple-lp"}}
        async with a_router(tmp_path, **flags) as router:
            status, told, _ = await router.post("/v1/route", {"messages": HELLO, "cost": 2.5})
            assert status == 200
            assert sum(told["probabilities"].values()) == pytest.approx(1)
            assert told["expected_cost"] == pytest.approx(2.5)
            assert [corner["model"] for corner in told["frontier"]] == ["poor", "fair", "good"]
            assert told["costs"] == {"poor": 1.0, "fair": 2.0, "good": 3.0}
            assert router.counts() == {"good": 0, "fair": 0, "poor": 0}

    run(main)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"messages": [], "x": NaN}', 400, None),
        (b"[" * 100_000, 400, None),
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": ["x"]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
        ({"messages": HELLO, "cost": "2"}, 400, "cost"),
        ({"messages": HELLO, "cost": -1}, 400, "cost"),
        ({"messages": HELLO, "cost": True}, 400, "cost"),
        ({"messages": HELLO, "cost": 10**400}, 400, "cost"),
        ({"messages": HELLO, "cost": 0.5}, 400, "cost"),
        ({"messages": HELLO, "max_tokens": 10**30}, 400, "max_tokens"),
        ({"messages": HELLO, "stream": 1}, 400, "stream"),
        ({"messages": HELLO, "compare": True, "stream": True}, 400, "compare"),
        ({"messages": HELLO, "direct_model": 3}, 404, "direct_model"),
    ],
)
def test_a_request_that_cannot_be_used_is_told_in_openais_shape(
    tmp_path: Path, body: Any, status: int, param: str | None
) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            got, told, headers = await router.post("/v1/chat/completions", body)
            assert got == status
            assert told["error"].keys() == {"message", "type", "param", "code"}
            assert told["error"]["type"] == "invalid_request_error"
            assert told["error"]["param"] == param
            assert headers["x-request-id"].startswith("req-")
            assert router.counts()["good"] == 0

    run(main)


def test_a_budget_that_buys_nothing_names_the_cheapest_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            with pytest.raises(openai.BadRequestError, match="costs 1") as caught:
                await router.ask(extra_body={"cost": 0.25})
            assert caught.value.code == "infeasible_budget"

    run(main)


@pytest.mark.parametrize("answer", [{}, {"error": {"message": "no"}}, {"choices": []}, {"choices": None}, "text", 3])
def test_what_is_no_completion_is_no_answer(tmp_path: Path, answer: Any) -> None:
    async def main() -> None:
        async with scripted(tmp_path, answer) as (router, _):
            assert (await router.ask()).model == "fair"

    run(main)


@pytest.mark.parametrize("choices", [[], [{"index": 0, "finish_reason": "error", "error": {"message": "no"}}], [{}]])
def test_what_a_provider_counted_of_no_answer_is_booked(tmp_path: Path, choices: list[Any]) -> None:
    answer = {"choices": choices, "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}

    async def main() -> None:
        async with scripted(tmp_path, answer, model={"price": {"input": 1.0, "output": 10.0}}) as (router, bodies):
            assert (await router.ask()).model == "fair"
            costs = router.service.metrics.cost.labels("good")._value.get()
            assert costs == pytest.approx(len(bodies) * (10 * 1.0 + 5 * 10.0) / 1e6)

    run(main)


@pytest.mark.parametrize("chunk", [{}, {"error": {"message": "no"}}, {"choices": None}, {"choices": [3]}, 3])
def test_what_is_no_chunk_is_no_stream(tmp_path: Path, chunk: Any) -> None:
    async def main() -> None:
        async with scripted(tmp_path, [chunk]) as (router, _):
            chunks = [each async for each in await router.ask(stream=True)]
            assert {each.model for each in chunks} == {"fair"}

    run(main)


def test_a_name_that_no_header_can_carry_is_encoded(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as plain:
            url = plain.service.config.model_configs["good"].base_url
            async with a_router(
                tmp_path, {"gut 好": model(url, cost=9)}, coefs={"gut 好": 9.0}, newcomers=False
            ) as router:
                body = {"messages": HELLO}
                for sent in (body, body | {"stream": True}):
                    headers = {"authorization": "Bearer test-key"}
                    async with router.http.post(
                        f"{router.url}/v1/chat/completions", json=sent, headers=headers
                    ) as response:
                        assert response.headers["x-p2l-model"] == "gut%20%E5%A5%BD"
                        assert "gut " in await response.text()

    run(main)


def test_an_empty_stream_is_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with scripted(tmp_path, []) as (router, _):
            chunks = [each async for each in await router.ask(stream=True)]
            assert {each.model for each in chunks} == {"fair"}

    run(main)


@pytest.mark.parametrize("count", [10**30, -1, 1.5, True, "7", None])
def test_counts_of_tokens_that_no_answer_has_are_not_believed(count: Any) -> None:
    assert read({"usage": {"prompt_tokens": 3, "completion_tokens": count}})[:2] == (3, None)
