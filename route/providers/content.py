"""What requests of OpenAI's API consist of, for the clients of protocols that say it otherwise."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from route.providers.base import JSON, Fault, ProviderError

SYSTEM_ROLES = ("system", "developer")
SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading JSON raises where it is of another shape than it should be."""
HINTS = frozenset(
    {
        *("audio", "logit_bias", "metadata", "modalities", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("reasoning_effort", "service_tier", "store", "top_logprobs", "verbosity", "web_search_options"),
    }
)
"""Fields that a protocol without a counterpart may leave out: the answer is still one to the request."""
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)


class DataURL(NamedTuple):
    """A file inside the request."""

    media_type: str
    data: str
    """In base64."""


def unsupported(who: str, what: str) -> ProviderError:
    """Return the error for what one protocol cannot say; another model may."""
    return ProviderError(Fault.UNSUPPORTED, f"{who} cannot take {what}", detail=f"{who} cannot take {what}")


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, anything else in one; None is an empty one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def parts_of(content: Any) -> list[JSON]:
    """Content as parts: a string is one text part, an empty text none."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in as_list(content)]
    return [part for part in parts if not (part.get("type") == "text" and not part.get("text"))]


def joined_text(content: Any) -> str:
    """Return the text of a content, whatever its form."""
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in parts_of(content))


def data_url(url: str) -> DataURL | None:
    """Return the file in a `data:` URL of base64, or None for any other URL."""
    match = _DATA_URL.match(url)
    return DataURL((match[1] or "application/octet-stream").lower(), url[match.end() :]) if match else None


def image_url(part: JSON) -> str:
    """Return the URL of an image part, which is an object with `url` or, from some clients, the text itself."""
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, dict) else image)


def system_text(request: JSON, further: str = "") -> str:
    """Return what the system says, wherever it says it, and `further`; in paragraphs."""
    system = (message for message in request.get("messages") or [] if message.get("role") in SYSTEM_ROLES)
    texts = [*(joined_text(message.get("content")) for message in system), further]
    return "\n\n".join(text for text in texts if text.strip())


def translated(who: str, translate: Callable[[JSON], JSON], request: JSON) -> JSON:
    """Return a request in another protocol's words.

    Raises:
        ProviderError: it is no chat completion request, or asks for what the protocol does not have.
    """
    try:
        return translate(request)
    except SHAPE_ERRORS:
        what = "the request is not of the form of a chat completion request"
        raise ProviderError(Fault.REQUEST, f"{who}: {what}", detail=what) from None


def refuse_the_impossible(who: str, request: JSON) -> None:
    """Turn away what would have an answer other than the one that was asked for.

    Raises:
        ProviderError: several answers, or probabilities of tokens.
    """
    if (request.get("n") or 1) != 1:
        raise unsupported(who, "n above 1")
    if request.get("logprobs"):
        raise unsupported(who, "logprobs")


def named_by(options: Mapping[str, Any], option: str) -> frozenset[str]:
    """Return the fields that an account's option names: one, or several."""
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


# Chat completions and their chunks, as every client makes them.


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
    """Return a chunk with one choice; `frame` has what all chunks of an answer share: id, created, model."""
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


# What a conversation carries from one model's answers to another model.
#
# Clients send answers back as they got them, with fields that only answers have; the provider that did not write them
# refuses them. So they are taken out of the assistant's messages: the name of the model that the router adds, thoughts,
# annotations, nulls, signatures of tool calls. An account's option `keep` names those that its provider wants back.

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
    dropped = ((ANSWERS_ALONE - frozenset(keep)) & message.keys()) | nulls
    cleaned = {key: value for key, value in message.items() if key not in dropped} if dropped else message
    calls = cleaned.get("tool_calls")
    if _SIGNATURES in keep or not isinstance(calls, list):
        return cleaned
    return {**cleaned, "tool_calls": [_unsigned(call) for call in calls]}


def _unsigned(call: Any) -> Any:
    is_signed = isinstance(call, dict) and _SIGNATURES in call
    return {key: value for key, value in call.items() if key != _SIGNATURES} if is_signed else call
