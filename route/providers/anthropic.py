"""The client of Anthropic's Messages API, or of another service that speaks it at the account's `base_url`.

System messages become the one system prompt, tool results become parts of user turns, and neighbouring turns of one
role are merged. Hints without a counterpart are dropped (`seed`, penalties, `store`); what changes
the answer is refused, so that another model gets the request (`n`, `logprobs`, audio). Other fields pass through:
`thinking`, `top_k` and `output_config` can be sent or configured. Answers keep text, tool calls and thinking (as
`reasoning_content`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from p2l.common.long_texts import apart
from route.providers import completions, efforts, translation
from route.providers.base import JSON, USAGE_SO_FAR, Account, NativeRequest, Timeouts, note_dropped
from route.providers.schemas import for_anthropic
from route.providers.translation import NativeCall, translated
from route.providers.usage import of_messages

_WHO = "anthropic"
_HINTS = translation.HINTS | {"seed", "frequency_penalty", "presence_penalty"}
_UNSENT = translation.TRANSLATED | _HINTS | efforts.FIELDS
UNSIGNED = "cDJsLXVuc2lnbmVk"
"""Signature of thoughts of another model than Anthropic's, which alone signs them.

Clients take thoughts without any signature for something else: pydantic-ai tells them again as a user's text.
"""
_ONLY_JSON = "Answer with one JSON object and nothing else."


def messages_request(request: JSON, *, max_tokens: int) -> JSON:
    """Translate a chat completion request; `max_tokens` is the limit where the request has none."""
    translation.refuse_the_impossible(_WHO, request)
    body = {key: value for key, value in request.items() if key not in _UNSENT}
    effort = _thinking_of(request, max_tokens)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    body["max_tokens"] = max_tokens if limit is None else limit
    answer_format = request.get("response_format") or {}
    # The API has no form of answer that is any JSON object.
    system = _system(request, _ONLY_JSON if answer_format.get("type") == "json_object" else "")
    if system:
        body["system"] = system
    turns = translation.turns_of(request.get("messages") or [], "assistant", "content", _blocks)
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        # A prefill that ends in white space is refused.
        turns[-1]["content"][-1]["text"] = turns[-1]["content"][-1]["text"].rstrip()
    body["messages"] = turns
    body |= effort
    if not _can_think(body):
        del body["thinking"]
        note_dropped("thinking")
    if request.get("temperature") is not None:
        body["temperature"] = min(request["temperature"], 1.0)  # the highest there is
    stops = [stop for stop in completions.as_list(request.get("stop")) if str(stop).strip()]
    if stops:
        body["stop_sequences"] = stops
    body |= _tools(request)
    if answer_format.get("type") == "json_schema":
        schema = (answer_format.get("json_schema") or {}).get("schema") or {"type": "object"}
        schema = _closed(schema, "response_format")
        body["output_config"] = {
            **body.get("output_config", {}),
            "format": {"type": "json_schema", "schema": schema},
        }
    user = request.get("safety_identifier") or request.get("user")
    if user:
        body["metadata"] = {"user_id": user}
    translation.note_hints(request, _HINTS)
    return with_thinking_in_order(body)


def _closed(schema: JSON, where: str) -> JSON:
    """Return a schema as Anthropic takes it; raise ProviderError for one that it cannot take, another model may."""
    try:
        return for_anthropic(schema, lambda keyword: note_dropped(f"{where}.{keyword}"))
    except (*completions.SHAPE_ERRORS, RecursionError):
        raise translation.unsupported(_WHO, f"this schema of {where}") from None


_LEAST_BUDGET_TOKENS = 1024  # of thinking
_LEAST_TOP_P = 0.95  # beside thinking


def with_thinking_in_order(body: JSON) -> JSON:
    """Return a request whose fields go with thinking: no sampling, no forced tool, an answer longer than the thoughts.

    Anthropic refuses any other, and what collides may come from the client, the configuration or both.
    """
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") not in ("enabled", "adaptive"):
        return body
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        note_dropped("thinking")
        return completions.without(body, ("thinking",))
    collides = {"top_k": True, "temperature": body.get("temperature") != 1}
    collides["top_p"] = not (_LEAST_TOP_P <= (body.get("top_p") or 0) <= 1)
    dropped = [name for name, does in collides.items() if does and body.get(name) is not None]
    note_dropped(*dropped)
    body = completions.without(body, dropped)
    budget, limit = thinking.get("budget_tokens"), body.get("max_tokens")
    if not isinstance(budget, int) or not isinstance(limit, int) or budget < limit:
        return body
    if limit <= _LEAST_BUDGET_TOKENS:
        note_dropped("thinking")
        return completions.without(body, ("thinking",))
    note_dropped("thinking.budget_tokens")
    return {**body, "thinking": {**thinking, "budget_tokens": limit - 1}}


def _system(request: JSON, further: str) -> str | list[JSON]:
    """Return the system prompt: blocks where one of its parts has a caching mark, else text."""
    messages = [each for each in request.get("messages") or [] if each.get("role") in completions.SYSTEM_ROLES]
    parts = [part for message in messages for part in completions.marked_parts(message)]
    if not any(part.get("cache_control") for part in parts):
        return translation.system_text(request, further)
    return [_block(part) for part in parts] + ([{"type": "text", "text": further}] if further else [])


def _thinking_of(request: JSON, max_tokens: int) -> JSON:
    """Return the fields that stand for the effort of a request."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return efforts.of_claude(request, str(request.get("model")), limit or max_tokens, is_limited=limit is not None)


