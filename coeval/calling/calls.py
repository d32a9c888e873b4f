"""A call to a model and its reply: the request that a call becomes, and what a chat completion says."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, Protocol

from coeval.interfaces import INTERFACES, tells_logprobs
from coeval.parsing import after_thoughts
from coeval.schema import Model, Phase, Role
from route.providers.base import JSON, Fault, ProviderError
from route.providers.completions import joined_text, without
from route.providers.usage import TokenCounts, read, usage_in

# Candidates for a reply's first token with the natural logarithms of their probabilities.
Tokens = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Call:
    """One call to a model."""

    model: Model
    role: Role
    phase: Phase | None  # None for probes and estimates, which no quota counts
    task: str
    key: tuple[str, ...]  # identifies the call in the run: (task, teacher, seq, attempt) and the like
    prompt: str = field(repr=False)
    attempt: int = 0  # part of the cache key, so that a repeated call asks again
    logprobs: bool = False  # ask for log-probabilities of the first token, where the provider has them
    # JSON schema of the answer, which is asked for where the provider can be held to it.
    schema: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reply:
    """A model's reply."""

    text: str  # stripped; never empty
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    seconds: float
    counted: bool = True  # the provider counted the tokens; otherwise they are estimated as characters / 4
    cached: bool = False
    tokens: Tokens | None = None

    def plus(self, later: Reply) -> Reply:
        """Return a later reply to the same question, with the tokens and the cost of both."""
        return replace(
            later,
            prompt_tokens=self.prompt_tokens + later.prompt_tokens,
            completion_tokens=self.completion_tokens + later.completion_tokens,
            cost_usd=self.cost_usd + later.cost_usd,
        )


class Reason(enum.Enum):
    """Why there is no reply."""

    QUOTA = "quota"  # the model's calls are used up
    BUDGET = "budget"  # the run's dollars are used up
    FATAL = "fatal"  # the provider refuses this model or account whatever is asked: stop asking it
    FAILED = "failed"  # this call got no reply, after all retries


