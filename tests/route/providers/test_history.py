"""An answer of one model may go to another as part of the conversation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from route.providers.accounts import account_for
from route.providers.base import JSON
from route.providers.completions import for_another_model
from tests.route.providers.servers import PATIENT, REQUEST, answering, asking, run
from tests.route.router_helpers import HELLO, a_router, served

CALL: JSON = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SIGNED = CALL | {"extra_content": {"google": {"thought_signature": "S"}}}
DUMPED: JSON = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "audio": None,
    "annotations": [],
    "function_call": None,
    "model": "claude",
    "reasoning_content": "hm",
    "tool_calls": [SIGNED, CALL],
}


def sent(message: Any, *keep: str) -> Any:
    return for_another_model({"messages": [message]}, keep)["messages"][0]


def test_an_answer_goes_back_without_what_only_answers_have() -> None:
    before = dict(DUMPED)
    assert sent(DUMPED) == {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
    assert before == DUMPED


def test_a_provider_may_want_its_own_back() -> None:
    message = sent(DUMPED, "reasoning_content", "extra_content")
    assert message["reasoning_content"] == "hm"
    assert message["tool_calls"] == [SIGNED, CALL]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a", "model": "kept", "refusal": None},
        {"role": "assistant", "content": "a", "a_field_of_tomorrow": 1, "refusal": "no"},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        "no message",
        None,
    ],
)
def test_anything_else_stays_as_it_is(message: Any) -> None:
    assert sent(message) == message


def test_a_request_without_messages_stays_as_it_is() -> None:
    assert for_another_model({"messages": 3}, ()) == {"messages": 3}


@pytest.mark.parametrize(("kind", "thoughts"), [("openai", None), ("deepseek", "hm")])
def test_providers_get_their_own_thoughts_alone(kind: str, thoughts: str | None) -> None:
    options = account_for(kind, "k", None, {}).options
    answer = {"choices": [{"index": 0, "message": {}, "finish_reason": "stop"}]}

    async def test() -> None:
        async with asking(answering(answer), kind, options=options) as (provider, server):
            await provider.chat(REQUEST | {"messages": [DUMPED]}, PATIENT)
            assert server.asked[0].body["messages"][0].get("reasoning_content") == thoughts

    run(test())


@pytest.mark.parametrize("is_direct", [True, False])
def test_thoughts_go_back_to_the_compatible_service_that_wrote_them(tmp_path: Path, is_direct: bool) -> None:
    history = [HELLO[0], {"role": "assistant", "content": "well", "reasoning_content": "hm"}, HELLO[0]]

    async def main() -> None:
        async with a_router(tmp_path) as router:
            body = {"messages": history, **({"direct_model": "good"} if is_direct else {})}
            status, _, headers = await router.post("/v1/chat/completions", body)
            assert status == 200
            received = router.last("good")["messages"][1]
            # Who has answered a routed conversation before is not known.
            assert received.get("reasoning_content") == ("hm" if is_direct else None)
            assert ("x-p2l-dropped-fields" in headers) == (not is_direct)

    run(main())


def test_thoughts_among_the_parts_of_an_answer_are_left_out_elsewhere_and_named(tmp_path: Path) -> None:
    """Mistral's clients send them back so; to a model of another protocol nothing else of the answer is lost."""
    received: list[JSON] = []

    async def answer(request: web.Request) -> web.Response:
        received.append(await request.json())
        content = [{"type": "output_text", "text": "done", "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        told = {"id": "resp_1", "object": "response", "model": "o-1", "status": "completed", "output": [item]}
        return web.json_response({**told, "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/responses", answer)
        async with served(app) as url:
            model = {"type": "openai-responses", "base_url": url, "api_key": "k"}
            async with a_router(tmp_path, {"good": model}) as router:
                said = {"type": "text", "text": "a heron"}
                thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
                messages = [*HELLO, {"role": "assistant", "content": [thought, said]}, *HELLO]
                body = {"messages": messages, "direct_model": "good"}
                status, told, headers = await router.post("/v1/chat/completions", body)
                assert (status, headers.get("x-p2l-dropped-fields")) == (200, "messages.thinking"), told
                assert received[0]["input"][1]["content"] == [{"type": "output_text", "text": "a heron"}]
                messages[1] = {"role": "assistant", "content": [{"type": "picture_of_tomorrow"}, said]}
                status, told, _ = await router.post("/v1/chat/completions", body)
                assert (status, "picture_of_tomorrow" in told["error"]["message"]) == (400, True)
                assert len(received) == 1

    asyncio.run(main())
