"""How long a model thinks: effort and budget of thoughts, in the parameters that each protocol and model has for them.

A request says it as `reasoning_effort`, as `reasoning: {effort, max_tokens}` (OpenRouter's), as `thinking_budget`, or
in the fields of the provider itself, which pass as they are.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from route.providers.base import JSON, note_dropped

FIELDS = frozenset({"reasoning_effort", "reasoning", "thinking_budget"})
"""What a request says it with."""
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Of all protocols, from the least thinking to the most."""
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 65_536}
"""Tokens of thoughts where a model takes a number and the request a level."""
_LEAST_BUDGET = 1024  # of Anthropic's models
_SHORTEST_ANSWER = 1024  # tokens left for what is not thought, where the request has no limit
_MOST_OF_PRO = 32_768  # of Gemini 2.5 Pro; others take 24,576
_MOST_OF_FLASH = 24_576
_LEAST_OF_PRO = 128  # which cannot stop thinking

_CLAUDE = re.compile(r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d)(?:[-.](?P<minor>\d)(?!\d))?")
_GEMINI = re.compile(r"gemini-(?P<major>\d)(?:\.(?P<minor>\d))?(?P<rest>[a-z0-9.-]*)")
_SWITCHED = re.compile(r"qwen-?3|deepseek-v3\.1|deepseek-chat-v3\.1|glm-4\.[5-9]|kimi-k2\.5", re.IGNORECASE)
"""Open models that either think or do not, by a variable of their chat template."""


class _Effort(NamedTuple):
    level: str | None
    budget: int | None

    @property
    def is_none(self) -> bool:
        return self.level == "none" or self.budget == 0


def _effort_of(request: JSON) -> _Effort | None:
    """Return what a request says of thinking; None: nothing."""
    reasoning = request.get("reasoning")
    inner = reasoning if isinstance(reasoning, dict) else {}
    level = request.get("reasoning_effort") or inner.get("effort")
    if inner.get("enabled") is False:
        level = "none"
    budget = request.get("thinking_budget", inner.get("max_tokens"))
    known = level if isinstance(level, str) and level in LEVELS else None
    if level is not None and known is None:
        note_dropped("reasoning_effort")
    number = budget if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0 else None
    return None if known is None and number is None else _Effort(known, number)


def _nearest(level: str, levels: tuple[str, ...]) -> str:
    """Return the level that a model has for another one: the next lower one, else its lowest."""
    lower = [each for each in levels if LEVELS.index(each) <= LEVELS.index(level)]
    return lower[-1] if lower else levels[0]


def _claude(model: str) -> tuple[str, tuple[int, int]] | None:
    """Return family and version of a Claude; None for another name, which is taken for the newest."""
    match = _CLAUDE.search(model.lower())
    return (match["family"] or "", (int(match["major"]), int(match["minor"] or 0))) if match else None


def _claude_levels(model: str) -> tuple[str, ...]:
    """Return the levels of `output_config.effort` that a Claude has; none for those before it."""
    named = _claude(model)
    if named is None or named[1] >= (4, 7):
        return ("low", "medium", "high", "xhigh", "max")
    family, version = named
    if version >= (4, 6):
        return ("low", "medium", "high", "max")
    return ("low", "medium", "high") if family == "opus" and version >= (4, 5) else ()


