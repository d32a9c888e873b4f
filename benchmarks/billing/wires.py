"""How providers of each protocol, and cousins of OpenAI's, write an answer and count its tokens."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = dict[str, Any]
PRICE = {"input": 2.0, "output": 10.0, "cached": 0.5}
MODEL = "m-1"


@dataclass
class Call:
    """One call as its provider bills it."""

    identifier: str
    number: int
    """Of the request, which stands in its prompt."""
    prompt: int
    cached: int
    completion: int = 0
    hidden: int = 0
    """Thoughts that nobody is shown, as many as it is to have."""

    @property
    def thoughts(self) -> int:
        """Return the thoughts of the completion so far."""
        return min(self.hidden, self.completion)

    @property
    def dollars(self) -> float:
        """Return the bill."""
        fresh = self.prompt - self.cached
        return (fresh * PRICE["input"] + self.cached * PRICE["cached"] + self.completion * PRICE["output"]) / 1e6


@dataclass(frozen=True)
class Wire:
    """One protocol as one provider speaks it."""

    kind: str
    """The `type` of a model in the router's configuration."""
    whole: Callable[[Call, str], JSON]
    first: Callable[[Call], Sequence[JSON]]
    """What a stream begins with."""
    piece: Callable[[Call, str], JSON]
    last: Callable[[Call], Sequence[JSON]]
    framed: Callable[[JSON], bytes] = lambda event: b"data: " + json.dumps(event).encode() + b"\n\n"
    end: bytes = b""
    media: str = "text/event-stream"
    base: str = ""
    """What follows the provider's address."""


def _details(call: Call, cached: str = "") -> JSON:
    counts: JSON = {"completion_tokens_details": {"reasoning_tokens": call.thoughts}}
    return counts | ({cached: call.cached} if cached else {"prompt_tokens_details": {"cached_tokens": call.cached}})


def _plain(call: Call) -> JSON:
    total = {"total_tokens": call.prompt + call.completion}
    return {"prompt_tokens": call.prompt, "completion_tokens": call.completion, **total}


def _xai(call: Call) -> JSON:
    return {**_plain(call), **_details(call), "completion_tokens": call.completion - call.thoughts}


def _deepseek(call: Call) -> JSON:
    missed = {"prompt_cache_miss_tokens": call.prompt - call.cached}
    return {**_plain(call), **_details(call, "prompt_cache_hit_tokens"), **missed}


def _openrouter(call: Call) -> JSON:
    return {**_plain(call), **_details(call), "cost": call.dollars}


def _frame(call: Call) -> JSON:
    return {"id": call.identifier, "object": "chat.completion.chunk", "created": 1, "model": MODEL}


