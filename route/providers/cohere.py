"""The client of Cohere's own protocol, its chat API of version 2.

Roles and calls of tools are those of chat completions; sampling has names of its own. A choice of one tool becomes a
must among that tool alone, since there is no other way to say it; hints without a counterpart are dropped, what changes
the answer is refused, and other fields pass through (`documents`, `citation_options`, `safety_mode`, `thinking`). The
plan that a model makes before it calls tools, and its thoughts, become `reasoning_content`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from route.providers import completions, efforts, translation
from route.providers.base import (
    JSON,
    OWN_HISTORY,
    Account,
    Fault,
    Forwarded,
    Provider,
    ProviderError,
    Timeouts,
    note_dropped,
)
from route.providers.openai import OpenAICompatible
from route.providers.usage import of_cohere

_WHO = "cohere"
_COMPATIBLE = "/compatibility/v1"
"""Path of Cohere's interface in OpenAI's protocol, which also has endpoints beside chat."""
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "p",
    "top_k": "k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_HINTS = translation.HINTS | {"parallel_tool_calls"}
_UNSENT = translation.TRANSLATED | _HINTS | efforts.FIELDS | _SAMPLING.keys()
_CHOICES = {"required": "REQUIRED", "none": "NONE"}
_NOTHING = "(no output)"  # a tool's result needs a text


def chat_request(request: JSON) -> JSON:
    """Translate a chat completion request."""
    translation.refuse_the_impossible(_WHO, request)
    body = {name: value for name, value in request.items() if name not in _UNSENT}
    translation.note_hints(request, _HINTS)
    request = translation.unmarked(request)
    body["messages"] = list(_messages(request.get("messages") or []))
    body |= {name: request[key] for key, name in _SAMPLING.items() if request.get(key) is not None}
    stops = completions.as_list(request.get("stop"))
    if stops:
        body["stop_sequences"] = stops
    answer_format = request.get("response_format") or {}
    if answer_format.get("type") in ("json_object", "json_schema"):
        schema = (answer_format.get("json_schema") or {}).get("schema")
        body["response_format"] = {"type": "json_object", **({"json_schema": schema} if schema else {})}
    thinking = efforts.of_cohere(request, str(request.get("model")))
    if thinking and "thinking" not in body:
        body["thinking"] = thinking
    return body | _tools(request)


def _messages(messages: list[JSON]) -> Iterator[JSON]:
    """Yield the messages in Cohere's form; images in the results of tools follow all of these as the user's."""
    images: list[JSON] = []
    for message in messages:
        if images and message.get("role") != "tool":
            yield {"role": "user", "content": images}
            images = []
        told = _message(message)
        if told is not None:
            yield told
        if message.get("role") == "tool":
            images += [_part(part) for part in translation.media_of(message)]
    if images:
        yield {"role": "user", "content": images}


def _message(message: JSON) -> JSON | None:
    """Return a message in Cohere's form; None for a blank one, which it refuses."""
    role = message.get("role")
    match role:
        case "system" | "developer" | "user":
            content = _content(message)
            return {"role": "user" if role == "user" else "system", "content": content} if content else None
        case "tool":
            text = completions.joined_text(message.get("content")) or _NOTHING
            return {"role": "tool", "tool_call_id": message.get("tool_call_id"), "content": text}
        case "assistant":
            return _assistant(message)
        case _:
            raise translation.unsupported(_WHO, f"messages of the role {role}")


def _content(message: JSON) -> str | list[JSON]:
    parts = [_part(part) for part in completions.parts_of(message.get("content"))]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": part["text"]}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
        case "image_url":
            inline = completions.data_url(completions.image_url(part))
            url = completions.image_url(part) if inline is None else f"data:{inline[0]};base64,{inline[1]}"
            return {"type": "image_url", "image_url": {"url": url}}
        case kind:
            raise translation.unsupported(_WHO, f"content of the type {kind}")


def _assistant(message: JSON) -> JSON | None:
    content, calls = _content(message), message.get("tool_calls") or []
    told: JSON = {"role": "assistant"}
    if content:
        told["content"] = content
    if calls:
        told["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": dict(call.get("function") or {})} for call in calls
        ]
    thoughts = message.get("reasoning_content")
    # Of its own answers alone: models that do not think refuse blocks of thoughts, but all make plans.
    if thoughts and OWN_HISTORY.get() and calls:
        told["tool_plan"] = thoughts
    elif thoughts and OWN_HISTORY.get() and content:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        told["content"] = [{"type": "thinking", "thinking": thoughts}, *blocks]
    elif thoughts:
        note_dropped("messages.reasoning_content")
    return told if content or calls else None


def _tools(request: JSON) -> JSON:
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not tools:
        return {}
    for tool in tools:
        if tool.get("type") != "function":
            raise translation.unsupported(_WHO, f"tools of the type {tool.get('type')}")
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = (choice.get("function") or {}).get("name")
        chosen = [tool for tool in tools if (tool.get("function") or {}).get("name") == name]
        if not chosen:
            what = f"tool_choice: no tool is named {name!r}"
            raise ProviderError(Fault.REQUEST, f"{_WHO}: {what}", detail=what)
        return {"tools": [_tool(tool) for tool in chosen], "tool_choice": "REQUIRED"}
    if choice not in (None, "auto", *_CHOICES):
        raise translation.unsupported(_WHO, "this tool_choice")
    body: JSON = {"tools": [_tool(tool) for tool in tools]}
    return body | ({"tool_choice": _CHOICES[choice]} if choice in _CHOICES else {})