def _can_think(body: JSON) -> bool:
    """Whether thinking may stay enabled: not in the middle of tool calls that came without signed thoughts.

    Such thoughts would have to come back with the call, and OpenAI's messages have no place for them.
    """
    if (body.get("thinking") or {}).get("type") != "enabled":
        return True
    answers = [turn["content"] for turn in body["messages"] if turn["role"] == "assistant"]
    kinds = {block["type"] for block in answers[-1]} if answers else set()
    return "tool_use" not in kinds or "thinking" in kinds


def _blocks(message: JSON) -> Iterator[JSON]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        blocks = [_block(part) for part in completions.parts_of(content)]
        result = {"type": "tool_result", "tool_use_id": _identifier(message.get("tool_call_id")), "content": blocks}
        # A mark stands on the message, or on the last part, where a result has it, too.
        mark = message.get("cache_control")
        yield {**result, "cache_control": mark} if mark else result
        return
    if role not in ("user", "assistant"):
        raise translation.unsupported(_WHO, f"messages of the role {role}")
    yield from (_block(part) for part in completions.marked_parts(message))
    for call in message.get("tool_calls") or []:
        function, identifier = call.get("function") or {}, _identifier(call.get("id"))
        arguments = translation.arguments_of(function)
        yield {"type": "tool_use", "id": identifier, "name": function.get("name"), "input": arguments}


_FIT_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]+")


def _identifier(name: Any) -> str:
    """Replace the characters that Anthropic refuses in identifiers of other providers."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name))


def _block(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {key: part[key] for key in ("type", "text", "cache_control") if key in part}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "image_url":
            return {"type": "image", "source": _source(completions.image_url(part)), **_mark(part)}
        case "file" if isinstance(part.get("file"), dict) and part["file"].get("file_data"):
            return {"type": "document", "source": _source(part["file"]["file_data"]), **_mark(part)}
        case "input_audio" | "file" as kind:
            raise translation.unsupported(_WHO, f"content of the type {kind}")
    return part  # a type of Anthropic's own, passed through with its cache marks


def _mark(part: JSON) -> JSON:
    return {"cache_control": part["cache_control"]} if part.get("cache_control") else {}


def _source(url: str) -> JSON:
    inline = completions.data_url(url)
    if inline is None:
        return {"type": "url", "url": url}
    media_type, content = inline
    return {"type": "base64", "media_type": media_type, "data": content}


def _tools(request: JSON) -> JSON:
    tools = request.get("tools")
    if not tools:
        # Calls in the conversation need tools, as where a summary of it is asked for.
        called = translation.called_tools(request)
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in called]
        return {"tools": tools, "tool_choice": {"type": "none"}} if tools else {}
    choice = _tool_choice(request.get("tool_choice"))
    if request.get("parallel_tool_calls") is False:
        choice = choice or {"type": "auto"}
        if choice["type"] != "none":
            choice = {**choice, "disable_parallel_tool_use": True}
    translated_tools = []
    for tool in tools:
        if tool.get("type") != "function":
            translated_tools.append(tool)  # one of Anthropic's own
            continue
        function = tool.get("function") or {}
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        description = {key: function[key] for key in ("description", "strict") if function.get(key) is not None}
        if description.get("strict"):
            schema = _closed(schema, "tools")
        schema = {"type": "object", **schema}  # which clients leave out, and Anthropic does not
        marks = [held["cache_control"] for held in (tool, function) if held.get("cache_control")]
        mark = {"cache_control": marks[0]} if marks else {}
        translated_tools.append({"name": function.get("name"), "input_schema": schema, **description, **mark})
    return {"tools": translated_tools} | ({"tool_choice": choice} if choice else {})


def _tool_choice(choice: Any) -> JSON | None:
    if choice is None:
        return None
    named = {"auto": "auto", "none": "none", "required": "any"}
    if isinstance(choice, str) and choice in named:
        return {"type": named[choice]}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "tool", "name": (choice.get("function") or {}).get("name")}
    if isinstance(choice, dict) and choice.get("type") in ("auto", "any", "tool", "none"):
        return choice
    raise translation.unsupported(_WHO, "this tool_choice")


_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def completion_of(answer: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole answer into a chat completion."""
    blocks: list[JSON] = answer.get("content") or []
    texts = [block.get("text", "") for block in blocks if block.get("type") == "text"]
    thoughts = "".join(block.get("thinking", "") for block in blocks if block.get("type") == "thinking")
    calls: list[JSON] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
    message = completions.answer_message("".join(texts) if texts else None, thoughts, calls)
    finish = _FINISH.get(str(answer.get("stop_reason")), "stop")
    counts = of_messages(answer.get("usage") or {})
    model, identifier = str(answer.get("model") or ""), answer.get("id")
    completion = completions.completion(model, message, finish, counts, identifier=identifier, clock=clock)
    completion["choices"][0] |= _stopped_by(answer)
    return completion


