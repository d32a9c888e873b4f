"""Recorded traffic of real providers through a router: answers are told as recorded, requests arrive whole."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded.replay import DIALECTS, NATIVE, differences, replaying
from benchmarks.recorded.streamed import streamed
from benchmarks.recorded.telling import told_by_provider
from benchmarks.recorded.traffic import Exchange, read_exchanges

SAMPLES = Path(__file__).parent / "recorded_samples"
RECORDED = Path(os.environ.get("P2L_RECORDED") or Path(__file__).parents[3] / "shared" / "cassettes")
EVERY = 40
"""Of the recorded interactions, one in so many is played here; `python -m benchmarks.recorded` plays all."""
LEFT_OUT = {"models", "preset", "background"}
"""Fields of recorded requests that are the router's business."""


def exchanges(kind: str) -> Iterator[Exchange]:
    """The samples of a protocol, and where there is recorded traffic some of that."""
    if (SAMPLES / f"{kind}.jsonl").exists():
        yield from read_exchanges(SAMPLES, kind)
    if (RECORDED / f"{kind}.jsonl.gz").exists():
        yield from list(read_exchanges(RECORDED, kind))[::EVERY]


def usable(exchange: Exchange) -> bool:
    """Whether an answer is one: some recorded ones are errors within a 200, or no JSON at all."""
    try:
        return exchange.status == 200 and told_by_provider(exchange).finish not in ("", "error")
    except (ValueError, LookupError, TypeError):
        return False


@pytest.mark.parametrize("kind", ["openai-chat", "anthropic", "gemini", "bedrock", "openai-responses", "cohere"])
def test_answers_are_told_as_recorded(kind: str) -> None:
    played = [exchange for exchange in exchanges(kind) if usable(exchange)]
    if not played:
        pytest.skip("no recorded traffic of this protocol")

    async def main() -> None:
        async with replaying() as replay:
            for exchange in played:
                expected = told_by_provider(exchange)
                for name in DIALECTS:
                    # Of Bedrock's streams, which are binary, none is recorded.
                    for stream in {kind != "bedrock", exchange.is_stream}:
                        told = await replay.told(exchange, DIALECTS[name], stream=stream)
                        expected.tokens = expected.tokens or told.tokens  # some count none
                        assert told == expected, (exchange.name, name, stream)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["openai-chat", "anthropic", "gemini", "openai-responses", "cohere"])
def test_whole_answers_are_told_the_same_when_they_come_as_streams(kind: str) -> None:
    played = [exchange for exchange in exchanges(kind) if usable(exchange) and not exchange.is_stream]

    async def main() -> None:
        async with replaying() as replay:
            for exchange in played:
                expected = told_by_provider(exchange)
                if exchange.kind == "openai-responses" and exchange.answer.get("status") == "queued":
                    continue  # it is made in the background, and has no end yet
                for name in DIALECTS:
                    told = await replay.told(streamed(exchange), DIALECTS[name], stream=True)
                    expected.tokens = expected.tokens or told.tokens
                    assert told == expected, (exchange.name, name)

    asyncio.run(main())


@pytest.mark.parametrize("kind", NATIVE)
def test_requests_arrive_whole_at_their_own_protocol(kind: str) -> None:
    async def main() -> None:
        async with replaying() as replay:
            for exchange in exchanges(kind):
                if exchange.status != 200:
                    continue
                status, error, received, headers = await replay.passed(exchange, kind)
                if not usable(exchange):
                    continue
                assert status == 200, (exchange.name, error)
                changed = set(differences(exchange.request, received))
                assert changed <= LEFT_OUT, (exchange.name, changed)
                dropped = headers.get("x-p2l-dropped-fields", "").split(", ")
                assert changed <= set(dropped), (exchange.name, changed, dropped)

    asyncio.run(main())


