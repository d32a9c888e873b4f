"""Anthropic's Messages API, translated to chat completions and back.

Fields with the same name in both APIs, and unknown ones, stay as they are. Hints to Anthropic's own models are dropped
(caching marks, `thinking`, `service_tier`, ...), since any model may answer; what needs Anthropic's servers (tools that
they run, files that they store) is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from p2l.common.errors import InputError
from p2l.common.files import parse_json
from route.providers.base import JSON, Fault, ProviderError
from route.providers.completions import SHAPE_ERRORS
from route.request.api_errors import ApiError
from route.request.chat import TranslatedDialect, encode, object_in, text_of_answer, tokens_counted

_Placed: TypeAlias = tuple[str, JSON]
"""A place in the request, and the block of content there."""
_THOUGHTS = ("thinking", "redacted_thinking")


def _placed_blocks(content: Any, where: str) -> list[_Placed]:
    """Return the blocks of a content; a text is one block."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InputError(f"{where}: must be text or a list of content blocks")
    return [(f"{where}[{number}]", block) for number, block in enumerate(content)]


def _joined(blocks: Sequence[_Placed], between: str) -> str:
    """Return the text of blocks; raise InputError, with its place, for one that is not text."""
    texts = []
    for where, block in blocks:
        part = _part(where, block)
        if part["type"] != "text":
            raise InputError(f"{where}: must be text")
        texts.append(part["text"])
    return between.join(texts)


def _of_turn(turn: Any, where: str) -> Iterator[JSON]:
    """Translate a turn; raise InputError for a malformed one, or one that cannot be routed."""
    if not isinstance(turn, dict):
        raise InputError(f"{where}: must be an object with role and content")
    blocks = _placed_blocks(turn.get("content"), f"{where}.content")
    match turn.get("role"):
        case "user":
            # The results of tools are a message each, before the rest of the turn.
            parts: list[JSON] = []
            rest: list[JSON] = []
            for place, block in blocks:
                if block.get("type") != "tool_result":
                    rest.append(_part(place, block))
                    continue
                if not isinstance(block.get("tool_use_id"), str):
                    raise InputError(f"{place}: a tool_result must have a tool_use_id")
                content = block.get("content")
                placed = _placed_blocks("" if content is None else content, f"{place}.content")
                output = [_part(where_placed, inner) for where_placed, inner in placed]
                text = "\n".join(part["text"] for part in output if part["type"] == "text")
                if block.get("is_error"):
                    text = f"The tool failed: {text}"  # chat completions have no field for it
                message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
                # Images among the results follow as the user's: most models read only text from a tool.
                parts += [part for part in output if part["type"] != "text"]
                yield message
            parts += rest
            if parts or not blocks:
                only_text = len(parts) <= 1 and all(part["type"] == "text" for part in parts)
                yield {"role": "user", "content": "".join(part["text"] for part in parts) if only_text else parts}
        case "assistant":
            calls = [_call(place, block) for place, block in blocks if block.get("type") == "tool_use"]
            # Thoughts are left out: only the model that wrote them can read them.
            text = _joined([each for each in blocks if each[1].get("type") not in ("tool_use", *_THOUGHTS)], "")
            answer: JSON = {"role": "assistant", "content": text or (None if calls else "")}
            yield answer | ({"tool_calls": calls} if calls else {})
        case "system":
            yield {"role": "system", "content": _joined(blocks, "\n\n")}
        case _:
            raise InputError(f"{where}.role: must be user or assistant")


def _call(where: str, block: JSON) -> JSON:
    name, identifier, arguments = block.get("name"), block.get("id"), block.get("input")
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(arguments, dict):
        raise InputError(f"{where}: a tool_use must have id, name and input")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _part(where: str, block: JSON) -> JSON:
    """Translate a block of text, an image or a document; raise InputError, with its place, for any other."""
    kind = block.get("type")
    try:
        source: JSON = block["source"] if kind in ("image", "document") else {"type": None}
        match kind, source["type"]:
            case "text", _:
                # `"" +` fails for anything but text, which `str()` would make text of.
                return {"type": "text", "text": "" + block["text"]}
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
    raise InputError(f"{where}: content of the type {kind} cannot be routed, or not from this source")


