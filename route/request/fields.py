"""Which fields of a client's request reach a provider, and what they need of its model.

Fields that shape the answer pass: those of OpenAI's chat completions, and what open models and other providers have
beside them. Every other field is dropped, and named in the response, unless the configuration lists it: fields that
command the provider (`api_base`, `service_tier`, `store`, `models`, ...) are too many to list, and new ones come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from route.providers.base import JSON
from route.providers.chat import image_url
from route.routing.decision import FEATURE_BITS, bits_of

PLAIN = frozenset(
    {
        # the conversation and its tools
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "user"),
        *("safety_identifier", "stream", "stream_options"),
        # the form of the answer
        *("response_format", "stop", "n", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"),
        *("verbosity", "output_config", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "bad_words"),
        # sampling
        *("temperature", "top_p", "top_k", "top_a", "min_p", "typical_p", "seed", "random_seed", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty", "length_penalty"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "min_tokens"),
        # thinking
        *("reasoning_effort", "reasoning", "thinking", "thinking_budget", "enable_thinking", "chat_template_kwargs"),
    }
)
"""Fields that pass without being listed."""
_OF_CUSTOM_TOOLS = frozenset({"type", "custom", "name", "description", "input_schema", "strict", "cache_control"})
_MOST_NAMES, _LONGEST_NAME = 20, 64


def passed(body: JSON, listed: Collection[str]) -> tuple[JSON, list[str]]:
    """Return the fields of a body that pass where these are listed, and the names of those that do not.

    A tool that is neither a function nor custom is one that the provider runs and charges for: it passes where
    `tools.TYPE` is listed.
    """
    fields = {name: field for name, field in body.items() if name in PLAIN or name in listed}
    dropped = [name for name in body if name not in fields]
    tools = body.get("tools")
    if not isinstance(tools, list):
        return fields, dropped
    kept = []
    for tool in tools:
        name = _provider_tool(tool)
        if name is None or name in listed:
            kept.append(tool)
        else:
            dropped.append(name)
    if len(kept) < len(tools):
        fields["tools"] = kept
        if not kept:
            fields = {name: field for name, field in fields.items() if name not in ("tools", "tool_choice")}
    return fields, dropped


def _provider_tool(tool: Any) -> str | None:
    """Return `tools.TYPE` of a tool that is not the client's own."""
    if not isinstance(tool, dict):
        return None
    kind = tool.get("type")
    # Other kinds are known by any key they have: Gemini's have no type.
    if kind == "function" or (kind == "custom" and tool.keys() <= _OF_CUSTOM_TOOLS):
        return None
    foreign = next((key for key in tool if key not in _OF_CUSTOM_TOOLS), "")
    return f"tools.{kind if isinstance(kind, str) and kind != 'custom' else foreign}"


def header_of(names: Iterable[str]) -> str:
    """Return names as the text of a header, each once; what a client calls its fields must not break the response."""
    unique = list(dict.fromkeys(names))
    shown = [quote(name[:_LONGEST_NAME], safe="", errors="replace") for name in unique[:_MOST_NAMES]]
    return ", ".join([*shown, "..."] if len(unique) > _MOST_NAMES else shown)


MEDIA = bits_of(("images", "audio", "files", "video"))
_PARTS: Mapping[str, str] = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "file": "files",
    "document": "files",
    "input_file": "files",
    "video": "video",
    "video_url": "video",
}
_MEDIA_TYPES = (("data:audio/", "audio"), ("data:video/", "video"))


def features_of(body: JSON) -> int:
    """Return the bits of the features that a chat request needs."""
    bits = 0
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                bits |= _of_part(part)
    if body.get("tools") or body.get("functions"):
        bits |= FEATURE_BITS["tools"]
        if body.get("parallel_tool_calls") is True:
            bits |= FEATURE_BITS["parallel_tools"]
    return bits | _of_form(body)


def _of_part(part: Any) -> int:
    kind = part.get("type") if isinstance(part, dict) else None
    feature = _PARTS.get(kind) if isinstance(kind, str) else None
    if feature is None:
        return 0
    if kind == "image_url":
        url = image_url(part)
        if url.startswith("data:") and not url.startswith("data:image/"):
            feature = next((other for start, other in _MEDIA_TYPES if url.startswith(start)), "files")
    return FEATURE_BITS[feature]


def _of_form(body: JSON) -> int:
    """Return the bits of what shapes the answer."""
    bits = 0
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        bits |= FEATURE_BITS["json_schema"]
    if body.get("logprobs"):
        bits |= FEATURE_BITS["logprobs"]
    choices = body.get("n")
    if isinstance(choices, int) and choices > 1:
        bits |= FEATURE_BITS["n"]
    if _asks_to_think(body):
        bits |= FEATURE_BITS["reasoning"]
    modalities = body.get("modalities")
    if isinstance(modalities, list):
        bits |= sum(FEATURE_BITS[f"{kind}_output"] for kind in ("audio", "image") if kind in modalities)
    return bits


def _asks_to_think(body: JSON) -> bool:
    if body.get("reasoning_effort") not in (None, "none"):
        return True
    reasoning, thinking = body.get("reasoning"), body.get("thinking")
    if isinstance(reasoning, dict) and reasoning.get("effort") != "none" and reasoning.get("enabled") is not False:
        return True
    return isinstance(thinking, dict) and thinking.get("type") != "disabled"
