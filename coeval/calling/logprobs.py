"""Log-probabilities of an answer's first token: how they are asked for, read, and done without.

Providers of OpenAI's protocol tell them; some refuse the question, some pass over it. Then the answer counts as it is,
and the user hears of it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

from coeval.config.interfaces import tells_logprobs
from coeval.config.schema import Model
from route.providers.base import JSON, Fault, ProviderError
from route.providers.content import without

__all__ = ["Tokens", "Wishes", "first_tokens", "wished"]

Tokens = tuple[tuple[str, float], ...]
"""(token, natural logarithm of its probability)."""
_FIELDS = ("logprobs", "top_logprobs")
_MOST = 20
_FEWER = {"fireworks": 5, "xai": 8}
"""Interface -> most tokens that it tells."""
_AROUND = " \t\r\n*`\"'"


def wished(model: Model) -> dict[str, Any]:
    """The parameters that ask for the likeliest tokens; none where nobody would tell them."""
    if not tells_logprobs(model.interface):
        return {}
    return {"logprobs": True, "top_logprobs": _FEWER.get(model.interface, _MOST)}


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
