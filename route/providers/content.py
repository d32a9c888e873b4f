"""The shapes of OpenAI's chat completions API: requests, answers and chunks, as all clients read and build them."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from route.providers.base import JSON, Fault, ProviderError

SYSTEM_ROLES = ("system", "developer")
SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading JSON of an unexpected shape raises."""
TRANSLATED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls"),
        *("response_format", "temperature", "user", "safety_identifier", "stream", "stream_options", "n", "logprobs"),
    }
)
"""Fields that clients of other protocols translate or refuse."""
HINTS = frozenset(
    {
        *("audio", "logit_bias", "metadata", "modalities", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("reasoning_effort", "service_tier", "store", "top_logprobs", "verbosity", "web_search_options"),
    }
)
"""Fields that a protocol without a counterpart leaves out: the answer still fits the request."""
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)


class DataURL(NamedTuple):
    """A file inside the request."""

    media_type: str
    data: str
    """In base64."""


def unsupported(who: str, what: str) -> ProviderError:
    """Return the error for what a protocol cannot express; another model may take the request."""
    return ProviderError(Fault.UNSUPPORTED, f"{who} cannot take {what}", detail=f"{who} cannot take {what}")


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list and anything else as a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def parts_of(content: Any) -> list[JSON]:
    """Return content as parts: a string as one text part, an empty text as none."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in as_list(content)]
    return [part for part in parts if not (part.get("type") == "text" and not part.get("text"))]


def joined_text(content: Any) -> str:
    """Return the text of a content, whatever its form."""
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in parts_of(content))


def data_url(url: str) -> DataURL | None:
    """Return the file in a base64 `data:` URL, or None for any other URL."""
    match = _DATA_URL.match(url)
    return DataURL((match[1] or "application/octet-stream").lower(), url[match.end() :]) if match else None


def image_url(part: JSON) -> str:
    """Return the URL of an image part, which is an object with `url` or, from some clients, a string."""
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, dict) else image)


def arguments_of(function: JSON) -> JSON:
    """Return the arguments of a tool call as an object, the only form that Anthropic and Gemini take.

    Malformed arguments of an earlier model go under the key `arguments`, so that the conversation can go on.
    """
    text = function.get("arguments")
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def system_text(request: JSON, further: str = "") -> str:
    """Return all system messages and `further` as paragraphs."""
    system = (message for message in request.get("messages") or [] if message.get("role") in SYSTEM_ROLES)
    texts = [*(joined_text(message.get("content")) for message in system), further]
    return "\n\n".join(text for text in texts if text.strip())


def translated(who: str, translate: Callable[[JSON], JSON], request: JSON) -> JSON:
    """Translate a request into another protocol.

    Raises:
        ProviderError: it is no chat completion request, or asks for what the protocol does not have.
    """
    try:
        return translate(request)
    except SHAPE_ERRORS:
        what = "the request is not of the form of a chat completion request"
        raise ProviderError(Fault.REQUEST, f"{who}: {what}", detail=what) from None


def refuse_the_impossible(who: str, request: JSON) -> None:
    """Refuse requests that the protocol would answer with something else.

    Raises:
        ProviderError: the request asks for several answers, or for log-probabilities.
    """
    if (request.get("n") or 1) != 1:
        raise unsupported(who, "n above 1")
    if request.get("logprobs"):
        raise unsupported(who, "logprobs")


def named_by(options: Mapping[str, Any], option: str) -> frozenset[str]:
    """Return the field or fields that an option of an account names."""
    named = options.get(option) or ()
    return frozenset([named] if isinstance(named, str) else named)


def renamed(request: JSON, roles: Mapping[str, str]) -> JSON:
    """Return the request with other roles in its messages."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return request
    return {**request, "messages": [_renamed(message, roles) for message in messages]}


def _renamed(message: Any, roles: Mapping[str, str]) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    return {**message, "role": roles[role]} if isinstance(role, str) and role in roles else message


def without(request: JSON, omit: Collection[str]) -> JSON:
    """Return the request without some of its fields."""
    return {key: value for key, value in request.items() if key not in omit}


def completion(
    model: str,
    message: JSON,
    finish_reason: str,
    counts: JSON | None,
    *,
    identifier: str | None = None,
    clock: Callable[[], float] = time.time,
) -> JSON:
    """Return a chat completion with one choice."""
    return {
        "id": identifier or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(clock()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": counts,
    }


def chunk(frame: JSON, delta: JSON, finish_reason: str | None = None) -> JSON:
    """Return a chunk with one choice; `frame` has what all chunks of an answer share: id, created and model."""
    return {
        **frame,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}],
    }


def usage(prompt: int, answer: int, *, cached: int | None = None, reasoning: int | None = None) -> JSON:
    """Return token counts in OpenAI's form; `cached` and `reasoning` tokens are included in the totals."""
    counts: JSON = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def usage_chunk(frame: JSON, counts: JSON) -> JSON:
    """Return the last chunk of a stream, which has the usage and no choice."""
    return {**chunk(frame, {}), "choices": [], "usage": counts}


def asks_for_usage(request: JSON) -> bool:
    """Whether a stream should end with a chunk that has the usage."""
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def chunks_of(answer: JSON, *, with_usage: bool) -> list[JSON]:
    """Return a chat completion as a stream: one chunk with all choices, and one with the usage if requested."""
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


# Clients send answers back as they got them, with fields that only answers have, and a provider refuses those that
# another one wrote. An account's option `keep` names the fields that its own provider wants back.

ANSWERS_ALONE = frozenset({"model", "reasoning_content", "reasoning", "reasoning_details", "annotations", "images"})
"""Fields of an answer's message that a request's message does not have."""
_MAY_BE_NULL = ("refusal", "audio", "function_call", "tool_calls")
_SIGNATURES = "extra_content"


def for_another_model(request: JSON, keep: Collection[str]) -> JSON:
    """Return a copy of the request without what only another provider's answers have in assistant messages."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        return request
    return {**request, "messages": [_message(message, keep) for message in messages]}


def _message(message: Any, keep: Collection[str]) -> Any:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    nulls = {key for key in _MAY_BE_NULL if key in message and message[key] is None}
    dropped = ((ANSWERS_ALONE - frozenset(keep)) & message.keys()) | nulls
    cleaned = {key: value for key, value in message.items() if key not in dropped} if dropped else message
    calls = cleaned.get("tool_calls")
    if _SIGNATURES in keep or not isinstance(calls, list):
        return cleaned
    return {**cleaned, "tool_calls": [_unsigned(call) for call in calls]}


def _unsigned(call: Any) -> Any:
    is_signed = isinstance(call, dict) and _SIGNATURES in call
    return {key: value for key, value in call.items() if key != _SIGNATURES} if is_signed else call
