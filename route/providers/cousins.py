"""Answers of OpenAI's many cousins in OpenAI's own form: whatever leaves a client of chat completions reads the same.

Text is text, not a list of parts; thoughts are `reasoning_content`, those between `<think>` and `</think>` too where an
account says so; the pieces of a tool call share an index, the first of them has the identifier and the name, and
arguments are JSON text; an answer ends for one of OpenAI's reasons, which follows from what was sent where the provider
says none or one of its own. What else an answer holds stays as it is.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from p2l.common.files import parse_json
from route.providers.base import JSON

_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_OTHER_FINISHES: Mapping[str, str] = {
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "max_tokens": "length",
    "model_length": "length",
    "max_length": "length",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "safety": "content_filter",
    "recitation": "content_filter",
    "sensitive": "content_filter",
    "refusal": "content_filter",
}
"""Reasons of other providers, in small letters; any unknown one follows from what was sent."""
_BROKEN = frozenset({"error", "insufficient_system_resource", "network_error", "abort", "cancelled"})
"""Reasons of answers that the provider could not finish."""
_THOUGHTS = ("reasoning", "thinking", "reasoning_text")
"""Fields for thoughts beside `reasoning_content`."""
_TEXT_PARTS = frozenset({"text", "output_text", "thinking", "reference", "reasoning"})


def fault_in(choice: JSON) -> JSON | None:
    """Return the error that a choice stands for, as a body of one; None for an answer."""
    error = choice.get("error")
    return {"error": error} if error else None


def is_broken(choice: JSON) -> bool:
    """Return whether the provider could not finish a choice."""
    return str(choice.get("finish_reason")).lower() in _BROKEN


def completion(answer: JSON, *, has_think_tags: bool = False, keeps_functions: bool = False) -> JSON:
    """Return a whole answer in OpenAI's form; `SHAPE_ERRORS` say what a malformed one may raise.

    With `has_think_tags` a text may begin with its thoughts. Calls of functions, from before there were tools,
    become calls of tools, unless the request had functions (`keeps_functions`).
    """
    for choice in answer["choices"]:
        message = choice["message"]
        if not keeps_functions:
            _call_tool(choice, message)
        _read_text(message)
        if has_think_tags and isinstance(message.get("content"), str):
            _split_thoughts(ThinkTags(), message, ends=True)
        if message.get("tool_calls"):
            message["tool_calls"] = [_whole_call(call) for call in message["tool_calls"]]
        choice["finish_reason"] = _finish(choice.get("finish_reason"), has_calls=bool(message.get("tool_calls")))
    return answer


def _call_tool(choice: JSON, message: JSON) -> None:
    """Make the call of a function in a message, or a piece of one, that of a tool."""
    function = message.pop("function_call", None)
    # Some write an empty one where there is none.
    if isinstance(function, dict) and any(function.values()) and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": function}]
    if choice.get("finish_reason") == "function_call":
        choice["finish_reason"] = "tool_calls"


def _whole_call(call: JSON) -> JSON:
    function = call.get("function") or {}
    arguments = _arguments(function.get("arguments")) or "{}"
    identifier = call.get("id") or _new_id()
    return {**call, "id": identifier, "type": call.get("type") or "function"} | (
        {"function": {**function, "arguments": arguments}} if "function" in call else {}
    )


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)


def _read_text(message: JSON) -> None:
    """Put the text and the thoughts of an answer, or a piece of one, under their own names."""
    content = message.get("content")
    if isinstance(content, list):
        thoughts = "".join(_text_of(part, "thinking") for part in content if isinstance(part, dict))
        # Images among the parts stay where they are.
        if all(isinstance(part, dict) and part.get("type") in _TEXT_PARTS for part in content):
            message["content"] = "".join(_text_of(part, "text") for part in content)
        if thoughts:
            message["reasoning_content"] = thoughts
    if not message.get("reasoning_content"):
        for name in _THOUGHTS:
            if isinstance(message.get(name), str) and message[name]:
                message["reasoning_content"] = message[name]
                break


class ThinkTags:
    """Tells the thoughts that a text begins with, between `<think>` and `</think>`, from the rest of it.

    Servers of open models leave them in the text where no parser of the model's thoughts is configured.
    """

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        """Begin before the first letter."""
        self._held = ""
        """What may become a mark, or is white space before one."""
        self._is_inside = False
        self._is_past = False
        self._is_at_beginning = False
        """Whether white space between thoughts and text is left out."""

    def split(self, piece: str, *, ends: bool) -> tuple[str, str]:
        """Return the thoughts and the text of the next piece; the last one ends the text."""
        self._held += piece
        if not self._is_inside and not self._is_past:
            begun = self._held.lstrip()
            if not ends and self._OPEN.startswith(begun[: len(self._OPEN)]) and len(begun) < len(self._OPEN):
                return "", ""
            self._is_inside = begun.startswith(self._OPEN)
            self._is_past = not self._is_inside
            if self._is_inside:
                self._held = begun.removeprefix(self._OPEN).lstrip()
        thoughts = ""
        if self._is_inside:
            thoughts, mark, rest = self._held.partition(self._CLOSE)
            if mark:
                self._is_inside, self._is_past, self._is_at_beginning = False, True, True
                self._held = rest
            else:
                kept = 0 if ends else self._begun_mark(self._held)
                thoughts, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
                return thoughts, ""
        text, self._held = self._held, ""
        if self._is_at_beginning:
            text = text.lstrip()
            self._is_at_beginning = not text
        return thoughts, text

    def _begun_mark(self, text: str) -> int:
        """Return how many of the last letters may begin the closing mark."""
        lengths = range(min(len(text), len(self._CLOSE) - 1), 0, -1)
        return next((length for length in lengths if text.endswith(self._CLOSE[:length])), 0)


def _split_thoughts(tags: ThinkTags, message: JSON, *, ends: bool) -> None:
    """Put the thoughts within the text of a message, or a piece of one, under their own name."""
    thoughts, text = tags.split(message.get("content") or "", ends=ends)
    if message.get("content") or text:
        message["content"] = text
    if thoughts:
        message["reasoning_content"] = (message.get("reasoning_content") or "") + thoughts


def _text_of(part: JSON, kind: str) -> str:
    """Return the text of a part of a kind, which some write as a list of parts again."""
    if part.get("type") not in ((kind,) if kind == "thinking" else (kind, "output_text")):
        return ""
    text = part.get(kind)
    if isinstance(text, list):
        return "".join(str(each.get("text") or "") for each in text if isinstance(each, dict))
    return str(text or "")


def _finish(reason: Any, *, has_calls: bool) -> str:
    if reason in _FINISHES:
        return str(reason)
    return _OTHER_FINISHES.get(str(reason).lower(), "tool_calls" if has_calls else "stop")


@dataclass
class _Call:
    """One call of a tool in a stream."""

    index: int
    identifier: str
    """As the provider says it; empty until it does."""
    name: str = ""
    arguments: str = ""

    @property
    def is_complete(self) -> bool:
        """Return whether its arguments are a JSON object."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(parse_json(self.arguments), dict)
        except ValueError:
            return False


