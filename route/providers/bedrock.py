"""The client of Amazon Bedrock's Converse API, which has one form for the models of all makers.

System messages become the system blocks, tool results parts of user turns, and neighbouring turns of one role one turn.
Fields without a counterpart in Converse go to the model as they are (`additionalModelRequestFields`), hints are
dropped, what changes the answer is refused. Streams are AWS's binary events, read by botocore.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any
from urllib.parse import quote

from p2l.common.files import parse_json
from p2l.common.long_texts import apart, to_json
from route.providers import completions, efforts, translation
from route.providers.base import JSON, Account, ProviderError, Timeouts, note_dropped
from route.providers.usage import of_converse

_WHO = "bedrock"
_SAMPLING = {"temperature": "temperature", "top_p": "topP"}
_TRANSLATED = translation.TRANSLATED | {*_SAMPLING, "model"}
_HINTS = translation.HINTS | {"seed", "frequency_penalty", "presence_penalty", "parallel_tool_calls"}
_UNSENT = _TRANSLATED | _HINTS | efforts.FIELDS
_NOTHING = "(no output)"  # Converse refuses a result without text
_ONLY_JSON = "Answer with one JSON object and nothing else."
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}


def converse_request(request: JSON, *, max_tokens: int | None = None) -> JSON:
    """Translate a chat completion request, without its model, which is part of the path."""
    translation.refuse_the_impossible(_WHO, request)
    if not _CACHING.search(str(request.get("model"))):
        request = translation.unmarked(request)
    form = (request.get("response_format") or {}).get("type")
    if form == "json_schema":
        raise translation.unsupported(_WHO, "a response_format with a schema")
    body: JSON = {"messages": translation.turns_of(request.get("messages") or [], "assistant", "content", _blocks)}
    system = _system(request, _ONLY_JSON if form == "json_object" else "")
    if system:
        body["system"] = system
    settings = {name: request[key] for key, name in _SAMPLING.items() if request.get(key) is not None}
    limit = request.get("max_completion_tokens") or request.get("max_tokens") or max_tokens
    settings |= {"maxTokens": limit} if limit is not None else {}
    stops = completions.as_list(request.get("stop"))
    settings |= {"stopSequences": stops} if stops else {}
    if settings:
        body["inferenceConfig"] = settings
    others = {key: value for key, value in request.items() if key not in _UNSENT}
    translation.note_hints(request, _HINTS)
    others = {**efforts.of_bedrock(request, str(request.get("model")), limit), **others}
    if others:
        body["additionalModelRequestFields"] = others
    return body | _tools(request)


def _blocks(message: JSON) -> Iterator[JSON]:
    role = message.get("role")
    if role == "tool":
        content = [_block(part) for part in completions.parts_of(message.get("content"))] or [{"text": _NOTHING}]
        yield {"toolResult": {"toolUseId": _identifier(message.get("tool_call_id")), "content": content}}
        yield from _cache_point(message)
        return
    if role not in ("user", "assistant"):
        raise translation.unsupported(_WHO, f"messages of the role {role}")
    for part in completions.parts_of(message.get("content")):
        yield _block(part)
        yield from _cache_point(part)
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        use = {"toolUseId": _identifier(call.get("id")), "name": function.get("name")}
        yield {"toolUse": use | {"input": translation.arguments_of(function)}}
    yield from _cache_point(message)


def _cache_point(marked: JSON) -> Iterator[JSON]:
    """Yield the block after what a request marks to be cached, as Anthropic's and OpenRouter's clients do."""
    mark = marked.get("cache_control")
    if isinstance(mark, dict):
        yield {"cachePoint": {"type": "default", **({"ttl": "1h"} if mark.get("ttl") == "1h" else {})}}


def _system(request: JSON, further: str) -> list[JSON]:
    messages = [each for each in request.get("messages") or [] if each.get("role") in completions.SYSTEM_ROLES]
    parts = [part for message in messages for part in completions.parts_of(message.get("content"))]
    if not any(part.get("cache_control") for part in parts):
        text = translation.system_text(request, further)
        return [{"text": text}] if text else []
    blocks = [block for part in parts for block in (_block(part), *_cache_point(part))]
    return [*blocks, {"text": further}] if further else blocks


_CACHING = re.compile(r"claude|nova|arn:")
"""Models that take points of caching; what an ARN names is not known."""


def _identifier(name: Any) -> str:
    # Converse takes no others, and a conversation may have begun at a provider with longer ones.
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name))[:64]


def _block(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {"text": part["text"]}
        case "refusal":
            return {"text": part["refusal"]}
        case "image_url":
            inline = completions.data_url(completions.image_url(part))
            if inline is None or inline[0] not in _IMAGES:
                raise translation.unsupported(_WHO, "images by their address, or of this kind, only inline")
            return {"image": {"format": _IMAGES[inline[0]], "source": {"bytes": inline[1]}}}
        case "file" if isinstance(part.get("file"), dict) and part["file"].get("file_data"):
            return _document(part["file"])
        case kind:
            raise translation.unsupported(_WHO, f"content of the type {kind}")


def _document(file: JSON) -> JSON:
    inline = completions.data_url(file["file_data"])
    if inline is None or inline[0] != "application/pdf":
        raise translation.unsupported(_WHO, "files other than PDF inline")
    try:
        base64.b64decode(inline[1], validate=True)
    except binascii.Error:
        raise translation.unsupported(_WHO, "a file that is not base64") from None
    # Converse refuses a name with other characters.
    name = re.sub(r"[^A-Za-z0-9 -]", "-", str(file.get("filename") or "document").removesuffix(".pdf"))
    return {"document": {"format": "pdf", "name": name[:100], "source": {"bytes": inline[1]}}}


def _tools(request: JSON) -> JSON:
    tools = request.get("tools")
    choice = request.get("tool_choice")
    called = translation.called_tools(request)
    # Converse has no choice `none`; a model that is told of no tools calls none.
    if (not tools or choice == "none") and not called:
        return {}
    if not tools:
        # Calls in the conversation need tools, as where a summary of it is asked for.
        tools = [{"type": "function", "function": {"name": name}} for name in called]
    elif choice == "none":
        note_dropped("tool_choice")
    specs = []
    for tool in tools:
        if tool.get("type") != "function":
            raise translation.unsupported(_WHO, f"tools of the type {tool.get('type')}")
        function = tool.get("function") or {}
        spec = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
        specs.append({"toolSpec": spec | {"inputSchema": {"json": function.get("parameters") or {"type": "object"}}}})
        if "nova" not in str(request.get("model")):  # which caches no tools
            specs += _cache_point(tool)
    config: JSON = {"tools": specs}
    if choice == "required":
        config["toolChoice"] = {"any": {}}
    elif isinstance(choice, dict):
        config["toolChoice"] = {"tool": {"name": (choice.get("function") or {}).get("name")}}
    return {"toolConfig": config}


_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_BROKEN = ("malformed_model_output", "malformed_tool_use")
"""Reasons of an answer that is none."""


_RUN_BY_BEDROCK = "server_tool_use"
"""Type of a use of a tool that is no call for the client, such as Nova's code interpreter."""