class CallError(Exception):
    """There is no reply; the text is one sentence without keys and without the prompt."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Asking(Protocol):
    """What phases make calls with."""

    async def ask(self, call: Call) -> Reply:
        """Return the reply to a call, within limits, quota and budget. Raise CallError if there is none."""
        ...


SETTINGS = frozenset(
    {
        *("api_key", "base_url", "azure_endpoint", "api_version", "region", "project", "location", "metric"),
        *("service_account_key", "site_url", "site_name", "access_key_id", "secret_access_key", "session_token"),
        *("batch_s3_bucket", "batch_s3_prefix", "batch_role_arn", "batch_gcs_bucket", "batch_gcs_prefix"),
        *("model", "system_prompt", "messages", "stream", "stream_options"),
    }
)
"""Parameters that are never sent as they are."""
# Parameters of local models; no provider knows them.
_LOCAL_PARAMETERS = frozenset({"max_new_tokens", "device", "load_in_4bit", "load_in_8bit", "do_sample"})
_TEMPERATURE = 0.7
_TEMPERATURES: Mapping[str, float] = {"judge": 0.0}  # a score that is drawn anew each time is noise
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
_REASONING = re.compile(r"(?:^|/)(?:o[134]|gpt-5(?!.*chat))(?:[-.]|$)")
_FIRST_REASONING = re.compile(r"(?:^|/)o1-(?:mini|preview)")


def chat_request(model: Model, role: Role, prompt: str, defaults: Mapping[str, Any] | None = None) -> JSON:
    """Return a chat completion request in OpenAI's format, for single calls and batches alike.

    The model's parameters override `defaults`; a parameter of null is omitted, as is a null temperature. Judges grade
    at temperature 0 unless told otherwise.
    """
    parameters: dict[str, Any] = {
        "temperature": _TEMPERATURES.get(role, _TEMPERATURE),
        **(defaults or {}),
        **model.parameters_for(role),
    }
    spec = INTERFACES[model.interface]
    if spec.protocol in ("gemini", "vertex") and "max_output_tokens" in parameters:
        parameters["max_tokens"] = parameters.pop("max_output_tokens")
    if spec.max_tokens is not None and limit_of(parameters) is None:
        parameters["max_tokens"] = spec.max_tokens
    unsent = SETTINGS if model.interface == "huggingface" else SETTINGS | _LOCAL_PARAMETERS
    system = parameters.get("system_prompt")
    request: JSON = {
        "model": model.model_id(role),
        "messages": [
            *([{"role": "system", "content": str(system)}] if system else []),
            {"role": "user", "content": prompt},
        ],
        **{key: value for key, value in parameters.items() if key not in unsent},
    }
    request = {key: value for key, value in request.items() if value is not None}
    name = str(request["model"]).lower()
    if not spec.has_openai_models or not _REASONING.search(name):
        return request
    # Reasoning models reject a temperature, and call the limit `max_completion_tokens`.
    from route.providers.openai import for_o1, for_reasoning  # with an HTTP client, which plans do not need

    return for_o1(request) if _FIRST_REASONING.search(name) else for_reasoning(request)


def limit_of(request: JSON) -> int | None:
    """Return how many tokens the reply to a request may have, if it says so."""
    return next((request[key] for key in _LIMITS if isinstance(request.get(key), int)), None)


def _estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, four characters each; at least one."""
    return max(1, len(text) // 4)


def text_in(completion: JSON) -> str:
    """Return the text of a completion, stripped, with what our tool was called with; a refusal counts as text."""
    message = completion["choices"][0].get("message") or {}
    text = joined_text(message.get("content"))
    # What the tool was called with is the answer where the form of answers is that of a tool.
    functions = [call.get("function") or {} for call in message.get("tool_calls") or []]
    called = [function.get("arguments") for function in functions if function.get("name") == _ANSWER]
    texts = [text, *(arguments for arguments in called if isinstance(arguments, str))]
    return ("\n".join(filter(None, texts)) or str(message.get("refusal") or "")).strip()


def usage_of(completion: JSON, request: JSON) -> tuple[TokenCounts, bool]:
    """Return the tokens of a completion, and whether the provider counted them."""
    usage = read({**completion, "usage": usage_in(completion)})
    if usage.prompt is not None and usage.completion is not None and usage.prompt + usage.completion > 0:
        return usage, True
    prompt = "".join(joined_text(message.get("content")) for message in request["messages"])
    return TokenCounts(_estimated_tokens(prompt), _estimated_tokens(text_in(completion))), False


def check_whole(completion: JSON) -> str:
    """Return the text of a completion. Raise ProviderError if it is empty, broke off, or was withheld."""
    text, finish = text_in(completion), completion["choices"][0].get("finish_reason")
    if finish == "content_filter":
        raise ProviderError(Fault.CONTENT_FILTER, "the provider's filter withheld the answer")
    if finish == "error":  # from a provider of providers, one of which failed
        raise ProviderError(Fault.MALFORMED, "the answer broke off")
    if not text and finish == "length":
        raise ProviderError(Fault.REQUEST, "the answer ended before its first word: its limit of tokens is too low")
    if not text:
        raise ProviderError(Fault.MALFORMED, "the answer is empty")
    return text


# Structured answers: by a JSON schema, or a tool that has to be called. What a provider refuses is left out from then
# on, and the user is warned once: replies are read as text all the same.

_ANSWER = "answer"
NO_STRUCTURE = "it refuses a JSON schema or a tool for its verdicts; it is asked without, and they are read as text"
STRUCTURE_FIELDS = ("response_format", "tools", "tool_choice")
# Parameters by which users ask for a form themselves.
_OWN_STRUCTURE = frozenset(STRUCTURE_FIELDS) | {
    *("guided_json", "structured_outputs", "format", "output_config", "toolConfig", "generationConfig"),
    *("responseMimeType", "responseSchema", "responseJsonSchema"),
}


def structure_parameters(model: Model, role: Role, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that hold an answer to a schema; none where the provider, or the user, has another way."""
    spec = INTERFACES[model.interface]
    if spec.protocol in ("", "mock") or not _OWN_STRUCTURE.isdisjoint(model.parameters_for(role)):
        return {}
    if spec.answers_as == "tool":
        function = {"name": _ANSWER, "description": "Gives the answer.", "parameters": dict(schema)}
        named = {"type": "function", "function": {"name": _ANSWER}}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": named}
    form = {"name": _ANSWER, "strict": True, "schema": dict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


# Log-probabilities of a reply's first token. Some models reject the parameters, some ignore them; then the reply counts
# as it is, and the user is warned once.

LOGPROB_FIELDS = ("logprobs", "top_logprobs")
NO_LOGPROBS = "no log-probabilities come with its answers; its grades count as they are"
_MARKS_AROUND_A_WORD = " \t\r\n*`\"'"


def logprob_parameters(model: Model) -> dict[str, Any]:
    """Return the parameters that ask for log-probabilities; none where the provider has none."""
    if not tells_logprobs(model.interface):
        return {}
    return {"logprobs": True, "top_logprobs": INTERFACES[model.interface].top_logprobs}


class OptionalFields:
    """Fields of requests that some models refuse, and which do, as far as a run has found out."""

    def __init__(self, fields: Sequence[str], loss: str, warn: Callable[[str], None]) -> None:
        """`loss` says what replies lack without the fields, for the warning."""
        self._fields, self._loss, self._warn = fields, loss, warn
        self._unsupported: set[tuple[str, str]] = set()
        self._warned: set[str] = set()

    def supported(self, request: JSON, role: tuple[str, str]) -> JSON:
        """Return a request without the fields if (model, role) rejected them before."""
        return without(request, self._fields) if role in self._unsupported else request

    def fallback(self, request: JSON, error: ProviderError) -> JSON | None:
        """Return the request to send in the place of a rejected one, if the fields may be the reason."""
        may_be = error.fault in (Fault.REQUEST, Fault.UNSUPPORTED) and any(key in request for key in self._fields)
        return without(request, self._fields) if may_be else None

    def reject(self, role: tuple[str, str]) -> None:
        """Omit the fields from now on: a request succeeded only without them."""
        self._unsupported.add(role)
        self.warn(role[0])

    def warn(self, model: str) -> None:
        """Warn, once, of what a model's replies lack."""
        if model not in self._warned:
            self._warned.add(model)
            self._warn(f"{model}: {self._loss}")


def first_tokens(completion: Mapping[str, Any]) -> Tokens | None:
    """Return the candidates for the first token of a reply's text; None where the provider gives none."""
    try:
        content = list(completion["choices"][0]["logprobs"]["content"])
        entry = content[_first_word([str(token["token"]) for token in content])]
        candidates = (*(entry.get("top_logprobs") or ()), entry)
        logprobs = {str(candidate["token"]): float(candidate["logprob"]) for candidate in candidates}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return tuple((token, logprob) for token, logprob in logprobs.items() if not isnan(logprob))


def _first_word(tokens: list[str]) -> int:
    """Return the place of the first token that is more than space and quotes, after any thinking."""
    text = "".join(tokens)
    start = len(text) - len(after_thoughts(text))
    at = 0
    for place, token in enumerate(tokens):
        if at >= start and token.strip(_MARKS_AROUND_A_WORD):
            return place
        at += len(token)
    raise IndexError
