"""Recorded answers of real providers through CoEval's caller: the same text and tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.recorded.telling import told_by_provider
from benchmarks.recorded.traffic import KINDS, Exchange, StandIn, standing_in
from coeval.calling.calls import CallError, Reply
from tests.coeval.calling.calling_helpers import call, caller_of, model_at
from tests.route.test_recorded import exchanges, usable


async def asked(folder: Path, stand_in: StandIn, exchange: Exchange) -> Reply | CallError:
    """What a caller makes of a recorded answer."""
    stand_in.exchange = exchange
    interface = KINDS[exchange.kind]
    model = model_at(stand_in.url, interface=interface)
    async with caller_of(folder) as caller:
        try:
            return await caller.ask(call(model))
        except CallError as error:
            return error


@pytest.mark.parametrize("kind", ["openai-chat", "anthropic", "gemini", "bedrock", "cohere"])
def test_replies_are_told_as_recorded(kind: str, tmp_path: Path) -> None:
    played = [each for each in exchanges(kind) if usable(each) and not each.is_stream]
    if not played:
        pytest.skip("no recorded traffic of this protocol")

    async def main() -> None:
        async with standing_in(("m-1",)) as stand_in:
            for exchange in played:
                expected = told_by_provider(exchange)
                reply = await asked(tmp_path, stand_in, exchange)
                if not expected.text.strip() or expected.finish == "content_filter":
                    assert isinstance(reply, CallError), exchange.name  # CoEval asks for text
                    continue
                assert isinstance(reply, Reply), (exchange.name, reply)
                assert reply.text == expected.text.strip(), exchange.name
                if expected.tokens is not None and sum(expected.tokens):
                    assert reply.counted, exchange.name
                    assert (reply.prompt_tokens, reply.completion_tokens) == expected.tokens, exchange.name

    asyncio.run(main())
