"""What an answer tells: text, thoughts, calls of tools, why it ended and its tokens, read from each protocol.

One side is what a provider was recorded to send, the other what a client of the router got. Both are read here by code
that is not the router's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.recorded.traffic import JSON, Exchange


@dataclass
class Telling:
    """The content of an answer."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Name and arguments of each call of a tool that the client has to run."""
    finish: str = ""
    """stop, length, tool_calls or content_filter."""
    tokens: tuple[int, int] | None = None
    """Tokens of prompt and answer; None where the answer does not count them."""


def events_of(text: str) -> Iterator[JSON]:
    """Yield the JSON objects of an event stream."""
    for block in text.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].lstrip() for line in block.split("\n") if line.startswith("data:"))
        if data.strip() and data.strip() != "[DONE]":
            yield json.loads(data)


def _arguments(text: Any) -> Any:
    if not isinstance(text, str):
        return text or {}
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def _joined(content: Any, kind: str = "text") -> str:
    if isinstance(content, str):
        return content if kind == "text" else ""
    texts = []
    for part in content or []:
        if part.get("type") == kind:
            held = part.get(kind)
            texts.append(_joined(held) if isinstance(held, list) else held or "")
    return "".join(texts)


def _chat_thoughts(message: JSON) -> str:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    return _joined(message.get("content"), "thinking")


def _chat_tokens(usage: Any) -> tuple[int, int] | None:
    if not isinstance(usage, dict) or usage.get("prompt_tokens") is None:
        return None
    prompt, completion = usage["prompt_tokens"], usage.get("completion_tokens") or 0
    # Gemini counts thoughts in the total alone.
    return prompt, max(completion, (usage.get("total_tokens") or 0) - prompt)


def told_by_chat(answer: JSON) -> Telling:
    """Read a chat completion."""
    choice = answer["choices"][0]
    message = choice["message"]
    return Telling(
        text=_joined(message.get("content")) + (message.get("refusal") or ""),
        thoughts=_chat_thoughts(message),
        calls=[
            (call["function"]["name"], _arguments(call["function"].get("arguments")))
            for call in message.get("tool_calls") or []
        ],
        finish=choice.get("finish_reason") or "",
        tokens=_chat_tokens(answer.get("usage")),
    )


def told_by_chat_stream(events: Sequence[JSON]) -> Telling:
    """Read the chunks of a chat completion; calls are joined by index."""
    telling, calls = Telling(), dict[int, list[str]]()
    for event in events:
        telling.tokens = _chat_tokens(event.get("usage")) or telling.tokens
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            telling.text += _joined(delta.get("content")) + (delta.get("refusal") or "")
            telling.thoughts += _chat_thoughts(delta)
            telling.finish = choice.get("finish_reason") or telling.finish
            for number, piece in enumerate(delta.get("tool_calls") or []):
                index = piece.get("index")
                call = calls.setdefault(number if index is None else index, ["", ""])
                function = piece.get("function") or {}
                call[0] = call[0] or function.get("name") or ""
                arguments = function.get("arguments") or ""
                call[1] += arguments if isinstance(arguments, str) else json.dumps(arguments)
    telling.calls = [(name, _arguments(arguments)) for _, (name, arguments) in sorted(calls.items())]
    return telling