@dataclass
class _Choice:
    """What has come of one choice of a stream."""

    calls: list[_Call] = field(default_factory=list)
    by_index: dict[Any, _Call] = field(default_factory=dict)
    """The newest call of each of the provider's indices."""
    tags: ThinkTags = field(default_factory=ThinkTags)
    is_finished: bool = False

    def rest(self) -> JSON:
        """Return the last delta: what was held back because it might have become a mark."""
        delta: JSON = {}
        _split_thoughts(self.tags, delta, ends=True)
        return delta


class ChunkReader:
    """Brings the chunks of one stream into OpenAI's form."""

    def __init__(self, *, has_think_tags: bool = False, keeps_functions: bool = False) -> None:
        """Begin a stream; see `completion`."""
        self._has_think_tags = has_think_tags
        self._keeps_functions = keeps_functions
        self._choices: dict[int, _Choice] = {}
        self._frame: JSON = {}

    def read(self, chunk: JSON) -> JSON:
        """Return a chunk in OpenAI's form; `SHAPE_ERRORS` say what a malformed one may raise."""
        for choice in chunk["choices"]:
            state = self._choices.get(choice.get("index") or 0)
            if state is None:
                state = self._choices[choice.get("index") or 0] = _Choice()
                self._frame = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
            if "delta" not in choice and isinstance(choice.get("message"), dict):
                choice["delta"] = choice.pop("message")  # as in a whole answer
            delta = choice.get("delta")
            if not self._keeps_functions:
                _call_tool(choice, delta or {})
            if delta:
                _read_text(delta)
                if delta.get("tool_calls"):
                    delta["tool_calls"] = [self._piece(state, piece) for piece in delta["tool_calls"]]
            reason = choice.get("finish_reason")
            if self._has_think_tags and not isinstance((delta or {}).get("content"), list):
                _split_thoughts(state.tags, choice.setdefault("delta", {}), ends=bool(reason))
            if reason:
                state.is_finished = True
                choice["finish_reason"] = _finish(reason, has_calls=bool(state.calls))
            elif reason is not None:  # a blank one is none
                choice["finish_reason"] = None
        return chunk

    def ending(self) -> list[JSON]:
        """Return the chunk that ends the choices for which the provider gave no reason; nothing where all have one."""
        choices = [
            {"index": index, "delta": state.rest(), "finish_reason": _finish(None, has_calls=bool(state.calls))}
            for index, state in self._choices.items()
            if not state.is_finished
        ]
        return [{**self._frame, "choices": choices}] if choices else []

    def _piece(self, state: _Choice, piece: JSON) -> JSON:
        """Return the piece of a call; the first one of each has its identifier, and names come once."""
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", _arguments(function.get("arguments"))
        call = self._call_of(state, piece, name, arguments)
        is_new = call is None
        if call is None:
            call = _Call(len(state.calls), str(piece.get("id") or ""))
            state.calls.append(call)
        state.by_index[piece.get("index")] = call
        told: JSON = {"index": call.index, "function": {"arguments": arguments}}
        if is_new:
            rest = {key: value for key, value in piece.items() if key not in ("index", "function")}
            told = {**rest, "id": call.identifier or _new_id(), "type": piece.get("type") or "function", **told}
        if name and not call.name:
            call.name = name
            told["function"] = {"name": name, **told["function"]}
        call.arguments += arguments
        return told

    @staticmethod
    def _call_of(state: _Choice, piece: JSON, name: str, arguments: str) -> _Call | None:
        """Return the call that a piece goes on with; None for the first piece of one."""
        index, identifier = piece.get("index"), str(piece.get("id") or "")
        same = next((call for call in state.calls if identifier and call.identifier == identifier), None)
        if same is not None and (index is None or state.by_index.get(index) in (None, same)):
            return same
        call = state.by_index.get(index)
        if call is None:
            return None if index is not None or not state.calls or name else state.calls[-1]
        if not name or not call.name:
            call.identifier = call.identifier or identifier
            return call
        # A name again: of the same call where its arguments are still to come, of another one where they are complete.
        is_other = call.is_complete and (name != call.name or bool(arguments) or bool(identifier))
        if not is_other and identifier and call.identifier and identifier != call.identifier and not call.arguments:
            is_other = True
        return None if is_other else call
