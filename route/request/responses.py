"""OpenAI's Responses API, translated to chat completions and back.

Items of the input become messages: neighbouring calls of functions, the text beside them and the thoughts before them
are one answer. Fields with the same name in both APIs stay as they are. What needs OpenAI's servers (prompts, files and
conversations that they store, work in the background) is refused; tools that they run are dropped like any other field
that commands a provider. In an answer, thoughts, text or refusal, and each call of a function are an item of its own.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from p2l.common.errors import InputError
from p2l.common.long_texts import apart
from route.keep.database import DatabaseError
from route.keep.stored_responses import ResponseStore
from route.providers.base import JSON, Fault, ProviderError
from route.providers.chat import MOST_TOKENS
from route.request.api_errors import ApiError, check_responses, response_not_found, responses_unreadable
from route.request.chat import (
    ChatRequest,
    TranslatedDialect,
    encode,
    object_in,
    text_of_answer,
    tokens_counted,
    turns_of,
)

_TRANSLATED = frozenset(
    {
        *("input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "reasoning"),
        *("max_output_tokens", "include", "top_logprobs", "stream_options"),
    }
)
HINTS = frozenset(
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


def chat_request(body: JSON) -> JSON:
    """Translate the body of a request without what came before it; raise InputError for one that cannot be routed."""
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    if not isinstance(body.get("store"), bool | None):
        raise InputError("store: must be true or false")
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in HINTS}
    chat["messages"] = [*_instructions(body.get("instructions")), *_messages_of(input_items(body.get("input")))]
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
    return chat


def input_items(sent: Any) -> list[JSON]:
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
        return _messages_of(input_items(instructions))
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
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InputError(f"{where}: must be text or a list of parts")
    return [_part(part, f"{where}[{number}]") for number, part in enumerate(content)]


def _part(part: JSON, where: str) -> JSON:
    match part.get("type"):
        case "input_text" | "output_text" | "text" if isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        case "refusal" if isinstance(part.get("refusal"), str):
            return {"type": "refusal", "refusal": part["refusal"]}
        case "input_image" if isinstance(part.get("image_url"), str):
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file" if isinstance(part.get("file_data"), str):
            name = part.get("filename") or "document.pdf"
            return {"type": "file", "file": {"filename": name, "file_data": part["file_data"]}}
        case "input_audio" if isinstance(part.get("input_audio"), dict):
            return {"type": "input_audio", "input_audio": part["input_audio"]}
    raise InputError(f"{where}: content of the type {part.get('type')} cannot be routed, or not from this source")


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
        if all(part["type"] == "text" for part in parts):
            output = "".join(part["text"] for part in parts)
        else:
            raise InputError(f"{where}.output: must be text")
    return {
        "role": "tool",
        "tool_call_id": identifier,
        "content": output if isinstance(output, str) else json.dumps(output),
    }


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


_ECHOED: Mapping[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p", "user")),
    "metadata": {},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}
"""Fields of a request that its response repeats, with their defaults."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields with the thoughts of an answer, by provider."""


def _new_id(prefix: str) -> str:
    """Return a new identifier."""
    return f"{prefix}_{secrets.token_hex(24)}"


def frame_of(request: JSON, *, stored: bool) -> JSON:
    """Return the fields of a response that are known before its answer."""
    reasoning = request.get("reasoning") or {}  # checked to be an object when the request was translated
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": "",
        "output": [],
        "usage": None,
        **{name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()},
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": stored,
    }


def _response_of(completion: JSON, frame: JSON) -> JSON:
    """Translate a whole answer."""
    choice = (completion.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    output: list[JSON] = []
    thoughts = next((message[name] for name in _THOUGHTS if isinstance(message.get(name), str) and message[name]), "")
    if thoughts:
        output.append(_reasoning(_new_id("rs"), thoughts))
    text, refusal = text_of_answer(message.get("content")), message.get("refusal")
    parts = [_text_part(text, (choice.get("logprobs") or {}).get("content") or [])] if text else []
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    if parts:
        output.append(_message_item(_new_id("msg"), parts))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        output.append(_call_item(_new_id("fc"), call.get("id"), function.get("name"), function.get("arguments") or ""))
    return finished(frame, completion, output, choice.get("finish_reason"))


def finished(frame: JSON, completion: JSON, output: Sequence[JSON], finish_reason: Any) -> JSON:
    """Return the response with its output, usage and the router's own fields."""
    why = _INCOMPLETE.get(str(finish_reason))
    own = {key: value for key, value in completion.items() if key.startswith("router_")}
    usage = completion.get("usage")
    prompt, answer = tokens_counted(usage, "prompt_tokens"), tokens_counted(usage, "completion_tokens")
    return {
        **frame,
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "model": completion.get("model") or "",
        "output": list(output),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": tokens_counted(usage, "prompt_tokens_details", "cached_tokens")},
            "output_tokens": answer,
            "output_tokens_details": {
                "reasoning_tokens": tokens_counted(usage, "completion_tokens_details", "reasoning_tokens")
            },
            "total_tokens": prompt + answer,
        },
        **own,
    }


