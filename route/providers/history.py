"""What a conversation carries from one model's answers to another model.

Clients send answers back as they got them, with fields that only answers have; the provider that did not write them
refuses them. So they are taken out of the assistant's messages: the name of the model that the router adds, thoughts,
annotations, nulls, signatures of tool calls. An account's option `keep` names those that its provider wants back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from route.providers.base import JSON

__all__ = ["ANSWERS_ALONE", "for_another_model"]

ANSWERS_ALONE = frozenset({"model", "reasoning_content", "reasoning", "reasoning_details", "annotations", "images"})
"""Fields of an answer's message that a request's message does not have."""
_MAY_BE_NULL = ("refusal", "audio", "function_call", "tool_calls")
_SIGNATURES = "extra_content"


def for_another_model(request: JSON, keep: Collection[str]) -> JSON:
    """The request with the assistant's messages as any provider takes them; the request itself is not changed."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return request
    return {**request, "messages": [_message(message, keep) for message in messages]}


def _message(message: Any, keep: Collection[str]) -> Any:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    nulls = {key for key in _MAY_BE_NULL if key in message and message[key] is None}
    taken = ((ANSWERS_ALONE - frozenset(keep)) & message.keys()) | nulls
    kept = {key: value for key, value in message.items() if key not in taken} if taken else message
    calls = kept.get("tool_calls")
    if _SIGNATURES in keep or not isinstance(calls, list):
        return kept
    return {**kept, "tool_calls": [_unsigned(call) for call in calls]}


def _unsigned(call: Any) -> Any:
    is_signed = isinstance(call, dict) and _SIGNATURES in call
    return {key: value for key, value in call.items() if key != _SIGNATURES} if is_signed else call
