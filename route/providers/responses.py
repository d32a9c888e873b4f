"""OpenAI's Responses API as a protocol of providers: requests that came in it or are translated, and its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from route.providers import completions
from route.providers.base import JSON, NATIVE, NativeRequest, note_dropped
from route.providers.translation import StreamTranslator, unmarked, unsupported
from route.providers.usage import of_responses

_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


def native_body(request: NativeRequest) -> JSON:
    """Return the body of a request that came in this protocol, with what the configuration sets below it."""
    settings: JSON = {}
    for name, value in request.settings.items():
        match name:
            case "messages":
                settings["instructions"] = completions.joined_text(value[0].get("content"))
            case "reasoning_effort":
                settings["reasoning"] = {"effort": value}
            case "verbosity":
                settings["text"] = {**settings.get("text", {}), "verbosity": value}
            case "response_format":
                form = {"type": value.get("type"), **(value.get("json_schema") or {})}
                settings["text"] = {**settings.get("text", {}), "format": form}
            case _:
                settings[_RENAMED.get(name, name)] = value
    body = {**settings, **{name: value for name, value in request.body.items() if value is not None}}
    for name in ("reasoning", "text"):  # objects of settings of their own
        if isinstance(settings.get(name), dict) and isinstance(body.get(name), dict):
            body[name] = {**settings[name], **body[name]}
    return body


# The way of chat completions to a service that has this API alone (`openai-responses`).

_WHO = "responses"
_SAME = (
    *("temperature", "top_p", "parallel_tool_calls", "user", "safety_identifier", "service_tier", "metadata"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "top_logprobs", "store", "include"),
    *("truncation", "max_tool_calls", "context_management", "moderation"),
)
"""Fields of the same name and meaning in both."""
_LOGPROBS = "message.output_text.logprobs"
_UNSAYABLE = ("stop", "audio", "prediction")
"""Fields that change an answer, and that this API does not have."""
_TRANSLATED = frozenset(
    {
        *("messages", "model", "tools", "tool_choice", "functions", "function_call", "response_format", "logprobs"),
        *("max_tokens", "max_completion_tokens", "reasoning_effort", "reasoning", "verbosity", "stream", "n"),
        *("stream_options", "text", *_SAME, *_UNSAYABLE),
    }
)


def request_of(request: JSON) -> JSON:
    """Translate a chat completion request; raise ProviderError for what this API cannot express."""
    if (request.get("n") or 1) != 1:
        raise unsupported(_WHO, "n above 1")
    for name in _UNSAYABLE:
        if request.get(name):
            raise unsupported(_WHO, name)
    note_dropped(*(name for name in request if name not in _TRANSLATED and request[name] not in (None, False)))
    request = unmarked(request)
    body: JSON = {"model": request["model"], "store": False}
    body |= {name: request[name] for name in _SAME if request.get(name) is not None}
    body["input"] = [item for message in request["messages"] for item in _items_of(message)]
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None:
        body["max_output_tokens"] = limit
    thinking = _thinking_of(request)
    if thinking:
        body["reasoning"] = thinking
    text = {**(request.get("text") or {}), **_format_of(request.get("response_format"))}
    if request.get("verbosity") is not None:
        text["verbosity"] = request["verbosity"]
    if text:
        body["text"] = text
    if request.get("logprobs"):
        body["include"] = [*(body.get("include") or []), _LOGPROBS]
    return body | _tools_of(request)


def _thinking_of(request: JSON) -> JSON:
    asked, thinking = request.get("reasoning"), dict[str, Any]()
    if isinstance(asked, dict):
        thinking = {name: asked[name] for name in ("effort", "summary") if name in asked}
    if request.get("reasoning_effort") is not None:
        thinking["effort"] = request["reasoning_effort"]
    return thinking


def _format_of(answer_format: Any) -> JSON:
    if not answer_format or answer_format.get("type") == "text":
        return {}
    return {"format": {"type": answer_format["type"], **(answer_format.get("json_schema") or {})}}


def _items_of(message: JSON) -> Iterator[JSON]:
    """Yield the items of a message."""
    role, content = message["role"], message.get("content")
    if role in ("tool", "function"):
        output = [_part(part) for part in completions.parts_of(content)]
        is_text = all(part["type"] == "input_text" for part in output)
        text = "\n".join(part["text"] for part in output) if is_text else output
        yield {
            "type": "function_call_output",
            "call_id": str(message.get("tool_call_id") or message.get("name")),
            "output": text,
        }
        return
    if role != "assistant":
        parts = [_part(part) for part in completions.parts_of(content)]
        if parts:
            yield {"type": "message", "role": role, "content": parts}
        return
    note_dropped(*(f"messages.{name}" for name in ("reasoning_content",) if message.get(name)))
    said = "".join(_said(part) for part in completions.parts_of(content))
    if said:
        yield {"type": "message", "role": role, "content": [{"type": "output_text", "text": said}]}
    calls = list(message.get("tool_calls") or [])
    if message.get("function_call"):  # of the first chat completions
        calls.append({"id": message["function_call"].get("name"), "function": message["function_call"]})
    for call in calls:
        if call.get("type") == "custom":
            custom = call["custom"]
            yield {"type": "custom_tool_call", "call_id": call["id"], "name": custom["name"], "input": custom["input"]}
            continue
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        yield {"type": "function_call", "call_id": call["id"], "name": function["name"], "arguments": arguments}


def _said(part: JSON) -> str:
    """Return the text of a part of an answer."""
    kind = part.get("type")
    if kind not in ("text", "output_text", "refusal"):
        raise unsupported(_WHO, f"content of the type {kind} in an answer")
    return str(part.get("text") or part.get("refusal") or "")


def _part(part: JSON) -> JSON:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            detail = {"detail": image["detail"]} if isinstance(image, dict) and image.get("detail") else {}
            return {"type": "input_image", "image_url": completions.image_url(part), **detail}
        case "file":
            return {"type": "input_file", **part["file"]}
    raise unsupported(_WHO, f"content of the type {part.get('type')}")


def _tools_of(request: JSON) -> JSON:
    tools = [*(request.get("tools") or []), *({"function": each} for each in request.get("functions") or [])]
    if not tools:
        return {}
    translated_tools = []
    for tool in tools:
        if tool.get("type") == "custom" and isinstance(tool.get("custom"), dict):
            form = tool["custom"].get("format") or {}
            grammar = {"format": {"type": form["type"], **form.get("grammar", {})}} if form else {}
            translated_tools.append({**tool["custom"], "type": "custom", **grammar})
        elif isinstance(tool.get("function"), dict):
            # Strict is what this API takes a function to be, and chat completions do not.
            translated_tools.append({"type": "function", "strict": False, "parameters": None, **tool["function"]})
        else:
            translated_tools.append(tool)  # one that the provider runs
    choice = request.get("tool_choice") or request.get("function_call")
    if isinstance(choice, dict):
        kind = str(choice.get("type") or "function")
        inner = choice.get(kind)
        named: JSON = inner if isinstance(inner, dict) else choice
        choice = {"type": kind, **{name: value for name, value in named.items() if name != "type"}}
        if isinstance(choice.get("tools"), list):
            choice["tools"] = [{"type": each["type"], **each.get(each["type"], {})} for each in choice["tools"]]
    return {"tools": translated_tools} | ({"tool_choice": choice} if choice else {})


_CALLS: Mapping[str, tuple[str, str]] = {
    "function_call": ("function", "arguments"),
    "custom_tool_call": ("custom", "input"),
}
"""Calls of tools, by the type of the item: their name in chat completions, and the field with what is passed."""


def _finish_of(response: JSON, *, has_calls: bool) -> str:
    reason = (response.get("incomplete_details") or {}).get("reason")
    return _INCOMPLETE.get(str(reason), "tool_calls" if has_calls else "stop")


def _thoughts_of(item: JSON) -> str:
    return "".join(part.get("text") or "" for part in item.get("content") or item.get("summary") or [])


def completion_of(response: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole response into a chat completion."""
    texts, thoughts, calls, logprobs = [], [], list[JSON](), list[JSON]()
    for item in response["output"]:
        match item.get("type"):
            case "message":
                texts += [part.get("text") or part.get("refusal") or "" for part in item.get("content") or []]
                logprobs += [each for part in item.get("content") or [] for each in part.get("logprobs") or []]
            case "reasoning":
                thoughts.append(_thoughts_of(item))
            case "function_call" | "custom_tool_call" as kind:
                what, field = _CALLS[kind]
                call = {"name": item.get("name"), field: item.get(field)}
                calls.append({"id": item.get("call_id"), "type": what, what: call})
    message = completions.answer_message("".join(texts) if texts else None, "".join(thoughts), calls)
    completion = completions.completion(
        str(response.get("model") or ""),
        message,
        _finish_of(response, has_calls=bool(calls)),
        of_responses(response.get("usage") or {}),
        identifier=response.get("id"),
        clock=clock,
    )
    if logprobs:
        completion["choices"][0]["logprobs"] = {"content": logprobs}
    return completion | _extras(response)


