"""The chunks of a chat completion as the events of a message.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Blocks follow each other: text ends when a tool is called, a call when the next begins. What was used is known at the
end, so `message_start` counts nothing yet.
"""

from __future__ import annotations

import json
from typing import Any

from route.messages.answer import frame_of, stop_of, text_of, tool_id, usage_of
from route.providers.base import JSON, Fault, ProviderError

__all__ = ["MessageStream"]


class MessageStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        self._open: str | None = None
        """Type of the block that is going on."""
        self._call: tuple[Any, Any] = (None, None)
        """Index and identifier of the call that is going on."""
        self._choice: JSON = {}
        self._called = False
        self._refused = False
        self._usage: Any = None

    def take(self, chunk: JSON) -> list[JSON]:
        """What a chunk adds.

        Raises:
            ProviderError: it goes on with a call that is over.
        """
        events = [] if self._started else self._start(chunk)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        for choice in chunk.get("choices") or []:
            if choice.get("index"):
                continue
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            events += self._text(text_of(delta.get("content"))) + self._text(delta.get("refusal"))
            self._refused |= bool(delta.get("refusal"))
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def end(self) -> list[JSON]:
        """What comes after the last chunk."""
        stop = stop_of(self._choice, calls=self._called, refused=self._refused)
        ending = {"type": "message_delta", "delta": stop, "usage": usage_of(self._usage)}
        return [*self._close(), ending, {"type": "message_stop"}]

    def _start(self, chunk: JSON) -> list[JSON]:
        self._started = True
        unknown = {"stop_reason": None, "stop_sequence": None, "usage": usage_of(None)}
        message = {**frame_of(chunk), "content": [], **unknown}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _text(self, text: Any) -> list[JSON]:
        if not text:
            return []
        opening = [] if self._open == "text" else self._begin({"type": "text", "text": ""})
        return [*opening, self._delta({"type": "text_delta", "text": text})]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        index, identifier = piece.get("index"), piece.get("id")
        goes_on = (
            self._open == "tool_use" and index in (None, self._call[0]) and identifier in (None, "", self._call[1])
        )
        opening: list[JSON] = []
        if not goes_on:
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model went on with a tool call that was over")
            self._call, self._called = (index, identifier), True
            block = {"type": "tool_use", "id": tool_id(identifier), "name": function["name"], "input": {}}
            opening = self._begin(block)
        given = function.get("arguments")
        if not given:
            return opening
        text = given if isinstance(given, str) else json.dumps(given)
        return [*opening, self._delta({"type": "input_json_delta", "partial_json": text})]

    def _begin(self, block: JSON) -> list[JSON]:
        closing = self._close()
        self._open = block["type"]
        self._blocks += 1
        return [*closing, {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}]

    def _delta(self, delta: JSON) -> JSON:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}

    def _close(self) -> list[JSON]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._blocks - 1}]