_MESSAGE_FINISH = {"tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
_MESSAGE_FINISH["model_context_window_exceeded"] = "length"


def told_by_message(answer: JSON) -> Telling:
    """Read a message of Anthropic's."""
    usage = answer["usage"]
    prompt = sum(
        usage.get(name) or 0 for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return Telling(
        text=_joined(answer["content"]),
        thoughts=_joined(answer["content"], "thinking"),
        calls=[(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"],
        finish=_MESSAGE_FINISH.get(answer["stop_reason"], "stop"),
        tokens=(prompt, usage.get("output_tokens") or 0),
    )


def _add_delta(block: JSON, delta: JSON) -> None:
    for name in ("text", "thinking", "signature"):
        if f"{name}_delta" == delta["type"]:
            block[name] = block.get(name, "") + delta[name]
    if delta["type"] == "input_json_delta":
        block["json"] += delta["partial_json"]
    if delta["type"] == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta["citation"]]


def message_of_events(events: Sequence[JSON]) -> JSON:
    """Return the whole message that a stream of Anthropic's tells."""
    message: JSON = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = {**event["message"], "content": []}
            case "content_block_start":
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                _add_delta(message["content"][event["index"]], event["delta"])
            case "message_delta":
                message |= event["delta"]
                message["usage"] = {
                    **message["usage"],
                    **{name: count for name, count in event["usage"].items() if count is not None},
                }
    for block in message["content"]:
        text = block.pop("json")
        if text:
            block["input"] = _arguments(text)
    return message


def told_by_response(answer: JSON) -> Telling:
    """Read a response of OpenAI's Responses API."""
    telling = Telling()
    for item in answer["output"]:
        match item["type"]:
            case "message":
                telling.text += "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            case "reasoning":
                telling.thoughts += "".join(part["text"] for part in item.get("content") or item.get("summary") or [])
            case "function_call":
                telling.calls.append((item["name"], _arguments(item["arguments"])))
    reason = (answer.get("incomplete_details") or {}).get("reason")
    incomplete = {"max_output_tokens": "length", "content_filter": "content_filter"}
    telling.finish = incomplete.get(reason, "tool_calls" if telling.calls else "stop")
    usage = answer.get("usage")
    if usage:
        telling.tokens = usage["input_tokens"], usage["output_tokens"]
    return telling


def response_of_events(events: Sequence[JSON]) -> JSON:
    """Return the whole response that a stream tells in its last event."""
    return next(event["response"] for event in reversed(events) if "response" in event)


def _told_by_gemini(answer: JSON) -> Telling:
    candidate = answer["candidates"][0]
    parts = (candidate.get("content") or {}).get("parts") or []
    usage = answer.get("usageMetadata") or {}
    calls = [
        (part["functionCall"]["name"], part["functionCall"].get("args") or {})
        for part in parts
        if "functionCall" in part
    ]
    finish = {"MAX_TOKENS": "length", "STOP": "stop", None: "stop"}.get(candidate.get("finishReason"), "content_filter")
    prompt = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    return Telling(
        text="".join(part.get("text") or "" for part in parts if not part.get("thought")),
        thoughts="".join(part.get("text") or "" for part in parts if part.get("thought")),
        calls=calls,
        finish="tool_calls" if calls and finish == "stop" else finish,
        tokens=(prompt, (usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0)),
    )


def _told_by_bedrock(answer: JSON) -> Telling:
    blocks = answer["output"]["message"]["content"]
    usage = answer["usage"]
    thoughts = [block["reasoningContent"].get("reasoningText") or {} for block in blocks if "reasoningContent" in block]
    finish = {"tool_use": "tool_calls", "max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}
    prompt = sum(usage.get(name) or 0 for name in ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"))
    return Telling(
        text="".join(block.get("text") or "" for block in blocks),
        thoughts="".join(thought.get("text") or "" for thought in thoughts),
        calls=[
            (block["toolUse"]["name"], block["toolUse"].get("input") or {})
            for block in blocks
            if "toolUse" in block and block["toolUse"].get("type") != "server_tool_use"
        ],
        finish=finish.get(answer["stopReason"], "content_filter"),
        tokens=(prompt, usage["outputTokens"]),
    )


def _told_by_cohere(answer: JSON) -> Telling:
    blocks = answer["message"].get("content") or []
    calls = answer["message"].get("tool_calls") or []
    billed = answer["usage"]["billed_units"]
    finish = {"TOOL_CALL": "tool_calls", "MAX_TOKENS": "length"}
    return Telling(
        text=_joined(blocks),
        thoughts=(answer["message"].get("tool_plan") or "") + _joined(blocks, "thinking"),
        calls=[(call["function"]["name"], _arguments(call["function"]["arguments"])) for call in calls],
        finish=finish.get(answer["finish_reason"], "stop"),
        tokens=(billed["input_tokens"], billed["output_tokens"]),
    )


_WHOLE: Mapping[str, Callable[[JSON], Telling]] = {
    "openai-chat": told_by_chat,
    "openai-responses": told_by_response,
    "anthropic": told_by_message,
    "gemini": _told_by_gemini,
    "bedrock": _told_by_bedrock,
    "cohere": _told_by_cohere,
}


def told_by_provider(exchange: Exchange) -> Telling:
    """Read what a provider was recorded to answer."""
    if not exchange.is_stream:
        return _WHOLE[exchange.kind](exchange.answer)
    events = list(events_of(str(exchange.response)))
    if exchange.kind == "anthropic":
        return told_by_message(message_of_events(events))
    if exchange.kind == "openai-responses":
        return told_by_response(response_of_events(events))
    return told_by_chat_stream(events)


_NOT_OFFERED = ("UNEXPECTED_TOOL_CALL", "MALFORMED_FUNCTION_CALL")
"""Ends of answers of Gemini's that call a tool which the request did not have, or not so."""


def is_fault(exchange: Exchange) -> bool:
    """Return whether what a provider was recorded to answer with a 200 is no answer."""
    try:
        told_by_provider(exchange)
        answers = list(events_of(str(exchange.response))) if exchange.is_stream else [exchange.answer]
    except (ValueError, LookupError, TypeError):
        return True
    if any(answer.get("error") or answer.get("type") == "error" for answer in answers):
        return True
    candidates = [candidate for answer in answers for candidate in answer.get("candidates") or []]
    return any(candidate.get("finishReason") in _NOT_OFFERED for candidate in candidates)