def _text_part(text: str, logprobs: Sequence[JSON] = ()) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _message_item(identifier: str, parts: Sequence[JSON], status: str = "completed") -> JSON:
    return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _reasoning(identifier: str, text: str, status: str = "completed") -> JSON:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": identifier, "type": "reasoning", "summary": [], "content": content, "status": status}


def _call_item(identifier: str, call_id: Any, name: Any, arguments: Any, status: str = "completed") -> JSON:
    return {
        "id": identifier,
        "type": "function_call",
        "call_id": str(call_id) if call_id else _new_id("call"),
        "name": name,
        "arguments": arguments,
        "status": status,
    }


_TEXT = {"kind": "text", "type": "output_text", "field": "text", "event": "response.output_text"}
_REFUSAL = {"kind": "refusal", "type": "refusal", "field": "refusal", "event": "response.refusal"}
_REASONING = {"kind": "reasoning", "type": "reasoning_text", "field": "text", "event": "response.reasoning_text"}


class _ResponseStream:
    """Translates the chunks of one chat completion to the events of a response.

        created in_progress (output_item.added ... output_item.done)* completed

    Items follow each other: thoughts end when text begins, text when a function is called, a call when the next begins.
    """

    def __init__(self, frame: JSON) -> None:
        self._frame = frame
        self._sequence = -1
        self._started = False
        self._output: list[JSON] = []
        """Items that are complete."""
        self._open: JSON | None = None
        """What is being written: its kind and identifier, the text so far, the event it has."""
        self._index: Any = None
        """Of the open call at the provider."""
        self._completion: JSON = {}
        self._finish: Any = None
        self._logprobs: list[JSON] = []

    def take(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk; raise ProviderError if it continues a call that has ended."""
        events = [] if self._started else self._start(chunk)
        if chunk.get("usage") is not None:
            self._completion["usage"] = chunk["usage"]
        for choice in chunk.get("choices") or []:
            if choice.get("index"):  # a response has one answer
                continue
            self._finish = choice.get("finish_reason") or self._finish
            self._logprobs += (choice.get("logprobs") or {}).get("content") or []
            delta = choice.get("delta") or {}
            thoughts = next((delta[name] for name in _THOUGHTS if isinstance(delta.get(name), str)), "")
            events += self._write(_REASONING, thoughts)
            events += self._write(_TEXT, text_of_answer(delta.get("content")))
            events += self._write(_REFUSAL, delta.get("refusal") or "")
            for piece in delta.get("tool_calls") or []:
                events += self._piece(piece)
        return events

    def response(self) -> JSON:
        """Return the whole response, after the last chunk."""
        return finished(self._frame, self._completion, self._output, self._finish)

    def end(self) -> list[JSON]:
        """Return the events after the last chunk."""
        events = self.close()
        response = self.response()
        return [*events, self._event(f"response.{response['status']}", response=response)]

    def fail(self, code: str, message: str) -> list[JSON]:
        """Return the last event of a stream that broke."""
        error = {"code": code, "message": message}
        response = {**self._frame, "model": self._completion.get("model") or "", "status": "failed", "error": error}
        return [self._event("response.failed", response={**response, "output": list(self._output)})]

    def close(self) -> list[JSON]:
        """Return the events that complete the open item."""
        if self._open is None:
            return []
        part, text = self._open, self._open["text"]
        if part["kind"] == "call":
            item = _call_item(part["id"], part["call_id"], part["name"], text)
            name = "response.function_call_arguments.done"
            events = [self._event(name, **self._place(), arguments=text, name=part["name"])]
        else:
            logprobs = {"logprobs": self._logprobs} if part["kind"] == "text" else {}
            content = _text_part(text, self._logprobs) if logprobs else {"type": part["type"], part["field"]: text}
            place = {**self._place(), "content_index": 0}
            events = [
                self._event(f"{part['event']}.done", **place, **{part["field"]: text}, **logprobs),
                self._event("response.content_part.done", **place, part=content),
            ]
            is_thought = part["kind"] == "reasoning"
            item = _reasoning(part["id"], text) if is_thought else _message_item(part["id"], [content])
        self._open = None
        self._output.append(item)
        return [*events, self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)]

    def _start(self, chunk: JSON) -> list[JSON]:
        self._started = True
        self._completion = {key: value for key, value in chunk.items() if key == "model" or key.startswith("router_")}
        response = {**self._frame, **self._completion}
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def _event(self, kind: str, **fields: Any) -> JSON:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _place(self) -> JSON:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._output)}

    def _begin(self, open_item: JSON, item: JSON) -> list[JSON]:
        """Complete the item before and open another one, which the client sees as `item`."""
        events = self.close()
        self._open = open_item
        return [*events, self._event("response.output_item.added", output_index=len(self._output), item=item)]

    def _write(self, form: Mapping[str, str], text: str) -> list[JSON]:
        if not text:
            return []
        events: list[JSON] = []
        if self._open is None or self._open["kind"] != form["kind"]:
            is_thought = form["kind"] == "reasoning"
            identifier = _new_id("rs" if is_thought else "msg")
            item = (
                _reasoning(identifier, "", "in_progress")
                if is_thought
                else _message_item(identifier, [], "in_progress")
            )
            events = self._begin({**form, "id": identifier, "text": ""}, item)
            part = _text_part("") if form["kind"] == "text" else {"type": form["type"], form["field"]: ""}
            events.append(self._event("response.content_part.added", **self._place(), content_index=0, part=part))
        assert self._open is not None
        self._open["text"] += text
        logprobs: JSON = {"logprobs": []} if form["kind"] == "text" else {}
        delta = self._event(f"{form['event']}.delta", **self._place(), content_index=0, delta=text, **logprobs)
        return [*events, delta]

    def _piece(self, piece: JSON) -> list[JSON]:
        function = piece.get("function") or {}
        index, identifier = piece.get("index"), piece.get("id")
        call = self._open if self._open is not None and self._open["kind"] == "call" else None
        events: list[JSON] = []
        if call is None or index not in (None, self._index) or identifier not in (None, "", call["call_id"]):
            if not function.get("name"):
                raise ProviderError(Fault.MALFORMED, "the model continued a tool call that had ended")
            call_id = str(identifier) if identifier else _new_id("call")
            call = {"kind": "call", "id": _new_id("fc"), "call_id": call_id, "name": function["name"], "text": ""}
            events = self._begin(call, _call_item(call["id"], call_id, call["name"], "", "in_progress"))
            self._index = index
        arguments = function.get("arguments")
        if not arguments:
            return events
        call["text"] += arguments
        return [*events, self._event("response.function_call_arguments.delta", **self._place(), delta=arguments)]


class Responses(TranslatedDialect):
    """OpenAI's Responses API."""

    hints = HINTS - {"store", "metadata"}

    def __init__(self) -> None:
        self._sent: JSON = {}
        self._items: list[JSON] = []
        self._frame: JSON = {}
        self._stored: ResponseStore | None = None
        self._key = ""
        self._response: JSON | None = None
        self._stream = _ResponseStream({})
        self._closing: list[JSON] = []
        """The last events before the end."""

    def request(self, body: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        try:
            request = chat_request(body)
            self._items = input_items(body.get("input"))
        except InputError as error:  # which begins with the place
            raise ApiError(400, "invalid_value", str(error), param=str(error).partition(":")[0]) from error
        self._sent = body
        return request

    async def prepare(self, request: ChatRequest, stored: ResponseStore, key: str, max_bytes: float) -> ChatRequest:
        """Put what came before `previous_response_id` in front of the request."""
        self._frame = frame_of(self._sent, stored=stored.enabled and self._sent.get("store") is not False)
        self._stream = _ResponseStream(self._frame)
        self._stored, self._key = stored, key
        previous = self._sent.get("previous_response_id")
        if previous is None:
            return request
        check_responses(stored.enabled, "previous_response_id")
        try:
            chain = await stored.chain(key, str(previous))
        except DatabaseError as error:
            raise responses_unreadable() from error
        if not chain:
            raise response_not_found(str(previous), param="previous_response_id")
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
        self._response = _response_of(completion, self._frame)
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
        except DatabaseError:
            self._frame["store"] = response["store"] = False  # it is answered all the same, and says that

    def events(self, chunk: JSON) -> list[JSON]:
        """Return the events of a chunk."""
        return self._stream.take(chunk)

    def fail(self, error: ApiError) -> bytes:
        """Return an event with the failed response."""
        return encode(self._stream.fail(error.code, str(error)))

    def end(self) -> bytes:
        """Return the closing events."""
        return encode([*self._closing, *self._stream.end()])
