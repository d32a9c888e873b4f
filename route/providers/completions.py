"""The shapes of OpenAI's chat completions API: requests, answers and chunks, as all clients read and build them."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from p2l.common.errors import ConfigError
from route.providers.base import JSON, Provider, Timeouts, note_dropped

SYSTEM_ROLES = ("system", "developer")
BYTES_PER_TOKEN = 4
MOST_TOKENS = 100_000_000
"""A larger count is a mistake."""
SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading JSON of an unexpected shape raises."""
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)


_MEDIA_TYPES = {
    **dict.fromkeys(("image/jpg", "image/pjpeg", "image/x-jpeg"), "image/jpeg"),
    "image/x-png": "image/png",
    "application/x-pdf": "application/pdf",
    **dict.fromkeys(("audio/x-wav", "audio/wave"), "audio/wav"),
    "audio/mp3": "audio/mpeg",
}
"""Names that browsers and clients have for media types, and those that providers know."""
_URL_ALPHABET = str.maketrans("-_", "+/")
_BEGINNINGS = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "JVBERi0": "application/pdf",
}
"""What files of some kinds begin with, in base64: providers refuse one that is called otherwise."""


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list and anything else as a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def parts_of(content: Any) -> list[JSON]:
    """Return content as parts: a string as one text part, a blank text, which providers refuse, as none."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in as_list(content)]
    return [part for part in parts if not (part.get("type") == "text" and not _is_said(part.get("text")))]


def marked_parts(message: JSON) -> list[JSON]:
    """Return the content of a message as parts, the last one with what the message marks to be cached."""
    parts = parts_of(message.get("content"))
    mark = message.get("cache_control")
    return [*parts[:-1], {"cache_control": mark, **parts[-1]}] if mark and parts else parts


def _is_said(text: Any) -> bool:
    return bool(text.strip()) if isinstance(text, str) else bool(text)


def joined_text(content: Any) -> str:
    """Return the text of a content, whatever its form."""
    texts = (part.get("text") or part.get("refusal") for part in parts_of(content))
    return "\n".join(text for text in texts if text)


def data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 of the file in a `data:` URL, or None for any other URL."""
    match = _DATA_URL.match(url)
    if not match:
        return None
    media_type, content = (match[1] or "application/octet-stream").lower(), url[match.end() :]
    if any(letter in content for letter in "-_\n\r "):  # in the alphabet of URLs, or folded: few providers read it
        content = "".join(content.split()).translate(_URL_ALPHABET)
    for beginning, kind in _BEGINNINGS.items():
        if content.startswith(beginning):
            return kind, content
    return _MEDIA_TYPES.get(media_type, media_type), content


def image_url(part: JSON) -> str:
    """Return the URL of an image part, which is an object with `url` or, from some clients, a string."""
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, dict) else image)


def named_by(options: Mapping[str, Any], option: str) -> frozenset[str]:
    """Return the field or fields that an option of an account names; raise ConfigError for what is no name."""
    named = options.get(option) or ()
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"options: {option} must be a list of names of fields, such as [temperature]")
    return frozenset(names)


def has_role(messages: Any, *roles: str) -> bool:
    """Return whether one of a request's messages has one of these roles."""
    if not isinstance(messages, list):
        return False
    try:
        return not {*roles}.isdisjoint(map(itemgetter("role"), messages))  # a loop in C: a request asks several times
    except (KeyError, TypeError):  # of messages of other forms
        return any(message.get("role") in roles for message in messages if isinstance(message, dict))


def renamed(request: JSON, roles: Mapping[str, str]) -> JSON:
    """Return the request with other roles in its messages."""

    if not has_role(request.get("messages"), *roles):
        return request

    def rename(message: Any) -> Any:
        role = message.get("role") if isinstance(message, dict) else None
        return {**message, "role": roles[role]} if isinstance(role, str) and role in roles else message

    return _with_messages(request, rename)


def _with_messages(request: JSON, change: Callable[[Any], Any]) -> JSON:
    messages = request.get("messages")
    if not isinstance(messages, list):
        return request
    return {**request, "messages": [change(message) for message in messages]}


