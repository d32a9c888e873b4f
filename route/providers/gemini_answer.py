"""From Gemini's answers, whole or streamed, to chat completions.

A stream is a sequence of answers that each hold a further piece. Thoughts become `reasoning_content`; the signature of
a tool call travels in `extra_content`, as in Google's own OpenAI-compatible interface, since it has to come back.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence

from route.providers.base import JSON
from route.providers.chunks import chunk, completion, usage

__all__ = ["Translator", "completion_of", "finish_of", "why_not"]

_FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "OTHER": "stop", "FINISH_REASON_UNSPECIFIED": "stop"}
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})


def completion_of(answer: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """A whole answer as a chat completion; it has a candidate."""
    candidate = answer["candidates"][0]
    parts = _parts(candidate)
    texts, thoughts = _texts(parts, thought=False), _texts(parts, thought=True)
    calls = [_call(part) for part in parts if part.get("functionCall")]
    message: JSON = {"role": "assistant", "content": texts or (None if calls else ""), "refusal": None}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    finish = finish_of(candidate.get("finishReason"), has_calls=bool(calls))
    counts = _usage(answer.get("usageMetadata") or {})
    model, identifier = str(answer.get("modelVersion") or ""), answer.get("responseId")
    return completion(model, message, finish, counts, identifier=identifier, clock=clock)


def finish_of(reason: object, *, has_calls: bool) -> str:
    """OpenAI's word; whatever is none of the ordinary reasons is one of many kinds of safety."""
    finish = _FINISH.get(str(reason or "STOP"), "content_filter")
    return "tool_calls" if has_calls and finish == "stop" else finish


def why_not(answer: JSON) -> tuple[str, str]:
    """Why the prompt was refused, and the finish reason after which there is no answer; empty where it is well."""
    blocked = str((answer.get("promptFeedback") or {}).get("blockReason") or "")
    reasons = (str(candidate.get("finishReason")) for candidate in answer.get("candidates") or [])
    return blocked, next((reason for reason in reasons if reason in _BROKEN), "")


def _parts(candidate: JSON) -> list[JSON]:
    return (candidate.get("content") or {}).get("parts") or []


def _texts(parts: Sequence[JSON], *, thought: bool) -> str:
    return "".join(part.get("text") or "" for part in parts if bool(part.get("thought")) is thought)


def _call(part: JSON) -> JSON:
    called = part["functionCall"]
    function = {"name": called.get("name"), "arguments": json.dumps(called.get("args") or {})}
    call: JSON = {"id": called.get("id") or f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
    if part.get("thoughtSignature"):
        call["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
    return call


def _usage(counts: JSON) -> JSON:
    thoughts = counts.get("thoughtsTokenCount") or 0
    prompt = (counts.get("promptTokenCount") or 0) + (counts.get("toolUsePromptTokenCount") or 0)
    answer = (counts.get("candidatesTokenCount") or 0) + thoughts
    return usage(prompt, answer, cached=counts.get("cachedContentTokenCount") or 0, reasoning=thoughts)


class Translator:
    """The answers of one stream as chunks."""

    def __init__(self, *, with_usage: bool, clock: Callable[[], float] = time.time) -> None:
        self._with_usage = with_usage
        self._frame: JSON = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(clock()), "model": ""}
        self._begun = False
        self._calls = 0
        self._reason: object = None
        self._counts: JSON = {}

    @property
    def finished(self) -> bool:
        """Whether the answer was told to be complete."""
        return self._reason is not None

    def take(self, answer: JSON) -> list[JSON]:
        """What a piece adds to the answer."""
        candidate = (answer.get("candidates") or [{}])[0]
        self._counts |= answer.get("usageMetadata") or {}
        self._reason = candidate.get("finishReason") or self._reason
        return self._begin(answer) + [
            chunk(self._frame, delta) for part in _parts(candidate) for delta in self._deltas(part)
        ]

    def end(self) -> list[JSON]:
        """What comes after the last piece."""
        chunks = [chunk(self._frame, {}, finish_of(self._reason, has_calls=self._calls > 0))]
        if self._with_usage:
            chunks.append({**chunk(self._frame, {}), "choices": [], "usage": _usage(self._counts)})
        return chunks

    def _begin(self, answer: JSON) -> list[JSON]:
        if self._begun:
            return []
        self._begun = True
        self._frame["model"] = str(answer.get("modelVersion") or "")
        self._frame["id"] = answer.get("responseId") or self._frame["id"]
        return [chunk(self._frame, {"role": "assistant", "content": ""})]

    def _deltas(self, part: JSON) -> list[JSON]:
        if part.get("functionCall"):
            self._calls += 1
            return [{"tool_calls": [{"index": self._calls - 1, **_call(part)}]}]
        if not part.get("text"):
            return []
        return [{"reasoning_content" if part.get("thought") else "content": part["text"]}]
