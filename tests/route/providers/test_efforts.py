"""Efforts and budgets of thoughts reach each provider in the parameters that its models have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from p2l.common.errors import ConfigError
from route.config import load_config
from route.providers.anthropic import messages_request
from route.providers.base import JSON
from route.providers.bedrock import converse_request
from route.providers.gemini import generate_request
from route.providers.openai import dialect_of
from tests.route.router_helpers import HELLO, KEY, a_router, served

COEFS = {"claude-low": 1.0, "claude-high": 2.0}


def arms(name: str, type_: str = "anthropic", **more: Any) -> JSON:
    efforts = {"claude-low": {"effort": "low"}, "claude-high": {"effort": "high"}}
    return {"name": name, "type": type_, "cost": 1.0, "efforts": efforts, **more}


def claude(model: str, effort: str | None = "high", **more: Any) -> JSON:
    request = {"model": model, "messages": HELLO, "reasoning_effort": effort, **more}
    body = messages_request(request, max_tokens=4096)
    assert not {"reasoning_effort", "reasoning", "thinking_budget"} & body.keys(), "no field that the API refuses"
    return body


@pytest.mark.parametrize("model", ["claude-opus-4-7", "claude-sonnet-4-6", "claude-haiku-4-5", "claude-3-7-sonnet"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_two_arms_send_different_bodies(tmp_path: Path, model: str, path: str) -> None:
    """Translated and native alike; what arrives is what the model takes."""
    bodies: list[JSON] = []

    async def message(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        usage = {"input_tokens": 1, "output_tokens": 1}
        content = [{"type": "text", "text": "hi"}]
        frame = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
        return web.json_response({**frame, "content": content, "stop_reason": "end_turn", "usage": usage})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", message)
        async with served(app) as url:
            models = {"claude": arms(model, base_url=url, api_key="k")}
            async with a_router(tmp_path, models, coefs=COEFS) as router:
                for arm in COEFS:
                    body = {
                        "model": "auto",
                        "direct_model": arm,
                        "messages": HELLO,
                        "max_tokens": 20_000,
                        "temperature": 0.5,
                    }
                    headers = {"authorization": f"Bearer {KEY}"}
                    status, _, _ = await router.post(path, body, headers)
                    assert status == 200

    asyncio.run(main())
    low, high = bodies
    assert low != high
    efforts = [body.get("output_config", {}).get("effort") for body in bodies]
    budgets = [body.get("thinking", {}).get("budget_tokens") for body in bodies]
    assert efforts == ["low", "high"] or (efforts == [None, None] and budgets[0] < budgets[1] < 20_000)
    assert all("temperature" not in body for body in bodies), "which excludes thinking"


@pytest.mark.parametrize(
    ("model", "effort", "fields"),
    [
        ("claude-opus-4-7", "xhigh", {"output_config": {"effort": "xhigh"}, "thinking": {"type": "adaptive"}}),
        ("claude-opus-4-6", "xhigh", {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}),
        ("claude-opus-4-6", "max", {"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}}),
        ("claude-haiku-4-5-20251001", "low", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("claude-sonnet-4-20250514", "medium", {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        ("claude-opus-4-7", "none", {"thinking": {"type": "disabled"}}),
        ("my-claude", "low", {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}),
    ],
)
def test_a_claude_gets_what_its_version_takes(model: str, effort: str, fields: JSON) -> None:
    body = claude(model, effort)
    assert {name: body.get(name) for name in ("output_config", "thinking") if name in body} == fields
    assert body["max_tokens"] > body["thinking"].get("budget_tokens", 0)


def test_thoughts_stay_within_the_clients_limit() -> None:
    assert claude("claude-haiku-4-5", max_tokens=6000)["thinking"]["budget_tokens"] == 3000
    assert claude("claude-haiku-4-5", max_tokens=6000)["max_tokens"] == 6000
    assert "thinking" not in claude("claude-haiku-4-5", max_tokens=500)
    assert claude("claude-haiku-4-5", None, thinking_budget=2000)["thinking"]["budget_tokens"] == 2000
    assert claude("claude-haiku-4-5", None, reasoning={"max_tokens": 3000})["thinking"]["budget_tokens"] == 3000


def test_thoughts_give_way_to_a_forced_tool() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    body = claude("claude-opus-4-7", tools=tools, tool_choice="required")
    assert "thinking" not in body
    assert body["output_config"] == {"effort": "high"}


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-3-flash-preview", "minimal", {"thinkingLevel": "minimal"}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "low"}),
        ("gemini-3.5-flash", "high", {"thinkingLevel": "high"}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1024}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24_576}),
    ],
)
def test_gemini_gets_a_level_or_a_budget(model: str, effort: str, config: JSON) -> None:
    body = generate_request({"model": model, "messages": HELLO, "reasoning_effort": effort})
    assert body["generationConfig"]["thinkingConfig"] == config
    own = {"generationConfig": {"thinkingConfig": {"thinkingBudget": 7}}}
    kept = generate_request({"model": model, "messages": HELLO, "reasoning_effort": effort, **own})
    assert kept["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 7}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", {"thinking": {"type": "enabled", "budget_tokens": 10_000}}),
        (
            "anthropic.claude-opus-4-6-v1",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        ("openai.gpt-oss-120b-1:0", {"reasoning_effort": "high"}),
        ("amazon.nova-2-lite-v1:0", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}),
    ],
)
def test_bedrock_passes_it_to_each_maker(model: str, fields: JSON) -> None:
    request = {"model": model, "messages": HELLO, "reasoning_effort": "high", "max_tokens": 20_000}
    assert converse_request(request)["additionalModelRequestFields"] == fields


def test_open_models_have_a_switch() -> None:
    prepare = dialect_of({"dialect": "open"})
    on, off = (prepare({"model": "Qwen/Qwen3-8B", "reasoning_effort": effort}) for effort in ("high", "none"))
    assert (on["chat_template_kwargs"], off["chat_template_kwargs"]) == (
        {"enable_thinking": True},
        {"enable_thinking": False},
    )
    assert "reasoning_effort" not in on
    assert prepare({"model": "openai/gpt-oss-20b", "reasoning_effort": "low"})["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("type_", "name", "told"),
    [
        ("anthropic", "claude-3-5-haiku-latest", "no effort 'low'"),
        ("gemini", "gemini-2.0-flash", "no effort 'low'"),
        ("bedrock", "meta.llama3-70b-instruct-v1:0", "no effort 'low'"),
        ("openai", "gpt-4.1", "no effort 'low'"),
        ("vllm", "Qwen/Qwen3-8B", "is sent as the very request of claude-low"),
    ],
)
def test_an_effort_that_a_model_lacks_is_refused_at_start(tmp_path: Path, type_: str, name: str, told: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(str({"model_configs": {"m": arms(name, type_)}}))
    with pytest.raises(ConfigError, match=told):
        load_config(path)


def test_a_mistyped_effort_is_refused_at_start_with_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    model = {"name": "gpt-5", "type": "openai", "efforts": {"m-high": {"effort": "hihg", "cost": 1}}}
    path.write_text(str({"model_configs": {"m": model}}))
    with pytest.raises(ConfigError, match=r"efforts\.m-high\.effort.*did you mean 'high'"):
        load_config(path)