def _stopped_by(event: JSON) -> JSON:
    """Return the stop sequence that ended an answer, in the field that vLLM uses for it."""
    sequence = event.get("stop_sequence")
    return {"stop_reason": sequence} if sequence else {}


class AnthropicStream(translation.StreamTranslator):
    """Translates the events of one stream into chunks."""

    _bare: JSON | None = None
    """The tool call without arguments so far."""
    _is_call = False
    """Whether the open block is a call of a tool that the client runs; Anthropic's own tools have blocks, too."""

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""
        match answer.get("type"):
            case "message_start":
                message = answer.get("message") or {}
                self._frame |= {"id": message.get("id") or "", "model": message.get("model") or ""}
                self._counts |= message.get("usage") or {}
                [chunk] = self._chunk({"role": "assistant", "content": ""})
                counts = of_messages(self._counts)
                # Of the answer it counts no more than the first tokens.
                told = {} if counts is None else {USAGE_SO_FAR: {**counts, "completion_tokens": None}}
                return [chunk | told]
            case "content_block_start":
                block = answer.get("content_block") or {}
                self._is_call = block.get("type") == "tool_use"
                if block.get("type") == "text" and block.get("text"):
                    return self._chunk({"content": block["text"]})
                if not self._is_call:
                    return []
                function = {"name": block.get("name"), "arguments": ""}
                call = {"index": self._calls, "id": block.get("id"), "type": "function", "function": function}
                self._calls += 1
                self._bare = block
                return self._chunk({"tool_calls": [call]})
            case "content_block_delta":
                return self._continue_block(answer.get("delta") or {})
            case "content_block_stop" if self._bare is not None:
                # A tool without arguments streams none, but clients parse what they got as JSON.
                arguments = self._bare.get("input") or {}
                self._bare = None
                return self._arguments(json.dumps(arguments))
            case "message_delta":
                self._counts |= {key: value for key, value in (answer.get("usage") or {}).items() if value is not None}
                reason: Any = (answer.get("delta") or {}).get("stop_reason")
                if reason is None or self.finished:
                    return []
                self.finished = True
                chunks = self._chunk({}, _FINISH.get(str(reason), "stop"))
                chunks[0]["choices"][0] |= _stopped_by(answer["delta"])
                return chunks + self._usage_chunk(of_messages(self._counts))
        return []  # pings, and events of future kinds

    def _continue_block(self, delta: JSON) -> list[JSON]:
        match delta.get("type"):
            case "text_delta":
                return self._chunk({"content": delta.get("text", "")})
            case "thinking_delta":
                return self._chunk({"reasoning_content": delta.get("thinking", "")})
            case "input_json_delta" if delta.get("partial_json") and self._is_call:
                self._bare = None
                return self._arguments(delta["partial_json"])
        return []  # signatures and citations

    def _arguments(self, text: str) -> list[JSON]:
        return self._chunk({"tool_calls": [{"index": self._calls - 1, "function": {"arguments": text}}]})


_DEFAULT_MAX_TOKENS = 4096  # the API requires a limit; this one is within that of every one of their models


