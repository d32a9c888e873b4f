"""What a request needs beyond text: models that lack it are left out, and who refuses it is remembered for a while."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import BadRequestError

from route.providers.base import Fault, ProviderError
from route.request.chat import ChatRequest, features_of
from route.routing.decision import FEATURES, bits_of, features_in
from route.routing.refusals import REMEMBERED_SECONDS, Refusals
from tests.route.router_helpers import HELLO, a_router, served

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"x" * 9).decode()}}
PICTURE = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, IMAGE]}]
ONLY_TEXT = {"images": False}


def said_by(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(messages)}], **more}


@pytest.mark.parametrize(
    ("body", "features"),
    [
        ({"messages": HELLO}, ()),
        (said_by({"type": "text", "text": "hi"}), ()),
        (said_by(IMAGE), ("images",)),
        (said_by({"type": "image_url", "image_url": "https://example.com/a.png"}), ("images",)),
        (said_by({"type": "image_url", "image_url": {"url": "data:application/pdf;base64,eA=="}}), ("files",)),
        (said_by({"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}), ("audio",)),
        (said_by({"type": "file", "file": {"file_data": "data:application/pdf;base64,eA=="}}), ("files",)),
        (said_by({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}), ("video",)),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, ("tools",)),
        ({"messages": HELLO, "tools": [{}], "parallel_tool_calls": True}, ("tools", "parallel_tools")),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, ("json_schema",)),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, ()),
        ({"messages": HELLO, "logprobs": True, "n": 2}, ("logprobs", "n")),
        ({"messages": HELLO, "logprobs": False, "n": 1, "reasoning_effort": "none"}, ()),
        ({"messages": HELLO, "reasoning_effort": "low"}, ("reasoning",)),
        ({"messages": HELLO, "thinking": {"type": "enabled", "budget_tokens": 9}}, ("reasoning",)),
        ({"messages": HELLO, "modalities": ["text", "audio"]}, ("audio_output",)),
    ],
)
def test_what_a_request_needs(body: dict[str, Any], features: tuple[str, ...]) -> None:
    assert set(features_in(features_of(body))) == set(features)


def test_features_are_bits() -> None:
    assert features_in(bits_of(FEATURES)) == FEATURES
    assert features_in(0) == ()


def test_an_image_goes_to_the_model_that_reads_images(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, {"good": {"capabilities": ONLY_TEXT}}) as router:
            assert (await router.ask(PICTURE)).model == "fair"
            assert (await router.ask()).model == "good"
            assert router.counts() == {"good": 1, "fair": 1, "poor": 0}

    asyncio.run(main())


def test_it_is_left_out_before_the_budget_is_spent(tmp_path: Path) -> None:
    """Within a budget between two costs the mixture is of models that can do it."""

    async def main() -> None:
        models = {"good": {"capabilities": {"tools": False}}}
        async with a_router(tmp_path, models, settings={"cost_optimizer": "simple-lp"}) as router:
            body = {"messages": HELLO, "cost": 2.5, "tools": [{"type": "function", "function": {"name": "f"}}]}
            status, decision, _ = await router.post("/v1/route", body)
            assert status == 200
            assert decision["probabilities"] == {"fair": 1.0}

    asyncio.run(main())


def test_where_no_model_can_do_it_the_error_says_what(tmp_path: Path) -> None:
    async def main() -> None:
        models = {name: {"capabilities": ONLY_TEXT} for name in ("good", "fair", "poor")}
        async with a_router(tmp_path, models) as router:
            with pytest.raises(BadRequestError, match="images") as failed:
                await router.ask(PICTURE)
            assert failed.value.code == "unsupported"

    asyncio.run(main())


def test_a_longer_answer_than_a_model_gives_is_asked_of_another_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_router(tmp_path, {"good": {"longest_answer": 100}}) as router:
            assert (await router.ask(max_tokens=101)).model == "fair"
            assert (await router.ask(max_tokens=100)).model == "good"

    asyncio.run(main())


def test_what_all_models_refuse_a_little_is_asked_all_the_same(tmp_path: Path) -> None:
    """A limit of the answer alone is no reason to refuse a request."""

    async def main() -> None:
        models = {name: {"longest_answer": 100} for name in ("good", "fair", "poor")}
        async with a_router(tmp_path, models) as router:
            assert (await router.ask(max_tokens=101)).model == "good"

    asyncio.run(main())


@pytest.mark.parametrize("words", ["This model does not support images", "Bild nicht lesbar"])
def test_a_refusal_nobody_foresaw_goes_on_and_is_remembered(
    tmp_path: Path, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    async def refuse(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append(body)
        if isinstance(body["messages"][0]["content"], list):
            return web.json_response({"error": {"message": words}}, status=422)
        choice = {"index": 0, "message": {"role": "assistant", "content": "text"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", refuse)
        async with served(app) as url, a_router(tmp_path, {"good": {"base_url": f"{url}/v1"}}) as router:
            for _ in range(3):
                assert (await router.ask(PICTURE)).model == "fair"
            assert (await router.ask()).model == "good"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    is_understood = "images" in words
    # What is not understood is asked again: it may have been this one image.
    assert len(seen) == (2 if is_understood else 4)
    records = [record for record in caplog.records if record.message == "a model refuses such requests"]
    assert [record.fields["features"] for record in records] == ([("images",)] if is_understood else [])  # type: ignore[attr-defined]


def incoming(**body: Any) -> ChatRequest:
    whole = {"messages": HELLO, **body}
    return ChatRequest(whole, ("hello there",), None, None, False, False, 100)


def refused(words: str, fault: Fault = Fault.UNSUPPORTED) -> ProviderError:
    return ProviderError(fault, "-", detail=words, status=400)


def test_a_refusal_is_forgotten_after_a_while() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    hot = incoming(temperature=0.2)
    assert refusals.of(hot) == frozenset()
    words = "Unsupported value: 'temperature' does not support 0.2 with this model."
    memo = refusals.learn("m", refused(words), hot)
    assert memo is not None
    assert memo.parameter == "temperature"
    assert refusals.learn("m", refused(words), hot) is None, "said once"
    assert refusals.of(hot) == {"m"}
    assert refusals.of(incoming(top_p=0.2)) == frozenset()
    now[0] = REMEMBERED_SECONDS
    assert refusals.of(hot) == frozenset()


def test_sizes_are_remembered_as_the_provider_names_them() -> None:
    refusals = Refusals()
    words = "max_tokens is too large: 9000. This model supports at most 4096 tokens"
    refusals.learn("m", refused(words), incoming(max_tokens=9000))
    assert refusals.of(incoming(max_tokens=4097)) == {"m"}
    assert refusals.of(incoming(max_tokens=4096)) == frozenset()
    long = "This model's maximum context length is 200 tokens"
    refusals.learn("k", refused(long, Fault.CONTEXT_LENGTH), incoming())
    assert refusals.of(incoming(messages=[{"role": "user", "content": "x" * 4 * 200}])) == {"k"}
    assert refusals.of(incoming()) == frozenset()


def test_many_refusals_of_one_model_take_no_more_memory() -> None:
    refusals = Refusals()
    for number in range(1000):
        name = f"f{number}"
        refusals.learn("m", refused(f"unsupported parameter: '{name}'"), incoming(**{name: 1}))
    assert refusals.of(incoming(f999=1)) == {"m"}
    assert refusals.of(incoming(f0=1)) == frozenset()
