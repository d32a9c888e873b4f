"""OpenAI's Responses API, translated to chat completions and back.

Items of the input become messages: neighbouring calls of functions, the text beside them and the thoughts before them
are one answer. Fields with the same name in both APIs stay as they are. What needs OpenAI's servers (prompts, files and
conversations that they store, work in the background) is refused; tools that they run are dropped like any other field
that commands a provider.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p2l.common.errors import InputError
from p2l.common.long_texts import apart
from route.keep.database import DatabaseError
from route.keep.stored_responses import LONGEST_CHAIN, ResponseStore, StoredResponse
from route.providers.base import JSON
from route.providers.completions import MOST_TOKENS
from route.request.api_errors import ApiError, responses_unreadable
from route.request.chat import (
    ChatRequest,
    TranslatedDialect,
    encode,
    object_in,
    turns_of,
)
from route.request.response_stream import ResponseStream, frame_of, response_of

_TRANSLATED = frozenset(
    {
        *("input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "reasoning"),
        *("max_output_tokens", "include", "top_logprobs", "stream_options"),
    }
)
_log = logging.getLogger("route")
_HINTS = frozenset(
    {
        *("background", "max_tool_calls", "metadata", "moderation", "prompt_cache_key", "prompt_cache_retention"),
        *("service_tier", "store", "truncation"),
    }
)
"""Fields that a translation leaves out; `metadata` and `store` are the router's own business."""
_REFUSED = {
    "background": "the router answers at once, leave it out",
    "compare": "goes with chat completions only, a response has one answer",
    "conversation": "the router keeps no conversations of this kind; use previous_response_id",
    "n": "a response has one answer, leave it out",
    "prompt": "the router has no stored prompts; send the instructions themselves",
}
_LOGPROBS = "message.output_text.logprobs"


def _chat_request(body: JSON) -> tuple[JSON, list[JSON]]:
    """Translate the body of a request without what came before it, and return the items of its input as well.

    Raise InputError for a request that cannot be routed.
    """
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    if not isinstance(body.get("store"), bool | None):
        raise InputError("store: must be true or false")
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _HINTS}
    opening, items = _instructions(body.get("instructions")), _input_items(body.get("input"))
    chat["messages"] = [*opening, *_messages_of(items)]
    chat |= _tools(body) | _text(object_in(body, "text"))
    effort = object_in(body, "reasoning").get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    limit = body.get("max_output_tokens")
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_TOKENS:
            raise InputError(f"max_output_tokens: must be a whole number of at least 1, and at most {MOST_TOKENS:,}")
        chat["max_completion_tokens"] = limit
    if _LOGPROBS in _list(body, "include"):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a response always holds its usage
    return chat, items