def _extras(response: JSON) -> JSON:
    """Return what a chat completion says in the same words."""
    return {"service_tier": response["service_tier"]} if response.get("service_tier") else {}


UNDER_WAY = ("queued", "in_progress")
"""Statuses of responses that are being made."""


def usage_of(response: JSON) -> JSON:
    """Return a kept response as a chunk with its usage, None while it is being made, and itself under `NATIVE`.

    Raise KeyError for what has neither usage nor status.
    """
    is_under_way = response["status"] in UNDER_WAY
    return {
        "id": response.get("id"),
        "model": response.get("model"),
        "choices": [],
        "usage": None if is_under_way else of_responses(response.get("usage") or {}),
        **_extras(response),
        NATIVE: response,
    }


_TEXT_DELTAS: Mapping[str, str] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_content",
    "response.reasoning_summary_text.delta": "reasoning_content",
}


class ResponsesStream(StreamTranslator):
    """Translates the events of a response into chunks."""

    def __init__(self, *, with_usage: bool) -> None:
        super().__init__(with_usage=with_usage)
        self._places = dict[Any, int]()
        """Indices of calls by the place of their items, since pieces of several may come in turns."""
        self._said = set[str]()
        """Fields of which some text was told."""

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""
        kind = str(answer.get("type"))
        if kind in _TEXT_DELTAS:
            self._said.add(_TEXT_DELTAS[kind])
            chunks = self._chunk({_TEXT_DELTAS[kind]: answer.get("delta") or ""})
            if answer.get("logprobs"):
                chunks[0]["choices"][0]["logprobs"] = {"content": answer["logprobs"]}
            return chunks
        match kind:
            case "response.created":
                response = answer["response"]
                self._frame |= {"id": response.get("id") or "", "model": response.get("model") or ""}
                return self._chunk({"role": "assistant", "content": ""})
            case "response.output_item.added" if (answer.get("item") or {}).get("type") in _CALLS:
                item = answer["item"]
                what, field = _CALLS[item["type"]]
                call = {"index": self._calls, "id": item.get("call_id"), "type": what}
                self._places[answer.get("output_index")] = self._calls
                self._calls += 1
                return self._chunk({"tool_calls": [{**call, what: {"name": item.get("name"), field: ""}}]})
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                what, field = _CALLS["function_call" if "function" in kind else "custom_tool_call"]
                place = self._places.get(answer.get("output_index"), max(0, self._calls - 1))
                piece = {"index": place, what: {field: answer.get("delta") or ""}}
                return self._chunk({"tool_calls": [piece]})
            case "response.completed" | "response.incomplete":
                self.finished = True
                response = answer["response"]
                self._frame |= _extras(response)
                unsaid = self._unsaid(response)
                chunks = self._chunk(unsaid, _finish_of(response, has_calls=self._calls > 0 or "tool_calls" in unsaid))
                counts = of_responses(response.get("usage") or {})
                return chunks + self._usage_chunk(counts)
        return []

    def _unsaid(self, response: JSON) -> JSON:
        """Return what the whole response has and no event told, as of a service that streams items whole."""
        message = completion_of({"output": [], **response})["choices"][0]["message"]
        names = ("content", "reasoning_content")
        unsaid: JSON = {name: message[name] for name in names if message.get(name) and name not in self._said}
        if "refusal" in self._said:
            unsaid.pop("content", None)
        calls = (message.get("tool_calls") or [])[self._calls :]
        if calls:
            unsaid["tool_calls"] = [{"index": self._calls + place, **call} for place, call in enumerate(calls)]
        return unsaid
