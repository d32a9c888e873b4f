"""OpenAI's Responses API: passed to models that have it as it is, for others translated to chat completions and back.

In a translation items of the input become messages: neighbouring calls of functions, the text beside them and the
thoughts before them are one answer. Fields with the same name in both APIs stay as they are. What needs OpenAI's
servers (prompts, files and conversations that they store, items of their tools) blocks a translation, so that the
request goes to a model with this API or nowhere; tools that they run are dropped and named.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from p2l.common.errors import InputError
from p2l.common.long_texts import apart, count_bytes
from route.keep.database import DatabaseError
from route.keep.stored_responses import LONGEST_CHAIN, ResponseStore, StoredResponse
from route.providers.base import JSON
from route.providers.completions import MOST_TOKENS
from route.providers.translation import NativeEvent
from route.request.api_errors import ApiError, responses_unreadable
from route.request.chat import (
    ROUTER_FIELDS,
    ChatRequest,
    TranslatedDialect,
    encode,
    object_in,
    router_fields,
    turns_of,
)
from route.request.native import NativeForm, Notes
from route.request.response_stream import ResponseStream, frame_of, is_own_id, new_id, response_of

_TRANSLATED = frozenset(
    {
        *("input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "reasoning"),
        *("max_output_tokens", "include", "top_logprobs", "stream_options"),
    }
)
_log = logging.getLogger("route")
_HINTS = frozenset(
    {
        *(
            "background",
            "context_management",
            "max_tool_calls",
            "metadata",
            "moderation",
            "prompt_cache_key",
            "prompt_cache_retention",
        ),
        *("service_tier", "store", "truncation"),
    }
)
"""Fields that a translation leaves out; `metadata` and `store` are the router's own business."""
_REFUSED = {
    "compare": "goes with chat completions only, a response has one answer",
    "n": "a response has one answer, leave it out",
}
_OPENAIS = {
    "conversation": "the router keeps no conversations of this kind; use previous_response_id",
    "prompt": "the router has no stored prompts; send the instructions themselves",
}
_LOGPROBS = "message.output_text.logprobs"


def _chat_request(body: JSON, notes: Notes) -> tuple[JSON, list[JSON]]:
    """Translate the body of a request without what came before it, and return the items of its input as well.

    Raise InputError for a malformed request.
    """
    _check_fields(body, notes)
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _HINTS}
    # A stored prompt or conversation may hold all of it.
    sent = body.get("input") or ([] if any(body.get(name) for name in _OPENAIS) else None)
    opening = _instructions(body.get("instructions"), notes)
    items = _input_items(sent, may_be_empty=sent == [])
    chat["messages"] = [*opening, *_messages_of(items, notes)] or [{"role": "user", "content": ""}]
    chat |= _tools(body, notes) | _text(object_in(body, "text"), notes)
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


def _check_fields(body: JSON, notes: Notes) -> None:
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    for field, why in _OPENAIS.items():
        if body.get(field):
            notes.block(f"{field}: {why}")
    for flag in ("store", "background"):
        if not isinstance(body.get(flag), bool | None):
            raise InputError(f"{flag}: must be true or false")


