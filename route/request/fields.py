"""Which fields of a request reach a provider, and which ones the router adds to an answer.

Fields that shape the answer pass: those of OpenAI's chat completions, and what open models and other providers have
beside them. Every other field is dropped, and named in the response, unless the configuration lists it: fields that
command the provider (`api_base`, `service_tier`, `store`, `models`, ...) are too many to list, and new ones come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote

from route.catalogue import entry_of
from route.config import ModelConfig
from route.keep.accounts import LONGEST_LABEL, MOST_TAGS, Labels
from route.providers.base import JSON, NativeRequest
from route.providers.completions import has_role
from route.providers.efforts import sent_as
from route.providers.registry import spec_of
from route.request.api_errors import ApiError
from route.request.chat import ChatRequest, object_in
from route.request.functions import as_tools, has_functions
from route.request.messages import chat_request
from route.request.native import NativeForm, Notes, native_request
from route.routing.decision import Decision

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
_OF_CHAT_PROVIDERS = frozenset(
    {
        *("service_tier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prediction"),
        *("modalities", "audio", "moderation", "web_search_options", "search_settings", "search_parameters"),
        *("reasoning_format", "include_reasoning", "clear_thinking", "prompt_mode", "safe_prompt", "tool_stream"),
        *("provider", "transforms", "plugins", "documents", "citation_options", "compound_custom", "do_sample"),
        *("disable_tool_validation", "include_domains", "exclude_domains", "return_citations", "ignore_eos"),
        *("prompt_truncate_len", "context_length_exceeded_behavior", "echo", "logit_processors", "slot_id"),
        *("id_slot", "cache_prompt", "keep_alive", "options", "repetition_penalty", "min_tokens", "usage"),
    }
)
"""Fields beside them that pass to a provider of chat completions: published ones of OpenAI and of its many cousins.

What chooses another model, account or address (`models`, `route`, `preset`, `api_base`, ...) is the router's business.
"""
_CONFIGURED_FIRST = frozenset({"service_tier", "provider", "plugins"})
"""Fields on which a price depends: what the configuration says of them is not the clients' to change."""
_CHAT_PROTOCOLS = ("openai", "openai-reasoning", "openai-o1", "openai-responses", "azure")
_OF_CUSTOM_TOOLS = frozenset({"type", "custom", "name", "description", "input_schema", "strict", "cache_control"})
_MOST_NAMES, _LONGEST_NAME = 20, 64


def passed(body: JSON, listed: Collection[str], *, is_chat: bool = False) -> tuple[JSON, list[str]]:
    """Return the fields of a body that pass where these are listed, and the names of those that do not.

    A tool that is neither a function nor custom is one that the provider runs: it passes to providers of chat
    completions (`is_chat`), and where `tools.TYPE` is listed.
    """
    fields = {
        name: field
        for name, field in body.items()
        if name in PLAIN or name in listed or (is_chat and name in _OF_CHAT_PROVIDERS)
    }
    dropped = [name for name in body if name not in fields]
    tools = body.get("tools")
    if not isinstance(tools, list):
        return fields, dropped
    kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else "function"
        # Other kinds are known by any key they have: Gemini's have no type.
        if kind == "function" or (kind == "custom" and tool.keys() <= _OF_CUSTOM_TOOLS):
            kept.append(tool)
            continue
        if kind is None and isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            kept.append(tool if is_chat else {"type": "function", **tool})  # as Mistral's client writes it
            continue
        if is_chat and isinstance(kind, str) and kind != "custom":
            kept.append(tool)
            continue
        foreign = next((key for key in tool if key not in _OF_CUSTOM_TOOLS), "")
        name = f"tools.{kind if isinstance(kind, str) and kind != 'custom' else foreign}"
        if name in listed:
            kept.append(tool)
        else:
            dropped.append(name)
    if kept != tools:
        fields["tools"] = kept
        if not kept:  # providers refuse an empty list, and a choice of tools without tools
            dropped += ["tool_choice"] if fields.get("tool_choice") is not None else []
            fields = {name: field for name, field in fields.items() if name not in ("tools", "tool_choice")}
    return fields, dropped


