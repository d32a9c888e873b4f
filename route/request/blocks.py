"""The order of an answer's blocks: Anthropic's and the Responses API send one block after the other, models do not.

Parallel calls of tools may come in turns (index 0, 1, 0), with text between their pieces. The first call is passed on
as it comes; what begins before its arguments are complete waits, each block with its text, and follows in order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from p2l.common.files import parse_json
from route.providers.base import JSON, Fault, ProviderError

Kind: TypeAlias = Literal["text", "refusal", "thinking", "call"]


@dataclass
class Block:
    """A stretch of text or thoughts, or one call of a tool."""

    kind: Kind
    call_id: str = ""
    """What the provider calls it; empty until it does."""
    name: str = ""
    """The tool's."""
    text: str = ""
    """What has come of it: text, or the arguments of a call."""
    is_closed: bool = False
    fields: JSON = field(default_factory=dict)
    """Whatever a stream notes of it."""

    @property
    def is_unfinished(self) -> bool:
        """Return whether more has to come of it before another block may begin."""
        return self.kind == "call" and not _is_object(self.text)


def _is_object(text: str) -> bool:
    if not text.rstrip().endswith("}"):  # parsing is for the few that may be complete
        return False
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


Step: TypeAlias = tuple[Literal["open", "add", "close"], Block, str]
"""What happens to a block, and the text that is added."""


class BlockOrder:
    """Puts the pieces of a stream into blocks that follow each other."""

    def __init__(self) -> None:
        self._open: Block | None = None
        self._waiting: list[Block] = []
        self._calls: dict[Any, Block] = {}
        """The newest call of each index."""
        self._last_call: Block | None = None

    @property
    def has_calls(self) -> bool:
        """Return whether a tool was called."""
        return self._last_call is not None

    def write(self, kind: Kind, text: str) -> list[Step]:
        """Return the steps for a piece of text or of thoughts."""
        if not text:
            return []
        steps = self._advance()
        if self._open is not None and self._open.is_unfinished:
            if not self._waiting or self._waiting[-1].kind != kind:
                self._waiting.append(Block(kind))
            self._waiting[-1].text += text
            return steps
        if self._open is None or self._open.kind != kind:
            steps += self._begin(Block(kind))
        return steps + self._add(text)

    def call(self, piece: JSON) -> list[Step]:
        """Return the steps for a piece of a call; raise ProviderError if it continues one that has ended."""
        function = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        block, steps = self._block_of(piece, name)
        if block is self._open:
            return steps + (self._add(arguments) if arguments else []) + self._advance()
        if block.is_closed:
            if arguments.strip():
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            return steps
        block.text += arguments
        return steps + self._advance()

    def end(self) -> list[Step]:
        """Return the steps after the last piece."""
        steps = self._close()
        while self._waiting:
            steps += self._next()
        return steps + self._close()

    def _block_of(self, piece: JSON, name: str) -> tuple[Block, list[Step]]:
        """Return the call that a piece belongs to, and the steps if it begins with it."""
        # The further pieces of a call repeat its index, its identifier, both or neither, by provider.
        index, identifier = piece.get("index"), str(piece.get("id") or "")
        known = self._last_call if index is None else self._calls.get(index)
        if known is not None and (not identifier or not known.call_id or identifier == known.call_id):
            known.call_id = known.call_id or identifier
            known.name = known.name or name
            return known, []
        block = Block("call", call_id=identifier, name=name)
        self._calls[index], self._last_call = block, block
        steps = self._advance()
        if self._open is not None and self._open.is_unfinished:
            self._waiting.append(block)
            return block, steps
        if not name:  # it may come later
            self._waiting.append(block)
            return block, steps + self._close()
        return block, steps + self._begin(block)

    def _advance(self) -> list[Step]:
        """Return the steps that let waiting blocks go as far as nothing before them is unfinished."""
        steps: list[Step] = []
        while self._waiting and not (self._open is not None and self._open.is_unfinished):
            if self._waiting[0].kind == "call" and not self._waiting[0].name:
                break
            steps += self._next()
        return steps

    def _next(self) -> list[Step]:
        block = self._waiting.pop(0)
        text, block.text = block.text, ""
        return self._begin(block) + (self._add(text) if text else [])

    def _begin(self, block: Block) -> list[Step]:
        steps = self._close()
        self._open = block
        return [*steps, ("open", block, "")]

    def _add(self, text: str) -> list[Step]:
        assert self._open is not None
        self._open.text += text
        return [("add", self._open, text)]

    def _close(self) -> list[Step]:
        if self._open is None:
            return []
        block, self._open = self._open, None
        block.is_closed = True
        return [("close", block, "")]
