"""What goes to a provider, and what of its answer goes to the client."""

from __future__ import annotations

from typing import Any

from route.config import ModelConfig
from route.decision import Decision
from route.providers.base import JSON
from route.service.incoming import Incoming

__all__ = [
    "decision_of",
    "is_usage_only",
    "mark_answer",
    "mark_chunk",
    "outputs_of",
    "request_for",
    "usage_of",
]

_MOST_TOKENS = 100_000_000


def request_for(model: ModelConfig, incoming: Incoming) -> JSON:
    """The body for this model's provider: what the request says goes before what the configuration says."""
    body = incoming.body
    request = {**model.extra_fields, **body, **_sampling(model, body), "model": model.name}
    if model.system_prompt and not any(message["role"] in ("system", "developer") for message in body["messages"]):
        request["messages"] = [{"role": "system", "content": model.system_prompt}, *body["messages"]]
    if incoming.stream:
        options = body.get("stream_options") or {}
        request |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    else:
        request.pop("stream_options", None)
    return request


def _sampling(model: ModelConfig, body: JSON) -> JSON:
    given = {"temperature": model.temp, "top_p": model.top_p, "top_k": model.top_k, "max_tokens": model.max_tokens}
    if body.get("max_completion_tokens") is not None:
        del given["max_tokens"]  # the same limit under its newer name
    return {key: value for key, value in given.items() if value is not None and body.get(key) is None}


def mark_answer(answer: JSON, name: str, decision: Decision | None, attempts: list[str]) -> JSON:
    """The answer for the client: with the router's name of the model, the scores and why it was chosen."""
    for choice in answer.get("choices") or []:
        if isinstance(choice.get("message"), dict):
            choice["message"]["model"] = name
    return {**answer, "model": name, **outputs_of(decision, attempts)}


def mark_chunk(chunk: JSON, name: str) -> JSON:
    """A chunk for the client: with the router's name of the model, in each delta too."""
    chunk["model"] = name
    for choice in chunk.get("choices") or []:
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["model"] = name
    return chunk


def outputs_of(decision: Decision | None, attempts: list[str]) -> JSON:
    """What the answer, or the first chunk of a stream, has beyond OpenAI's fields: scores, and why this model."""
    if decision is None:
        return {"router_outputs": None}
    return {"router_outputs": dict(decision.scores), "router_decision": {**_reasons(decision), "attempts": attempts}}


def decision_of(decision: Decision) -> JSON:
    """All of a decision as JSON, with the whole frontier."""
    return {
        **_reasons(decision),
        "scores": dict(decision.scores),
        "costs": dict(decision.costs),
        "frontier": [{"model": at.model, "cost": at.cost, "score": at.score} for at in decision.frontier],
    }


def _reasons(decision: Decision) -> JSON:
    return {
        "model": decision.model,
        "probabilities": dict(decision.probabilities),
        "propensity": decision.propensity,
        "expected_score": decision.expected_score,
        "expected_cost": decision.expected_cost,
        "strength": decision.strength,
        "budget": decision.budget,
        "explored": decision.explored,
        "static": decision.static,
        "optimizer": decision.optimizer,
        "revision": decision.revision,
    }


def is_usage_only(chunk: JSON) -> bool:
    """Whether a chunk says nothing but what was used."""
    return not chunk.get("choices") and chunk.get("usage") is not None


def usage_of(answer: JSON | None) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer, as the provider counted them."""
    usage = (answer or {}).get("usage")
    if not isinstance(usage, dict):
        return None, None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))


def _count(value: Any) -> int | None:
    """A number of tokens; what no answer can have is not believed, since keys pay for it."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None