def header_of(names: Iterable[str]) -> str:
    """Return names as the text of a header, each once; what a client calls its fields must not break the response."""
    unique = list(dict.fromkeys(names))
    shown = [quote(name[:_LONGEST_NAME], safe="", errors="replace") for name in unique[:_MOST_NAMES]]
    return ", ".join([*shown, "..."] if len(unique) > _MOST_NAMES else shown)


def labels_in(headers: Mapping[str, str]) -> Labels:
    """Return the end user and the tags that the headers of a request name; raise `ApiError` 400 for malformed ones."""
    user, listed = headers.get("x-p2l-user", "").strip(), headers.get("x-p2l-tags", "").strip()
    if not user and not listed:
        return Labels()
    pairs = [pair.partition("=") for pair in listed.split(",")] if listed else []
    tags = {name.strip(): value.strip() for name, _, value in pairs}
    texts = [user, *tags, *tags.values()]
    if "" in tags or not all(mark for _, mark, _ in pairs) or len(tags) > MOST_TAGS:
        raise ApiError(
            400, "invalid_value", f"x-p2l-tags: must be at most {MOST_TAGS} of NAME=VALUE, with commas between"
        )
    if any(len(text) > LONGEST_LABEL for text in texts):
        raise ApiError(
            400, "invalid_value", f"x-p2l-user, x-p2l-tags: must be texts of at most {LONGEST_LABEL} characters"
        )
    return Labels(user, tags)


def user_in(body: JSON) -> str:
    """Return the end user that a chat completion names; empty where it names none, or in too long a text."""
    named = body.get("safety_identifier") or body.get("user")
    return named if isinstance(named, str) and len(named) <= LONGEST_LABEL else ""


_REASONS = (
    *("model", "probabilities", "propensity", "expected_score", "expected_cost", "strength"),
    *("budget", "in_dollars", "explored", "static", "average", "optimizer", "revision", "familiarity"),
    *("over_constant", "guard_is_stale"),
)


def request_for(model: ModelConfig, incoming: ChatRequest, listed: Collection[str] = ()) -> tuple[JSON, list[str]]:
    """Return the body for this model's provider, and the names of the fields that it does not get.

    Fields that pass, `listed` ones among them, override the configuration.
    """
    is_chat = spec_of(model.type).protocol in _CHAT_PROTOCOLS and incoming.native is None
    body, dropped = passed(incoming.body, listed, is_chat=is_chat)
    if incoming.native is not None:
        carried = _carried(incoming.native, model)
        body |= {name: field for name, field in carried.items() if name in ("messages", "tools") or name not in body}
        found = {name for name, fields in _CARRIED_IN.items() if not fields.isdisjoint(carried)}
        dropped = [name for name in dict.fromkeys([*incoming.native.lost, *dropped]) if name not in found]
    if not is_chat and has_functions(body):
        body = as_tools(body)
    settings = _sampling(model)
    if body.get("max_completion_tokens") is not None:
        settings.pop("max_tokens", None)  # the same limit under its newer name
    sampling = {key: setting for key, setting in settings.items() if body.get(key) is None}
    fixed = {name: model.extra_fields[name] for name in _CONFIGURED_FIRST & model.extra_fields.keys() - set(listed)}
    request = {**model.extra_fields, **body, **fixed, **sampling, "model": model.name}
    if model.system_prompt and not has_role(body["messages"], "system", "developer"):
        request["messages"] = [{"role": "system", "content": model.system_prompt}, *body["messages"]]
    if incoming.stream:
        # The usage of every stream is asked for, since keys pay by it; clients that did not ask do not see it.
        options = body.get("stream_options") or {}
        request |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    else:
        request.pop("stream_options", None)
    return request, dropped


_CARRIED_IN: Mapping[str, frozenset[str]] = {
    "cache_control": frozenset({"messages"}),
    "output_config.effort": frozenset({"reasoning_effort"}),
    "thinking": frozenset({"reasoning_effort", "thinking_budget"}),
}
"""Fields of a Messages request that models of some other protocols have, and in which fields they are carried there."""
_WITH_BUDGETS = ("gemini", "vertex", "bedrock")
"""Protocols that take a number of tokens for thoughts."""
_LOW_TOKENS, _MEDIUM_TOKENS = 4096, 16_384
"""Budgets of thoughts that are a low or a medium effort at most."""


