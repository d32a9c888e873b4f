"""Anthropic's Messages API: passed to Anthropic's models as it is, for others translated to chat completions and back.

In a translation fields with the same name in both APIs, and unknown ones, stay as they are. Hints to Anthropic's own
models (caching marks, `thinking`, `service_tier`, ...) are left out and named; what needs Anthropic's servers or models
(tools of their own, files that they store) blocks it, so that the request goes to a model of Anthropic's or nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from p2l.common.errors import InputError
from route.providers.anthropic import UNSIGNED
from route.providers.base import JSON
from route.providers.completions import SHAPE_ERRORS
from route.providers.translation import NativeEvent
from route.request.api_errors import ApiError
from route.request.chat import ROUTER_FIELDS, TranslatedDialect, encode, object_in, router_fields
from route.request.message_stream import MessageStream, message_of
from route.request.native import NativeForm, Notes, betas_of

_Placed: TypeAlias = tuple[str, JSON]
"""A place in the request, and the block of content there."""
_THOUGHTS = ("thinking", "redacted_thinking")
_MARKS = ("citations", "context")
"""Fields of blocks, beside `cache_control`, that chat completions do not have and answers do not depend on."""


def _placed_blocks(content: Any, where: str) -> list[_Placed]:
    """Return the blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InputError(f"{where}: must be text or a list of content blocks")
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def _joined(blocks: Sequence[_Placed], between: str, notes: Notes) -> str:
    """Return the text of blocks; a block that is not text, noted with its place, blocks a translation."""
    texts = []
    for where, block in blocks:
        part = _part(where, block, notes)
        if part["type"] == "text":
            texts.append(part["text"])
        else:
            notes.block(f"{where}: must be text")
    return between.join(texts)


def _of_turn(turn: Any, where: str, notes: Notes) -> Iterator[JSON]:
    """Translate a turn; raise InputError for a malformed one."""
    if not isinstance(turn, dict):
        raise InputError(f"{where}: must be an object with role and content")
    blocks = _placed_blocks(turn.get("content"), f"{where}.content")
    match turn.get("role"):
        case "user":
            yield from _of_user(blocks, notes)
        case "assistant":
            yield _of_assistant(blocks, notes)
        case "system":
            yield {"role": "system", "content": _joined(blocks, "\n\n", notes)}
        case str():
            notes.block(f"{where}.role: must be user or assistant")
            yield {"role": "user", "content": _joined(blocks, "", notes)}
        case _:
            raise InputError(f"{where}.role: must be user or assistant")


def _of_user(blocks: Sequence[_Placed], notes: Notes) -> Iterator[JSON]:
    """Translate a user's turn: the results of tools are a message each, before the rest of the turn."""
    parts: list[JSON] = []
    rest: list[JSON] = []
    for place, block in blocks:
        if block.get("type") != "tool_result":
            rest.append(_part(place, block, notes))
            continue
        if not isinstance(block.get("tool_use_id"), str):
            raise InputError(f"{place}: a tool_result must have a tool_use_id")
        content = block.get("content")
        placed = _placed_blocks("" if content is None else content, f"{place}.content")
        output = [_part(where_placed, inner, notes) for where_placed, inner in placed]
        text = "\n".join(part["text"] for part in output if part["type"] == "text")
        if block.get("is_error"):
            text = f"The tool failed: {text}"  # chat completions have no field for it
        # Images among the results follow as the user's: most models read only text from a tool.
        parts += [part for part in output if part["type"] != "text"]
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text, **_mark(block, notes)}
    parts += rest
    if parts or not blocks:
        only_text = len(parts) <= 1 and all(part["type"] == "text" and "cache_control" not in part for part in parts)
        yield {"role": "user", "content": "".join(part["text"] for part in parts) if only_text else parts}