def _input_items(sent: Any) -> list[JSON]:
    """Return the input as items, each with an identifier; a text is the message of a user."""
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    if not isinstance(sent, list) or not sent:
        raise InputError("input: must be text or a list of at least one item")
    items = []
    for number, item in enumerate(sent):
        if not isinstance(item, dict):
            raise InputError(f"input[{number}]: must be an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        identifier = item.get("id") or f"{_PREFIXES.get(str(kind), 'item')}_{secrets.token_hex(16)}"
        items.append({**item, "type": kind, "id": identifier})
    return items


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def _messages_of(items: Sequence[JSON]) -> list[JSON]:
    """Translate items to messages; raise InputError, with its place, for one that cannot be routed."""
    messages: list[JSON] = []
    thoughts = ""
    for number, item in enumerate(items):
        where = f"input[{number}]"
        match item.get("type"):
            case "message":
                message = _message(item, where)
                if message["role"] == "assistant" and thoughts:
                    message["reasoning_content"], thoughts = thoughts, ""
                messages.append(message)
            case "function_call":
                call = _call(item, where)
                # A call belongs to the answer before it, unless new thoughts begin another one.
                if not messages or messages[-1]["role"] != "assistant" or thoughts:
                    messages.append({"role": "assistant", "content": None})
                if thoughts:
                    messages[-1]["reasoning_content"], thoughts = thoughts, ""
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append(_result(item, where))
            case "reasoning":
                # For a provider that wants its own thoughts back.
                parts = _list(item, "content", f"{where}.") or _list(item, "summary", f"{where}.")
                thoughts += "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
            case "item_reference":
                raise InputError(f"{where}: items are not looked up; send the item, or previous_response_id")
            case kind:
                raise InputError(f"{where}: items of the type {kind} cannot be routed")
    return messages


def _instructions(instructions: Any) -> list[JSON]:
    if instructions is None or instructions == "":
        return []
    if isinstance(instructions, list):
        return _messages_of(_input_items(instructions))
    if not isinstance(instructions, str):
        raise InputError("instructions: must be text")
    return [{"role": "system", "content": instructions}]


def _message(item: JSON, where: str) -> JSON:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise InputError(f"{where}.role: must be user, assistant, system or developer")
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = _parts(content, f"{where}.content")
    if role == "user":
        return {"role": role, "content": parts}
    # Most providers take text alone from anybody but the user.
    texts = [part.get("text") or part.get("refusal") or "" for part in parts if part["type"] in ("text", "refusal")]
    if len(texts) < len(parts):
        raise InputError(f"{where}.content: must be text where the role is {role}")
    return {"role": role, "content": "".join(texts)}


def _parts(content: Any, where: str) -> list[JSON]:
    """Translate the parts of a message; raise InputError, with its place, for one that cannot be routed."""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InputError(f"{where}: must be text or a list of parts")
    parts: list[JSON] = []
    for number, part in enumerate(content):
        match part.get("type"):
            case "input_text" | "output_text" | "text" if isinstance(part.get("text"), str):
                parts.append({"type": "text", "text": part["text"]})
            case "refusal" if isinstance(part.get("refusal"), str):
                parts.append({"type": "refusal", "refusal": part["refusal"]})
            case "input_image" if isinstance(part.get("image_url"), str):
                detail = {"detail": part["detail"]} if part.get("detail") else {}
                parts.append({"type": "image_url", "image_url": {"url": part["image_url"], **detail}})
            case "input_file" if isinstance(part.get("file_data"), str):
                name = part.get("filename") or "document.pdf"
                parts.append({"type": "file", "file": {"filename": name, "file_data": part["file_data"]}})
            case "input_audio" if isinstance(part.get("input_audio"), dict):
                parts.append({"type": "input_audio", "input_audio": part["input_audio"]})
            case kind:
                reason = f"content of the type {kind} cannot be routed, or not from this source"
                raise InputError(f"{where}[{number}]: {reason}")
    return parts


def _call(item: JSON, where: str) -> JSON:
    name, identifier, arguments = item.get("name"), item.get("call_id"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(arguments, str):
        raise InputError(f"{where}: a function_call must have call_id, name and arguments")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item: JSON, where: str) -> JSON:
    identifier, output = item.get("call_id"), item.get("output")
    if not isinstance(identifier, str):
        raise InputError(f"{where}: a function_call_output must have a call_id")
    if isinstance(output, list):
        parts = _parts(output, f"{where}.output")
        if any(part["type"] != "text" for part in parts):  # most models read only text from a tool
            raise InputError(f"{where}.output: must be text")
        output = "".join(part["text"] for part in parts)
    text = output if isinstance(output, str) else json.dumps(output)
    return {"role": "tool", "tool_call_id": identifier, "content": text}


def _list(body: JSON, field: str, where: str = "") -> list[Any]:
    entries = body.get(field)
    if entries is not None and not isinstance(entries, list):
        raise InputError(f"{where}{field}: must be a list")
    return entries or []


def _tools(body: JSON) -> JSON:
    tools = _list(body, "tools")
    if not tools:
        return {}
    if not all(isinstance(tool, dict) for tool in tools):
        raise InputError("tools: must be a list of objects")
    chat: JSON = {}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = [tool.get("name") for tool in _list(choice, "tools", "tool_choice.") if isinstance(tool, dict)]
        tools = [tool for tool in tools if tool.get("name") in allowed]
        choice = choice.get("mode")
    if choice in ("auto", "none", "required"):
        chat["tool_choice"] = choice
    elif isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice is not None:
        raise InputError("tool_choice: must be auto, none, required, allowed_tools, or a function with a name")
    return chat | {"tools": [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]}


def _tool(tool: JSON, where: str) -> JSON:
    if tool.get("type") != "function":
        return tool  # one that the provider runs, which passes where it is listed
    if not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must have a name")
    described = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": tool["name"], **described}}


def _text(text: JSON) -> JSON:
    chat: JSON = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    form = object_in(text, "format")
    match form.get("type"):
        case None | "text":
            return chat
        case "json_object":
            return chat | {"response_format": {"type": "json_object"}}
        case "json_schema" if isinstance(form.get("schema"), dict):
            schema = {key: form[key] for key in ("description", "schema", "strict") if form.get(key) is not None}
            named = {"name": form.get("name") or "answer", **schema}
            return chat | {"response_format": {"type": "json_schema", "json_schema": named}}
    raise InputError("text.format: must be text, json_object, or json_schema with a schema")


async def stored_chain(
    stored: ResponseStore, key: str, identifier: str, *, most: int = LONGEST_CHAIN, field: str | None = None
) -> list[StoredResponse]:
    """Return a response of a key and those that it went on from, oldest first; raise `ApiError` where there is none.

    `field` is the field of the request that names it.
    """
    if not stored.enabled:
        text = f"{field or 'responses'}: this router keeps no responses; send the whole conversation as input"
        raise ApiError(400, "responses_not_stored", text, param="previous_response_id")
    try:
        rows = await stored.chain(key, identifier, most=most)
    except DatabaseError as error:
        raise responses_unreadable() from error
    if not rows:
        text = f"no response {identifier!r} of this key; they are kept for 30 days, unless store is false"
        raise ApiError(404, "response_not_found", text, param=field)
    if len(rows) < most and rows[0].response.get("previous_response_id") is not None:
        # A model that reads half of a conversation would answer as if nothing had come before.
        text = f"{identifier!r}: what came before it is not kept any more; send the whole conversation as input"
        raise ApiError(404, "response_not_found", text, param=field)
    return rows


class Responses(TranslatedDialect):
    """OpenAI's Responses API."""

    hints = _HINTS - {"store", "metadata"}

    def __init__(self) -> None:
        self._sent: JSON = {}
        self._items: list[JSON] = []
        self._frame: JSON = {}
        self._stored: ResponseStore | None = None
        self._key = ""
        self._response: JSON | None = None
        self._stream = ResponseStream(self._frame)
        self.events = self._stream.take
        self._closing: list[JSON] = []
        """The last events before the end."""

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            request, self._items = _chat_request(body)
        except InputError as error:  # which begins with the place
            raise ApiError(400, "invalid_value", str(error), param=str(error).partition(":")[0]) from error
        self._sent = body
        return request

    async def prepare(self, request: ChatRequest, stored: ResponseStore, key: str, max_bytes: float) -> ChatRequest:
        """Put what came before `previous_response_id` in front of the request."""
        # In place: the stream holds the same frame.
        self._frame |= frame_of(self._sent, stored=stored.enabled and self._sent.get("store") is not False)
        self._stored, self._key = stored, key
        previous = self._sent.get("previous_response_id")
        if previous is None:
            return request
        chain = await stored_chain(stored, key, str(previous), field="previous_response_id")
        size = request.size + sum(row.size for row in chain)
        if size > max_bytes:
            raise ApiError(413, "request_too_large", "previous_response_id: the conversation has become too large")

        def joined() -> tuple[list[JSON], tuple[str, ...]]:
            sent = request.body["messages"]
            # The instructions of earlier requests do not carry over.
            instructions = sent[: len(sent) - len(_messages_of(self._items))]
            items = []
            for row in chain:
                answered = ({k: v for k, v in item.items() if k != "status"} for item in row.response["output"])
                items += [*row.items, *answered]
            messages = [*instructions, *_messages_of([*items, *self._items])]
            return messages, turns_of(messages)

        messages, turns = await apart([self._items, [row.items for row in chain]], joined)
        return replace(request, body={**request.body, "messages": messages}, turns=turns, size=size)

    def translated(self, completion: JSON) -> JSON:
        """Return a response."""
        self._response = response_of(completion, self._frame)
        return self._response

    async def keep(self) -> None:
        """Store the response, before its client has the end of it."""
        if self._stored is None or not self._frame.get("store"):
            return
        if self._response is None:
            self._closing = self._stream.close()
        response = self._response or self._stream.response()
        try:
            await self._stored.put(self._key, response, self._items)
        except DatabaseError as error:
            _log.warning("a response of key %s is not kept: %s", self._key, error)
            self._frame["store"] = response["store"] = False  # it is answered all the same, and says that

    def fail(self, error: ApiError) -> bytes:
        """Return an event with the failed response."""
        return encode(self._stream.fail(error.code, str(error)))

    def end(self) -> bytes:
        """Return the closing events."""
        return encode([*self._closing, *self._stream.end()])
