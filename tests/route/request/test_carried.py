"""What a client of Anthropic's Messages says of caching and effort, as models of other protocols receive it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import a_router, served

MARK = {"cache_control": {"type": "ephemeral"}}
LONG_MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
POINT = {"cachePoint": {"type": "default"}}
LONG_POINT = {"cachePoint": {"type": "default", "ttl": "1h"}}
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def upstream_of(folder: Path, sent: dict[str, Any], **model: Any) -> tuple[dict[str, Any], list[str]]:
    """Return what a provider receives of a Messages request, and the fields that the client is told were dropped."""
    received: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        if "converse" in request.path:
            message = {"role": "assistant", "content": [{"text": "hello"}]}
            usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
            return web.json_response({"output": {"message": message}, "stopReason": "end_turn", "usage": usage})
        if "generateContent" in request.path:
            content = {"role": "model", "parts": [{"text": "hello"}]}
            return web.json_response({"candidates": [{"content": content, "finishReason": "STOP"}]})
        message = {"role": "assistant", "content": "hello"}
        return web.json_response({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def main() -> list[str]:
        app = web.Application()
        app.router.add_post("/{path:.*}", answer)
        async with served(app) as url:
            settings = {"base_url": url, "name": "m-1", **model}
            async with a_router(folder, {"good": settings}) as router:
                body = {"max_tokens": 20_000, "direct_model": "good", "model": "-", **sent}
                status, told, headers = await router.post("/v1/messages", body)
                assert status == 200, told
                return headers.get("x-p2l-dropped-fields", "").split(", ")

    dropped = asyncio.run(main())
    return received[-1], dropped


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


CONVERSATION: dict[str, Any] = {
    "system": [text("be kind", **LONG_MARK)],
    "tools": [{**TOOL, **MARK}],
    "messages": [
        {"role": "user", "content": [text("one", **MARK), text("two")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t_1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t_1", "content": "sun", **MARK}]},
    ],
}


def test_marks_become_cache_points_at_bedrock(tmp_path: Path) -> None:
    received, dropped = upstream_of(tmp_path, CONVERSATION, type="bedrock", name=CLAUDE)
    assert received["system"] == [{"text": "be kind"}, LONG_POINT]
    spec = {"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}}
    assert received["toolConfig"]["tools"] == [spec, POINT]
    assert [turn["content"] for turn in received["messages"]] == [
        [{"text": "one"}, POINT, {"text": "two"}],
        [{"toolUse": {"toolUseId": "t_1", "name": "weather", "input": {}}}],
        [{"toolResult": {"toolUseId": "t_1", "content": [{"text": "sun"}]}}, POINT],
    ]
    assert "cache_control" not in dropped


def test_what_is_not_marked_has_no_cache_points(tmp_path: Path) -> None:
    sent = {"messages": [{"role": "user", "content": "cachePoint"}]}
    received, dropped = upstream_of(tmp_path, sent, type="bedrock", name=CLAUDE)
    assert received["messages"] == [{"role": "user", "content": [{"text": "cachePoint"}]}]
    assert dropped == [""]


@pytest.mark.parametrize("model", [{"type": "bedrock", "name": "meta.llama4-17b"}, {"type": "openai"}])
def test_marks_that_a_model_cannot_use_are_left_out_and_named(tmp_path: Path, model: dict[str, Any]) -> None:
    received, dropped = upstream_of(tmp_path, CONVERSATION, **model)
    assert "cache" not in str(received)
    assert "cache_control" in dropped


SAID = {"messages": [{"role": "user", "content": "hi"}]}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 5000}}
EFFORT = {"output_config": {"effort": "low"}}


def test_an_effort_reaches_other_protocols(tmp_path: Path) -> None:
    received, dropped = upstream_of(tmp_path, SAID | EFFORT, type="gemini", name="gemini-3-flash-preview")
    assert received["generationConfig"]["thinkingConfig"]["thinkingLevel"] == "low"
    assert dropped == [""]


def test_a_budget_of_thoughts_reaches_models_that_take_one(tmp_path: Path) -> None:
    received, dropped = upstream_of(tmp_path, SAID | THINKING, type="gemini", name="gemini-2.5-flash")
    assert received["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 5000
    assert dropped == [""]


def test_a_budget_is_an_effort_for_models_that_take_levels(tmp_path: Path) -> None:
    model = {"type": "openai", "capabilities": {"reasoning": True}}
    received, dropped = upstream_of(tmp_path, SAID | THINKING, **model)
    assert received["reasoning_effort"] == "medium"
    assert "thinking_budget" not in received
    assert dropped == [""]


def test_a_model_that_is_not_known_to_think_is_told_of_no_effort(tmp_path: Path) -> None:
    received, dropped = upstream_of(tmp_path, SAID | EFFORT | THINKING, type="openai")
    assert "reasoning_effort" not in received
    assert set(dropped) == {"output_config.effort", "thinking"}
