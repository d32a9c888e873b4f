"""The chat completion that a call becomes, in a run and in a batch alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from coeval.config.schema import Model, Role
from route.providers.base import JSON
from route.providers.reasoning import for_o1, for_reasoning

__all__ = ["LOCAL_PARAMETERS", "SETTINGS", "chat_request", "limit_of"]

SETTINGS = frozenset(
    {
        *("api_key", "base_url", "azure_endpoint", "api_version", "region", "project", "location", "metric"),
        *("service_account_key", "site_url", "site_name", "access_key_id", "secret_access_key", "session_token"),
        *("batch_s3_bucket", "batch_s3_prefix", "batch_role_arn", "batch_gcs_bucket", "batch_gcs_prefix"),
        *("model", "system_prompt", "messages", "stream", "stream_options"),
    }
)
"""Parameters that say where and what to ask: never sent as they are."""
LOCAL_PARAMETERS = frozenset({"max_new_tokens", "device", "load_in_4bit", "load_in_8bit", "do_sample"})
"""Parameters of models that run here; no provider knows them."""

_TEMPERATURE = 0.7
_ANTHROPIC_MAX_TOKENS = 1024
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
_OPENAIS = ("openai", "azure_openai", "azure_ai", "openrouter")
_REASONING = re.compile(r"(?:^|/)(?:o[134]|gpt-5(?!.*chat))(?:[-.]|$)")
_FIRST_REASONING = re.compile(r"(?:^|/)o1-(?:mini|preview)")


def chat_request(model: Model, role: Role, prompt: str, wishes: Mapping[str, Any] | None = None) -> JSON:
    """The body of a chat completion in OpenAI's words; a parameter of null is left out, as is a null temperature.

    `wishes` are parameters of the question, below those of the model.
    """
    parameters = {**(wishes or {}), **model.parameters_for(role)}
    unsent = SETTINGS if model.interface == "huggingface" else SETTINGS | LOCAL_PARAMETERS
    system = parameters.get("system_prompt")
    request: JSON = {
        "model": model.model_id(role),
        "messages": [
            *([{"role": "system", "content": str(system)}] if system else []),
            {"role": "user", "content": prompt},
        ],
        **{key: value for key, value in _with_defaults(model.interface, parameters).items() if key not in unsent},
    }
    return _for_the_model(model.interface, {key: value for key, value in request.items() if value is not None})


def limit_of(request: JSON) -> int | None:
    """Tokens that the answer to a request may have, if it says so."""
    found = (request[key] for key in _LIMITS if isinstance(request.get(key), int))
    return next(found, None)


def _with_defaults(interface: str, parameters: dict[str, Any]) -> dict[str, Any]:
    given = {"temperature": _TEMPERATURE, **parameters}
    if interface == "gemini" and "max_output_tokens" in given:
        given["max_tokens"] = given.pop("max_output_tokens")
    if interface == "anthropic" and limit_of(given) is None:
        given["max_tokens"] = _ANTHROPIC_MAX_TOKENS
    return given


def _for_the_model(interface: str, request: JSON) -> JSON:
    """Reasoning models refuse a temperature, and call the limit `max_completion_tokens`."""
    name = str(request["model"]).lower()
    if interface not in _OPENAIS or not _REASONING.search(name):
        return request
    return for_o1(request) if _FIRST_REASONING.search(name) else for_reasoning(request)
