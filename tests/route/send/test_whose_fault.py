"""A 400 that the router, its configuration or another model's turn caused: what the second provider receives then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.route.router_helpers import Running, a_router, served

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ROUND = [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
ROUND += [{"role": "tool", "tool_call_id": "call_1", "content": "found"}]

EXAMPLES = {
    "blank blocks": (
        "messages: text content blocks must contain non-whitespace text",
        {"messages": [HI, {"role": "assistant", "content": " "}, HI]},
    ),
    "schema keywords": (
        "output_config.format.schema: For 'integer' type, property 'minimum' is not supported",
        {"messages": [HI], "response_format": FORM},
    ),
    "temperature beside thinking": (
        "`temperature` may only be set to 1 when thinking is enabled.",
        {"messages": [HI], "temperature": 0.2, "reasoning_effort": "low"},
    ),
    "reasoning of earlier turns": (
        "The reasoning_content in the thinking mode must be passed back to the API.",
        {"messages": ROUND, "tools": [TOOL]},
    ),
    "spend limit": (
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
        {"messages": [HI]},
    ),
    "unsupported parameter": (
        "Unsupported parameter: 'presence_penalty' is not supported with this model.",
        {"messages": [HI], "presence_penalty": 0.5},
    ),
}


LACKING = ("schema keywords", "unsupported parameter")
"""What a model is known to lack by these words: it is remembered, and counts against nobody."""


def refusing(words: str) -> web.Application:
    async def refuse(_: web.Request) -> web.Response:
        error = {"message": words, "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=400)

    app = web.Application()
    app.router.add_post("/{path:.*}", refuse)
    return app


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_next_model_gets_the_whole_request_and_answers(tmp_path: Path, example: str, stream: bool) -> None:
    words, sent = EXAMPLES[example]

    async def main() -> None:
        async with served(refusing(words)) as url, a_router(tmp_path, {"good": {"base_url": f"{url}/v1"}}) as router:
            body = {**sent, "stream": stream}
            async with router.http.post(
                f"{router.url}/v1/chat/completions", json=body, headers={"authorization": "Bearer test-key"}
            ) as response:
                assert response.status == 200, await response.text()
                assert response.headers["x-p2l-model"] == "fair"
            received = router.last("fair")
            assert {name: received[name] for name in sent} == sent
            assert "x-p2l-dropped-fields" not in response.headers
            assert faults(router) == (example not in LACKING)

    asyncio.run(main())


def faults(router: Running) -> int:
    """How many failures in a row count against the model that refused."""
    [refused] = [each for each in router.service.fleet.deployments if each.name == "good"]
    return refused.breaker.failures


@pytest.mark.parametrize("example", [name for name in EXAMPLES if name not in (*LACKING, "spend limit")])
def test_the_client_is_told_where_two_models_agree(tmp_path: Path, example: str) -> None:
    words, sent = EXAMPLES[example]

    async def main() -> None:
        async with served(refusing(words)) as url:
            models: dict[str, Any] = {name: {"base_url": f"{url}/v1"} for name in ("good", "fair")}
            async with a_router(tmp_path, models) as router:
                status, body, _ = await router.post("/v1/chat/completions", sent)
                assert (status, router.counts()["poor"]) == (400, 0)
                assert words[:40] in body["error"]["message"]
                assert faults(router) == 0

    asyncio.run(main())
