"""Translate a chat completion, or its stream, to a response of OpenAI's Responses API.

An answer's thoughts are a reasoning item, its text or refusal a message, each call of a function an item of its own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from route.providers.base import JSON, Fault, ProviderError

_ECHOED: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p", "user")),
    "metadata": {},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}
"""Fields of a request that its response repeats, with their defaults."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields with the thoughts of an answer, by provider."""


def new_id(prefix: str) -> str:
    """Return a new identifier."""
    return f"{prefix}_{secrets.token_hex(24)}"


def frame_of(request: JSON, *, stored: bool, clock: Callable[[], float] = time.time) -> JSON:
    """Return the fields of a response that are known before its answer."""
    reasoning = request.get("reasoning")
    reasoning = reasoning if isinstance(reasoning, dict) else {}
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(clock()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": "",
        "output": [],
        "usage": None,
        **{name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()},
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": stored,
    }


def response_of(completion: JSON, frame: JSON) -> JSON:
    """Translate a whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    output: list[JSON] = []
    thoughts = next((message[name] for name in _THOUGHTS if isinstance(message.get(name), str) and message[name]), "")
    if thoughts:
        output.append(_reasoning(new_id("rs"), thoughts))
    parts = _parts(message, (choice.get("logprobs") or {}).get("content") or [])
    if parts:
        output.append(_message(new_id("msg"), parts))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        output.append(_call(new_id("fc"), call.get("id"), function.get("name"), function.get("arguments") or ""))
    return finished(frame, completion, output, choice.get("finish_reason"))


def finished(frame: JSON, completion: JSON, output: Sequence[JSON], finish_reason: Any) -> JSON:
    """Return the response with its output, usage and the router's own fields."""
    why = _INCOMPLETE.get(str(finish_reason))
    own = {key: value for key, value in completion.items() if key.startswith("router_")}
    return {
        **frame,
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "model": completion.get("model") or "",
        "output": list(output),
        "usage": usage_of(completion.get("usage")),
        **own,
    }


def usage_of(usage: Any) -> JSON:
    """Return tokens as a response counts them; zeros without counts."""
    prompt, answer = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _count(usage, "prompt_tokens_details", "cached_tokens")},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": _count(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": prompt + answer,
    }


def _count(usage: Any, *path: str) -> int:
    for key in path:
        usage = usage.get(key) if isinstance(usage, dict) else None
    return usage if isinstance(usage, int) else 0


def answer_of(response: JSON) -> list[JSON]:
    """Return the output of a response as items of the next request's input."""
    return [{key: value for key, value in item.items() if key != "status"} for item in response["output"]]


