"""Tokens and dollars, as each provider counts them."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from route.providers import usage as counts
from route.providers.base import JSON
from route.providers.usage import Rates, TokenCounts, read, to_messages, to_responses

_RECORDED = Path(os.environ.get("P2L_RECORDED") or Path(__file__).parents[4] / "shared" / "cassettes")
_CLAUDE = Rates(3, 15, cached=0.3)


def of(usage: JSON | None) -> TokenCounts:
    return read({"usage": usage})


def chat(prompt: int, completion: int, total: int | None = None, **details: int) -> JSON:
    """Return counts in the form of OpenAI's protocol."""
    told: JSON = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    if "cached" in details:
        told["prompt_tokens_details"] = {"cached_tokens": details["cached"]}
    return told | {"completion_tokens_details": {"reasoning_tokens": details.get("reasoning", 0)}}


@pytest.mark.parametrize(
    ("told", "prompt", "completion"),
    [
        (chat(1000, 100, 4100, reasoning=3000), 1000, 3100),
        (chat(1000, 100, reasoning=3000), 1000, 3100),
        (chat(66, 6, 100), 66, 34),
        (chat(9, 90, 99, reasoning=80), 9, 90),
        (chat(10, 5, 115, cached=100), 110, 5),
    ],
    ids=[
        "xai",
        "thoughts without a total",
        "gemini's thoughts in the total alone",
        "openai",
        "cached beside the prompt",
    ],
)
def test_all_that_was_made_is_counted(told: JSON, prompt: int, completion: int) -> None:
    normal = counts.usage_in({"usage": told})
    assert of(normal)[:2] == (prompt, completion)
    assert normal is not None
    assert normal["total_tokens"] == prompt + completion
    assert counts.of_chat(normal) == normal, "what is normal stays"


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_tokens_details": {"cached_tokens": 64}},
        {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        {"cached_tokens": 64},
        {"num_cached_tokens": 64},
    ],
    ids=["openai", "deepseek", "moonshot", "mistral"],
)
def test_what_was_read_from_a_cache_is_found_by_any_name(told: JSON) -> None:
    assert of(counts.of_chat({"prompt_tokens": 100, "completion_tokens": 5, **told})).cached == 64


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
        {"choices": [{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}]},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}},
    ],
    ids=["openai", "moonshot", "groq"],
)
def test_usage_is_found_wherever_a_stream_has_it(chunk: JSON) -> None:
    assert of(counts.usage_in(chunk))[:2] == (7, 3)


@pytest.mark.parametrize(
    ("kinds", "dollars"),
    [({}, 0.375), ({"ephemeral_5m_input_tokens": 100_000}, 0.375), ({"ephemeral_1h_input_tokens": 100_000}, 0.6)],
)
def test_writing_to_a_cache_has_its_price(kinds: JSON, dollars: float) -> None:
    told = {"input_tokens": 0, "cache_creation_input_tokens": 100_000, "output_tokens": 0, "cache_creation": kinds}
    usage = counts.of_messages(told)
    assert _CLAUDE.cost(of(usage)) == pytest.approx(dollars)
    assert to_messages(usage)["cache_creation_input_tokens"] == 100_000
    converse = {
        "inputTokens": 0,
        "outputTokens": 0,
        "cacheWriteInputTokens": 100_000,
        "cacheDetails": [{"ttl": "1h" if "ephemeral_1h_input_tokens" in kinds else "5m", "inputTokens": 100_000}],
    }
    assert _CLAUDE.cost(of(counts.of_converse(converse))) == pytest.approx(dollars)


def test_compaction_is_paid_beside_the_answer() -> None:
    steps = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1000},
    ]
    told = {"input_tokens": 23_000, "output_tokens": 1000, "iterations": steps}
    assert of(counts.of_messages(told))[:2] == (203_000, 4500)


