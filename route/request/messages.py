"""Translate a request of Anthropic's Messages API to one for a chat completion.

Fields with the same name in both APIs, and unknown ones, stay as they are. Hints to Anthropic's own models are dropped
(caching marks, `thinking`, `service_tier`, ...), since any model may answer; what needs Anthropic's servers (tools that
they run, files that they store) is refused.

A user turn may hold results of tools: each becomes a message of its own, before the rest of the turn. Images among
those results follow as the user's, since most models read only text from a tool. Thinking of earlier turns is dropped,
since only the model that wrote it can read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from p2l.common.errors import InputError
from route.providers.base import JSON
from route.providers.chat import SHAPE_ERRORS

Placed: TypeAlias = tuple[str, JSON]
"""A place in the request, and the block of content there."""
_THOUGHTS = ("thinking", "redacted_thinking")


def chat_messages(turns: Sequence[Any]) -> list[JSON]:
    """Translate turns to messages; raise InputError for a malformed turn, or one that cannot be routed."""
    return [message for number, turn in enumerate(turns) for message in _of_turn(turn, f"messages[{number}]")]


def placed_blocks(content: Any, where: str) -> list[Placed]:
    """Return the blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InputError(f"{where}: must be text or a list of content blocks")
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def joined(blocks: Sequence[Placed], between: str) -> str:
    """Return the text of blocks that are all text."""
    return between.join(_text_of(where, block) for where, block in blocks)


def _text_of(where: str, block: JSON) -> str:
    part = _part(where, block)
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
    rest: list[JSON] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            rest.append(_part(where, block))
            continue
        message, others = _of_result(where, block)
        parts += others
        yield message
    parts += rest
    if parts or not blocks:
        only_text = len(parts) <= 1 and all(part["type"] == "text" for part in parts)
        yield {"role": "user", "content": "".join(part["text"] for part in parts) if only_text else parts}


def _of_result(where: str, block: JSON) -> tuple[JSON, list[JSON]]:
    """Return the message of a tool, and the parts of its output that are not text."""
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
    name, identifier, arguments = block.get("name"), block.get("id"), block.get("input")
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(arguments, dict):
        raise InputError(f"{where}: a tool_use must have id, name and input")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


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


_TRANSLATED = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "stream_options"}
)
HINTS = frozenset(
    {"cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed", "thinking"}
)
"""Fields that a translation leaves out."""
_REFUSED = {
    "compare": "goes with chat completions only, a message has one answer",
    "container": "the router cannot run code, leave it out",
    "mcp_servers": "the router connects to no servers, leave it out",
    "n": "a message has one answer, leave it out",
}


def chat_request(body: JSON) -> JSON:
    """Translate the body of a request; raise InputError for a malformed one, or one that cannot be routed."""
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in HINTS}
    turns = _items(body, "messages")
    if not turns:
        raise InputError("messages: must have at least one")
    chat["messages"] = [*_system(body.get("system")), *chat_messages(turns)]
    chat |= _tools(body) | _format(_object(body, "output_config"))
    if body.get("stop_sequences"):
        chat["stop"] = _items(body, "stop_sequences")
    user = _object(body, "metadata").get("user_id")
    if user:
        chat["user"] = user
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a message always holds its usage
    return chat


def _items(body: JSON, field: str) -> list[Any]:
    items = body.get(field)
    if not isinstance(items, list):
        raise InputError(f"{field}: must be a list")
    return items


def _object(body: JSON, field: str) -> JSON:
    fields = body.get(field)
    if fields is not None and not isinstance(fields, dict):
        raise InputError(f"{field}: must be an object")
    return fields or {}


def _system(system: Any) -> list[JSON]:
    if not system:
        return []
    return [{"role": "system", "content": joined(placed_blocks(system, "system"), "\n\n")}]


def _tools(body: JSON) -> JSON:
    if not body.get("tools"):
        return {}
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(_items(body, "tools"))]
    choice = _object(body, "tool_choice")
    chat: JSON = {"tools": tools}
    if choice:
        chat["tool_choice"] = _tool_choice(choice)
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _tool(tool: Any, where: str) -> JSON:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must be an object with a name")
    if tool.get("type") not in (None, "custom"):
        raise InputError(
            f"{where}: tools of Anthropic's own ({tool['type']}) cannot be routed; give it an input_schema"
        )
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    described = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function | described}


def _tool_choice(choice: JSON) -> Any:
    match choice.get("type"):
        case "auto" | "none" as same:
            return same
        case "any":
            return "required"
        case "tool" if isinstance(choice.get("name"), str):
            return {"type": "function", "function": {"name": choice["name"]}}
    raise InputError("tool_choice: must have the type auto, any, none, or tool with a name")


def _format(output: JSON) -> JSON:
    form = _object(output, "format")
    if not form:
        return {}
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InputError("output_config.format: must have the type json_schema and a schema")
    schema = {"name": "answer", "schema": form["schema"], "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
