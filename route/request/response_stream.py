"""Responses of the Responses API: their items, whole or as the events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from route.providers.base import JSON, Fault, ProviderError
from route.request.chat import text_of_answer, tokens_counted

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


def _new_id(prefix: str) -> str:
    """Return a new identifier."""
    return f"{prefix}_{secrets.token_hex(24)}"


def frame_of(request: JSON, *, stored: bool) -> JSON:
    """Return the fields of a response that are known before its answer."""
    reasoning = request.get("reasoning") or {}  # checked to be an object when the request was translated
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
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
    """Translate a whole answer: thoughts, text or refusal, and each call of a function are an item each."""
    choice = (completion.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    output: list[JSON] = []
    texts = [message[name] for name in _THOUGHTS if isinstance(message.get(name), str) and message[name]]
    if texts:
        output.append(_reasoning(_new_id("rs"), texts[0]))
    text, refusal = text_of_answer(message.get("content")), message.get("refusal")
    parts = [_text_part(text, (choice.get("logprobs") or {}).get("content") or [])] if text else []
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        output.append(_message_item(_new_id("msg"), parts))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        output.append(_call_item(_new_id("fc"), call.get("id"), function.get("name"), arguments))
    return _finished(frame, completion, output, choice.get("finish_reason"))


def _finished(frame: JSON, completion: JSON, output: Sequence[JSON], finish_reason: Any) -> JSON:
    """Return the response with its output, usage and the router's own fields."""
    why = _INCOMPLETE.get(str(finish_reason))
    router_fields = {key: field for key, field in completion.items() if key.startswith("router_")}
    usage = completion.get("usage")
    prompt, answer = tokens_counted(usage, "prompt_tokens"), tokens_counted(usage, "completion_tokens")
    return {
        **frame,
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "model": completion.get("model") or "",
        "output": list(output),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": tokens_counted(usage, "prompt_tokens_details", "cached_tokens")},
            "output_tokens": answer,
            "output_tokens_details": {
                "reasoning_tokens": tokens_counted(usage, "completion_tokens_details", "reasoning_tokens")
            },
            "total_tokens": prompt + answer,
        },
        **router_fields,
    }


def _text_part(text: str, logprobs: Sequence[JSON] = ()) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _message_item(identifier: str, parts: Sequence[JSON], status: str = "completed") -> JSON:
    return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _reasoning(identifier: str, text: str, status: str = "completed") -> JSON:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": identifier, "type": "reasoning", "summary": [], "content": content, "status": status}


def _call_item(identifier: str, call_id: Any, name: Any, arguments: Any, status: str = "completed") -> JSON:
    return {
        "id": identifier,
        "type": "function_call",
        "call_id": str(call_id) if call_id else _new_id("call"),
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
        self._frame = frame
        self._sequence = -1
        self._started = False
        self._output: list[JSON] = []
        """Items that are complete."""
        self._open: JSON | None = None
        """The item that is being written: its kind, identifier, event and text so far."""
        self._index: Any = None
        """The provider's index of the open call."""
        self._completion: JSON = {}
        self._finish: Any = None
        self._logprobs: list[JSON] = []

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events = []
        if not self._started:
            self._started = True
            self._completion = {
                key: field for key, field in chunk.items() if key == "model" or key.startswith("router_")
            }
            response = {**self._frame, **self._completion}
            events = [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]
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
            events += self._write(_TEXT, text_of_answer(delta.get("content")))
            events += self._write(_REFUSAL, delta.get("refusal") or "")
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def response(self) -> JSON:
        """Return the whole response, after the last chunk."""
        return _finished(self._frame, self._completion, self._output, self._finish)

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
        part, text = self._open, self._open["text"]
        if part["kind"] == "call":
            item = _call_item(part["id"], part["call_id"], part["name"], text)
            name = "response.function_call_arguments.done"
            events = [self._event(name, **self._place(), arguments=text, name=part["name"])]
        else:
            logprobs = {"logprobs": self._logprobs} if part["kind"] == "text" else {}
            content = _text_part(text, self._logprobs) if logprobs else {"type": part["type"], part["field"]: text}
            place = {**self._place(), "content_index": 0}
            events = [
                self._event(f"{part['event']}.done", **place, **{part["field"]: text}, **logprobs),
                self._event("response.content_part.done", **place, part=content),
            ]
            is_thought = part["kind"] == "reasoning"
            item = _reasoning(part["id"], text) if is_thought else _message_item(part["id"], [content])
        self._open = None
        self._output.append(item)
        return [*events, self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)]

    def _event(self, kind: str, **fields: Any) -> JSON:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _place(self) -> JSON:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._output)}

    def _begin(self, open_item: JSON, item: JSON) -> list[JSON]:
        """Complete the item before and open another one, which the client sees as `item`."""
        events = self.close()
        self._open = open_item
        return [*events, self._event("response.output_item.added", output_index=len(self._output), item=item)]

    def _write(self, form: Mapping[str, str], text: str) -> list[JSON]:
        if not text:
            return []
        events: list[JSON] = []
        if self._open is None or self._open["kind"] != form["kind"]:
            is_thought = form["kind"] == "reasoning"
            identifier = _new_id("rs" if is_thought else "msg")
            item = (
                _reasoning(identifier, "", "in_progress")
                if is_thought
                else _message_item(identifier, [], "in_progress")
            )
            events = self._begin({**form, "id": identifier, "text": ""}, item)
            part = _text_part("") if form["kind"] == "text" else {"type": form["type"], form["field"]: ""}
            events.append(self._event("response.content_part.added", **self._place(), content_index=0, part=part))
        assert self._open is not None
        self._open["text"] += text
        logprobs: JSON = {"logprobs": []} if form["kind"] == "text" else {}
        delta = self._event(f"{form['event']}.delta", **self._place(), content_index=0, delta=text, **logprobs)
        return [*events, delta]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        # The further pieces of a call repeat its index, its identifier, both or neither, by provider.
        index, identifier = piece.get("index"), piece.get("id")
        call = self._open if self._open is not None and self._open["kind"] == "call" else None
        events: list[JSON] = []
        if call is None or index not in (None, self._index) or identifier not in (None, "", call["call_id"]):
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            call_id = str(identifier) if identifier else _new_id("call")
            call = {"kind": "call", "id": _new_id("fc"), "call_id": call_id, "name": function["name"], "text": ""}
            events = self._begin(call, _call_item(call["id"], call_id, call["name"], "", "in_progress"))
            self._index = index
        arguments = function.get("arguments")
        if not arguments:
            return events
        call["text"] += arguments
        return [*events, self._event("response.function_call_arguments.delta", **self._place(), delta=arguments)]
