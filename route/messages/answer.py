"""From a chat completion to a message of Anthropic's Messages API; and errors as that API tells them.

Prompt tokens that came from a cache are counted apart there: `input_tokens` are the others.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from route.providers.base import JSON

__all__ = ["error_of", "frame_of", "message_of", "stop_of", "text_of", "tool_id", "usage_of"]

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def message_of(completion: JSON) -> JSON:
    """A whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    said = choice.get("message") or {}
    texts = [text for text in (text_of(said.get("content")), said.get("refusal")) if text]
    calls = said.get("tool_calls") or []
    content = [{"type": "text", "text": text} for text in texts] + [_tool_use(call) for call in calls]
    stop = stop_of(choice, calls=bool(calls), refused=bool(said.get("refusal")))
    return {**frame_of(completion), "content": content, **stop, "usage": usage_of(completion.get("usage"))}


def frame_of(completion: JSON) -> JSON:
    """What a message has before its content: an identifier, the model, and the router's own fields."""
    own = {key: value for key, value in completion.items() if key.startswith("router_")}
    identifier = completion.get("id") or f"msg_{uuid.uuid4().hex}"
    return {"id": identifier, "type": "message", "role": "assistant", "model": completion.get("model"), **own}


def stop_of(choice: JSON, *, calls: bool, refused: bool) -> JSON:
    """Why it ended. Which stop sequence did it is known where the provider says so, as vLLM does, in `stop_reason`."""
    finish, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if refused:
        return {"stop_reason": "refusal", "stop_sequence": None}
    if finish == "stop" and calls:  # what OpenAI says after a call of a tool that had to be called
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish == "stop" and isinstance(sequence, str) and sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": _STOP.get(str(finish), "end_turn"), "stop_sequence": None}


def usage_of(usage: Any) -> JSON:
    """Tokens as a message counts them; zeros where the provider does not count."""
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


def tool_id(given: Any) -> str:
    """The identifier of a call, made up where a provider gives none."""
    return str(given) if given else f"toolu_{uuid.uuid4().hex}"


def error_of(status: int, message: str, code: str) -> JSON:
    """The body of an error; `code` is the router's own, finer word for it."""
    kind = _ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, "code": code}}


def text_of(content: Any) -> str:
    """The text of a content, which some providers give in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tool_use(call: JSON) -> JSON:
    function = call.get("function") or {}
    given = function.get("arguments") or "{}"
    try:
        arguments = given if isinstance(given, dict) else json.loads(given)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": given}  # an object is all that clients expect
    return {"type": "tool_use", "id": tool_id(call.get("id")), "name": function.get("name"), "input": arguments}
