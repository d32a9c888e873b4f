"""From a request of Anthropic's Messages API to one for a chat completion.

Fields that both APIs call the same, and those that nobody here knows, are handed on. What is a mere hint to Anthropic's
own models is left out (caching marks, `thinking`, `service_tier`, ...), since any model may answer; what only
Anthropic's servers can do (tools that they run, files that they keep) is refused.
"""

from __future__ import annotations

from typing import Any

from p2l.errors import InputError
from route.messages.turns import chat_messages, joined, placed_blocks
from route.providers.base import JSON

__all__ = ["chat_request"]

_TRANSLATED = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "metadata", "output_config", "stream_options"}
)
_HINTS = frozenset(
    {"cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed", "thinking"}
)
_REFUSED = {
    "compare": "goes with chat completions only, a message has one answer",
    "container": "the router cannot run code, leave it out",
    "mcp_servers": "the router connects to no servers, leave it out",
    "n": "a message has one answer, leave it out",
}


def chat_request(body: JSON) -> JSON:
    """The body of the chat completion that a message asks for.

    Raises:
        InputError: it is no request of the Messages API, or asks for what a chat completion does not have.
    """
    for field, why in _REFUSED.items():
        if body.get(field):
            raise InputError(f"{field}: {why}")
    chat = {key: value for key, value in body.items() if key not in _TRANSLATED and key not in _HINTS}
    turns = _items(body, "messages")
    if not turns:
        raise InputError("messages: must have at least one")
    chat["messages"] = [*_system(body.get("system")), *chat_messages(turns)]
    chat |= _tools(body) | _format(_object(body, "output_config"))
    if body.get("stop_sequences"):
        chat["stop"] = _items(body, "stop_sequences")
    user = _object(body, "metadata").get("user_id")
    if user:
        chat["user"] = user
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}  # a message always tells its usage
    return chat


def _items(body: JSON, field: str) -> list[Any]:
    value = body.get(field)
    if not isinstance(value, list):
        raise InputError(f"{field}: must be a list")
    return value


def _object(body: JSON, field: str) -> JSON:
    value = body.get(field)
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{field}: must be an object")
    return value or {}


def _system(system: Any) -> list[JSON]:
    if not system:
        return []
    return [{"role": "system", "content": joined(placed_blocks(system, "system"), "\n\n")}]


def _tools(body: JSON) -> JSON:
    if not body.get("tools"):
        return {}
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(_items(body, "tools"))]
    choice = _object(body, "tool_choice")
    chat: JSON = {"tools": tools}
    if choice:
        chat["tool_choice"] = _tool_choice(choice)
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _tool(tool: Any, where: str) -> JSON:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InputError(f"{where}: must be an object with a name")
    if tool.get("type") not in (None, "custom"):
        raise InputError(
            f"{where}: tools of Anthropic's own ({tool['type']}) cannot be routed; give it an input_schema"
        )
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}
    described = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function | described}


def _tool_choice(choice: JSON) -> Any:
    match choice.get("type"):
        case "auto" | "none" as same:
            return same
        case "any":
            return "required"
        case "tool" if isinstance(choice.get("name"), str):
            return {"type": "function", "function": {"name": choice["name"]}}
    raise InputError("tool_choice: must have the type auto, any, none, or tool with a name")


def _format(output: JSON) -> JSON:
    wanted = _object(output, "format")
    if not wanted:
        return {}
    if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        raise InputError("output_config.format: must have the type json_schema and a schema")
    schema = {"name": "answer", "schema": wanted["schema"], "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