def _input_items(sent: Any, *, may_be_empty: bool = False) -> list[JSON]:
    """Return the input as items, each with an identifier; a text is the message of a user."""
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    if not isinstance(sent, list) or not (sent or may_be_empty):
        raise InputError("input: must be text or a list of at least one item")
    items = []
    for number, item in enumerate(sent):
        if not isinstance(item, dict):
            raise InputError(f"input[{number}]: must be an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        identifier = item.get("id") or new_id(_PREFIXES.get(str(kind), "item"))
        items.append({**item, "type": kind, "id": identifier})
    return items


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def _messages_of(items: Sequence[JSON], notes: Notes) -> list[JSON]:
    """Translate items to messages; raise InputError, with its place, for a malformed one."""
    messages: list[JSON] = []
    thoughts = ""
    others: list[JSON] = []  # images and files of tools, which follow as the user's after all results
    for number, item in enumerate(items):
        where, kind = f"input[{number}]", item.get("type")
        if others and kind not in _OUTPUTS:
            messages.append({"role": "user", "content": others})
            others = []
        if kind == "message":
            message = _message(item, where, notes)
            if message["role"] == "assistant" and thoughts:
                message["reasoning_content"], thoughts = thoughts, ""
            messages.append(message)
        elif kind in _CALLS:
            call = _call(item, where)
            # A call belongs to the answer before it, unless new thoughts begin another one.
            if not messages or messages[-1]["role"] != "assistant" or thoughts:
                messages.append({"role": "assistant", "content": None})
            if thoughts:
                messages[-1]["reasoning_content"], thoughts = thoughts, ""
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind in _OUTPUTS:
            result, further = _result(item, where, notes)
            messages.append(result)
            others += further
        elif kind == "reasoning":
            thoughts += _thoughts(item, where, notes)
        else:
            _note_foreign(item, where, notes)
    return [*messages, {"role": "user", "content": others}] if others else messages


_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TOLD = frozenset({"web_search_call", "file_search_call", "image_generation_call", "mcp_list_tools"})
"""Items that say how an answer came about; the answer itself follows them."""


def _note_foreign(item: JSON, where: str, notes: Notes) -> None:
    """Note an item that chat completions have nothing for."""
    kind = str(item.get("type"))[:80]
    if kind in _TOLD:
        notes.lose(f"input.{kind}")
    elif kind == "item_reference":
        notes.block(f"{where}: no item {item.get('id')!r:.80} of this key is kept; send it, or previous_response_id")
    else:
        notes.block(f"{where}: items of the type {kind} need the Responses API")


def _thoughts(item: JSON, where: str, notes: Notes) -> str:
    """Return the text of thoughts, for a provider that wants its own back."""
    if item.get("encrypted_content"):
        notes.lose("input.reasoning.encrypted_content")
    parts = _list(item, "content", f"{where}.") or _list(item, "summary", f"{where}.")
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _instructions(instructions: Any, notes: Notes) -> list[JSON]:
    if instructions is None or instructions == "":
        return []
    if isinstance(instructions, list):
        return _messages_of(_input_items(instructions), notes)
    if not isinstance(instructions, str):
        raise InputError("instructions: must be text")
    return [{"role": "system", "content": instructions}]


def _message(item: JSON, where: str, notes: Notes) -> JSON:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        wrong = f"{where}.role: must be user, assistant, system or developer"
        if not isinstance(role, str):
            raise InputError(wrong)
        notes.block(wrong)
        role = "user"
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = _parts(content, f"{where}.content", notes)
    if role == "user":
        return {"role": role, "content": parts}
    # Most providers take text alone from anybody but the user.
    texts = [part.get("text") or part.get("refusal") or "" for part in parts if part["type"] in ("text", "refusal")]
    if len(texts) < len(parts):
        notes.block(f"{where}.content: must be text where the role is {role}")
    return {"role": role, "content": "".join(texts)}


def _parts(content: Any, where: str, notes: Notes) -> list[JSON]:
    """Translate the parts of a message; one that chat completions do not have stays, and blocks a translation."""
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
                reason = f"content of the type {str(kind)[:80]} cannot be routed, or not from this source"
                notes.block(f"{where}[{number}]: {reason}")
                parts.append(part if isinstance(kind, str) and kind != "text" else {"type": "unknown"})
    return parts


def _call(item: JSON, where: str) -> JSON:
    name, identifier, arguments = item.get("name"), item.get("call_id"), item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""})
    if not isinstance(name, str) or not isinstance(identifier, str) or not isinstance(arguments, str):
        raise InputError(f"{where}: a {item['type']} must have call_id, name and arguments")
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item: JSON, where: str, notes: Notes) -> tuple[JSON, list[JSON]]:
    """Return the message of a tool's output, and what it holds beside text: most models read only text from a tool."""
    identifier, output = item.get("call_id"), item.get("output")
    if not isinstance(identifier, str):
        raise InputError(f"{where}: a {item['type']} must have a call_id")
    others: list[JSON] = []
    if isinstance(output, list):
        parts = _parts(output, f"{where}.output", notes)
        output = "".join(part["text"] for part in parts if part["type"] == "text")
        others = [part for part in parts if part["type"] != "text"]
    text = output if isinstance(output, str) else json.dumps(output)
    return {"role": "tool", "tool_call_id": identifier, "content": text}, others


def _list(body: JSON, field: str, where: str = "") -> list[Any]:
    entries = body.get(field)
    if entries is not None and not isinstance(entries, list):
        raise InputError(f"{where}{field}: must be a list")
    return entries or []