def finish_of(reason: object) -> str:
    """Return OpenAI's finish reason; other reasons are guardrails and filters."""
    return _FINISH.get(str(reason), "content_filter")


def completion_of(answer: JSON, model: str, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole answer into a chat completion."""
    blocks = answer["output"]["message"].get("content") or []
    text = "".join(block["text"] for block in blocks if "text" in block)
    reasoning = [block["reasoningContent"] for block in blocks if "reasoningContent" in block]
    thoughts = "".join(str((content.get("reasoningText") or {}).get("text") or "") for content in reasoning)
    calls: list[JSON] = []
    for use in (block["toolUse"] for block in blocks if "toolUse" in block):
        if use.get("type") == _RUN_BY_BEDROCK:
            continue
        function = {"name": use["name"], "arguments": json.dumps(use.get("input") or {})}
        calls.append({"id": use["toolUseId"], "type": "function", "function": function})
    message = completions.answer_message(text or (None if calls else ""), thoughts, calls)
    counts = of_converse(answer.get("usage") or {})
    return completions.completion(model, message, finish_of(answer["stopReason"]), counts, clock=clock)


class _BedrockStream(translation.StreamTranslator):
    """Translates the events of one stream, each `{event name: content}`, into chunks."""

    model = ""
    _places: dict[int, int]
    """Number of a tool call by that of its block."""
    _reason: object = None

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""
        ((name, content),) = answer.items()
        match name:
            case "messageStart":
                self._places = {}
                self._frame["model"] = self.model  # which the events do not name
                return self._chunk({"role": "assistant", "content": ""})
            case "contentBlockStart" if (content.get("start") or {}).get("toolUse", {}).get("type") == _RUN_BY_BEDROCK:
                pass  # its input comes in deltas of a block that has no call
            case "contentBlockStart" if "toolUse" in (content.get("start") or {}):
                # Blocks of text count as well in Converse's numbers, but not in those of tool calls.
                place = self._places[content["contentBlockIndex"]] = self._calls
                self._calls += 1
                use = content["start"]["toolUse"]
                function = {"name": use["name"], "arguments": ""}
                call = {"id": use["toolUseId"], "type": "function", "index": place, "function": function}
                return self._chunk({"tool_calls": [call]})
            case "contentBlockDelta":
                return self._delta(content)
            case "messageStop":
                self._reason = content.get("stopReason")
                self.finished = True
            case "metadata":
                self._counts = content.get("usage") or {}
        return []

    def _delta(self, content: JSON) -> list[JSON]:
        delta = content.get("delta") or {}
        if delta.get("text"):
            return self._chunk({"content": delta["text"]})
        if "toolUse" in delta:
            place, text = self._places.get(content["contentBlockIndex"]), delta["toolUse"]["input"]
            if place is None:
                return []
            return self._chunk({"tool_calls": [{"index": place, "function": {"arguments": text}}]})
        thought = (delta.get("reasoningContent") or {}).get("text")
        return self._chunk({"reasoning_content": thought}) if thought else []

    def end(self) -> list[JSON]:
        """Return the chunks after the last event."""
        return self._chunk({}, finish_of(self._reason)) + self._usage_chunk(of_converse(self._counts))


_STATUS = {"throttlingException": 429, "validationException": 400, "serviceUnavailableException": 503}


class Bedrock(translation.TranslatingClient):
    """One account at AWS, in one region."""

    protocol = _WHO
    stream_translator = _BedrockStream

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._base = account.base_url.rstrip("/")
        self._max_tokens = account.options.get("max_tokens")

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Request a whole chat completion."""
        body = await apart(request, lambda: self._body(request, stream=False))
        answer = self._checked(await self._transport.answer(self._url(request, stream=False), body, timeouts))
        model = str(request.get("model"))
        return self._transport.understood(lambda sent: completion_of(sent, model), answer)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """Request a chat completion and yield its chunks."""
        body = await apart(request, lambda: self._body(request, stream=True))
        translator = _BedrockStream(with_usage=completions.asks_for_usage(request))
        translator.model = str(request.get("model"))
        url = self._url(request, stream=True)
        forwarded = await self._transport.forward(url, await to_json(body), "application/json", timeouts)
        try:
            async for event in self._events(forwarded.chunks):
                for part in self._transport.understood(translator.take, self._checked(event)):
                    yield part
        except ProviderError:
            # After messageStop only the counts of tokens are missing: the answer is whole.
            if not translator.finished:
                raise
        finally:
            await forwarded.chunks.aclose()
        if not translator.finished:
            raise self._transport.malformed("a stream without its end")
        for part in translator.end():
            yield part

    async def _events(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[JSON, None]:
        # An extra, which routers without models at Bedrock do not need.
        from botocore.eventstream import EventStreamBuffer, ParserError

        buffer = EventStreamBuffer()
        async for received in chunks:
            buffer.add_data(received)
            try:
                messages = list(buffer)
                parsed = [(message.headers, parse_json(message.payload)) for message in messages]
            except (ParserError, ValueError):
                raise self._transport.malformed("a broken event") from None
            for headers, content in parsed:
                kind = str(headers.get(":exception-type") or headers.get(":error-code") or "")
                if kind:
                    raise self._transport.failure({"error": content}, _STATUS.get(kind, 500))
                yield {str(headers.get(":event-type")): content}

    def _url(self, request: JSON, *, stream: bool) -> str:
        # A model may be named by its ARN, which holds slashes.
        return f"{self._base}/model/{quote(str(request.get('model')), safe='')}/converse{'-stream' if stream else ''}"

    def _translate(self, request: JSON) -> JSON:
        return converse_request(request, max_tokens=self._max_tokens)

    def _completion(self, answer: JSON) -> JSON:
        return self._transport.understood(lambda sent: completion_of(sent, ""), answer)

    def _checked(self, answer: JSON) -> JSON:
        reason = (answer.get("messageStop") or answer).get("stopReason")
        if reason in _BROKEN:
            raise self._transport.malformed(f"an answer that ended with {reason}")
        return answer
