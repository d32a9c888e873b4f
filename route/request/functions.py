"""Functions of the first chat completions: as the tools that took their place, for models of other protocols, and back.

An answer of theirs had one call, without an identifier, and the result of a call named the function alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from route.providers.base import JSON

_CHOICES = ("auto", "none")


def has_functions(body: JSON) -> bool:
    """Return whether a request says its tools, or earlier calls of them, as functions."""
    messages = body.get("messages")
    if body.get("functions"):
        return True
    return isinstance(messages, list) and any(
        isinstance(message, dict) and (message.get("function_call") or message.get("role") == "function")
        for message in messages
    )


def as_tools(body: JSON) -> JSON:
    """Return a request with tools in place of functions, calls of tools and their results."""
    request = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    tools = [{"type": "function", "function": function} for function in body.get("functions") or []]
    if tools:
        request["tools"] = [*(body.get("tools") or []), *tools]
        request["parallel_tool_calls"] = False  # a function's answer has room for one call
    choice = body.get("function_call")
    if isinstance(choice, dict):
        request["tool_choice"] = {"type": "function", "function": choice}
    elif choice in _CHOICES:
        request["tool_choice"] = choice
    request["messages"] = []
    identifier = "call_0"
    for number, message in enumerate(body["messages"]):
        called: Any = message.get("function_call")
        if message.get("role") == "function":
            result = {name: value for name, value in message.items() if name != "name"}
            request["messages"].append({**result, "role": "tool", "tool_call_id": identifier})
        elif called:
            identifier = f"call_{number}"
            rest = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": identifier, "type": "function", "function": called}
            request["messages"].append({**rest, "tool_calls": [call]})
        else:
            request["messages"].append(message)
    return request


def answer_of(completion: JSON) -> JSON:
    """Return an answer whose first call of a tool is one of a function."""
    for choice in completion.get("choices") or ():
        _call_function(choice.get("message") or {})
        _end_as_function(choice)
    return completion


async def chunks_of(chunks: AsyncGenerator[JSON, None]) -> AsyncGenerator[JSON, None]:
    """Yield the chunks of a stream, the first call of a tool as one of a function."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for choice in chunk.get("choices") or ():
                _call_function(choice.get("delta") or {})
                _end_as_function(choice)
            yield chunk


def _call_function(message: JSON) -> None:
    calls = message.pop("tool_calls", None) or ()
    # There is one call; a model that makes several is asked for the others when the first one has its result.
    first = next((call for call in calls if not call.get("index")), None)
    if first is not None:
        message["function_call"] = first.get("function") or {}


def _end_as_function(choice: JSON) -> None:
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "function_call"
