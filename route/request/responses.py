"""Translate a request of OpenAI's Responses API to one for a chat completion.

Items of the input become messages: neighbouring calls of functions, the text beside them and the thoughts before them
are one answer. Fields with the same name in both APIs stay as they are. What needs OpenAI's servers (prompts, files and
conversations that they store, work in the background) is refused; tools that they run are dropped like any other field
that commands a provider.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from p2l.common.errors import InputError
from route.providers.base import JSON
from route.providers.chat import MOST_TOKENS

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
    chat["messages"] = [*_instructions(body.get("instructions")), *messages_of(input_items(body.get("input")))]
    chat |= _tools(body) | _text(_object(body, "text"))
    effort = _object(body, "reasoning").get("effort")
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


def messages_of(items: Sequence[JSON]) -> list[JSON]:
    """Translate items to messages; raise InputError, with its place, for one that cannot be routed."""
    messages: list[JSON] = []
    thoughts = ""
    for number, item in enumerate(items):
        where = f"input[{number}]"
        match item.get("type"):
            case "message":
                message = _message(item, where)
                if message["role"] == "assistant":
                    messages.append(_thought(message, thoughts))
                    thoughts = ""
                else:
                    messages.append(message)
            case "function_call":
                _add_call(messages, _call(item, where), thoughts)
                thoughts = ""
            case "function_call_output":
                messages.append(_result(item, where))
            case "reasoning":
                thoughts += _thoughts(item, where)
            case "item_reference":
                raise InputError(f"{where}: items are not looked up; send the item, or previous_response_id")
            case kind:
                raise InputError(f"{where}: items of the type {kind} cannot be routed")
    return messages


def _instructions(instructions: Any) -> list[JSON]:
    if instructions is None or instructions == "":
        return []
    if isinstance(instructions, list):
        return messages_of(input_items(instructions))
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


def _add_call(messages: list[JSON], call: JSON, thoughts: str) -> None:
    """Add a call to the answer that it is part of."""
    if not messages or messages[-1]["role"] != "assistant" or thoughts:
        messages.append(_thought({"role": "assistant", "content": None}, thoughts))
    messages[-1].setdefault("tool_calls", []).append(call)


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


def _thoughts(item: JSON, where: str) -> str:
    """Return the text of a reasoning item, for a provider that wants its own thoughts back."""
    parts = _list(item, "content", f"{where}.") or _list(item, "summary", f"{where}.")
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _thought(message: JSON, thoughts: str) -> JSON:
    return {**message, "reasoning_content": thoughts} if thoughts else message


def _object(body: JSON, field: str) -> JSON:
    fields = body.get(field)
    if fields is not None and not isinstance(fields, dict):
        raise InputError(f"{field}: must be an object")
    return fields or {}


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
    if choice is not None:
        chat["tool_choice"] = _tool_choice(choice)
    return chat | {"tools": [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]}


def _tool(tool: JSON, where: str) -> JSON:
    if tool.get("type") != "function":
        return tool  # one that the provider runs, which passes where it is listed
    if not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must have a name")
    described = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": tool["name"], **described}}


def _tool_choice(choice: Any) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise InputError("tool_choice: must be auto, none, required, allowed_tools, or a function with a name")


def _text(text: JSON) -> JSON:
    chat: JSON = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    form = _object(text, "format")
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
