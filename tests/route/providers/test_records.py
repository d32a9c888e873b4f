"""The records that providers keep of answers whose end nobody saw."""

from __future__ import annotations

from typing import Any

import pytest

from route.providers.accounts import account_for
from route.providers.base import JSON, Provider, ProviderError, Recording
from route.providers.usage import read
from tests.route.providers.servers import PATIENT, answering, asking, refusing, run

GENERATION: JSON = {
    "id": "gen-1",
    "model": "anthropic/claude-4.5-sonnet",
    "provider_name": "Anthropic",
    "total_cost": 0.0015,
    "native_tokens_prompt": 100,
    "native_tokens_completion": 25,
    "native_tokens_reasoning": 5,
    "native_tokens_cached": 30,
    "cancelled": True,
}
RESPONSE: JSON = {
    "id": "resp_1",
    "model": "gpt-5-2025-08-07",
    "status": "incomplete",
    "service_tier": "flex",
    "output": [],
    "usage": {"input_tokens": 100, "output_tokens": 25, "input_tokens_details": {"cached_tokens": 30}},
}


def records_of(provider: Provider) -> Recording:
    assert isinstance(provider, Recording)
    return provider


@pytest.mark.parametrize(
    ("kind", "answer", "identifier", "path"),
    [
        ("openrouter", {"data": GENERATION}, "gen-1", "/generation?id=gen-1"),
        ("openai", RESPONSE, "resp_1", "/responses/resp_1"),
    ],
)
def test_a_record_is_read_as_usage(kind: str, answer: JSON, identifier: str, path: str) -> None:
    options = account_for(kind, "k", None, {}).options

    async def main() -> None:
        async with asking(answering(answer), kind, options=options) as (provider, server):
            records = records_of(provider)
            assert records.keeps(identifier)
            chunk = await records.recorded(identifier, PATIENT)
            assert server.asked[0].path == path
            usage = read(chunk)
            assert (usage.prompt, usage.completion, usage.cached) == (100, 25, 30)
            if kind == "openrouter":
                assert (usage.dollars, usage.reasoning, chunk["provider"]) == (0.0015, 5, "Anthropic")
            else:
                assert (usage.tier, chunk["model"]) == ("flex", "gpt-5-2025-08-07")

    run(main())


@pytest.mark.parametrize(
    "answer", [{"data": {"id": "gen-1"}}, {"data": None}, [], {"data": {**GENERATION, "native_tokens_prompt": None}}]
)
def test_a_record_without_counts_is_none_yet(answer: Any) -> None:
    async def main() -> None:
        async with asking(answering(answer), "openrouter", options={"record": "generation"}) as (provider, _):
            with pytest.raises(ProviderError):
                await records_of(provider).recorded("gen-1", PATIENT)

    run(main())


def test_a_record_that_is_not_there_is_a_refusal() -> None:
    async def main() -> None:
        async with asking(refusing(404), "openrouter", options={"record": "generation"}) as (provider, _):
            with pytest.raises(ProviderError):
                await records_of(provider).recorded("gen-1", PATIENT)

    run(main())


def test_chat_completions_of_openai_have_no_record() -> None:
    async def main() -> None:
        async with asking(answering({}), "openai", options={"responses": True}) as (provider, _):
            assert not records_of(provider).keeps("chatcmpl-1")

    run(main())