def test_betas_pass_by_name_and_others_are_told() -> None:
    async def main() -> None:
        async with replaying() as replay:
            exchange = next(each for each in read_exchanges(SAMPLES, "anthropic") if each.headers)
            _, _, _, headers = await replay.passed(exchange, "anthropic")
            received = replay.stand_in.received[-1].headers
            assert received["anthropic-beta"] == "interleaved-thinking-2025-05-14"
            assert headers["x-p2l-dropped-fields"] == "anthropic-beta.secret-beta-2025-01-01"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "path", "changes"),
    [
        ("anthropic", "/v1/messages", {"tool_choice": {"type": "of_tomorrow"}}),
        ("anthropic", "/v1/messages", {"output_config": {"format": {"type": "of_tomorrow"}}}),
        ("anthropic", "/v1/messages", {"messages": [{"role": "of_tomorrow", "content": "hi"}]}),
        ("openai-responses", "/v1/responses", {"input": [{"role": "of_tomorrow", "content": "hi"}]}),
        ("openai-responses", "/v1/responses", {"text": {"format": {"type": "of_tomorrow", "syntax": "lark"}}}),
    ],
)
def test_kinds_of_tomorrow_pass_to_their_own_protocol_and_are_refused_elsewhere(
    kind: str, path: str, changes: dict[str, Any]
) -> None:
    async def main() -> None:
        async with replaying() as replay:
            replay.stand_in.exchange = next(each for each in exchanges(kind) if usable(each) and not each.is_stream)
            tool = {"name": "look", "input_schema": {"type": "object"}}
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": [tool]}
            body = {**({"input": "hi"} if kind == "openai-responses" else body), **changes}
            status, _, text = await replay.post(path, {**body, "direct_model": kind}, {})
            assert status == 200, text
            received = replay.stand_in.received[-1].body
            assert {name: received[name] for name in changes} == changes
            status, _, text = await replay.post(path, {**body, "direct_model": "gemini"}, {})
            assert (status, "of the models that may answer none" in text) == (400, True)
            assert len(replay.stand_in.received) == 1

    asyncio.run(main())


def test_a_malformed_thinking_is_refused_whoever_would_answer() -> None:
    async def main() -> None:
        async with replaying() as replay:
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "thinking": "much"}
            for model in ("anthropic", "gemini"):
                status, _, text = await replay.post("/v1/messages", {**body, "direct_model": model}, {})
                assert (status, "thinking: must be an object" in text) == (400, True)

    asyncio.run(main())


def test_what_only_its_own_protocol_has_is_refused_elsewhere() -> None:
    async def main() -> None:
        async with replaying() as replay:
            for kind, place in (("anthropic", "container"), ("openai-responses", "input[4]")):
                exchange = next(iter(read_exchanges(SAMPLES, kind)))
                status, error, received, _ = await replay.passed(exchange, "gemini")
                assert status == 400
                assert place in error
                assert received == {}

    asyncio.run(main())


def test_a_service_without_responses_is_asked_for_chat_completions() -> None:
    async def main() -> None:
        async with replaying() as replay:
            exchange = next(each for each in read_exchanges(SAMPLES, "openai-chat") if not each.is_stream)
            told = await replay.told(exchange, DIALECTS["responses"], stream=False)
            assert told == told_by_provider(exchange)
            assert [each.path.rpartition("/v1/")[2] for each in replay.stand_in.received] == [
                "responses",
                "chat/completions",
            ]

    asyncio.run(main())


def test_counts_are_the_providers_own_or_said_to_be_estimates() -> None:
    async def main() -> None:
        async with replaying() as replay:
            counts = Exchange("count", "anthropic", "", {}, 200, "application/json", {"input_tokens": 42})
            replay.stand_in.exchange = counts
            body = {"messages": [{"role": "user", "content": "hi"}], "direct_model": "anthropic", "model": "claude"}
            status, headers, text = await replay.post("/v1/messages/count_tokens", body, {})
            assert (status, json.loads(text), "x-p2l-estimated" in headers) == (200, {"input_tokens": 42}, False)
            asked = replay.stand_in.received[-1]
            assert (asked.path, asked.body) == (
                "/anthropic/v1/messages/count_tokens",
                {"messages": body["messages"], "model": "m-1"},
            )
            body["direct_model"] = "gemini"
            status, headers, text = await replay.post("/v1/messages/count_tokens", body, {})
            assert (status, json.loads(text), headers["x-p2l-estimated"]) == (200, {"input_tokens": 1}, "true")
            body = {"input": "hi", "direct_model": "openai-responses"}
            _, _, text = await replay.post("/v1/responses/input_tokens", body, {})
            assert json.loads(text) == {"input_tokens": 42}
            status, _, text = await replay.post("/v1/messages/batches", {}, {})
            assert (status, '"type": "not_found_error"' in text) == (404, True)

    asyncio.run(main())


def test_a_conversation_is_compacted_where_the_provider_can() -> None:
    async def main() -> None:
        async with replaying() as replay:
            output = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "e"}]
            answer = {"id": "resp_1", "object": "response.compaction", "output": output, "usage": {"input_tokens": 9}}
            replay.stand_in.exchange = Exchange("c", "openai-responses", "", {}, 200, "application/json", answer)
            body = {"input": "hi", "model": "gpt", "direct_model": "openai-responses"}
            status, _, text = await replay.post("/v1/responses/compact", body, {})
            assert status == 200, text
            assert json.loads(text)["output"] == output
            asked = replay.stand_in.received[-1]
            assert (asked.path, asked.body) == (
                "/openai-responses/v1/responses/compact",
                {"input": "hi", "model": "m-1"},
            )
            status, _, text = await replay.post("/v1/responses/compact", {**body, "direct_model": "gemini"}, {})
            assert (status, "compact" in text) == (400, True)

    asyncio.run(main())