def _chat(kind: str, usage: Callable[[Call], JSON], place: str = "") -> Wire:
    """Return a cousin of OpenAI's chat completions; `place` is where its streams have the usage."""

    def whole(call: Call, text: str) -> JSON:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {**_frame(call), "object": "chat.completion", "choices": [choice], "usage": usage(call)}

    def chunk(call: Call, delta: JSON, finish: str | None = None, **more: Any) -> JSON:
        return {**_frame(call), "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}

    def last(call: Call) -> list[JSON]:
        if place == "choice":
            return [chunk(call, {}, "stop", usage=usage(call))]
        if place:
            return [{**chunk(call, {}, "stop"), place: {"usage": usage(call)}}]
        return [chunk(call, {}, "stop"), {**_frame(call), "choices": [], "usage": usage(call)}]

    return Wire(
        kind=kind,
        whole=whole,
        first=lambda call: [chunk(call, {"role": "assistant", "content": ""})],
        piece=lambda call, text: chunk(call, {"content": text}),
        last=last,
        end=b"data: [DONE]\n\n",
        base="/v1",
    )


def _named(event: JSON) -> bytes:
    return f"event: {event['type']}\n".encode() + b"data: " + json.dumps(event).encode() + b"\n\n"


def _message_usage(call: Call) -> JSON:
    prompt = {"input_tokens": call.prompt - call.cached, "cache_read_input_tokens": call.cached}
    return {**prompt, "cache_creation_input_tokens": 0, "output_tokens": call.completion}


def _message(call: Call, content: Sequence[JSON], stop: str | None) -> JSON:
    named = {"id": call.identifier, "type": "message", "role": "assistant", "model": MODEL}
    return {**named, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": _message_usage(call)}


_ANTHROPIC = Wire(
    kind="anthropic",
    whole=lambda call, text: _message(call, [{"type": "text", "text": text}], "end_turn"),
    first=lambda call: [
        {"type": "message_start", "message": _message(call, [], None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ],
    piece=lambda _, text: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    last=lambda call: [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": _message_usage(call),
        },
        {"type": "message_stop"},
    ],
    framed=_named,
)


def _response(call: Call, status: str, text: str | None = None) -> JSON:
    counts = {
        "input_tokens": call.prompt,
        "input_tokens_details": {"cached_tokens": call.cached},
        "output_tokens": call.completion,
        "output_tokens_details": {"reasoning_tokens": call.thoughts},
        "total_tokens": call.prompt + call.completion,
    }
    return {
        "id": call.identifier,
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": MODEL,
        "output": [] if text is None else [_item(call, text, "completed")],
        "usage": None if status == "in_progress" else counts,
    }


def _item(call: Call, text: str | None, status: str) -> JSON:
    content = [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
    name = f"msg_{call.identifier}"
    return {"type": "message", "id": name, "role": "assistant", "status": status, "content": content}


def _part_of(call: Call, kind: str, **more: Any) -> JSON:
    return {"type": kind, "item_id": f"msg_{call.identifier}", "output_index": 0, "content_index": 0, **more}


_NO_TEXT = {"type": "output_text", "text": "", "annotations": []}
_RESPONSES = Wire(
    kind="openai-responses",
    whole=lambda call, text: _response(call, "completed", text),
    first=lambda call: [
        {"type": "response.created", "response": _response(call, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": _item(call, None, "in_progress")},
        _part_of(call, "response.content_part.added", part=_NO_TEXT),
    ],
    piece=lambda call, text: _part_of(call, "response.output_text.delta", delta=text),
    last=lambda call: [
        {"type": "response.output_item.done", "output_index": 0, "item": _item(call, "", "completed")},
        {"type": "response.completed", "response": _response(call, "completed", "")},
    ],
    framed=_named,
    base="/v1",
)


def _generated(call: Call, text: str, finish: str | None = None) -> JSON:
    candidate: JSON = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}
    shown = call.completion - call.thoughts
    counts = {
        "promptTokenCount": call.prompt,
        "cachedContentTokenCount": call.cached,
        "candidatesTokenCount": shown,
        "thoughtsTokenCount": call.thoughts,
        "totalTokenCount": call.prompt + call.completion,
    }
    named = {"modelVersion": MODEL, "responseId": call.identifier, "usageMetadata": counts}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})], **named}


_GEMINI = Wire(
    kind="gemini",
    whole=lambda call, text: _generated(call, text, "STOP"),
    first=lambda _: [],
    piece=_generated,
    last=lambda call: [_generated(call, "", "STOP")],
)


def _billed(call: Call) -> JSON:
    tokens = {"input_tokens": call.prompt, "output_tokens": call.completion}
    return {"billed_units": tokens, "tokens": tokens, "cached_tokens": call.cached}


_COHERE = Wire(
    kind="cohere",
    whole=lambda call, text: {
        "id": call.identifier,
        "message": {"role": "assistant", "content": [{"type": "text", "text": text}]},
        "finish_reason": "COMPLETE",
        "usage": _billed(call),
    },
    first=lambda call: [
        {
            "type": "message-start",
            "id": call.identifier,
            "delta": {"message": {"role": "assistant", "content": []}},
        },
        {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
    ],
    piece=lambda _, text: {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}},
    last=lambda call: [
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": _billed(call)}},
    ],
    framed=_named,
)


def _converse_usage(call: Call) -> JSON:
    counts = {"inputTokens": call.prompt - call.cached, "cacheReadInputTokens": call.cached}
    return {**counts, "outputTokens": call.completion, "totalTokens": call.prompt + call.completion}


def _binary(event: JSON) -> bytes:
    """Return one message of Amazon's event stream."""
    [(kind, body)] = event.items()
    payload, headers = json.dumps(body).encode(), b""
    for name, text in ((":message-type", "event"), (":event-type", kind), (":content-type", "application/json")):
        headers += struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(text)) + text.encode()
    start = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = start + struct.pack("!I", zlib.crc32(start)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


_BEDROCK = Wire(
    kind="bedrock",
    whole=lambda call, text: {
        "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
        "stopReason": "end_turn",
        "usage": _converse_usage(call),
    },
    first=lambda _: [{"messageStart": {"role": "assistant"}}],
    piece=lambda _, text: {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": text}}},
    last=lambda call: [
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": _converse_usage(call)}},
    ],
    framed=_binary,
    media="application/vnd.amazon.eventstream",
)
WIRES: Mapping[str, Wire] = {
    "openai": _chat("openai", lambda call: {**_plain(call), **_details(call)}),
    "xai": _chat("xai", _xai),
    "deepseek": _chat("deepseek", _deepseek),
    "moonshot": _chat("moonshot", lambda call: {**_plain(call), **_details(call, "cached_tokens")}, "choice"),
    "mistral": _chat("mistral", lambda call: {**_plain(call), **_details(call, "num_cached_tokens")}),
    "groq": _chat("groq", lambda call: {**_plain(call), **_details(call)}, "x_groq"),
    "openrouter": _chat("openrouter", _openrouter),
    "responses": _RESPONSES,
    "anthropic": _ANTHROPIC,
    "gemini": _GEMINI,
    "bedrock": _BEDROCK,
    "cohere": _COHERE,
}
"""By the name of the model that is configured for each."""
KEEPS_RECORDS = ("openrouter", "responses")
"""Those whose provider can be asked what an answer has used."""


def record_of(wire: str, call: Call) -> JSON:
    """Return the provider's record of an answer."""
    if wire == "responses":
        return _response(call, "completed", "")
    tokens = {"native_tokens_prompt": call.prompt, "native_tokens_completion": call.completion}
    told = {"id": call.identifier, "model": MODEL, "total_cost": call.dollars, "native_tokens_cached": call.cached}
    return {"data": {**told, **tokens, "native_tokens_reasoning": call.thoughts, "cancelled": True}}


def is_stream(path: str, body: JSON) -> bool:
    """Return whether a request asks for a stream."""
    return bool(body.get("stream")) or "stream" in path.rpartition("/")[2]


def pieces_of(words: Iterator[str], number: int) -> list[str]:
    """Return so many pieces of a text, of one to three words each."""
    return ["".join(next(words) for _ in range(1 + place % 3)) for place in range(number)]
