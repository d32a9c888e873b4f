"""Whatever JSON a client or a provider sends, the outcome is a translation or a `ProviderError`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from route.providers import anthropic
from route.providers import gemini as gemini_answer
from route.providers.anthropic import messages_request
from route.providers.base import JSON, Account, ProviderError
from route.providers.completions import asks_for_usage, for_another_model
from route.providers.errors import refusal
from route.providers.gemini import generate_request
from route.providers.http import Transport
from route.providers.openai import classic, for_o1
from route.providers.translation import translated

LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.text("ab:{}", max_size=4)


def json_with(*words: str) -> st.SearchStrategy[Any]:
    """JSON that often has the names and values that matter."""
    leaves = LEAVES | st.sampled_from(words)
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | objects_of(inner, *words), max_leaves=12)


def objects_of(inner: st.SearchStrategy[Any], *words: str) -> st.SearchStrategy[JSON]:
    return st.dictionaries(st.sampled_from(words), inner, max_size=6)


ASKED = (
    *("messages", "role", "content", "user", "assistant", "tool", "system", "tool_calls", "function", "arguments"),
    *("type", "text", "image_url", "url", "file", "stop", "tools", "tool_choice", "response_format", "json_schema"),
    *("thinking", "enabled", "output_config", "generationConfig", "extra_content", "google", "n", "stream_options"),
)
ANSWERED = (
    *("content", "type", "text", "tool_use", "thinking", "usage", "input_tokens", "stop_reason", "message", "delta"),
    *("message_start", "message_delta", "content_block_start", "content_block_delta", "content_block_stop"),
    *("content_block", "input_json_delta", "text_delta", "candidates", "parts", "functionCall", "finishReason"),
    *("usageMetadata", "promptTokenCount", "promptFeedback", "error", "code", "details", "innererror"),
)
REQUESTS = objects_of(json_with(*ASKED), *ASKED)


def outcome(translate: Callable[[JSON], Any], sent: JSON) -> None:
    with contextlib.suppress(ProviderError):
        translate(sent)


@given(REQUESTS)
def test_any_request_can_be_answered(request: JSON) -> None:
    outcome(lambda body: translated("x", lambda b: messages_request(b, max_tokens=9), body), request)
    outcome(lambda body: translated("x", generate_request, body), request)
    outcome(lambda body: for_another_model(body, ()), request)
    outcome(classic, request)
    outcome(for_o1, request)
    assert asks_for_usage(request) in (True, False)


@given(st.lists(objects_of(json_with(*ANSWERED), *ANSWERED), max_size=4))
def test_any_answer_can_be_read(sent: list[JSON]) -> None:
    transport = Transport(Account("http://host"))
    claude, gemini = anthropic.AnthropicStream(with_usage=True), gemini_answer.GeminiStream(with_usage=True)
    for answer in sent:
        for read in (
            *(claude.take, gemini.take),
            *(anthropic.completion_of, gemini_answer.completion_of, gemini_answer.why_not),
        ):
            outcome(lambda body, read=read: transport.understood(read, body), answer)  # type: ignore[misc]


@given(st.none() | st.integers(200, 599), json_with(*ANSWERED))
def test_any_refusal_can_be_read(status: int | None, body: Any) -> None:
    assert isinstance(refusal("host", status, {}, body), ProviderError)


@pytest.mark.parametrize("messages", [None, 3, ["hi"], [{"role": ["system"]}]])
def test_o1_leaves_what_it_does_not_know(messages: Any) -> None:
    assert for_o1({"messages": messages})["messages"] == messages