def text_of(content: Any) -> str:
    """Return the text of a content, which some providers send in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _parts(message: JSON, logprobs: Sequence[JSON]) -> list[JSON]:
    text, refusal = text_of(message.get("content")), message.get("refusal")
    parts = [_text_part(text, logprobs)] if text else []
    return [*parts, {"type": "refusal", "refusal": refusal}] if refusal else parts


def _text_part(text: str, logprobs: Sequence[JSON] = ()) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _message(identifier: str, parts: Sequence[JSON], status: str = "completed") -> JSON:
    return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _reasoning(identifier: str, text: str, status: str = "completed") -> JSON:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": identifier, "type": "reasoning", "summary": [], "content": content, "status": status}


def _call(identifier: str, call_id: Any, name: Any, arguments: Any, status: str = "completed") -> JSON:
    return {
        "id": identifier,
        "type": "function_call",
        "call_id": str(call_id) if call_id else new_id("call"),
        "name": name,
        "arguments": arguments,
        "status": status,
    }


_TEXT = {"kind": "text", "type": "output_text", "field": "text", "event": "response.output_text"}
_REFUSAL = {"kind": "refusal", "type": "refusal", "field": "refusal", "event": "response.refusal"}
_REASONING = {"kind": "reasoning", "type": "reasoning_text", "field": "text", "event": "response.reasoning_text"}


class ResponseStream:
    """Translates the chunks of one chat completion to the events of a response.

        created in_progress (output_item.added ... output_item.done)* completed

    Items follow each other: thoughts end when text begins, text when a function is called, a call when the next begins.
    """

    def __init__(self, frame: JSON) -> None:
        """Stream a response that has these fields already."""
        self._frame = frame
        self._sequence = -1
        self._started = False
        self._output: list[JSON] = []
        """Items that are complete."""
        self._open: JSON | None = None
        """What is being written: its kind and identifier, the text so far, the event it has."""
        self._index: Any = None
        """Of the open call at the provider."""
        self._completion: JSON = {}
        self._finish: Any = None
        self._logprobs: list[JSON] = []

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events = [] if self._started else self._start(chunk)
        if chunk.get("usage") is not None:
            self._completion["usage"] = chunk["usage"]
        for choice in chunk.get("choices") or []:
            if choice.get("index"):  # a response has one answer
                continue
            self._finish = choice.get("finish_reason") or self._finish
            self._logprobs += (choice.get("logprobs") or {}).get("content") or []
            delta = choice.get("delta") or {}
            thoughts = next((delta[name] for name in _THOUGHTS if isinstance(delta.get(name), str)), "")
            events += self._write(_REASONING, thoughts)
            events += self._write(_TEXT, text_of(delta.get("content")))
            events += self._write(_REFUSAL, delta.get("refusal") or "")
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def response(self) -> JSON:
        """Return the whole response, after the last chunk."""
        return finished(self._frame, self._completion, self._output, self._finish)

    def end(self) -> list[JSON]:
        """Return the events after the last chunk."""
        events = self.close()
        response = self.response()
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def fail(self, code: str, message: str) -> list[JSON]:
        """Return the last event of a stream that broke."""
        error = {"code": code, "message": message}
        response = {**self._frame, "model": self._completion.get("model") or "", "status": "failed", "error": error}
        return [self._event("response.failed", response={**response, "output": list(self._output)})]

    def close(self) -> list[JSON]:
        """Return the events that complete the open item."""
        if self._open is None:
            return []
        part, self._open = self._open, None
        place = {"item_id": part["id"], "output_index": len(self._output)}
        if part["kind"] == "call":
            item = _call(part["id"], part["call_id"], part["name"], part["text"])
            done = {"arguments": part["text"], "name": part["name"]}
            events = [self._event("response.function_call_arguments.done", **place, **done)]
        else:
            content = {"type": part["type"], part["field"]: part["text"]}
            if part["kind"] == "text":
                content = _text_part(part["text"], self._logprobs)
            in_part = {**place, "content_index": 0}
            extra = {"logprobs": self._logprobs} if part["kind"] == "text" else {}
            events = [
                self._event(f"{part['event']}.done", **in_part, **{part["field"]: part["text"]}, **extra),
                self._event("response.content_part.done", **in_part, part=content),
            ]
            is_thought = part["kind"] == "reasoning"
            item = _reasoning(part["id"], part["text"]) if is_thought else _message(part["id"], [content])
        self._output.append(item)
        return [*events, self._event("response.output_item.done", output_index=place["output_index"], item=item)]

    def _start(self, chunk: JSON) -> list[JSON]:
        self._started = True
        self._completion = {key: value for key, value in chunk.items() if key == "model" or key.startswith("router_")}
        response = {**self._frame, **self._completion}
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def _event(self, kind: str, **fields: Any) -> JSON:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _write(self, form: Mapping[str, str], text: str) -> list[JSON]:
        if not text:
            return []
        events: list[JSON] = []
        if self._open is None or self._open["kind"] != form["kind"]:
            events = self.close()
            is_thought = form["kind"] == "reasoning"
            identifier = new_id("rs" if is_thought else "msg")
            item = _reasoning(identifier, "", "in_progress") if is_thought else _message(identifier, [], "in_progress")
            self._open = {**form, "id": identifier, "text": ""}
            part = _text_part("") if form["kind"] == "text" else {"type": form["type"], form["field"]: ""}
            place = {"item_id": identifier, "output_index": len(self._output), "content_index": 0}
            events += [
                self._event("response.output_item.added", output_index=len(self._output), item=item),
                self._event("response.content_part.added", **place, part=part),
            ]
        self._open["text"] += text
        place = {"item_id": self._open["id"], "output_index": len(self._output), "content_index": 0}
        extra: JSON = {"logprobs": []} if form["kind"] == "text" else {}
        return [*events, self._event(f"{form['event']}.delta", **place, delta=text, **extra)]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        index, identifier = piece.get("index"), piece.get("id")
        call = self._open if self._open is not None and self._open["kind"] == "call" else None
        events: list[JSON] = []
        if call is None or index not in (None, self._index) or identifier not in (None, "", call["call_id"]):
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            events = self.close()
            call_id = str(identifier) if identifier else new_id("call")
            call = {"kind": "call", "id": new_id("fc"), "call_id": call_id, "name": function["name"], "text": ""}
            self._open, self._index = call, index
            item = _call(call["id"], call_id, call["name"], "", "in_progress")
            events.append(self._event("response.output_item.added", output_index=len(self._output), item=item))
        arguments = function.get("arguments")
        if not arguments:
            return events
        call["text"] += arguments
        place = {"item_id": call["id"], "output_index": len(self._output)}
        return [*events, self._event("response.function_call_arguments.delta", **place, delta=arguments)]
