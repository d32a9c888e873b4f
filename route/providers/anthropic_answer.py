"""From Anthropic's answers, whole or streamed, to chat completions.

Text, tool calls and thinking (as `reasoning_content`) are kept; stop reasons and usage get OpenAI's words. Tokens read
from the cache and written to it are part of the prompt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from route.providers.base import JSON
from route.providers.chunks import chunk, completion, usage

__all__ = ["Translator", "completion_of"]

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def completion_of(answer: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """A whole answer as a chat completion."""
    blocks: list[JSON] = answer.get("content") or []
    texts = [block.get("text", "") for block in blocks if block.get("type") == "text"]
    message: JSON = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    thoughts = "".join(block.get("thinking", "") for block in blocks if block.get("type") == "thinking")
    if thoughts:
        message["reasoning_content"] = thoughts
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    finish = _FINISH.get(str(answer.get("stop_reason")), "stop")
    counts = _usage(answer.get("usage") or {})
    made = completion(str(answer.get("model")), message, finish, counts, identifier=answer.get("id"), clock=clock)
    made["choices"][0] |= _stopped_by(answer)
    return made


def _stopped_by(told: JSON) -> JSON:
    """The stop sequence that ended an answer, in the field that vLLM has for it."""
    sequence = told.get("stop_sequence")
    return {"stop_reason": sequence} if sequence else {}


def _call(block: JSON) -> JSON:
    arguments = json.dumps(block.get("input") or {})
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _usage(counts: JSON) -> JSON:
    cached = counts.get("cache_read_input_tokens") or 0
    prompt = (counts.get("input_tokens") or 0) + cached + (counts.get("cache_creation_input_tokens") or 0)
    return usage(prompt, counts.get("output_tokens") or 0, cached=cached)


class Translator:
    """The events of one stream as chunks."""

    def __init__(self, *, with_usage: bool, clock: Callable[[], float] = time.time) -> None:
        self.finished = False
        """Whether the answer was told to be complete."""
        self._with_usage = with_usage
        self._frame: JSON = {"id": "", "created": int(clock()), "model": ""}
        self._counts: JSON = {}
        self._calls = 0
        self._bare: JSON | None = None
        """The tool call that has no arguments so far."""

    def take(self, event: JSON) -> list[JSON]:
        """What an event adds to the answer."""
        match event.get("type"):
            case "message_start":
                return self._start(event.get("message") or {})
            case "content_block_start":
                return self._start_block(event.get("content_block") or {})
            case "content_block_delta":
                return self._continue_block(event.get("delta") or {})
            case "content_block_stop":
                return self._end_block()
            case "message_delta":
                return self._end(event)
        return []  # pings, and kinds of events that are yet to come

    def _chunk(self, delta: JSON, finish: str | None = None) -> list[JSON]:
        return [chunk(self._frame, delta, finish)]

    def _start(self, message: JSON) -> list[JSON]:
        self._frame |= {"id": message.get("id") or "", "model": message.get("model") or ""}
        self._counts |= message.get("usage") or {}
        return self._chunk({"role": "assistant", "content": ""})

    def _start_block(self, block: JSON) -> list[JSON]:
        if block.get("type") == "text" and block.get("text"):
            return self._chunk({"content": block["text"]})
        if block.get("type") != "tool_use":
            return []
        function = {"name": block.get("name"), "arguments": ""}
        call = {"index": self._calls, "id": block.get("id"), "type": "function", "function": function}
        self._calls += 1
        self._bare = block
        return self._chunk({"tool_calls": [call]})

    def _continue_block(self, delta: JSON) -> list[JSON]:
        match delta.get("type"):
            case "text_delta":
                return self._chunk({"content": delta.get("text", "")})
            case "thinking_delta":
                return self._chunk({"reasoning_content": delta.get("thinking", "")})
            case "input_json_delta" if delta.get("partial_json"):
                self._bare = None
                return self._arguments(delta["partial_json"])
        return []  # signatures and citations

    def _arguments(self, text: str) -> list[JSON]:
        return self._chunk({"tool_calls": [{"index": self._calls - 1, "function": {"arguments": text}}]})

    def _end_block(self) -> list[JSON]:
        if self._bare is None:
            return []
        # A tool without arguments streams none; clients parse what they got as JSON.
        given, self._bare = self._bare.get("input") or {}, None
        return self._arguments(json.dumps(given))

    def _end(self, event: JSON) -> list[JSON]:
        self._counts |= {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        reason: Any = (event.get("delta") or {}).get("stop_reason")
        if reason is None or self.finished:
            return []
        self.finished = True
        chunks = self._chunk({}, _FINISH.get(str(reason), "stop"))
        chunks[0]["choices"][0] |= _stopped_by(event["delta"])
        if self._with_usage:
            chunks.append({**chunk(self._frame, {}), "choices": [], "usage": _usage(self._counts)})
        return chunks