def _tool(tool: JSON) -> JSON:
    # Strictness is said for all tools at once (`strict_tools`), and for some models alone.
    if tool["function"].get("strict"):
        note_dropped("tools.function.strict")
    function = completions.without(tool["function"], ("strict",))
    return {"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, **function}}


_FINISH = {"COMPLETE": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length", "TOOL_CALL": "tool_calls"}
_BROKEN = frozenset({"ERROR", "TIMEOUT"})


def finish_of(reason: object, *, has_calls: bool) -> str:
    """Return OpenAI's finish reason; an unknown one follows from what was sent."""
    return _FINISH.get(str(reason), "tool_calls" if has_calls else "stop")


def completion_of(answer: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole answer into a chat completion; it does not name the model."""
    sent = answer["message"]
    blocks = sent.get("content") or []
    text = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
    thoughts = [block.get("thinking") or "" for block in blocks if block.get("type") == "thinking"]
    calls = [_call(call) for call in sent.get("tool_calls") or []]
    message = completions.answer_message(
        text or (None if calls else ""), "".join([sent.get("tool_plan") or "", *thoughts]), calls
    )
    finish = finish_of(answer.get("finish_reason"), has_calls=bool(calls))
    counts = of_cohere(answer.get("usage") or {})
    return completions.completion("", message, finish, counts, identifier=answer.get("id"), clock=clock)


def _call(call: JSON) -> JSON:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


class CohereStream(translation.StreamTranslator):
    """Translates the events of one stream into chunks."""

    _reason: object = None

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""
        message: Any = (answer.get("delta") or {}).get("message") or {}
        match answer.get("type"):
            case "message-start":
                self._frame["id"] = answer.get("id") or self._frame["id"]
                return self._chunk({"role": "assistant", "content": ""})
            case "content-start" | "content-delta":
                content = message.get("content") or {}
                pieces = {"reasoning_content": content.get("thinking"), "content": content.get("text")}
                delta = {name: piece for name, piece in pieces.items() if piece}
                return self._chunk(delta) if delta else []
            case "tool-plan-delta":
                plan = message.get("tool_plan")
                return self._chunk({"reasoning_content": plan}) if plan else []
            case "tool-call-start":
                self._calls += 1
                call = message["tool_calls"]
                function = {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or ""}
                told = {"index": self._calls - 1, "id": call["id"], "type": "function", "function": function}
                return self._chunk({"tool_calls": [told]})
            case "tool-call-delta":  # of the newest call: calls do not come in turns
                piece = message["tool_calls"]["function"].get("arguments") or ""
                return self._chunk({"tool_calls": [{"index": self._calls - 1, "function": {"arguments": piece}}]})
            case "message-end":
                ending = answer.get("delta") or {}
                self._reason, self._counts = ending.get("finish_reason"), ending.get("usage") or {}
                self.finished = True
        return []

    def end(self) -> list[JSON]:
        """Return the chunks after the last event."""
        last = self._chunk({}, finish_of(self._reason, has_calls=self._calls > 0))
        return last + self._usage_chunk(of_cohere(self._counts))


class Cohere(translation.TranslatingClient):
    """One account at Cohere."""

    protocol = _WHO
    stream_translator = CohereStream

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._base = account.base_url.rstrip("/").removesuffix("/v2")

    def _url(self, request: JSON, *, stream: bool) -> str:  # noqa: ARG002
        return f"{self._base}/v2/chat"

    def _body(self, request: JSON, *, stream: bool) -> JSON:
        return {**super()._body(request, stream=stream), "stream": stream}

    def _translate(self, request: JSON) -> JSON:
        return chat_request(request)

    def _completion(self, answer: JSON) -> JSON:
        return self._transport.understood(completion_of, answer)

    def _checked(self, answer: JSON) -> JSON:
        ending = answer.get("delta") if answer.get("type") == "message-end" else answer
        ending = ending if isinstance(ending, dict) else {}
        if ending.get("error"):
            raise self._transport.failure({"error": ending["error"]})
        if ending.get("finish_reason") in _BROKEN:
            raise self._transport.malformed(f"an answer that ended with {ending['finish_reason']}")
        if "type" not in answer and "message" in answer and not isinstance(answer["message"], dict):
            raise self._transport.failure({"error": answer})  # an error says its message as text
        return answer

    async def forward(self, path: str, model: str, body: bytes, content_type: str, timeouts: Timeouts) -> Forwarded:  # noqa: ARG002
        """Post a body to an endpoint beside chat (`embeddings`), which the compatible interface has."""
        return await self._transport.forward(f"{self._base}{_COMPATIBLE}/{path}", body, content_type, timeouts)


def cohere(account: Account) -> Provider:
    """Return a client of Cohere's own protocol, or of OpenAI's at the address of the compatible interface."""
    if account.base_url.rstrip("/").endswith(_COMPATIBLE):
        return OpenAICompatible(
            Account(account.base_url, account.api_key, account.headers, {**_CLASSIC, **account.options})
        )
    return Cohere(account)


_CLASSIC = {"dialect": "classic"}
