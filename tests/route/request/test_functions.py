"""Functions of the first chat completions, at models whose protocol has tools alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import a_router, served

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