def of_claude(request: JSON, model: str, max_tokens: int, *, is_limited: bool) -> JSON:
    """Return the fields of a Messages request: `output_config`, `thinking`, and `max_tokens` where thoughts need more.

    `is_limited` says that the client asked for `max_tokens`, which thoughts are part of.
    """
    effort = _effort_of(request)
    if effort is None or (request.get("thinking") and (request.get("output_config") or {}).get("effort")):
        return {}
    named, levels = _claude(model), _claude_levels(model)
    if effort.is_none:
        return {} if request.get("thinking") else {"thinking": {"type": "disabled"}}
    fields: JSON = {}
    if levels and effort.level is not None:
        config = request.get("output_config") or {}
        fields["output_config"] = {"effort": _nearest(effort.level, levels), **config}
    if request.get("thinking"):
        return fields
    if named is None or named[1] >= (4, 6):  # which decide themselves how many tokens an effort is
        return fields | {"thinking": {"type": "adaptive"}}
    if named[1] < (3, 7):
        note_dropped("reasoning_effort")
        return fields
    budget = max(_LEAST_BUDGET, effort.budget or _BUDGETS[effort.level or "medium"])
    if not is_limited:
        return fields | {
            "thinking": {"type": "enabled", "budget_tokens": budget},
            "max_tokens": max(max_tokens, budget + _SHORTEST_ANSWER),
        }
    if max_tokens <= _LEAST_BUDGET:
        note_dropped("reasoning_effort")
        return fields
    return fields | {"thinking": {"type": "enabled", "budget_tokens": min(budget, max(_LEAST_BUDGET, max_tokens // 2))}}


def of_gemini(request: JSON, model: str) -> JSON:
    """Return the `thinkingConfig` of a request to Gemini: a level from version 3 on, a budget for 2.5."""
    effort = _effort_of(request)
    if effort is None:
        return {}
    match = _GEMINI.search(model.lower())
    version = (int(match["major"]), int(match["minor"] or 0)) if match else (3, 0)
    if version < (2, 5):
        note_dropped("reasoning_effort")
        return {}
    is_pro = match is not None and "pro" in match["rest"]
    if version >= (3, 0):
        if effort.level is None:
            return {"thinkingBudget": effort.budget}
        levels = ("low", "medium", "high") if is_pro else ("minimal", "low", "medium", "high")
        return {"thinkingLevel": _nearest("minimal" if effort.is_none else effort.level, levels)}
    if effort.is_none:
        return {"thinkingBudget": _LEAST_OF_PRO if is_pro else 0}
    budget = effort.budget if effort.budget is not None else _BUDGETS[effort.level or "medium"]
    return {"thinkingBudget": min(budget, _MOST_OF_PRO if is_pro else _MOST_OF_FLASH)}


def of_bedrock(request: JSON, model: str, max_tokens: int | None) -> JSON:
    """Return the `additionalModelRequestFields` of a request to Bedrock, by the maker of the model."""
    effort = _effort_of(request)
    if effort is None:
        return {}
    name = model.lower()
    if "claude" in name:
        fields = of_claude(request, model, max_tokens or 0, is_limited=max_tokens is not None)
        fields.pop("max_tokens", None)
        named = _claude(model)
        if "output_config" in fields and named is not None and named[1] < (4, 6):
            fields["anthropic_beta"] = ["effort-2025-11-24"]
        return fields
    if "gpt-oss" in name:
        return {"reasoning_effort": _nearest(effort.level or "medium", ("low", "medium", "high"))}
    if "nova-2" in name:
        if effort.is_none:
            return {"reasoningConfig": {"type": "disabled"}}
        level = _nearest(effort.level or "medium", ("low", "medium", "high"))
        return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": level}}
    note_dropped("reasoning_effort")
    return {}


def of_cohere(request: JSON, model: str) -> JSON:
    """Return the `thinking` of a request to Cohere, whose models that think take a number of tokens."""
    effort = _effort_of(request)
    if effort is None:
        return {}
    if "reasoning" not in model.lower():
        note_dropped("reasoning_effort")
        return {}
    if effort.is_none:
        return {"type": "disabled"}
    return {"type": "enabled", "token_budget": effort.budget or _BUDGETS[effort.level or "medium"]}


def of_open_model(request: JSON) -> JSON:
    """Return a request to a server of open models, where a model has a switch instead of levels."""
    effort = _effort_of(request)
    if effort is None or not _SWITCHED.search(str(request.get("model"))):
        return request
    name = "thinking" if "deepseek" in str(request.get("model")).lower() else "enable_thinking"
    others = {key: value for key, value in request.items() if key not in FIELDS}
    variables = {name: not effort.is_none, **(request.get("chat_template_kwargs") or {})}
    return {**others, "chat_template_kwargs": variables}


def sent_as(type_: str, model: str, effort: str) -> Any:
    """Return what an effort becomes at a model, to be compared with another; None where the model has none."""
    request: JSON = {"model": model, "reasoning_effort": effort}
    match type_.replace("_", "-"):
        case "anthropic":
            named = _claude(model)
            is_older = named is not None and named[1] < (3, 7)
            return None if is_older else of_claude(request, model, 1, is_limited=False) or None
        case "gemini" | "vertex":
            return of_gemini(request, model) or None
        case "bedrock":
            return of_bedrock(request, model, None) or None
        case "cohere":
            return of_cohere(request, model) or None
        case "vllm" | "sglang":
            return of_open_model(request)
    return effort
