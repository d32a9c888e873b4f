"""Azure's paths, and models that take no sampling parameters or do not stream."""

from __future__ import annotations

import pytest

from route.providers.accounts import make_provider
from route.providers.base import JSON, Account
from route.providers.openai import azure, for_o1, for_reasoning
from tests.route.providers.servers import KEY, PATIENT, REQUEST, Asked, answering, asking, collected, run, serving

SAMPLED = {"temperature": 0, "top_p": 0.5, "top_k": 3, "presence_penalty": 1, "logprobs": True, "logit_bias": {}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
COMPLETION: JSON = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "o1",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"total_tokens": 5},
}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", "/openai/deployments/m-1/chat/completions?api-version=v%2B1"),
        ("/openai/", "/openai/deployments/m-1/chat/completions?api-version=v%2B1"),
        ("/openai/deployments/mine", "/openai/deployments/mine/chat/completions?api-version=v%2B1"),
        ("/openai/v1", "/openai/v1/chat/completions"),
    ],
)
def test_azure_has_the_deployment_in_the_path(path: str, asked: str) -> None:
    async def test() -> Asked:
        async with serving(answering(COMPLETION)) as server:
            provider = azure(Account(server.url + path, KEY, options={"api_version": "v+1"}))
            await provider.chat(REQUEST, PATIENT)
            await provider.close()
            return server.asked[0]

    came = run(test())
    assert came.path == asked
    assert came.headers["api-key"] == KEY
    assert "Authorization" not in came.headers


def test_reasoning_models_get_no_sampling_parameters() -> None:
    body = for_reasoning(REQUEST | SAMPLED | {"max_tokens": 7, "reasoning_effort": "low"})
    assert body == REQUEST | {"max_completion_tokens": 7, "reasoning_effort": "low"}
    both = for_reasoning({"max_tokens": 7, "max_completion_tokens": 9})
    assert both == {"max_completion_tokens": 9}
    assert for_reasoning({"max_tokens": None}) == {}


def test_o1_hears_the_system_from_the_user() -> None:
    messages = [{"role": role, "content": role} for role in ("system", "user", "developer", "assistant")]
    roles = [message["role"] for message in for_o1({"messages": messages})["messages"]]
    assert roles == ["user", "user", "user", "assistant"]
    assert [message["role"] for message in messages] == ["system", "user", "developer", "assistant"]


@pytest.mark.parametrize("wants_usage", [False, True])
def test_o1_does_not_stream_and_its_answer_comes_as_one_chunk(wants_usage: bool) -> None:
    request = REQUEST | SAMPLED | {"stream": True, "stream_options": {"include_usage": wants_usage}}

    async def test() -> None:
        async with asking(answering(COMPLETION), "openai-o1") as (provider, server):
            first, *rest = await collected(provider, request)
            assert server.asked[0].body == REQUEST
            (choice,) = first["choices"]
            assert choice["delta"] == MESSAGE | {"tool_calls": [{"index": 0, **CALL}]}
            assert choice["finish_reason"] == "tool_calls"
            assert [chunk["usage"] for chunk in rest] == [COMPLETION["usage"]] * wants_usage

    run(test())


def test_reasoning_models_are_asked_by_their_kind() -> None:
    async def test() -> None:
        async with serving(answering(COMPLETION)) as server:
            provider = make_provider("openai-reasoning", Account(server.url, KEY))
            assert await provider.chat(REQUEST | SAMPLED, PATIENT) == COMPLETION
            assert server.asked[0].body == REQUEST
            await provider.close()

    run(test())