def _of_assistant(blocks: Sequence[_Placed], notes: Notes) -> JSON:
    """Translate an answer of a model."""
    calls = [_call(place, block) for place, block in blocks if block.get("type") == "tool_use"]
    said = [each for each in blocks if each[1].get("type") not in ("tool_use", *_THOUGHTS)]
    thoughts = [block for _, block in blocks if block.get("type") in _THOUGHTS]
    readable = [str(block.get("thinking") or "") for block in thoughts if block.get("signature") in ("", UNSIGNED)]
    if len(readable) < len(thoughts):
        notes.lose("messages.thinking")  # only the model that signed thoughts can read them
    text = _joined(said, "", notes)
    answer: JSON = {"role": "assistant", "content": text or (None if calls else "")}
    if any(readable):
        answer["reasoning_content"] = "\n".join(readable)  # some providers want their own back
    marks = [_mark(block, notes) for _, block in blocks]
    if any(marks):  # what is cached begins at the start, so that the last mark is the one that counts
        answer |= next(mark for mark in reversed(marks) if mark)
    return answer | ({"tool_calls": calls} if calls else {})


def _mark(block: JSON, notes: Notes) -> JSON:
    """Return the mark of a block that may be cached, where the translation keeps it."""
    if not block.get("cache_control"):
        return {}
    if not notes.keeps_marks:
        notes.lose("cache_control")
        return {}
    return {"cache_control": block["cache_control"]}


def _call(where: str, block: JSON) -> JSON:
    name, identifier, arguments = block.get("name"), block.get("id"), block.get("input")
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(arguments, dict):
        raise InputError(f"{where}: a tool_use must have id, name and input")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _part(where: str, block: JSON, notes: Notes) -> JSON:
    """Translate a block of text, an image or a document; any other stays as it is and blocks a translation."""
    notes.lose(*(name for name in _MARKS if block.get(name)))
    return {**_plain_part(where, block, notes), **_mark(block, notes)}


def _plain_part(where: str, block: JSON, notes: Notes) -> JSON:
    kind = block.get("type")
    try:
        source: JSON = block["source"] if kind in ("image", "document") else {"type": None}
        match kind, source["type"]:
            case "text", _:
                # `"" +` fails for anything but text, which `str()` would make text of.
                return {"type": "text", "text": "" + block["text"]}
            case "compaction", _:  # a summary of what came before, null where none could be made
                return {"type": "text", "text": "" + (block["content"] or "")}
            case "image", "base64":
                url = f"data:{source['media_type']};base64,{source['data']}"
                return {"type": "image_url", "image_url": {"url": url}}
            case "image", "url":
                return {"type": "image_url", "image_url": {"url": str(source["url"])}}
            case "document", "text":
                return {"type": "text", "text": "" + source["data"]}
            case "document", "base64":
                name = block.get("title") or "document.pdf"
                data = f"data:{source['media_type']};base64,{source['data']}"
                return {"type": "file", "file": {"filename": name, "file_data": data}}
    except SHAPE_ERRORS:
        raise InputError(f"{where}: is not of the form of a block of the type {kind}") from None
    notes.block(f"{where}: content of the type {kind} cannot be routed, or not from this source")
    return block if isinstance(kind, str) and kind != "text" else {"type": "unknown"}


_TRANSLATED = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "stream_options"}
)
_HINTS = frozenset(
    {"cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed", "thinking"}
)
"""Fields that a translation leaves out."""
_REFUSED = {
    "compare": "goes with chat completions only, a message has one answer",
    "n": "a message has one answer, leave it out",
}
_ANTHROPICS = {
    "container": "only models of Anthropic's run code, leave it out",
    "mcp_servers": "only models of Anthropic's connect to servers, leave it out",
}


def chat_request(body: JSON, notes: Notes | None = None) -> JSON:
    """Translate the body of a request, and note what that loses; raise InputError for a malformed one.

    Without notes whatever blocks a translation is an InputError, too.
    """
    notes = notes or Notes(is_strict=True)
    _check_fields(body, notes)
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _HINTS}
    turns = _items(body, "messages")
    if not turns:
        raise InputError("messages: must have at least one")
    chat["messages"] = [
        message for number, turn in enumerate(turns) for message in _of_turn(turn, f"messages[{number}]", notes)
    ]
    if body.get("system"):
        blocks = _placed_blocks(body["system"], "system")
        instructions: Any = _joined(blocks, "\n\n", notes)
        if any(_mark(block, notes) for _, block in blocks):
            instructions = [_part(where, block, notes) for where, block in blocks]
        chat["messages"].insert(0, {"role": "system", "content": instructions})
    chat |= _tools(body, notes)
    chat |= _format(body, notes)
    if body.get("stop_sequences"):
        chat["stop"] = _items(body, "stop_sequences")
    user = object_in(body, "metadata").get("user_id")
    if user:
        chat["user"] = user
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a message always holds its usage
    return chat