def native_body(request: NativeRequest, *, max_tokens: int) -> JSON:
    """Return the body of a request that came in this protocol, with what the configuration sets below it."""
    own = request.body
    names = ("model", "max_tokens", "thinking")
    shared = {name: own[name] for name in names if own.get(name) is not None}
    has_own_effort = bool((own.get("output_config") or {}).get("effort"))
    unsaid = completions.without(request.settings, efforts.FIELDS if has_own_effort else ())
    settings = messages_request({"messages": [], **unsaid, "model": own.get("model")}, max_tokens=max_tokens)
    settings |= _thinking_of({**unsaid, **shared}, max_tokens)
    del settings["messages"]
    limits = (name for name in ("max_completion_tokens", "max_tokens") if request.settings.get(name) is not None)
    if next(limits, None) is None and request.body.get("max_tokens") is not None:
        del settings["max_tokens"]
    body = {**settings, **{name: value for name, value in own.items() if value is not None}}
    if "output_config" in settings:
        body["output_config"] = {**settings["output_config"], **(own.get("output_config") or {})}
    if "thinking" in settings or "temperature" in settings:
        body = with_thinking_in_order(body)
    turns = body.get("messages")
    if isinstance(turns, list) and any(map(_needs_fitting, turns)):
        body["messages"] = [fitted for turn in turns for fitted in _fitted(turn)]
        if not body["messages"]:
            raise translation.blank_conversation()
    return body


def _is_unfit(block: JSON) -> bool:
    """Return whether a block came from another model, by way of a client: Anthropic refuses it."""
    match block.get("type"):
        case "text":
            return not str(block.get("text") or "").strip()
        case "thinking":
            return block.get("signature") in (None, "", UNSIGNED)
    return False


def _needs_fitting(turn: JSON) -> bool:
    content = turn.get("content")
    if isinstance(content, str):
        return not content.strip()
    for block in content or ():
        if _is_unfit(block) or not _FIT_IDENTIFIER.fullmatch(str(block.get("id") or block.get("tool_use_id") or "a")):
            return True
    return False


def _fitted(turn: JSON) -> list[JSON]:
    """Return a turn without blank text and without thoughts that nobody signed; nothing where nothing is left."""
    content = turn.get("content")
    if isinstance(content, str):
        return [turn] if content.strip() else []
    blocks = []
    for block in content or []:
        if _is_unfit(block):
            if block["type"] == "thinking":
                note_dropped("messages.thinking")
            continue
        names = [name for name in ("id", "tool_use_id") if isinstance(block.get(name), str)]
        blocks.append({**block, **{name: _identifier(block[name]) for name in names}})
    return [{**turn, "content": blocks}] if blocks else []


class Anthropic(translation.TranslatingClient):
    """One account at Anthropic."""

    protocol = _WHO
    stream_translator = AnthropicStream

    def __init__(self, account: Account) -> None:
        """Set up a client; it connects at its first request.

        `options["max_tokens"]` limits answers where the request does not (4,096); `options["omit"]` names fields to
        leave out, such as the `temperature` that the newest models refuse.
        """
        super().__init__(account)
        self._messages = f"{account.base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._max_tokens = int(account.options.get("max_tokens", _DEFAULT_MAX_TOKENS))

    def speaks(self, protocol: str) -> bool:
        """See `NativeProvider`; likewise the others."""
        return protocol == "messages"

    async def answer_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request a whole message."""
        return await (await self._native(request, timeouts)).answer()

    async def count_natively(self, request: NativeRequest, timeouts: Timeouts) -> JSON:
        """Request the number of tokens of a prompt."""
        body = completions.without(request.body, self._omit)
        return await self._transport.answer(f"{self._messages}/count_tokens", body, timeouts, request.headers)

    async def stream_natively(self, request: NativeRequest, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a message and yield its events."""
        call = await self._native(request, timeouts)
        async with aclosing(call.stream(AnthropicStream(with_usage=True))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _native(self, request: NativeRequest, timeouts: Timeouts) -> NativeCall:
        body = await apart(request.body, lambda: translated(_WHO, lambda _: self._native_body(request), request.body))
        return NativeCall(
            transport=self._transport,
            url=self._messages,
            body=body,
            headers=request.headers,
            timeouts=timeouts,
            checked=self._checked,
            completion_of=self._completion,
        )

    def _native_body(self, request: NativeRequest) -> JSON:
        return completions.omitted(native_body(request, max_tokens=self._max_tokens), self._omit)

    def _url(self, request: JSON, *, stream: bool) -> str:  # noqa: ARG002
        return self._messages

    def _body(self, request: JSON, *, stream: bool) -> JSON:
        return super()._body(request, stream=stream) | ({"stream": True} if stream else {})

    def _translate(self, request: JSON) -> JSON:
        return messages_request(request, max_tokens=self._max_tokens)

    def _checked(self, answer: JSON) -> JSON:
        if answer.get("type") == "error":
            raise self._transport.failure(answer)
        return answer

    def _completion(self, answer: JSON) -> JSON:
        if not isinstance(answer.get("content"), list):
            raise self._transport.malformed("an answer without content")
        return self._transport.understood(completion_of, answer)
