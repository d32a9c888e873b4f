"""From a chat completion request to one of Google's generateContent.

System messages become the system instruction, the assistant is called `model`, a tool's answer refers to the tool by
its name. Images and files go inline. As for Anthropic, mere hints without a counterpart are dropped, what cannot be had
is refused, and unknown fields are passed through (`safetySettings`, `generationConfig`, `cachedContent`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from route.providers.base import JSON
from route.providers.content import (
    HINTS,
    SYSTEM_ROLES,
    as_list,
    data_url,
    image_url,
    joined_text,
    parts_of,
    refuse_the_impossible,
    system_text,
    unsupported,
)

__all__ = ["generate_request"]

_WHO = "gemini"
_GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_TRANSLATED = frozenset(
    {
        *_GENERATION,
        *("model", "messages", "stop", "tools", "tool_choice", "parallel_tool_calls", "response_format", "user"),
        *("safety_identifier", "stream", "stream_options", "n", "logprobs"),
    }
)
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
# What Google documents for calls that another model made: from version 3 on theirs are signed.
_UNSIGNED = "skip_thought_signature_validator"


def generate_request(request: JSON) -> JSON:
    """The request for Gemini, without its model, which is part of the path.

    Raises:
        ProviderError: it asks for what the API does not have.
    """
    refuse_the_impossible(_WHO, request)
    body = {key: value for key, value in request.items() if key not in _TRANSLATED and key not in HINTS}
    signed = not re.search(r"gemini-[12]\b", str(request.get("model")))
    body["contents"] = _contents(request.get("messages") or [], signed=signed)
    system = system_text(request)
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    generation = {**_generation(request), **body.get("generationConfig", {})}
    if generation:
        body["generationConfig"] = generation
    return body | _tools(request)


def _contents(messages: list[JSON], *, signed: bool) -> list[JSON]:
    contents: list[JSON] = []
    names: dict[Any, Any] = {}
    for message in messages:
        if message.get("role") in SYSTEM_ROLES:
            continue
        names |= {call.get("id"): (call.get("function") or {}).get("name") for call in message.get("tool_calls") or []}
        role = "model" if message.get("role") == "assistant" else "user"
        parts = list(_parts(message, names, signed=signed))
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    return contents


def _parts(message: JSON, names: Mapping[Any, Any], *, signed: bool) -> Iterator[JSON]:
    role = message.get("role")
    if role == "tool":
        name = names.get(message.get("tool_call_id")) or message.get("name") or message.get("tool_call_id")
        yield {"functionResponse": {"name": name, "response": _result(joined_text(message.get("content")))}}
        return
    if role not in ("user", "assistant"):
        raise unsupported(_WHO, f"messages of the role {role}")
    yield from (_part(part) for part in parts_of(message.get("content")))
    for number, call in enumerate(message.get("tool_calls") or []):
        signature = ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature")
        if signature is None and signed and number == 0:
            signature = _UNSIGNED
        yield _call(call) | ({"thoughtSignature": signature} if signature else {})


def _result(text: str) -> JSON:
    """A tool's answer as an object, which is all that Gemini takes."""
    parsed = _loaded(text)
    return parsed if isinstance(parsed, dict) else {"result": text}


def _call(call: JSON) -> JSON:
    function = call.get("function") or {}
    arguments = _loaded(function.get("arguments") or "{}")
    given = arguments if isinstance(arguments, dict) else {"arguments": function.get("arguments")}
    return {"functionCall": {"name": function.get("name"), "args": given}}


def _loaded(text: str) -> object:
    try:
        loaded: object = json.loads(text)
    except ValueError:
        return None
    return loaded


def _part(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {"text": part["text"]}
        case "refusal":
            return {"text": part["refusal"]}
        case "image_url":
            return _file(image_url(part))
        case "file" if isinstance(part.get("file"), dict) and part["file"].get("file_data"):
            return _file(part["file"]["file_data"])
        case "input_audio":
            audio = part.get("input_audio") or {}
            return {"inlineData": {"mimeType": f"audio/{audio.get('format')}", "data": audio.get("data")}}
        case kind:
            raise unsupported(_WHO, f"content of the type {kind}")


def _file(url: str) -> JSON:
    inline = data_url(url)
    if inline is not None:
        return {"inlineData": {"mimeType": inline.media_type, "data": inline.data}}
    if url.startswith(("gs://", "https://generativelanguage.googleapis.com/")):
        return {"fileData": {"fileUri": url}}
    raise unsupported(_WHO, "images by their address, only inline")


def _generation(request: JSON) -> JSON:
    settings = {name: request[key] for key, name in _GENERATION.items() if request.get(key) is not None}
    stops = as_list(request.get("stop"))
    if stops:
        settings["stopSequences"] = stops
    wanted = request.get("response_format") or {}
    if wanted.get("type") in ("json_object", "json_schema"):
        settings["responseMimeType"] = "application/json"
    schema = (wanted.get("json_schema") or {}).get("schema")
    if schema:
        settings["responseJsonSchema"] = schema
    return settings


def _tools(request: JSON) -> JSON:
    tools = request.get("tools")
    if not tools:
        return {}
    declared = [_declaration(tool.get("function") or {}) for tool in tools if tool.get("type") == "function"]
    others = [tool for tool in tools if tool.get("type") != "function"]  # of Google's own
    body: JSON = {"tools": [*([{"functionDeclarations": declared}] if declared else []), *others]}
    choice = request.get("tool_choice")
    return body | ({"toolConfig": {"functionCallingConfig": _calling(choice)}} if choice is not None else {})


def _declaration(function: JSON) -> JSON:
    declaration = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
    if function.get("parameters"):
        declaration["parametersJsonSchema"] = function["parameters"]
    return declaration


def _calling(choice: Any) -> JSON:
    if isinstance(choice, str) and choice in _MODES:
        return {"mode": _MODES[choice]}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"mode": "ANY", "allowedFunctionNames": [(choice.get("function") or {}).get("name")]}
    raise unsupported(_WHO, "this tool_choice")
