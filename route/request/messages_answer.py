"""Translate a chat completion, its stream, or an error to Anthropic's Messages API.

Prompt tokens read from a cache are counted apart there: `input_tokens` are the others.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from p2l.common.files import parse_json
from route.providers.base import JSON, Fault, ProviderError

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def message_of(completion: JSON) -> JSON:
    """Translate a whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    reply = choice.get("message") or {}
    texts = [text for text in (text_of(reply.get("content")), reply.get("refusal")) if text]
    calls = reply.get("tool_calls") or []
    content = [{"type": "text", "text": text} for text in texts] + [_tool_use(call) for call in calls]
    stop = stop_of(choice, calls=bool(calls), refused=bool(reply.get("refusal")))
    return {**frame_of(completion), "content": content, **stop, "usage": usage_of(completion.get("usage"))}


def frame_of(completion: JSON) -> JSON:
    """Return the fields of a message beside its content: identifier, model, and the router's own."""
    own = {key: value for key, value in completion.items() if key.startswith("router_")}
    identifier = completion.get("id") or f"msg_{uuid.uuid4().hex}"
    return {"id": identifier, "type": "message", "role": "assistant", "model": completion.get("model"), **own}


def stop_of(choice: JSON, *, calls: bool, refused: bool) -> JSON:
    """Return why it ended, with the stop sequence if the provider names it in `stop_reason`, as vLLM does."""
    finish, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if refused:
        return {"stop_reason": "refusal", "stop_sequence": None}
    if finish == "stop" and calls:  # as OpenAI ends a call of a tool that had to be called
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish == "stop" and isinstance(sequence, str) and sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": _STOP.get(str(finish), "end_turn"), "stop_sequence": None}


def usage_of(usage: Any) -> JSON:
    """Return tokens as a message counts them; zeros without counts."""
    cached = _count(usage, "prompt_tokens_details", "cached_tokens")
    return {
        "input_tokens": max(0, _count(usage, "prompt_tokens") - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": _count(usage, "completion_tokens"),
    }


def _count(usage: Any, *path: str) -> int:
    for key in path:
        usage = usage.get(key) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) else 0


def tool_id(identifier: Any) -> str:
    """Return the identifier of a call, a new one if the provider sends none."""
    return str(identifier) if identifier else f"toolu_{uuid.uuid4().hex}"


def error_of(status: int, message: str, code: str) -> JSON:
    """Return the body of an error; `code` is the router's own, more precise one."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, "code": code}}


def text_of(content: Any) -> str:
    """Return the text of a content, which some providers send in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tool_use(call: JSON) -> JSON:
    function = call.get("function") or {}
    text = function.get("arguments") or "{}"
    try:
        arguments = text if isinstance(text, dict) else parse_json(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": text}  # clients expect an object
    return {"type": "tool_use", "id": tool_id(call.get("id")), "name": function.get("name"), "input": arguments}


class MessageStream:
    """Translates the chunks of one chat completion to the events of a message.

        message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

    Blocks follow each other: text ends when a tool is called, a call when the next begins. The usage is known at the
    end only, so `message_start` counts zero.
    """

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        self._open: str | None = None
        """Type of the open block."""
        self._call: tuple[Any, Any] = (None, None)
        """Index and identifier of the open call."""
        self._choice: JSON = {}
        self._called = False
        self._refused = False
        self._usage: Any = None

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events = [] if self._started else self._start(chunk)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        for choice in chunk.get("choices") or []:
            if choice.get("index"):  # a message has one answer
                continue
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            events += self._text(text_of(delta.get("content"))) + self._text(delta.get("refusal"))
            self._refused |= bool(delta.get("refusal"))
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def end(self) -> list[JSON]:
        """Return the events after the last chunk."""
        stop = stop_of(self._choice, calls=self._called, refused=self._refused)
        ending = {"type": "message_delta", "delta": stop, "usage": usage_of(self._usage)}
        return [*self._close(), ending, {"type": "message_stop"}]

    def _start(self, chunk: JSON) -> list[JSON]:
        self._started = True
        unknown = {"stop_reason": None, "stop_sequence": None, "usage": usage_of(None)}
        message = {**frame_of(chunk), "content": [], **unknown}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _text(self, text: Any) -> list[JSON]:
        if not text:
            return []
        opening = [] if self._open == "text" else self._begin({"type": "text", "text": ""})
        return [*opening, self._delta({"type": "text_delta", "text": text})]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        index, identifier = piece.get("index"), piece.get("id")
        goes_on = (
            self._open == "tool_use" and index in (None, self._call[0]) and identifier in (None, "", self._call[1])
        )
        opening: list[JSON] = []
        if not goes_on:
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            self._call, self._called = (index, identifier), True
            block = {"type": "tool_use", "id": tool_id(identifier), "name": function["name"], "input": {}}
            opening = self._begin(block)
        arguments = function.get("arguments")
        if not arguments:
            return opening
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return [*opening, self._delta({"type": "input_json_delta", "partial_json": text})]

    def _begin(self, block: JSON) -> list[JSON]:
        closing = self._close()
        self._open = block["type"]
        self._blocks += 1
        return [*closing, {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}]

    def _delta(self, delta: JSON) -> JSON:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}

    def _close(self) -> list[JSON]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._blocks - 1}]