_TRANSLATED = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "stream_options"}
)
_HINTS = frozenset(
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
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _HINTS}
    turns = _items(body, "messages")
    if not turns:
        raise InputError("messages: must have at least one")
    chat["messages"] = [
        message for number, turn in enumerate(turns) for message in _of_turn(turn, f"messages[{number}]")
    ]
    if body.get("system"):
        instructions = _joined(_placed_blocks(body["system"], "system"), "\n\n")
        chat["messages"].insert(0, {"role": "system", "content": instructions})
    chat |= _tools(body)
    form = object_in(object_in(body, "output_config"), "format")
    if form:
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise InputError("output_config.format: must have the type json_schema and a schema")
        schema = {"name": "answer", "schema": form["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.get("stop_sequences"):
        chat["stop"] = _items(body, "stop_sequences")
    user = object_in(body, "metadata").get("user_id")
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


def _tools(body: JSON) -> JSON:
    if not body.get("tools"):
        return {}
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(_items(body, "tools"))]
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
            case _:
                raise InputError("tool_choice: must have the type auto, any, none, or tool with a name")
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


_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def message_of(completion: JSON) -> JSON:
    """Translate a whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    reply = choice.get("message") or {}
    texts = [text for text in (text_of_answer(reply.get("content")), reply.get("refusal")) if text]
    calls = reply.get("tool_calls") or []
    content = [{"type": "text", "text": text} for text in texts]
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
    return {**_frame_of(completion), "content": content, **stop, "usage": _usage_of(completion.get("usage"))}


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


def _usage_of(usage: Any) -> JSON:
    """Return tokens as a message counts them; zeros without counts."""
    # Prompt tokens that were read from a cache are counted apart there.
    cached = tokens_counted(usage, "prompt_tokens_details", "cached_tokens")
    return {
        "input_tokens": max(0, tokens_counted(usage, "prompt_tokens") - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": tokens_counted(usage, "completion_tokens"),
    }


class MessageStream:
    """Translates the chunks of one chat completion to the events of a message.

        message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

    Blocks follow each other: text ends when a tool is called, a call when the next begins. The usage is known at the
    end only, so `message_start` counts zero.
    """

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        self._open: str | None = None
        """Type of the open block."""
        self._call: tuple[Any, Any] = (None, None)
        """Index and identifier of the open call."""
        self._choice: JSON = {}
        self._called = False
        self._refused = False
        self._usage: Any = None

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events: list[JSON] = []
        if not self._started:
            self._started = True
            # Most providers count at the end only, so that the usage of the beginning is zero.
            unknown = {"stop_reason": None, "stop_sequence": None, "usage": _usage_of(None)}
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
            events += self._text(text_of_answer(delta.get("content"))) + self._text(delta.get("refusal"))
            self._refused |= bool(delta.get("refusal"))
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def end(self) -> list[JSON]:
        """Return the events after the last chunk."""
        stop = _stop_of(self._choice, calls=self._called, refused=self._refused)
        ending = {"type": "message_delta", "delta": stop, "usage": _usage_of(self._usage)}
        return [*self._close(), ending, {"type": "message_stop"}]

    def _text(self, text: Any) -> list[JSON]:
        if not text:
            return []
        opening = [] if self._open == "text" else self._begin({"type": "text", "text": ""})
        return [*opening, self._delta({"type": "text_delta", "text": text})]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        # The further pieces of a call repeat its index, its identifier, both or neither, by provider.
        index, identifier = piece.get("index"), piece.get("id")
        goes_on = (
            self._open == "tool_use" and index in (None, self._call[0]) and identifier in (None, "", self._call[1])
        )
        opening: list[JSON] = []
        if not goes_on:
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            self._call, self._called = (index, identifier), True
            block_id = str(identifier or f"toolu_{uuid.uuid4().hex}")
            opening = self._begin({"type": "tool_use", "id": block_id, "name": function["name"], "input": {}})
        arguments = function.get("arguments")
        if not arguments:
            return opening
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
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


class Messages(TranslatedDialect):
    """Anthropic's Messages API."""

    hints = _HINTS

    def __init__(self) -> None:
        stream = MessageStream()
        self.events = stream.take
        self.closing_events = stream.end

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            return chat_request(body)
        except InputError as error:
            raise ApiError(400, "invalid_value", str(error)) from error

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