def test_parts_of_a_prompt_are_each_paid_once() -> None:
    rates = Rates(10, 100, cached=1, written=20, heard=40, spoken=200, searches=10)
    usage = TokenCounts(1000, 50, cached=400, written=100, heard=200, spoken=30, searches=2)
    per_million = 300 * 10 + 400 * 1 + 100 * 20 + 200 * 40 + 20 * 100 + 30 * 200
    assert rates.cost(usage) == pytest.approx(per_million / 1e6 + 2 * 10 / 1000)
    assert rates.cost(TokenCounts(10, 0, cached=10**6, written=10**6)) == pytest.approx(10 * 20 / 1e6), (
        "no more than there are"
    )


@pytest.mark.parametrize(
    ("told", "dollars"),
    [
        ({"cost": 0.5}, 0.5),
        ({"cost": {"total_cost": 0.25}}, 0.25),
        ({"cost_in_usd_ticks": 25_000_000}, 0.0025),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 0.21),
        ({"cost": 0.01, "is_byok": True}, None),
    ],
)
def test_dollars_are_read_in_each_providers_unit(told: JSON, dollars: float | None) -> None:
    assert of({"prompt_tokens": 1, "completion_tokens": 1, **told}).dollars == pytest.approx(dollars)


def test_whole_numbers_may_be_written_as_others() -> None:
    assert of({"prompt_tokens": 100.0, "completion_tokens": 5.0, "total_tokens": 105.0})[:2] == (100, 5)
    assert of({"prompt_tokens": 0.5, "completion_tokens": 5})[:2] == (None, 5)


def test_what_is_not_counted_is_not_zero() -> None:
    readers = (counts.of_messages, counts.of_generate, counts.of_converse, counts.of_responses, counts.of_cohere)
    assert [reader({}) for reader in readers] == [None] * len(readers)


def recorded(name: str) -> Iterator[JSON]:
    """Yield every answer, or event of one, of a protocol."""
    path = _RECORDED / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip("needs shared/cassettes")
    for line in gzip.decompress(path.read_bytes()).splitlines():
        interaction = json.loads(line)
        response = interaction["response"]
        if interaction["status"] != 200:
            continue
        if isinstance(response, dict):
            yield response
        for data in re.findall(r"^data: ?(\{.*\})\s*$", response, re.MULTILINE) if isinstance(response, str) else ():
            yield json.loads(data)


def counted(answer: JSON, place: str) -> JSON | None:
    told = answer.get(place) or (answer.get("response") or {}).get(place)
    return told if isinstance(told, dict) else None


@pytest.mark.parametrize(
    ("name", "place", "reader", "totals"),
    [
        ("openai-chat", "usage", counts.of_chat, ("total_tokens",)),
        ("openai-responses", "usage", counts.of_responses, ("total_tokens",)),
        ("gemini", "usageMetadata", counts.of_generate, ("totalTokenCount",)),
        ("bedrock", "usage", counts.of_converse, ("totalTokens",)),
        ("anthropic", "usage", counts.of_messages, ()),
        ("cohere", "usage", counts.of_cohere, ()),
    ],
)
def test_recorded_totals_add_up(
    name: str, place: str, reader: Callable[[JSON], JSON | None], totals: tuple[str, ...]
) -> None:
    checked = 0
    for answer in recorded(name):
        told = counted(answer, place)
        usage = None if told is None else reader(told)
        if told is None or usage is None:
            continue
        made = of(usage)
        assert made.prompt is not None
        assert made.completion is not None
        for total in totals:
            assert told.get(total, usage["total_tokens"]) == usage["total_tokens"] == made.prompt + made.completion
        assert max(made.cached, made.written) <= made.prompt
        assert made.reasoning <= made.completion
        tells_same(usage, made)
        checked += 1
    assert checked > 10


def tells_same(usage: JSON, made: TokenCounts) -> None:
    """Check that clients of each dialect are told the same."""
    message: dict[str, Any] = to_messages(usage)
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert (sum(message[name] for name in names), message["output_tokens"]) == made[:2]
    again = of(counts.of_messages(message))
    assert (again.written, again.written_for_hour) == (made.written, made.written_for_hour)
    assert again.cached == min(made.cached, (made.prompt or 0) - made.written)
    response = of(counts.of_responses(to_responses(usage)))
    assert response[:2] == made[:2]
    assert (response.cached, response.written, response.reasoning) == (made.cached, made.written, made.reasoning)
