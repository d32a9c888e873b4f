"""Chat completions and their chunks, as every client makes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from route.providers.base import JSON

__all__ = ["asks_for_usage", "chunk", "chunks_of", "completion", "usage"]


def completion(
    model: str,
    message: JSON,
    finish_reason: str,
    counts: JSON | None,
    *,
    identifier: str | None = None,
    clock: Callable[[], float] = time.time,
) -> JSON:
    """A chat completion with one choice."""
    return {
        "id": identifier or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(clock()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": counts,
    }


def chunk(frame: JSON, delta: JSON, finish_reason: str | None = None) -> JSON:
    """A chunk with one choice; `frame` has what all chunks of an answer share: id, created, model."""
    return {
        **frame,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}],
    }


def usage(prompt: int, answer: int, *, cached: int | None = None, reasoning: int | None = None) -> JSON:
    """Tokens of prompt and answer in OpenAI's words; `cached` and `reasoning` are parts of them."""
    counts: JSON = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def asks_for_usage(request: JSON) -> bool:
    """Whether a stream is to end with a chunk that has the usage."""
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def chunks_of(answer: JSON, *, with_usage: bool) -> list[JSON]:
    """A whole chat completion as a stream: one chunk with all choices, and one with the usage if it was asked for."""
    frame = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    frame["object"] = "chat.completion.chunk"
    chunks = [{**frame, "choices": [_delta_choice(choice) for choice in answer["choices"]]}]
    if with_usage and answer.get("usage"):
        chunks.append({**frame, "choices": [], "usage": answer["usage"]})
    return chunks


def _delta_choice(choice: JSON) -> JSON:
    delta = dict(choice.get("message") or {})
    calls: Sequence[JSON] | None = delta.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": delta}