def _tools(body: JSON, notes: Notes) -> JSON:
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
    elif isinstance(choice, dict) and choice.get("type") in _FUNCTIONS and isinstance(choice.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(choice, dict) and isinstance(choice.get("type"), str) and choice["type"] != "function":
        notes.block(f"tool_choice: {choice['type']!r:.80} is a tool that models without this API do not have")
    elif choice is not None:
        raise InputError("tool_choice: must be auto, none, required, allowed_tools, or a tool with its name")
    return chat | {"tools": [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]}


_FUNCTIONS = ("function", "custom")
"""Types of tools that the client runs."""
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Of a custom tool, which takes text, as a function."""


def _tool(tool: JSON, where: str) -> JSON:
    if tool.get("type") == "custom" and isinstance(tool.get("name"), str):
        described = {"description": tool["description"]} if tool.get("description") else {}
        return {"type": "function", "function": {"name": tool["name"], **described, "parameters": _INPUT}}
    if tool.get("type") != "function":
        return tool  # one that the provider runs, which passes where it is listed
    if not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must have a name")
    described = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": tool["name"], **described}}


def _text(text: JSON, notes: Notes) -> JSON:
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
    wrong = "text.format: must be text, json_object, or json_schema with a schema"
    if not isinstance(form["type"], str) or form["type"] == "json_schema":
        raise InputError(wrong)
    notes.block(wrong)
    return chat


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

    def __init__(self) -> None:
        self._sent: JSON = {}
        self._items: list[JSON] = []
        self._notes = Notes()
        self._frame: JSON = {}
        self._stored: ResponseStore | None = None
        self._key = ""
        self._response: JSON | None = None
        self._begun: JSON | None = None
        """One that passes while it is made."""
        self._stream = ResponseStream(self._frame)
        self.events = self._stream.take
        self._closing: list[JSON] = []
        """The last events before the end."""

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        self._notes = Notes()
        try:
            request, self._items = _chat_request(body, self._notes)
        except InputError as error:  # which begins with the place
            raise ApiError(400, "invalid_value", str(error), param=str(error).partition(":")[0]) from error
        self._sent = body
        return request

    def native_form(self, body: JSON, _headers: Mapping[str, str]) -> NativeForm:
        """Return the request in this protocol."""
        notes = self._notes
        notes.lose(*(name for name in body if name in _HINTS and name not in ("store", "metadata")))
        return NativeForm(
            protocol="responses",
            body={name: value for name, value in body.items() if name not in ROUTER_FIELDS}
            | ({"input": _for_openai(body["input"])} if isinstance(body.get("input"), list) else {}),
            lost=tuple(notes.lost),
            blocked=notes.blocked("responses"),
            is_poorer=any(tool.get("type") not in ("function", "custom") for tool in _list(body, "tools")),
        )

    async def prepare(self, request: ChatRequest, stored: ResponseStore, key: str, max_bytes: float) -> ChatRequest:
        """Put what came before `previous_response_id` in front of the request, and items in place of references."""
        # In place: the stream holds the same frame.
        self._frame |= frame_of(self._sent, stored=stored.enabled and self._sent.get("store") is not False)
        self._stored, self._key = stored, key
        if self._sent.get("background") and not request.stream and not self._frame["store"] and request.native:
            # Nobody could fetch what is made after the answer has left.
            request = replace(request, native=replace(request.native, withheld=frozenset({"background"})))
        previous = self._sent.get("previous_response_id")
        references = [item["id"] for item in self._items if item["type"] == "item_reference"]
        if previous is None and not references:
            return request
        chain: list[StoredResponse] = []
        if previous is not None:
            try:
                chain = await stored_chain(stored, key, str(previous), field="previous_response_id")
            except ApiError as error:
                return await self._left_to_openai(request, error, str(previous))
        kept = await stored_items(stored, key, references) if references and stored.enabled else {}
        size = request.size + sum(row.size for row in chain) + sum(count_bytes(str(item)) for item in kept.values())
        if size > max_bytes:
            raise ApiError(413, "request_too_large", "previous_response_id: the conversation has become too large")

        def joined() -> ChatRequest:
            sent = self._sent.get("input")
            sent_items: list[JSON] = sent if isinstance(sent, list) else self._items
            self._items = [kept.get(item["id"], item) for item in self._items]
            items: list[JSON] = []
            for row in chain:
                answered = ({k: v for k, v in item.items() if k != "status"} for item in row.response["output"])
                items += [*row.items, *answered]
            # The rest as the client wrote it, so that a provider finds what it has cached.
            for item in sent_items:
                items.append(kept.get(item["id"], item) if item.get("type") == "item_reference" else item)
            whole = {**self._sent, "input": items}
            whole.pop("previous_response_id", None)
            new_items, sent = self._items, self._sent
            body = self.request(whole)
            self._items, self._sent = new_items, sent
            messages = body["messages"]
            native = self.native_form(whole, {})
            if request.native is not None:
                native = replace(native, withheld=request.native.withheld)
            return replace(
                request, body={**request.body, "messages": messages}, turns=turns_of(messages), size=size, native=native
            )

        return await apart([self._items, [row.items for row in chain]], joined)

    async def _left_to_openai(self, request: ChatRequest, error: ApiError, previous: str) -> ChatRequest:
        """Return a request that goes on from a response which only its provider knows, or raise the error."""
        assert self._stored is not None
        if error.status >= 500 or request.native is None or is_own_id(previous):
            raise error
        if self._stored.enabled and await self._stored.is_anothers(self._key, previous):
            raise error  # of another key, through the same account at the provider
        return replace(request, native=replace(request.native, blocked=request.native.blocked or error))

    def translated(self, completion: JSON) -> JSON:
        """Return a response."""
        self._response = response_of(completion, self._frame)
        return self._response

    def passed(self, completion: JSON) -> JSON:
        """Return a response of a provider, under the names that the client knows."""
        response: JSON = {**super().passed(completion), **self._named_by_client()}
        self._response = response
        return response

    def _named_by_client(self) -> JSON:
        """Return what the client sent and the provider was sent in another form."""
        previous = self._sent.get("previous_response_id")
        return {} if previous is None else {"previous_response_id": previous}

    def passed_event(self, chunk: JSON, event: NativeEvent) -> bytes:
        """Return an event of a provider, with the model's name in those that hold the response."""
        response = event.content.get("response")
        if not isinstance(response, dict):
            return event.encoded()
        named = {**response, "model": chunk["model"], **router_fields(chunk), **self._named_by_client()}
        if event.content["type"] in ("response.completed", "response.incomplete"):
            self._response = named
        else:
            self._begun = named
        return encode([{**event.content, "response": named}])

    def passed_end(self) -> bytes:
        """Return nothing: the response itself is the last event."""
        return b""

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

    async def leave(self) -> None:
        """Store a response that goes on being made in the background."""
        if self._sent.get("background") and self._response is None and self._begun is not None:
            self._response = self._begun
            await self.keep()

    def fail(self, error: ApiError) -> bytes:
        """Return an event with the failed response."""
        return encode(self._stream.fail(error.code, str(error)))

    def end(self) -> bytes:
        """Return the closing events."""
        return self.passed_end() if self._is_native else encode([*self._closing, *self._stream.end()])


class Compaction(Responses):
    """The Responses API's request to shorten a conversation, which its provider alone can do."""

    def native_form(self, body: JSON, headers: Mapping[str, str]) -> NativeForm:
        """See `Responses`; likewise the others."""
        form = super().native_form(body, headers)
        why = "compact: no model with the Responses API may answer; send the whole conversation"
        return replace(form, path="compact", blocked=form.blocked or ApiError(400, "unsupported", why))

    async def keep(self) -> None:
        """Store nothing: what comes back is no response."""


def _for_openai(items: Sequence[Any]) -> list[Any]:
    """Return input items without what only the router knows: identifiers that it made, and thoughts under these."""
    if not any(isinstance(item, dict) and is_own_id(item.get("id")) for item in items):
        return list(items)
    kept = []
    for item in items:
        if not isinstance(item, dict) or not is_own_id(item.get("id")):
            kept.append(item)
        elif item.get("type") != "reasoning":
            kept.append({name: value for name, value in item.items() if name != "id"})
    return kept


async def stored_items(stored: ResponseStore, key: str, identifiers: Sequence[str]) -> dict[str, JSON]:
    """Return the kept output items of a key's responses by their identifier; those that are not there are left out."""
    try:
        return await stored.items(key, identifiers)
    except DatabaseError as error:
        raise responses_unreadable() from error
