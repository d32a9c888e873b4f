"""From a chat completion request to one of Anthropic's Messages API.

System messages become the one system prompt, wherever they stand; tool results become parts of user turns;
neighbouring turns of one role become one. Fields without a counterpart that are mere hints are dropped (`seed`,
penalties, `store`, `reasoning_effort`, ...); those without which the answer would not be what was asked (`n`,
`logprobs`, audio) are refused, so that another model gets the request. Fields that nobody here knows are passed
through: `thinking`, `top_k`, `output_config` can be sent or configured as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from route.providers.base import JSON
from route.providers.content import (
    HINTS,
    SYSTEM_ROLES,
    as_list,
    data_url,
    image_url,
    parts_of,
    refuse_the_impossible,
    system_text,
    unsupported,
)

__all__ = ["messages_request"]

_WHO = "anthropic"
_TRANSLATED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls"),
        *("response_format", "temperature", "user", "safety_identifier", "stream", "stream_options", "n", "logprobs"),
    }
)
_HINTS = HINTS | {"seed", "frequency_penalty", "presence_penalty"}
_ONLY_JSON = "Answer with one JSON object and nothing else."


def messages_request(request: JSON, *, max_tokens: int) -> JSON:
    """The request for Anthropic; `max_tokens` is what it may answer if the request does not say.

    Raises:
        ProviderError: it asks for what the Messages API does not have.
    """
    refuse_the_impossible(_WHO, request)
    body = {key: value for key, value in request.items() if key not in _TRANSLATED and key not in _HINTS}
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    body["max_tokens"] = max_tokens if limit is None else limit
    system = system_text(request, _ONLY_JSON if _format_type(request) == "json_object" else "")
    if system:
        body["system"] = system
    body["messages"] = _turns(request.get("messages") or [])
    if not _can_think(body):
        del body["thinking"]
    body |= _sampling(request)
    body |= _tools(request)
    body |= _format(request, body)
    user = request.get("safety_identifier") or request.get("user")
    return body | ({"metadata": {"user_id": user}} if user else {})


def _turns(messages: list[JSON]) -> list[JSON]:
    turns: list[JSON] = []
    for message in messages:
        role = message.get("role")
        if role in SYSTEM_ROLES:
            continue
        blocks = list(_blocks(message))
        role = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        # The beginning of an answer may not end in white space there.
        turns[-1]["content"][-1]["text"] = turns[-1]["content"][-1]["text"].rstrip()
    return turns


def _can_think(body: JSON) -> bool:
    """Whether the thinking that was asked for can go on: in the middle of calling tools it cannot begin.

    The thoughts that led to a call would have to come back with it, signed; OpenAI's messages have no place for them.
    """
    if (body.get("thinking") or {}).get("type") != "enabled":
        return True
    answers = [turn["content"] for turn in body["messages"] if turn["role"] == "assistant"]
    kinds = {block["type"] for block in answers[-1]} if answers else set()
    return "tool_use" not in kinds or "thinking" in kinds


def _blocks(message: JSON) -> Iterator[JSON]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        blocks = [_block(part) for part in parts_of(content)]
        yield {"type": "tool_result", "tool_use_id": _identifier(message.get("tool_call_id")), "content": blocks}
        return
    if role not in ("user", "assistant"):
        raise unsupported(_WHO, f"messages of the role {role}")
    yield from (_block(part) for part in parts_of(content))
    for call in message.get("tool_calls") or []:
        yield _tool_use(call)


def _tool_use(call: JSON) -> JSON:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    # An object is all that Anthropic takes; what an earlier model made up should not end the conversation.
    given = arguments if isinstance(arguments, dict) else {"arguments": function.get("arguments")}
    return {"type": "tool_use", "id": _identifier(call.get("id")), "name": function.get("name"), "input": given}


def _identifier(name: Any) -> str:
    """Identifiers of other providers have characters that Anthropic refuses."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name))


def _block(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {key: part[key] for key in ("type", "text", "cache_control") if key in part}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "image_url":
            return {"type": "image", "source": _source(image_url(part))}
        case "file" if isinstance(part.get("file"), dict) and part["file"].get("file_data"):
            return {"type": "document", "source": _source(part["file"]["file_data"])}
        case "input_audio" | "file" as kind:
            raise unsupported(_WHO, f"content of the type {kind}")
    return part  # of Anthropic's own types, with caching marks and all


def _source(url: str) -> JSON:
    inline = data_url(url)
    if inline is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": inline.media_type, "data": inline.data}


def _sampling(request: JSON) -> JSON:
    sampling: JSON = {}
    if request.get("temperature") is not None:
        sampling["temperature"] = min(request["temperature"], 1.0)  # the highest there is
    stops = [stop for stop in as_list(request.get("stop")) if str(stop).strip()]
    if stops:
        sampling["stop_sequences"] = stops
    return sampling


def _tools(request: JSON) -> JSON:
    tools = request.get("tools")
    if not tools:
        return {}
    choice = _tool_choice(request.get("tool_choice"))
    if request.get("parallel_tool_calls") is False:
        choice = choice or {"type": "auto"}
        if choice["type"] != "none":
            choice = {**choice, "disable_parallel_tool_use": True}
    return {"tools": [_tool(tool) for tool in tools]} | ({"tool_choice": choice} if choice else {})


def _tool(tool: JSON) -> JSON:
    if tool.get("type") != "function":
        return tool  # of Anthropic's own
    function = tool.get("function") or {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    translated = {"name": function.get("name"), "input_schema": schema}
    described = {key: function[key] for key in ("description", "strict") if function.get(key) is not None}
    return translated | described


def _tool_choice(choice: Any) -> JSON | None:
    if choice is None:
        return None
    named = {"auto": "auto", "none": "none", "required": "any"}
    if isinstance(choice, str) and choice in named:
        return {"type": named[choice]}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "tool", "name": (choice.get("function") or {}).get("name")}
    if isinstance(choice, dict) and choice.get("type") in ("auto", "any", "tool", "none"):
        return choice
    raise unsupported(_WHO, "this tool_choice")


def _format(request: JSON, body: JSON) -> JSON:
    if _format_type(request) != "json_schema":
        return {}
    schema = (request["response_format"].get("json_schema") or {}).get("schema") or {"type": "object"}
    return {"output_config": {**body.get("output_config", {}), "format": {"type": "json_schema", "schema": schema}}}


def _format_type(request: JSON) -> Any:
    return (request.get("response_format") or {}).get("type")
