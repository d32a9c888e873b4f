"""Messages of Anthropic's API: a whole one, or the events of a stream, of a chat completion."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from p2l.common.files import parse_json
from route.providers.anthropic import UNSIGNED
from route.providers.base import JSON
from route.providers.usage import to_messages
from route.request.blocks import Block, BlockOrder, Step
from route.request.chat import text_of_answer, thoughts_of

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def message_of(completion: JSON) -> JSON:
    """Translate a whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    reply = choice.get("message") or {}
    texts = [text for text in (text_of_answer(reply.get("content")), reply.get("refusal")) if text]
    calls = reply.get("tool_calls") or []
    thoughts = thoughts_of(reply)
    content: list[JSON] = [{"type": "thinking", "thinking": thoughts, "signature": UNSIGNED}] if thoughts else []
    content += [{"type": "text", "text": text} for text in texts]
    for call in calls:
        function = call.get("function") or {}
        sent = function.get("arguments") or "{}"
        try:
            arguments = sent if isinstance(sent, dict) else parse_json(sent)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"arguments": sent}  # clients expect an object
        identifier = str(call.get("id") or f"toolu_{uuid.uuid4().hex}")  # some providers send none
        content.append({"type": "tool_use", "id": identifier, "name": function.get("name"), "input": arguments})
    stop = _stop_of(choice, calls=bool(calls), refused=bool(reply.get("refusal")))
    return {**_frame_of(completion), "content": content, **stop, "usage": to_messages(completion.get("usage"))}


def _frame_of(completion: JSON) -> JSON:
    """Return the fields of a message beside its content: identifier, model, and the router's own."""
    router_fields = {key: field for key, field in completion.items() if key.startswith("router_")}
    identifier = completion.get("id") or f"msg_{uuid.uuid4().hex}"
    frame = {"id": identifier, "type": "message", "role": "assistant", "model": completion.get("model")}
    return {**frame, **router_fields}


def _stop_of(choice: JSON, *, calls: bool, refused: bool) -> JSON:
    """Return why it ended, with the stop sequence if the provider names it in `stop_reason`, as vLLM does."""
    finish, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if refused:
        return {"stop_reason": "refusal", "stop_sequence": None}
    if finish == "stop" and calls:  # as OpenAI ends a call of a tool that had to be called
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if finish == "stop" and isinstance(sequence, str) and sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": _STOP.get(str(finish), "end_turn"), "stop_sequence": None}


class MessageStream:
    """Translates the chunks of one chat completion to the events of a message.

        message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

    The usage is known at the end only, so `message_start` counts zero.
    """

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        self._order = BlockOrder()
        self._choice: JSON = {}
        self._refused = False
        self._usage: Any = None

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events: list[JSON] = []
        if not self._started:
            self._started = True
            # Most providers count at the end only, so that the usage of the beginning is zero.
            unknown = {"stop_reason": None, "stop_sequence": None, "usage": to_messages(None)}
            message = {**_frame_of(chunk), "content": [], **unknown}
            events = [{"type": "message_start", "message": message}, {"type": "ping"}]
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        for choice in chunk.get("choices") or []:
            if choice.get("index"):  # a message has one answer
                continue
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            steps = self._order.write("thinking", thoughts_of(delta))
            steps += self._order.write("text", text_of_answer(delta.get("content")))
            steps += self._order.write("text", delta.get("refusal") or "")
            self._refused |= bool(delta.get("refusal"))
            for piece in delta.get("tool_calls") or []:
                steps += self._order.call(piece)
            events += self._events(steps)
        return events

    def end(self) -> list[JSON]:
        """Return the events after the last chunk."""
        stop = _stop_of(self._choice, calls=self._order.has_calls, refused=self._refused)
        ending = {"type": "message_delta", "delta": stop, "usage": to_messages(self._usage)}
        return [*self._events(self._order.end()), ending, {"type": "message_stop"}]

    def _events(self, steps: Iterable[Step]) -> Iterator[JSON]:
        for action, block, text in steps:
            if action == "open":
                self._blocks += 1
                yield {"type": "content_block_start", "index": self._blocks - 1, "content_block": _started(block)}
            elif action == "close":
                if block.kind == "thinking":
                    yield self._delta("signature_delta", "signature", UNSIGNED)
                yield {"type": "content_block_stop", "index": self._blocks - 1}
            else:
                yield self._delta(*_DELTAS[block.kind], text)

    def _delta(self, kind: str, field: str, text: str) -> JSON:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": {"type": kind, field: text}}


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Type and field of the delta of each kind of block."""


def _started(block: Block) -> JSON:
    """Return a block as it stands before its first delta."""
    match block.kind:
        case "call":
            # Some providers send no identifier.
            identifier = block.call_id or f"toolu_{uuid.uuid4().hex}"
            return {"type": "tool_use", "id": identifier, "name": block.name, "input": {}}
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case _:
            return {"type": "text", "text": ""}
