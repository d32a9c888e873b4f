"""Responses of the Responses API: their items, whole or as the events of a stream."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from p2l.common.files import parse_json
from route.providers.base import JSON
from route.providers.usage import to_responses
from route.request.blocks import Block, BlockOrder, Kind, Step
from route.request.chat import text_of_answer, thoughts_of

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

_OWN_ID = re.compile(r"[a-z]+_p2l[0-9a-f]+")


def new_id(prefix: str) -> str:
    """Return a new identifier of an item or a response, which no provider knows."""
    return f"{prefix}_p2l{secrets.token_hex(24)}"


def is_own_id(identifier: Any) -> bool:
    """Return whether the router made an identifier."""
    return isinstance(identifier, str) and _OWN_ID.fullmatch(identifier) is not None


def frame_of(request: JSON, *, stored: bool) -> JSON:
    """Return the fields of a response that are known before its answer."""
    reasoning = request.get("reasoning") or {}  # checked to be an object when the request was translated
    return {
        "id": new_id("resp"),
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
    thoughts = thoughts_of(message)
    if thoughts:
        output.append(_reasoning(new_id("rs"), thoughts))
    text, refusal = text_of_answer(message.get("content")), message.get("refusal")
    parts = [_text_part(text, (choice.get("logprobs") or {}).get("content") or [])] if text else []
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        output.append(_message_item(new_id("msg"), parts))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        output.append(_call_item(frame, call.get("id"), function.get("name"), arguments))
    return _finished(frame, completion, output, choice.get("finish_reason"))


def _finished(frame: JSON, completion: JSON, output: Sequence[JSON], finish_reason: Any) -> JSON:
    """Return the response with its output, usage and the router's own fields."""
    why = _INCOMPLETE.get(str(finish_reason))
    router_fields = {key: field for key, field in completion.items() if key.startswith("router_")}
    return {
        **frame,
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "model": completion.get("model") or "",
        "output": list(output),
        "usage": to_responses(completion.get("usage")),
        **router_fields,
    }


def _text_part(text: str, logprobs: Sequence[JSON] = ()) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _message_item(identifier: str, parts: Sequence[JSON], status: str = "completed") -> JSON:
    return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _reasoning(identifier: str, text: str, status: str = "completed") -> JSON:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": identifier, "type": "reasoning", "summary": [], "content": content, "status": status}


def custom_tools(request: JSON) -> set[str]:
    """Return the names of a request's tools that take text, not JSON."""
    return {str(tool.get("name")) for tool in request.get("tools") or [] if tool.get("type") == "custom"}


def _call_item(frame: JSON, call_id: Any, name: Any, arguments: Any, status: str = "completed") -> JSON:
    """Return the item of a call: of a function, or of a custom tool, which models called as a function."""
    call = {"call_id": str(call_id) if call_id else new_id("call"), "name": name, "status": status}
    if name not in custom_tools(frame):
        return {"id": new_id("fc"), "type": "function_call", **call, "arguments": arguments}
    try:
        text = parse_json(arguments or "{}").get("input")
    except (ValueError, AttributeError):
        text = None
    return {"id": new_id("ctc"), "type": "custom_tool_call", **call, "input": str(arguments if text is None else text)}


_FORMS: Mapping[Kind, tuple[str, str, str]] = {
    "text": ("output_text", "text", "response.output_text"),
    "refusal": ("refusal", "refusal", "response.refusal"),
    "thinking": ("reasoning_text", "text", "response.reasoning_text"),
}
"""Of each kind of text: type of its part, the field that holds it there, and the beginning of its events' names."""


class ResponseStream:
    """Translates the chunks of one chat completion to the events of a response.

    created in_progress (output_item.added ... output_item.done)* completed
    """

    def __init__(self, frame: JSON) -> None:
        self._frame = frame
        self._sequence = -1
        self._started = False
        self._output: list[JSON] = []
        """Items that are complete."""
        self._order = BlockOrder()
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
            steps = self._order.write("thinking", thoughts_of(delta))
            steps += self._order.write("text", text_of_answer(delta.get("content")))
            steps += self._order.write("refusal", delta.get("refusal") or "")
            for piece in delta.get("tool_calls") or []:
                steps += self._order.call(piece)
            events += self._events(steps)
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
        """Return the events that complete the open item and those that wait."""
        return self._events(self._order.end())

    def _event(self, kind: str, **fields: Any) -> JSON:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _events(self, steps: Sequence[Step]) -> list[JSON]:
        events = []
        for action, block, text in steps:
            match action:
                case "open":
                    events += self._begun(block)
                case "add":
                    events += self._added(block, text)
                case "close":
                    events += self._ended(block)
        return events

    def _place(self, block: Block) -> JSON:
        return {"item_id": block.fields["id"], "output_index": len(self._output)}

    def _is_custom(self, block: Block) -> bool:
        return block.kind == "call" and block.name in custom_tools(self._frame)

    def _begun(self, block: Block) -> list[JSON]:
        if block.kind == "call":
            block.call_id = block.call_id or new_id("call")
            item = _call_item(self._frame, block.call_id, block.name, "", "in_progress")
        elif block.kind == "thinking":
            item = _reasoning(new_id("rs"), "", "in_progress")
        else:
            item = _message_item(new_id("msg"), [], "in_progress")
        block.fields["id"] = item["id"]
        events = [self._event("response.output_item.added", output_index=len(self._output), item=item)]
        if block.kind != "call":
            kind, field, _ = _FORMS[block.kind]
            part = _text_part("") if block.kind == "text" else {"type": kind, field: ""}
            place = {**self._place(block), "content_index": 0}
            events.append(self._event("response.content_part.added", **place, part=part))
        return events

    def _added(self, block: Block, text: str) -> list[JSON]:
        if self._is_custom(block):
            return []  # its input is a field of the arguments, which have to be complete
        if block.kind == "call":
            return [self._event("response.function_call_arguments.delta", **self._place(block), delta=text)]
        logprobs: JSON = {"logprobs": []} if block.kind == "text" else {}
        name = f"{_FORMS[block.kind][2]}.delta"
        return [self._event(name, **self._place(block), content_index=0, delta=text, **logprobs)]

    def _ended(self, block: Block) -> list[JSON]:
        text = block.text
        if block.kind == "call":
            item = _call_item(self._frame, block.call_id, block.name, text) | {"id": block.fields["id"]}
            events = self._ended_call(block, item)
        else:
            kind, field, name = _FORMS[block.kind]
            logprobs = {"logprobs": self._logprobs} if block.kind == "text" else {}
            content = _text_part(text, self._logprobs) if logprobs else {"type": kind, field: text}
            place = {**self._place(block), "content_index": 0}
            events = [
                self._event(f"{name}.done", **place, **{field: text}, **logprobs),
                self._event("response.content_part.done", **place, part=content),
            ]
            is_thought = block.kind == "thinking"
            item = _reasoning(block.fields["id"], text) if is_thought else _message_item(block.fields["id"], [content])
        self._output.append(item)
        return [*events, self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)]

    def _ended_call(self, block: Block, item: JSON) -> list[JSON]:
        place = self._place(block)
        if item["type"] == "function_call":
            return [
                self._event("response.function_call_arguments.done", **place, arguments=block.text, name=block.name)
            ]
        name = "response.custom_tool_call_input"
        return [
            self._event(f"{name}.delta", **place, delta=item["input"]),
            self._event(f"{name}.done", **place, input=item["input"]),
        ]
