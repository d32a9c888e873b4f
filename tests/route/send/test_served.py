"""Names under which providers answer: which are those of the model that was asked for."""

from __future__ import annotations

import pytest

from route.send.served import Served, is_among, is_same_model

SAME = [
    # Recorded of real providers.
    ("gpt-4o", "gpt-4o-2024-08-06"),
    ("gpt-5.4-mini", "gpt-5.4-mini-2026-03-17"),
    ("gpt-5.6", "gpt-5.6-sol"),
    ("deepseek-reasoner", "deepseek-v4-flash"),
    ("compound-beta", "groq/compound"),
    ("llama3.3-70b", "llama-3.3-70b"),
    ("anthropic/claude-sonnet-4.5", "anthropic/claude-4.5-sonnet-20250929"),
    ("openai/gpt-5-mini", "openai/gpt-5-mini-2025-08-07"),
    ("claude-sonnet-4-0", "claude-sonnet-4-20250514"),
    ("claude-3-opus-latest", "claude-3-opus-20240229"),
    ("gemini-2.5-pro-preview-03-25", "models/gemini-2.5-pro"),
    # Published.
    ("gpt-4-turbo", "gpt-4-turbo-2024-04-09"),
    ("gpt-4-turbo-preview", "gpt-4-0125-preview"),
    ("gpt-3.5-turbo", "gpt-3.5-turbo-0125"),
    ("grok-4", "grok-4-0709"),
    ("gemini-flash-latest", "gemini-3-flash-preview"),
    ("gemini-1.5-flash", "gemini-1.5-flash-002"),
    ("mistral-large-latest", "mistral-large-2411"),
    ("claude-sonnet-4@20250514", "claude-sonnet-4-20250514"),
    ("deepseek/deepseek-r1:free", "deepseek/deepseek-r1"),
    ("meta-llama/Llama-3.1-8B-Instruct:fireworks-ai", "accounts/fireworks/models/llama-v3p1-8b-instruct"),
    ("llama3.2", "llama3.2:latest"),
    ("gpt-4o-2024-08-06", "gpt-4o"),
    ("openrouter/auto", "x-ai/grok-4"),
    ("anything", ""),
]
OTHERS = [
    ("google/gemini-2.0-flash-exp:free", "x-ai/grok-4"),  # recorded: a fallback of OpenRouter's
    ("frontier", "other-vendor/tiny-1b"),
    ("gpt-4o", "gpt-4o-mini-2024-07-18"),
    ("gpt-4o-2024-08-06", "gpt-4o-2024-11-20"),
    ("gpt-5.1", "gpt-5-2025-08-07"),
    ("o3", "o3-mini"),
    ("claude-opus-4-1", "claude-opus-4-20250514"),
    ("claude-sonnet-4", "claude-sonnet-4-5-20250929"),
    ("claude-3-5-sonnet-latest", "claude-3-5-haiku-20241022"),
    ("gemini-flash-latest", "gemini-3-flash-lite"),
    ("gemini-2.5-flash", "gemini-2.5-flash-lite"),
    ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-8B"),
    ("llama3.2:3b", "llama3.2:1b"),
    ("openai/gpt-4o", "reseller/gpt-4o"),
]


@pytest.mark.parametrize(("asked", "served"), SAME)
def test_other_spellings_snapshots_and_aliases_are_the_model_that_was_asked_for(asked: str, served: str) -> None:
    assert is_same_model(asked, served)


@pytest.mark.parametrize(("asked", "served"), OTHERS)
def test_another_size_version_snapshot_or_maker_is_another_model(asked: str, served: str) -> None:
    assert not is_same_model(asked, served)


def test_names_may_be_listed_as_patterns() -> None:
    assert is_among("House-Model-7", ["house-model-*"])
    assert is_among("gpt-4o-2024-08-06", ["gpt-4o"])
    assert not is_among("gpt-4o-mini", ["gpt-4o"])


def test_what_a_provider_says_of_itself_is_kept_as_far_as_it_is_text() -> None:
    served = Served().joined({"model": "gpt-4o-2024-08-06", "system_fingerprint": "fp_1", "usage": None})
    served = served.joined({"model": None, "service_tier": "flex", "provider": ["x"]})
    told = {"model": "gpt-4o-2024-08-06", "fingerprint": "fp_1", "tier": "flex", "version": "2024-08-06"}
    assert served.told(is_expected=True) == {**told, "is_expected": True}
    assert Served().joined({"model": "a\nb", "system_fingerprint": 7, "usage": {"service_tier": {}}}) == Served()
    assert len(Served().joined({"model": "m" * 10_000}).model) == 200