def _carried(form: NativeForm, model: ModelConfig) -> JSON:
    """Return what a model of another protocol has a counterpart for, as fields of a chat completion."""
    if form.protocol != "messages":
        return {}
    protocol = spec_of(model.type).protocol
    carried: JSON = {}
    if protocol == "bedrock" and "cache_control" in form.lost:
        marked = chat_request(form.body, Notes(keeps_marks=True))
        carried = {name: marked[name] for name in ("messages", "tools") if name in marked}
    thinking = object_in(form.body, "thinking")
    budget, level = thinking.get("budget_tokens"), object_in(form.body, "output_config").get("effort")
    if level is None and thinking.get("type") == "disabled":
        level = "none"
    elif level is None and isinstance(budget, int):
        level = "low" if budget <= _LOW_TOKENS else "medium" if budget <= _MEDIUM_TOKENS else "high"
    if not isinstance(level, str) or not _takes_efforts(model, level):
        return carried
    if protocol in _CHAT_PROTOCOLS:
        level = {"xhigh": "high", "max": "high"}.get(level, level)  # which few models have
    carried["reasoning_effort"] = level
    return carried | ({"thinking_budget": budget} if isinstance(budget, int) and protocol in _WITH_BUDGETS else {})


def _takes_efforts(model: ModelConfig, level: str) -> bool:
    """Return whether a model is known to take efforts; one that does not refuses any request with an effort."""
    if spec_of(model.type).protocol not in _CHAT_PROTOCOLS:
        return sent_as(model.type, model.name, level) is not None
    entry = entry_of(model.type, model.name, model.base_url, model.catalogue)
    is_listed = entry is not None and "reasoning" in entry.can
    return model.capabilities.get("reasoning", is_listed) and level != "none"


def native_for(
    model: ModelConfig, incoming: ChatRequest, listed: Collection[str] = ()
) -> tuple[NativeRequest, list[str]]:
    """Return the request for this model's provider in its own protocol, and the names of the fields it does not get."""
    form = incoming.native
    assert form is not None
    settings = {**model.extra_fields, **_sampling(model)}
    if model.system_prompt and not has_role(incoming.body["messages"], "system", "developer"):
        settings["messages"] = [{"role": "system", "content": model.system_prompt}]
    return native_request(form, model, listed, settings, stream=incoming.stream)


def _sampling(model: ModelConfig) -> JSON:
    settings = {"temperature": model.temp, "top_p": model.top_p, "top_k": model.top_k, "max_tokens": model.max_tokens}
    return {name: setting for name, setting in settings.items() if setting is not None}


def mark_answer(answer: JSON, name: str, decision: Decision | None, attempts: list[str]) -> JSON:
    """Return the answer for the client: with the configured name of the model, scores and decision."""
    for choice in answer.get("choices") or []:
        if isinstance(choice.get("message"), dict):
            choice["message"]["model"] = name
    return {**answer, "model": name, **outputs_of(decision, attempts)}


def mark_chunk(chunk: JSON, name: str) -> JSON:
    """Return the chunk for the client: with the configured name of the model, in each delta too."""
    chunk["model"] = name
    for choice in chunk.get("choices") or []:
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["model"] = name
    return chunk


def outputs_of(decision: Decision | None, attempts: list[str]) -> JSON:
    """Return the fields that an answer, or the first chunk of a stream, has beyond OpenAI's."""
    if decision is None:
        return {"router_outputs": None}
    return {"router_outputs": dict(decision.scores), "router_decision": {**_reasons(decision), "attempts": attempts}}


def decision_of(decision: Decision) -> JSON:
    """Return a whole decision as JSON."""
    return {
        **_reasons(decision),
        "scores": dict(decision.scores),
        "costs": dict(decision.costs),
        "frontier": [{"model": at.model, "cost": at.cost, "score": at.score} for at in decision.frontier],
    }


def _reasons(decision: Decision) -> JSON:
    return {name: getattr(decision, name) for name in _REASONS}
