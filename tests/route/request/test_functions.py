"""Functions of the first chat completions, at models whose protocol has tools alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import KEY, a_router, served

LOOK = {"name": "look", "description": "Look there.", "parameters": {"type": "object", "properties": {}}}
CONVERSATION = [
    {"role": "user", "content": "what is there?"},
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"at": "sky"}'}},
    {"role": "function", "name": "look", "content": "a heron"},
]
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sea"}}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 5, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {**USE, "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"at": '}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"sea"}'}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_functions_go_out_as_tools_and_calls_come_back_as_functions(tmp_path: Path, stream: bool) -> None:
    received: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        if stream:
            text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS)
            return web.Response(text=text, content_type="text/event-stream")
        usage = {"input_tokens": 5, "output_tokens": 9}
        return web.json_response({"id": "m", "content": [USE], "stop_reason": "tool_use", "usage": usage, "model": "c"})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", answer)
        async with served(app) as url:
            models = {"good": {"type": "anthropic", "base_url": url, "api_key": "k"}}
            async with a_router(tmp_path, models) as router:
                body = {"functions": [LOOK], "function_call": {"name": "look"}, "extra_body": {"direct_model": "good"}}
                told = await router.ask(CONVERSATION, stream=stream, **body)
                if stream:
                    choices = [choice async for chunk in told for choice in chunk.choices]
                    calls = [choice.delta.function_call for choice in choices if choice.delta.function_call]
                    name = "".join(call.name or "" for call in calls)
                    arguments = "".join(call.arguments or "" for call in calls)
                    finish = choices[-1].finish_reason
                else:
                    called = told.choices[0].message.function_call
                    name, arguments, finish = called.name, called.arguments, told.choices[0].finish_reason
                assert (name, json.loads(arguments), finish) == ("look", {"at": "sea"}, "function_call")

    asyncio.run(main())
    [body] = received
    assert body["tools"] == [
        {"name": "look", "description": "Look there.", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    [_, use, result] = [turn["content"] for turn in body["messages"]]
    assert (use[0]["name"], use[0]["input"]) == ("look", {"at": "sky"})
    assert (result[0]["tool_use_id"], result[0]["content"][0]["text"]) == (use[0]["id"], "a heron")
    assert "functions" not in body


def test_functions_pass_as_they_are_to_models_that_know_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path) as router:
            await router.ask(CONVERSATION, functions=[LOOK], function_call="auto")
            sent = router.mocks["good"].bodies[-1]
            assert (sent["functions"], sent["function_call"]) == ([LOOK], "auto")
            assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "function"]

    asyncio.run(main())


OLD_CALL = [
    {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": ""}},
    {"function_call": {"arguments": '{"at": '}},
    {"function_call": {"arguments": '"sea"}'}},
]
ASKED_BY = {
    "chat": ("/v1/chat/completions", {"tools": [{"type": "function", "function": LOOK}]}),
    "messages": ("/v1/messages", {"tools": [{"name": "look", "input_schema": LOOK["parameters"]}], "max_tokens": 50}),
    "responses": ("/v1/responses", {"tools": [{"type": "function", **LOOK}]}),
}


def call_told(dialect: str, events: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Name, arguments and end of a call, by the events of a stream or by a whole answer."""
    if dialect == "messages":
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        [name] = [block["name"] for block in blocks if block["type"] == "tool_use"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        [stop] = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
        return name, "".join(delta["partial_json"] for delta in deltas), stop
    if dialect == "responses":
        [item] = events[-1]["response"]["output"]
        return item["name"], item["arguments"], item["type"]
    choices = [choice for event in events for choice in event["choices"]]
    calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls") or []]
    assert not any("function_call" in choice["delta"] for choice in choices)
    return calls[0]["name"], "".join(call["arguments"] for call in calls), choices[-1]["finish_reason"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dialect", ASKED_BY)
def test_a_provider_that_still_calls_functions_calls_the_tools_of_every_client(
    tmp_path: Path, dialect: str, whole: bool
) -> None:
    """Also one that gives a whole answer where a stream was asked for."""

    async def answer(request: web.Request) -> web.Response:
        assert (await request.json())["tools"][0]["function"]["name"] == "look"
        if whole:
            message = {**OLD_CALL[0], "function_call": {"name": "look", "arguments": '{"at": "sea"}'}}
            choice = {"index": 0, "message": message, "finish_reason": "function_call"}
            return web.json_response({"id": "c", "model": "m", "choices": [choice]})
        choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in OLD_CALL]
        choices.append({"index": 0, "delta": {}, "finish_reason": "function_call"})
        lines = [f"data: {json.dumps({'id': 'c', 'choices': [choice]})}\n\n" for choice in choices]
        return web.Response(text="".join(lines) + "data: [DONE]\n\n", content_type="text/event-stream")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        async with (
            served(app) as url,
            a_router(tmp_path, {"good": {"base_url": f"{url}/v1"}}) as router,
        ):
            path, body = ASKED_BY[dialect]
            asked = {"input" if dialect == "responses" else "messages": CONVERSATION[:1], "direct_model": "good"}
            headers = {"authorization": f"Bearer {KEY}"}
            async with router.http.post(
                f"{router.url}{path}", json={**asked, **body, "stream": True}, headers=headers
            ) as response:
                lines = (await response.text()).splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
        ending = {"chat": "tool_calls", "messages": "tool_use", "responses": "function_call"}[dialect]
        assert call_told(dialect, [json.loads(text) for text in data]) == ("look", '{"at": "sea"}', ending)

    asyncio.run(main())
