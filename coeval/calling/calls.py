"""One question to one model, and what came of it: what phases and the caller agree on."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Protocol

from coeval.interfaces import INTERFACES, tells_logprobs
from coeval.schema import Model, Phase, Role
from route.providers.base import JSON, Fault, ProviderError
from route.providers.content import joined_text, without
from route.providers.openai import for_o1, for_reasoning


@dataclass(frozen=True)
class Call:
    """A question."""

    model: Model
    role: Role
    phase: Phase | None
    """None for probes and estimates, which no quota counts."""
    task: str
    key: tuple[str, ...]
    """Names the question in the run, for batches and messages: (task, teacher, seq, attempt) and the like."""
    prompt: str = field(repr=False)
    attempt: int = 0
    """Of a repeated question: part of the key under which answers are kept, so that asking again asks again."""
    logprobs: bool = False
    """Whether the likeliest first tokens are wanted too, where the provider tells them."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    text: str
    """Stripped; never empty."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    seconds: float
    counted: bool = True
    """Whether the provider counted the tokens; otherwise they are guessed as characters / 4."""
    cached: bool = False
    tokens: tuple[tuple[str, float], ...] | None = None
    """Where they were wanted and told: what the first token could have been, with the logarithm of its probability."""


class Reason(enum.Enum):
    """Why there is no answer."""

    QUOTA = "quota"
    """The model's calls are used up."""
    BUDGET = "budget"
    """The run's dollars are used up."""
    FATAL = "fatal"
    """The provider refuses this model or account whatever is asked: stop asking it."""
    FAILED = "failed"
    """This question got no answer, after all retries."""


class CallError(Exception):
    """No answer; the text is one sentence without keys and without the prompt."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Asking(Protocol):
    """What phases ask with."""

    async def ask(self, call: Call) -> Reply:
        """The answer; waits for its turn at the provider, retries what may pass, counts quota and dollars.

        Raises:
            CallError: there is none.
        """
        ...


# The chat completion that a call becomes, in a run and in a batch alike.

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
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
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
    spec = INTERFACES[interface]
    if spec.protocol == "gemini" and "max_output_tokens" in given:
        given["max_tokens"] = given.pop("max_output_tokens")
    if spec.max_tokens is not None and limit_of(given) is None:
        given["max_tokens"] = spec.max_tokens
    return given


def _for_the_model(interface: str, request: JSON) -> JSON:
    """Reasoning models refuse a temperature, and call the limit `max_completion_tokens`."""
    name = str(request["model"]).lower()
    if not INTERFACES[interface].has_openai_models or not _REASONING.search(name):
        return request
    return for_o1(request) if _FIRST_REASONING.search(name) else for_reasoning(request)


# From a provider's chat completion to its text and tokens.

_CHARACTERS = 4
"""In a token, where nobody counts them."""


def guessed(text: str) -> int:
    """Tokens of a text, four characters each; at least one."""
    return max(1, len(text) // _CHARACTERS)


def text_in(completion: JSON) -> str:
    """What a completion says, stripped; a refusal is an answer too."""
    message = completion["choices"][0].get("message") or {}
    return (joined_text(message.get("content")) or str(message.get("refusal") or "")).strip()


def tokens_in(completion: JSON, request: JSON) -> tuple[int, int, bool]:
    """Tokens of prompt and answer, and whether the provider counted them."""
    counts = completion.get("usage") or {}
    read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if isinstance(read, int) and isinstance(written, int) and read + written > 0:
        return read, written, True
    asked = "".join(joined_text(message.get("content")) for message in request["messages"])
    return guessed(asked), guessed(text_in(completion)), False


def check_whole(completion: JSON) -> str:
    """The text of a completion.

    Raises:
        ProviderError: it says nothing, or the provider's filter withheld it.
    """
    text, finish = text_in(completion), completion["choices"][0].get("finish_reason")
    if finish == "content_filter":
        raise ProviderError(Fault.CONTENT_FILTER, "the provider's filter withheld the answer")
    if finish == "error":  # as a provider of providers says that one of them broke off
        raise ProviderError(Fault.MALFORMED, "the answer broke off")
    if not text and finish == "length":
        raise ProviderError(Fault.REQUEST, "the answer ended before its first word: its limit of tokens is too low")
    if not text:
        raise ProviderError(Fault.MALFORMED, "the answer is empty")
    return text


# Log-probabilities of an answer's first token: how they are asked for, read, and done without.
#
# Providers of OpenAI's protocol tell them; some refuse the question, some pass over it. Then the answer counts as it
# is,
# and the user hears of it once.

Tokens = tuple[tuple[str, float], ...]
"""(token, natural logarithm of its probability)."""
_FIELDS = ("logprobs", "top_logprobs")
_AROUND = " \t\r\n*`\"'"


def wished(model: Model) -> dict[str, Any]:
    """The parameters that ask for the likeliest tokens; none where nobody would tell them."""
    if not tells_logprobs(model.interface):
        return {}
    return {"logprobs": True, "top_logprobs": INTERFACES[model.interface].top_logprobs}


class Wishes:
    """Which models tell log-probabilities, as far as a run has found out."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._refused: set[tuple[str, str]] = set()
        self._told: set[str] = set()

    def sent(self, request: JSON, whose: tuple[str, str]) -> JSON:
        """A request without the wish, where it was refused before."""
        return without(request, _FIELDS) if whose in self._refused else request

    def dropped(self, request: JSON, error: ProviderError) -> JSON | None:
        """The request to send in the place of one that was refused, if the wish may be why."""
        may_be = error.fault in (Fault.REQUEST, Fault.UNSUPPORTED) and any(key in request for key in _FIELDS)
        return without(request, _FIELDS) if may_be else None

    def refused(self, whose: tuple[str, str]) -> None:
        """A request was answered once the wish was left out: leave it out from here on."""
        self._refused.add(whose)

    def check(self, model: str, tokens: object) -> None:
        """Tell the user, once, that a model gives none."""
        if not tokens and model not in self._told:
            self._told.add(model)
            self._warn(f"{model}: no log-probabilities come with its answers; its grades count as they are")


def first_tokens(completion: Mapping[str, Any]) -> Tokens | None:
    """What the first token of an answer that says something could have been; None where nobody tells."""
    try:
        content = list(completion["choices"][0]["logprobs"]["content"])
        place = _first_word([str(entry["token"]) for entry in content])
        entry = content[place]
        found = {str(one["token"]): float(one["logprob"]) for one in (*(entry.get("top_logprobs") or ()), entry)}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return tuple((token, logprob) for token, logprob in found.items() if not isnan(logprob))


def _first_word(tokens: list[str]) -> int:
    """The place of the first token that is more than space and quotes, behind what was only thought."""
    thought = "".join(tokens).rfind("</think>")
    start = 0 if thought < 0 else thought + len("</think>")
    at = 0
    for place, token in enumerate(tokens):
        if at >= start and token.strip(_AROUND):
            return place
        at += len(token)
    raise IndexError