def _check_fields(body: JSON, notes: Notes) -> None:
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    object_in(body, "thinking")  # raises where it is none
    for field, why in _ANTHROPICS.items():
        if body.get(field):
            notes.block(f"{field}: {why}")


def _format(body: JSON, notes: Notes) -> JSON:
    form = object_in(object_in(body, "output_config"), "format")
    if not form:
        return {}
    if isinstance(form.get("type"), str) and form["type"] != "json_schema":
        notes.block("output_config.format: must have the type json_schema and a schema")
        return {}
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InputError("output_config.format: must have the type json_schema and a schema")
    schema = {"name": "answer", "schema": form["schema"], "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _items(body: JSON, field: str) -> list[Any]:
    items = body.get(field)
    if not isinstance(items, list):
        raise InputError(f"{field}: must be a list")
    return items


def _tools(body: JSON, notes: Notes) -> JSON:
    if not body.get("tools"):
        return {}
    tools = [_tool(tool, f"tools[{number}]", notes) for number, tool in enumerate(_items(body, "tools"))]
    choice = object_in(body, "tool_choice")
    chat: JSON = {"tools": tools}
    if choice:
        match choice.get("type"):
            case "auto" | "none" as same:
                chat["tool_choice"] = same
            case "any":
                chat["tool_choice"] = "required"
            case "tool" if isinstance(choice.get("name"), str):
                chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
            case str() as kind if kind != "tool":
                notes.block("tool_choice: must have the type auto, any, none, or tool with a name")
            case _:
                raise InputError("tool_choice: must have the type auto, any, none, or tool with a name")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


_OF_TOOLS = frozenset({"name", "type", "description", "input_schema", "strict"})


def _tool(tool: Any, where: str, notes: Notes) -> JSON:
    if not isinstance(tool, dict):
        raise InputError(f"{where}: must be an object with a name")
    kind = tool.get("type")
    if kind not in (None, "custom"):
        notes.block(f"{where}: tools of Anthropic's own ({kind}) cannot be routed; give it an input_schema")
        return tool if isinstance(kind, str) else {"type": "unknown"}
    if not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must be an object with a name")
    notes.lose(*(f"tools.{name}" for name in tool.keys() - _OF_TOOLS - {"cache_control"}))
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    described = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function | described, **_mark(tool, notes)}


_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class Messages(TranslatedDialect):
    """Anthropic's Messages API."""

    sign_of_life = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self) -> None:
        stream = MessageStream()
        self.events = stream.take
        self.closing_events = stream.end
        self._notes = Notes()
        self._is_complete = False

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            return chat_request(body, self._notes)
        except InputError as error:
            raise ApiError(400, "invalid_value", str(error)) from error

    def native_form(self, body: JSON, headers: Mapping[str, str]) -> NativeForm:
        """Return the request in this protocol."""
        notes = self._notes
        notes.lose(*(name for name in body if name in _HINTS))
        if object_in(body, "output_config").get("effort") is not None:
            notes.lose("output_config.effort")
        return NativeForm(
            protocol="messages",
            body={name: value for name, value in body.items() if name not in ROUTER_FIELDS},
            lost=tuple(notes.lost),
            blocked=notes.blocked("messages"),
            betas=betas_of(headers),
        )

    def passed_event(self, chunk: JSON, event: NativeEvent) -> bytes:
        """Return an event of Anthropic's as it came, but for the model and the router's fields in the first one."""
        kind = event.content.get("type")
        if kind == "message_start":
            message = {**(event.content.get("message") or {}), "model": chunk["model"], **router_fields(chunk)}
            return encode([{**event.content, "message": message}])
        self._is_complete |= kind == "message_stop"
        return event.encoded()

    def passed_end(self) -> bytes:
        """Return what completes a stream that was passed on."""
        return b"" if self._is_complete else encode([{"type": "message_stop"}])

    def translated(self, completion: JSON) -> JSON:
        """Return a message."""
        return message_of(completion)

    def error(self, error: ApiError) -> JSON:
        """Return the body of an error; its `code` is the router's own, more precise than the type."""
        kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error), "code": error.code}}

    def fail(self, error: ApiError) -> bytes:
        """Return an error event."""
        return encode([self.error(error)])
