"""Turns of the Messages API as messages of a chat completion.

A user turn may hold results of tools: each becomes a message of its own, before what else the turn says. Images among
those results follow as the user's, since most models read only text as a tool's. Thinking of earlier turns is left out:
only the model that thought it can read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from p2l.errors import InputError
from route.providers.base import JSON
from route.providers.content import SHAPE_ERRORS

__all__ = ["Placed", "chat_messages", "joined", "placed_blocks"]

Placed: TypeAlias = tuple[str, JSON]
"""Where in the request, and the block of content that is there."""

_THOUGHTS = ("thinking", "redacted_thinking")


def chat_messages(turns: Sequence[Any]) -> list[JSON]:
    """The messages that the turns become.

    Raises:
        InputError: a turn is of no form that the Messages API has, or has content that cannot be routed.
    """
    return [message for number, turn in enumerate(turns) for message in _of_turn(turn, f"messages[{number}]")]


def placed_blocks(content: Any, where: str) -> list[Placed]:
    """The blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InputError(f"{where}: must be text or a list of content blocks")
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def joined(blocks: Sequence[Placed], between: str) -> str:
    """The text of blocks that are all text."""
    return between.join(
        _text_of(part, where) for where, part in ((where, _part(where, block)) for where, block in blocks)
    )


def _text_of(part: JSON, where: str) -> str:
    if part["type"] != "text":
        raise InputError(f"{where}: must be text")
    return str(part["text"])


def _of_turn(turn: Any, where: str) -> Iterator[JSON]:
    if not isinstance(turn, dict):
        raise InputError(f"{where}: must be an object with role and content")
    blocks = placed_blocks(turn.get("content"), f"{where}.content")
    match turn.get("role"):
        case "user":
            yield from _of_user(blocks)
        case "assistant":
            yield _of_assistant(blocks)
        case "system":
            yield {"role": "system", "content": joined(blocks, "\n\n")}
        case _:
            raise InputError(f"{where}.role: must be user or assistant")


def _of_user(blocks: Sequence[Placed]) -> Iterator[JSON]:
    parts: list[JSON] = []
    said: list[JSON] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            said.append(_part(where, block))
            continue
        message, others = _of_result(where, block)
        parts += others
        yield message
    parts += said
    if parts or not blocks:
        only_text = len(parts) <= 1 and all(part["type"] == "text" for part in parts)
        yield {"role": "user", "content": "".join(part["text"] for part in parts) if only_text else parts}


def _of_result(where: str, block: JSON) -> tuple[JSON, list[JSON]]:
    """The message of a tool, and what of its result is no text."""
    if not isinstance(block.get("tool_use_id"), str):
        raise InputError(f"{where}: a tool_result must have a tool_use_id")
    content = block.get("content")
    parts = [_part(*placed) for placed in placed_blocks("" if content is None else content, f"{where}.content")]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error"):
        text = f"The tool failed: {text}"  # chat completions have no field for it
    message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    return message, [part for part in parts if part["type"] != "text"]


def _of_assistant(blocks: Sequence[Placed]) -> JSON:
    calls = [_call(where, block) for where, block in blocks if block.get("type") == "tool_use"]
    text = joined([(where, block) for where, block in blocks if block.get("type") not in ("tool_use", *_THOUGHTS)], "")
    message: JSON = {"role": "assistant", "content": text or (None if calls else "")}
    return message | ({"tool_calls": calls} if calls else {})


def _call(where: str, block: JSON) -> JSON:
    name, identifier, given = block.get("name"), block.get("id"), block.get("input")
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(given, dict):
        raise InputError(f"{where}: a tool_use must have id, name and input")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}


def _part(where: str, block: JSON) -> JSON:
    kind = block.get("type")
    try:
        part = _translated(block)
    except SHAPE_ERRORS:
        raise InputError(f"{where}: is not of the form of a block of the type {kind}") from None
    if part is None:
        raise InputError(f"{where}: content of the type {kind} cannot be routed, or not from this source")
    return part


def _translated(block: JSON) -> JSON | None:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": "" + block["text"]}
        case "image":
            url = _url(block["source"])
            return None if url is None else {"type": "image_url", "image_url": {"url": url}}
        case "document":
            return _document(block)
    return None


def _url(source: JSON) -> str | None:
    match source["type"]:
        case "base64":
            return f"data:{source['media_type']};base64,{source['data']}"
        case "url":
            return str(source["url"])
    return None


def _document(block: JSON) -> JSON | None:
    source = block["source"]
    match source["type"]:
        case "text":
            return {"type": "text", "text": "" + source["data"]}
        case "base64":
            name = block.get("title") or "document.pdf"
            return {"type": "file", "file": {"filename": name, "file_data": _url(source)}}
    return None