def omitted(request: JSON, omit: Collection[str]) -> JSON:
    """Return the request without fields that a provider refuses, and note those for the client."""
    if omit:
        note_dropped(*(name for name in request if name in omit and name not in ("stream", "stream_options")))
    return without(request, omit)


def without(request: JSON, omit: Collection[str]) -> JSON:
    """Return the request without some of its fields."""
    return {key: value for key, value in request.items() if key not in omit}


def answer_message(content: str | None, thoughts: str = "", calls: Sequence[JSON] = ()) -> JSON:
    """Return the message of an answer."""
    message: JSON = {"role": "assistant", "content": content, "refusal": None}
    if thoughts:
        message["reasoning_content"] = thoughts
    return {**message, "tool_calls": list(calls)} if calls else message


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


def usage_chunk(frame: JSON, counts: JSON | None) -> JSON:
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
    choices = []
    for choice in answer["choices"]:
        delta = dict(choice.get("message") or {})
        calls: Sequence[JSON] | None = delta.get("tool_calls")
        if calls:
            # Clients put the pieces of a stream together by their index, which calls of whole answers lack.
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choices.append({**without(choice, ("message",)), "delta": delta})
    chunks = [{**frame, "choices": choices}]
    if with_usage and answer.get("usage"):
        chunks.append({**frame, "choices": [], "usage": answer["usage"]})
    return chunks


async def whole_stream(self: Provider, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
    """Be the `stream` of a client without streams: yield its whole answer as one chunk."""
    for part in chunks_of(await self.chat(request, timeouts), with_usage=asks_for_usage(request)):
        yield part


# Clients send answers back as they got them, with fields that only answers have, and a provider refuses those that
# another one wrote. An account's option `keep` names the fields that its own provider wants back.

_ANSWERS_ALONE = frozenset({"model", "reasoning_content", "reasoning", "reasoning_details", "annotations", "images"})
"""Fields of an answer's message that a request's message does not have."""
OWN_THOUGHTS = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
"""Those of them that a model may want back of its own answers."""
_MAY_BE_NULL = ("refusal", "audio", "function_call", "tool_calls")
_SIGNATURES = "extra_content"


def for_another_model(request: JSON, keep: Collection[str]) -> JSON:
    """Return the request without what only another provider's answers have in assistant messages."""
    if not has_role(request.get("messages"), "assistant"):
        return request

    def cleaned(message: Any) -> Any:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return message
        # Answers have null in these fields, which requests must not.
        nulls = {key for key in _MAY_BE_NULL if key in message and message[key] is None}
        foreign = (_ANSWERS_ALONE - frozenset(keep)) & message.keys()
        note_dropped(*(f"messages.{name}" for name in _ANSWERS_ALONE if name in foreign and name != "model"))
        dropped = foreign | nulls
        kept = {key: value for key, value in message.items() if key not in dropped} if dropped else message
        calls = kept.get("tool_calls")
        if _SIGNATURES in keep or not isinstance(calls, list):
            return kept
        unsigned = [without(call, (_SIGNATURES,)) if isinstance(call, dict) else call for call in calls]
        return {**kept, "tool_calls": unsigned}

    return _with_messages(request, cleaned)


TOOL_IDS = {"usual": re.compile(r"[!-~]{1,40}"), "nine": re.compile(r"[A-Za-z0-9]{9}")}
"""Identifiers of tool calls that a provider takes, by the account's option `tool_ids`; OpenAI's have 40 characters."""


def with_tool_ids(request: JSON, form: str) -> JSON:
    """Return the request with other identifiers for the tool calls of other providers, in calls and results alike."""
    if not has_role(request.get("messages"), "assistant", "tool"):
        return request
    pattern = TOOL_IDS[form]

    def fitting(identifier: Any) -> Any:
        if not isinstance(identifier, str) or pattern.fullmatch(identifier):
            return identifier
        return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:9]

    def change(message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if message.get("role") == "tool":
            return {**message, "tool_call_id": fitting(message.get("tool_call_id"))}
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        calls = [{**call, "id": fitting(call.get("id"))} if isinstance(call, dict) else call for call in calls]
        return {**message, "tool_calls": calls}

    return _with_messages(request, change)
