"""Which fields of a request reach a provider, and which ones the router adds to an answer.

Fields that shape the answer pass: those of OpenAI's chat completions, and what open models and other providers have
beside them. Every other field is dropped, and named in the response, unless the configuration lists it: fields that
command the provider (`api_base`, `service_tier`, `store`, `models`, ...) are too many to list, and new ones come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import quote

from route.config import ModelConfig
from route.providers.base import JSON
from route.providers.completions import has_role
from route.request.chat import ChatRequest
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
        kind = tool.get("type") if isinstance(tool, dict) else "function"
        # Other kinds are known by any key they have: Gemini's have no type.
        if kind == "function" or (kind == "custom" and tool.keys() <= _OF_CUSTOM_TOOLS):
            kept.append(tool)
            continue
        foreign = next((key for key in tool if key not in _OF_CUSTOM_TOOLS), "")
        name = f"tools.{kind if isinstance(kind, str) and kind != 'custom' else foreign}"
        if name in listed:
            kept.append(tool)
        else:
            dropped.append(name)
    if len(kept) < len(tools):
        fields["tools"] = kept
        if not kept:  # providers refuse an empty list, and a choice of tools without tools
            fields = {name: field for name, field in fields.items() if name not in ("tools", "tool_choice")}
    return fields, dropped


def header_of(names: Iterable[str]) -> str:
    """Return names as the text of a header, each once; what a client calls its fields must not break the response."""
    unique = list(dict.fromkeys(names))
    shown = [quote(name[:_LONGEST_NAME], safe="", errors="replace") for name in unique[:_MOST_NAMES]]
    return ", ".join([*shown, "..."] if len(unique) > _MOST_NAMES else shown)


_REASONS = (
    *("model", "probabilities", "propensity", "expected_score", "expected_cost", "strength"),
    *("budget", "in_dollars", "explored", "static", "average", "optimizer", "revision", "familiarity"),
)


def request_for(model: ModelConfig, incoming: ChatRequest, listed: Collection[str] = ()) -> tuple[JSON, list[str]]:
    """Return the body for this model's provider, and the names of the fields that it does not get.

    Fields that pass, `listed` ones among them, override the configuration.
    """
    body, dropped = passed(incoming.body, listed)
    settings = {"temperature": model.temp, "top_p": model.top_p, "top_k": model.top_k, "max_tokens": model.max_tokens}
    if body.get("max_completion_tokens") is not None:
        del settings["max_tokens"]  # the same limit under its newer name
    sampling = {key: setting for key, setting in settings.items() if setting is not None and body.get(key) is None}
    request = {**model.extra_fields, **body, **sampling, "model": model.name}
    if model.system_prompt and not has_role(body["messages"], "system", "developer"):
        request["messages"] = [{"role": "system", "content": model.system_prompt}, *body["messages"]]
    if incoming.stream:
        # The usage of every stream is asked for, since keys pay by it; clients that did not ask do not see it.
        options = body.get("stream_options") or {}
        request |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    else:
        request.pop("stream_options", None)
    return request, dropped


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
