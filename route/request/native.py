"""Requests in a provider's own protocol: what passes to a model that speaks it, and why no other can take it.

A request that came in Anthropic's or OpenAI's Responses protocol goes to a model of that protocol as it is, but for
what routing sets. For any other model it is translated; what the translation loses is named in the response's header.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from p2l.common.errors import InputError
from route.config import ModelConfig
from route.providers.base import JSON, NativeRequest
from route.request.api_errors import ApiError

_OF_MESSAGES = frozenset(
    {
        *("messages", "system", "max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "metadata"),
        *("tools", "tool_choice", "thinking", "output_config", "output_format", "container", "mcp_servers"),
        *("context_management", "cache_control", "service_tier", "speed", "inference_geo", "diagnostics"),
    }
)
_OF_RESPONSES = frozenset(
    {
        *(
            "background",
            "input",
            "instructions",
            "previous_response_id",
            "conversation",
            "prompt",
            "include",
            "metadata",
        ),
        *("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "max_output_tokens", "text", "reasoning"),
        *("temperature", "top_p", "top_logprobs", "truncation", "store", "user", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"),
        *("context_management", "moderation", "provider", "stream_options"),
    }
)
_FIELDS: Mapping[str, frozenset[str]] = {"messages": _OF_MESSAGES, "responses": _OF_RESPONSES}
"""Published fields of each protocol; others may command a service beside the model, and pass where they are listed."""
_LIMITS: Mapping[str, str] = {"messages": "max_tokens", "responses": "max_output_tokens"}
_TAKERS: Mapping[str, str] = {
    "messages": "of the models that may answer none speaks this protocol: a model of the type anthropic takes it",
    "responses": (
        "of the models that may answer none has it: one of the type openai or openai-responses takes it, or of"
        " a service with `options: {responses: true}`"
    ),
}
"""What to configure, where only a model of the protocol can take a request."""
_NAMED_BLOCKS = 5  # beside the first
_BETAS = frozenset(
    {
        *("advanced-tool-use", "advisor-tool", "claude-code", "code-execution", "compact", "computer-use"),
        *("context-1m", "context-management", "dev-full-thinking", "effort", "extended-cache-ttl", "fast-mode"),
        *("files-api", "fine-grained-tool-streaming", "interleaved-thinking", "mcp-client", "message-batches"),
        *("mid-conversation-system", "model-context-window-exceeded", "output-128k", "pdfs", "prompt-caching"),
        *("prompt-caching-scope", "redact-thinking", "search-results", "skills", "structured-outputs"),
        *("token-counting", "token-efficient-tools", "tool-examples", "tool-search-tool", "web-fetch", "web-search"),
        *("adaptive-thinking", "max-tokens-3-5-sonnet", "tool-addition", "memory-tool", "cache-diagnosis"),
    }
)
"""Betas of Anthropic that may be asked for, without their dates; those that change accounts or keys are not among them.
"""
_DATE = re.compile(r"-20\d\d-?\d\d-?\d\d$")
_BETA = re.compile(r"[a-z0-9.-]{1,80}")


@dataclass
class Notes:
    """What a translation to chat completions cannot carry."""

    is_strict: bool = False
    """Whether `block` raises."""
    keeps_marks: bool = False
    """Whether marks of what a provider may cache stay on the parts of the translation."""
    blocks: dict[str, None] = field(default_factory=dict)
    """Why only a model of the request's own protocol can take it, each with its place."""
    lost: dict[str, None] = field(default_factory=dict)
    """Names of what is left out, in order."""

    def block(self, why: str) -> None:
        """Note that a translation would make another request of it; raise InputError where that is an error."""
        if self.is_strict:
            raise InputError(why)
        self.blocks[why] = None

    def blocked(self, protocol: str) -> ApiError | None:
        """Return the error where no model of the protocol may answer: all of it that blocks, and who would take it."""
        if not self.blocks:
            return None
        first, *others = self.blocks
        where = first.partition(":")[0]
        also = f" (and {'; '.join(others[:_NAMED_BLOCKS])}{', ...' if len(others) > _NAMED_BLOCKS else ''})"
        return ApiError(400, "invalid_value", f"{first}{also if others else ''}; {_TAKERS[protocol]}", param=where)

    def lose(self, *names: str) -> None:
        """Note names of fields that the translation leaves out."""
        self.lost |= dict.fromkeys(names)


@dataclass(frozen=True)
class NativeForm:
    """A request as it came, in its own protocol."""

    protocol: str
    """`messages` or `responses`."""
    body: JSON
    """Without the router's own fields."""
    lost: tuple[str, ...] = ()
    """Names of what a translation loses."""
    blocked: ApiError | None = None
    """Why no model of another protocol can take it; None where one can."""
    is_poorer: bool = False
    """Whether a translation loses a tool, so that models of the protocol go first."""
    path: str = ""
    """What is asked for below the protocol's own path; empty for an answer."""
    betas: tuple[str, ...] = ()
    """Betas of Anthropic's that the client asks for."""
    withheld: frozenset[str] = frozenset()
    """Names of fields that no provider gets."""


def betas_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the betas that a request asks for."""
    return tuple(beta for part in headers.get("anthropic-beta", "").split(",") if (beta := part.strip()))


def native_request(
    form: NativeForm, model: ModelConfig, listed: Collection[str], settings: JSON, *, stream: bool
) -> tuple[NativeRequest, list[str]]:
    """Return a request for a model that speaks the protocol, and the names of the fields that it does not get.

    `settings` are those of the configuration, as fields of a chat completion.
    """
    allowed = _FIELDS[form.protocol].union(listed) - form.withheld
    body = {name: value for name, value in form.body.items() if name in allowed}
    dropped = [name for name in form.body if name not in body]
    # The configuration's price of a tier or place holds for every client.
    fixed = [name for name in model.extra_fields if name in ("service_tier", "provider", "inference_geo", "speed")]
    for name in fixed:
        body.pop(name, None)
    body["model"] = model.name
    if stream:
        body["stream"] = True
    else:
        body.pop("stream_options", None)
    headers = {}
    passing = [beta for beta in form.betas if _DATE.sub("", beta) in _BETAS or f"anthropic-beta.{beta}" in listed]
    passing = [beta for beta in passing if _BETA.fullmatch(beta)]
    if passing:
        headers["anthropic-beta"] = ",".join(passing)
    dropped += [f"anthropic-beta.{beta}" for beta in form.betas if beta not in passing]
    request = NativeRequest(form.protocol, body, headers=headers, path=form.path, settings=settings)
    return request, dropped


def limit_of(protocol: str) -> str:
    """Return the name of the limit of an answer's tokens in a protocol."""
    return _LIMITS[protocol]
