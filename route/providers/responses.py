"""OpenAI's Responses API as a protocol of providers: requests that came in it, and answers read as chat completions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from route.providers import completions
from route.providers.base import JSON, NativeRequest
from route.providers.translation import StreamTranslator
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


def _finish_of(response: JSON, *, has_calls: bool) -> str:
    reason = (response.get("incomplete_details") or {}).get("reason")
    return _INCOMPLETE.get(str(reason), "tool_calls" if has_calls else "stop")


def _thoughts_of(item: JSON) -> str:
    return "".join(part.get("text") or "" for part in item.get("content") or item.get("summary") or [])


def completion_of(response: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole response into a chat completion."""
    texts, thoughts, calls = [], [], list[JSON]()
    for item in response["output"]:
        match item.get("type"):
            case "message":
                texts += [part.get("text") or part.get("refusal") or "" for part in item.get("content") or []]
            case "reasoning":
                thoughts.append(_thoughts_of(item))
            case "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                calls.append({"id": item.get("call_id"), "type": "function", "function": function})
    message = completions.answer_message("".join(texts) if texts else None, "".join(thoughts), calls)
    completion = completions.completion(
        str(response.get("model") or ""),
        message,
        _finish_of(response, has_calls=bool(calls)),
        of_responses(response.get("usage") or {}),
        identifier=response.get("id"),
        clock=clock,
    )
    return completion | _extras(response)


def _extras(response: JSON) -> JSON:
    """Return what a chat completion says in the same words."""
    return {"service_tier": response["service_tier"]} if response.get("service_tier") else {}


_TEXT_DELTAS: Mapping[str, str] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_content",
    "response.reasoning_summary_text.delta": "reasoning_content",
}


class ResponsesStream(StreamTranslator):
    """Translates the events of a response into chunks."""

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of an event."""
        kind = str(answer.get("type"))
        if kind in _TEXT_DELTAS:
            return self._chunk({_TEXT_DELTAS[kind]: answer.get("delta") or ""})
        match kind:
            case "response.created":
                response = answer["response"]
                self._frame |= {"id": response.get("id") or "", "model": response.get("model") or ""}
                return self._chunk({"role": "assistant", "content": ""})
            case "response.output_item.added" if (answer.get("item") or {}).get("type") == "function_call":
                item = answer["item"]
                function = {"name": item.get("name"), "arguments": ""}
                self._calls += 1
                call = {"index": self._calls - 1, "id": item.get("call_id"), "type": "function", "function": function}
                return self._chunk({"tool_calls": [call]})
            case "response.function_call_arguments.delta":
                piece = {"index": max(0, self._calls - 1), "function": {"arguments": answer.get("delta") or ""}}
                return self._chunk({"tool_calls": [piece]})
            case "response.completed" | "response.incomplete":
                self.finished = True
                response = answer["response"]
                self._frame |= _extras(response)
                chunks = self._chunk({}, _finish_of(response, has_calls=self._calls > 0))
                counts = of_responses(response.get("usage") or {})
                return chunks + self._usage_chunk(counts)
        return []
