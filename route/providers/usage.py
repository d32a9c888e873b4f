"""Tokens as each protocol counts them, read into one form: the `usage` of OpenAI's chat completions.

In this form `prompt_tokens` holds all that was read and `completion_tokens` all that was made, hidden thoughts too;
their details say how much of it was cached, written to a cache, thought, or heard. What it has beyond OpenAI's is
`cache_write_tokens`, OpenRouter's name, and `cache_write_1h_tokens`, the part of it that is kept for an hour.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from route.providers.base import JSON
from route.providers.completions import MOST_TOKENS

_MOST_DOLLARS = 10_000.0  # no answer costs as much: a provider that reports more is mistaken
_TICKS_PER_DOLLAR = 1e10  # xAI's unit of `cost_in_usd_ticks`
_MOST_TICKS = _MOST_DOLLARS * _TICKS_PER_DOLLAR


_MILLION = 1e6
_THOUSAND = 1e3
# What Anthropic and those who resell it ask for writing to a cache, as a multiple of the price of input.
_WRITE = 1.25
_WRITE_FOR_HOUR = 2.0


class TokenCounts(NamedTuple):
    """The tokens of one answer, as its provider counted them."""

    prompt: int | None = None
    """All tokens that were read; None: not counted."""
    completion: int | None = None
    """All tokens that were made, thoughts among them; None: not counted."""
    cached: int = 0
    """Of the prompt: read from the provider's cache."""
    written: int = 0
    """Of the prompt: written to the provider's cache, for five minutes or for an hour."""
    written_for_hour: int = 0
    """Of `written`: kept for an hour."""
    reasoning: int = 0
    """Of the completion: thoughts."""
    heard: int = 0
    """Of the prompt: audio."""
    spoken: int = 0
    """Of the completion: audio."""
    searches: int = 0
    """Web searches that the provider made."""
    tier: str = ""
    """The provider's service tier, where it says so."""
    dollars: float | None = None
    """What the answer cost, where the provider says so."""


class Rates(NamedTuple):
    """Prices of a model per million tokens; what is None costs as much as other input or output."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    """Of input that is written to a cache for five minutes; None: 1.25 times that of input."""
    written_for_hour: float | None = None
    """Of input that is written to a cache for an hour; None: twice that of input."""
    heard: float | None = None
    """Of audio in the prompt."""
    spoken: float | None = None
    """Of audio in the answer."""
    searches: float = 0.0
    """Of a thousand web searches."""

    @property
    def dearest_write(self) -> float:
        """Return the price of input that may be written to a cache, at most."""
        write = self.input * _WRITE if self.written is None else self.written
        hour = self.input * _WRITE_FOR_HOUR if self.written_for_hour is None else self.written_for_hour
        return max(self.input, write, hour)

    def cost(self, usage: TokenCounts) -> float:
        """Return what an answer costs whose tokens are all counted."""
        prompt, completion = usage.prompt or 0, usage.completion or 0
        # Parts of the prompt, none of which may be more than is left of it.
        hour = min(usage.written_for_hour, prompt)
        minutes = min(max(0, usage.written - usage.written_for_hour), prompt - hour)
        cached = min(usage.cached, prompt - hour - minutes)
        heard = min(usage.heard, prompt - hour - minutes - cached)
        spoken = min(usage.spoken, completion)
        prices = (
            (prompt - hour - minutes - cached - heard, self.input),
            (cached, self.input if self.cached is None else self.cached),
            (minutes, self.input * _WRITE if self.written is None else self.written),
            (hour, self.input * _WRITE_FOR_HOUR if self.written_for_hour is None else self.written_for_hour),
            (heard, self.input if self.heard is None else self.heard),
            (completion - spoken, self.output),
            (spoken, self.output if self.spoken is None else self.spoken),
        )
        return sum(tokens * price for tokens, price in prices) / _MILLION + usage.searches * self.searches / _THOUSAND


def read(answer: JSON | None) -> TokenCounts:
    """Return the usage of a chat completion or a chunk; a count that no answer can have is none."""
    counts = (answer or {}).get("usage")
    if not isinstance(counts, dict):
        return TokenCounts()
    tier = counts.get("service_tier") or (answer or {}).get("service_tier")
    if len(counts) == len(_PLAIN) and counts.keys() == {*_PLAIN}:
        return TokenCounts(
            prompt=_count(counts["prompt_tokens"]),
            completion=_count(counts["completion_tokens"]),
            tier=tier if isinstance(tier, str) else "",
        )
    written_for_hour = _within(counts, "prompt_tokens_details", "cache_write_1h_tokens")
    return TokenCounts(
        prompt=_count(counts.get("prompt_tokens")),
        completion=_count(counts.get("completion_tokens")),
        cached=_within(counts, "prompt_tokens_details", "cached_tokens"),
        written=max(written_for_hour, _within(counts, "prompt_tokens_details", "cache_write_tokens")),
        written_for_hour=written_for_hour,
        reasoning=_within(counts, "completion_tokens_details", "reasoning_tokens"),
        heard=_within(counts, "prompt_tokens_details", "audio_tokens"),
        spoken=_within(counts, "completion_tokens_details", "audio_tokens"),
        searches=_searches(counts),
        tier=tier if isinstance(tier, str) else "",
        dollars=_dollars(counts),
    )


_PLAIN = ("prompt_tokens", "completion_tokens", "total_tokens")


def of_chat(counts: JSON) -> JSON:
    """Return the usage of a service that speaks OpenAI's chat completions in the one form.

    Cached tokens are `prompt_cache_hit_tokens` at DeepSeek, `cached_tokens` at Moonshot and Together, and
    `num_cached_tokens` at Mistral. xAI counts thoughts beside the completion, and Gemini in the total alone.
    """
    prompt, completion, total = (_count(counts.get(name)) for name in _PLAIN)
    if len(counts) == len(_PLAIN) and None not in (prompt, completion) and total == (prompt or 0) + (completion or 0):
        return counts  # as many services count, and nothing else
    reasoning = max(
        _within(counts, "completion_tokens_details", "reasoning_tokens"), _within(counts, "reasoning_tokens")
    )
    cached = max(
        _within(counts, "prompt_tokens_details", "cached_tokens"),
        *(_within(counts, name) for name in ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens")),
    )
    if prompt is not None and completion is None and total is not None and total >= prompt:
        completion = total - prompt  # embeddings count no completion, since they make none
    if prompt is not None and completion is not None:
        beyond = 0 if total is None else max(0, total - prompt - completion)
        if reasoning > completion:  # thoughts that are no part of it, whatever the total is made of
            beyond = max(beyond, reasoning)
        if beyond and beyond == cached != reasoning:
            prompt += beyond
        else:
            completion += beyond
    written, written_for_hour = _writes(counts)
    changes = _known(prompt=cached, write=written, hour=written_for_hour, reasoning=reasoning)
    return _merged({**counts, **_totals(prompt, completion)}, changes)


def usage_in(answer: JSON) -> JSON | None:
    """Return the counts of a chat completion or a chunk, wherever a service that speaks this protocol puts them."""
    counts = answer.get("usage")
    if not counts:
        for place in (answer.get("x_groq"), *(answer.get("choices") or ())):  # Groq's, then Moonshot's
            counts = counts or (place.get("usage") if isinstance(place, dict) else None)
    return of_chat(counts) if isinstance(counts, dict) else None


def of_messages(counts: JSON) -> JSON | None:
    """Return the usage of Anthropic's Messages API, which counts cached and written tokens beside the prompt."""
    if _count(counts.get("input_tokens")) is None and _count(counts.get("output_tokens")) is None:
        return None
    # The counts of a whole answer leave out what compaction has cost.
    compactions = [each for each in counts.get("iterations") or () if each.get("type") == "compaction"]
    parts = [counts, *compactions]
    cached = sum(_within(part, "cache_read_input_tokens") for part in parts)
    writes = [_writes(part) for part in parts]
    written, written_for_hour = (sum(column) for column in zip(*writes, strict=True))
    prompt = sum(_within(part, "input_tokens") for part in parts) + cached + written
    completion = sum(_within(part, "output_tokens") for part in parts)
    reasoning = _within(counts, "output_tokens_details", "thinking_tokens")
    usage = _merged(
        {**_totals(prompt, completion), "prompt_tokens_details": {"cached_tokens": cached}},
        _known(write=written, hour=written_for_hour, reasoning=reasoning),
    )
    return usage | {name: counts[name] for name in ("server_tool_use", "service_tier") if counts.get(name)}


def of_generate(counts: JSON) -> JSON | None:
    """Return the usage of Gemini's generateContent, which counts thoughts and the results of tools apart."""
    if _count(counts.get("promptTokenCount")) is None:
        return None
    thoughts = _within(counts, "thoughtsTokenCount")
    prompt = _within(counts, "promptTokenCount") + _within(counts, "toolUsePromptTokenCount")
    completion = _within(counts, "candidatesTokenCount") + thoughts
    total = _count(counts.get("totalTokenCount")) or 0
    completion += max(0, total - prompt - completion)
    usage: JSON = {
        **_totals(prompt, completion),
        "prompt_tokens_details": {"cached_tokens": _within(counts, "cachedContentTokenCount")},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }
    for details, name in (
        ("prompt_tokens_details", "promptTokensDetails"),
        ("completion_tokens_details", "candidatesTokensDetails"),
    ):
        audio = sum(_within(each, "tokenCount") for each in counts.get(name) or () if each.get("modality") == "AUDIO")
        if audio:
            usage[details]["audio_tokens"] = audio
    tier = counts.get("serviceTier")
    return usage | ({"service_tier": tier} if isinstance(tier, str) else {})


def of_converse(counts: JSON) -> JSON | None:
    """Return the usage of Bedrock's Converse, which counts cached and written tokens beside the prompt."""
    if _count(counts.get("inputTokens")) is None and _count(counts.get("outputTokens")) is None:
        return None
    cached, written = _within(counts, "cacheReadInputTokens"), _within(counts, "cacheWriteInputTokens")
    hours = (each for each in counts.get("cacheDetails") or () if each.get("ttl") == "1h")
    written_for_hour = sum(_within(each, "inputTokens") for each in hours)
    prompt = _within(counts, "inputTokens") + cached + written
    return _merged(
        {**_totals(prompt, _within(counts, "outputTokens")), "prompt_tokens_details": {"cached_tokens": cached}},
        _known(write=written, hour=written_for_hour),
    )


def of_responses(counts: JSON) -> JSON | None:
    """Return the usage of OpenAI's Responses API, which has the form of chat completions under other names."""
    if _count(counts.get("input_tokens")) is None and _count(counts.get("output_tokens")) is None:
        return None
    names = {
        "input_tokens": "prompt_tokens",
        "output_tokens": "completion_tokens",
        "input_tokens_details": "prompt_tokens_details",
        "output_tokens_details": "completion_tokens_details",
    }
    return of_chat({names.get(name, name): count for name, count in counts.items()})


def of_cohere(counts: JSON) -> JSON | None:
    """Return the usage of Cohere's own chat API, by the tokens that it bills."""
    billed, made = counts.get("billed_units") or {}, counts.get("tokens") or {}
    prompt = _count(billed.get("input_tokens", made.get("input_tokens")))
    completion = _count(billed.get("output_tokens", made.get("output_tokens")))
    if prompt is None and completion is None:
        return None
    # Cached tokens are of all that the model read, which is more than what is billed.
    cached = min(_within(counts, "cached_tokens"), prompt or 0)
    return _merged(_totals(prompt or 0, completion or 0), _known(prompt=cached))


def of_generation(record: JSON) -> JSON:
    """Return OpenRouter's record of a generation as a chunk; KeyError or TypeError where it has no counts (yet)."""
    told = record["data"]
    prompt, completion = int(told["native_tokens_prompt"]), int(told["native_tokens_completion"])
    cached, reasoning = _within(told, "native_tokens_cached"), _within(told, "native_tokens_reasoning")
    usage = _merged(_totals(prompt, completion), _known(prompt=cached, reasoning=reasoning))
    usage |= {"cost": told.get("total_cost"), "is_byok": told.get("is_byok")}
    usage["cost_details"] = {"upstream_inference_cost": told.get("upstream_inference_cost")}
    named = {"id": told.get("id"), "model": told.get("model"), "provider": told.get("provider_name")}
    return {**named, "service_tier": told.get("service_tier"), "choices": [], "usage": usage}


def to_messages(usage: Any) -> JSON:
    """Return the usage of a chat completion as a message counts it; zeros without counts."""
    counted = read({"usage": usage})
    prompt = counted.prompt or 0
    # OpenRouter counts what Gemini stores as read and as written; the parts of a message add up.
    cached = max(0, min(counted.cached, prompt - counted.written))
    written: JSON = {"cache_creation_input_tokens": counted.written}
    if counted.written:
        for_minutes = counted.written - counted.written_for_hour
        written["cache_creation"] = {
            "ephemeral_5m_input_tokens": for_minutes,
            "ephemeral_1h_input_tokens": counted.written_for_hour,
        }
    return {
        "input_tokens": max(0, prompt - cached - counted.written),
        "cache_read_input_tokens": cached,
        **written,
        "output_tokens": counted.completion or 0,
        **({"server_tool_use": usage["server_tool_use"]} if counted.searches and "server_tool_use" in usage else {}),
    }


def to_responses(usage: Any) -> JSON:
    """Return the usage of a chat completion as a response counts it; zeros without counts."""
    counted = read({"usage": usage})
    prompt, completion = counted.prompt or 0, counted.completion or 0
    written = {"cache_write_tokens": counted.written} if counted.written else {}
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": counted.cached, **written},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning},
        "total_tokens": prompt + completion,
    }


def _writes(counts: JSON) -> tuple[int, int]:
    """Return the tokens that were written to a cache, and how many of them for an hour."""
    details = _object(counts, "prompt_tokens_details")
    kinds = _object(counts, "cache_creation") or _object(details, "cache_creation_token_details")
    hour = max(_within(kinds, "ephemeral_1h_input_tokens"), _within(details, "cache_write_1h_tokens"))
    names = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
    told = [_within(place, name) for place in (counts, details) for name in names]
    return max(*told, hour + _within(kinds, "ephemeral_5m_input_tokens")), hour


def _totals(prompt: int | None, completion: int | None) -> JSON:
    if prompt is None or completion is None:
        return {}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _known(*, prompt: int = 0, write: int = 0, hour: int = 0, reasoning: int = 0) -> dict[str, dict[str, int]]:
    """Return the details that are not zero."""
    read_details = {"cached_tokens": prompt, "cache_write_tokens": write, "cache_write_1h_tokens": hour}
    details = {"prompt_tokens_details": read_details, "completion_tokens_details": {"reasoning_tokens": reasoning}}
    known = {place: {name: count for name, count in counts.items() if count} for place, counts in details.items()}
    return {place: counts for place, counts in known.items() if counts}


def _merged(usage: JSON, details: dict[str, dict[str, int]]) -> JSON:
    return {**usage, **{place: {**_object(usage, place), **counts} for place, counts in details.items()}}


def _object(counts: JSON, name: str) -> JSON:
    inner = counts.get(name)
    return inner if isinstance(inner, dict) else {}


def _within(counts: JSON, *path: str) -> int:
    """Return a count below `counts`, 0 where there is none."""
    for name in path[:-1]:
        counts = _object(counts, name)
    return _count(counts.get(path[-1])) or 0


def _searches(counts: JSON) -> int:
    made = _within(counts, "server_tool_use", "web_search_requests")
    return made or _within(counts, "num_search_queries")  # Perplexity's


def _dollars(counts: JSON) -> float | None:
    """Return what an answer cost: in `cost`, which Perplexity splits, or in xAI's ticks."""
    told = counts.get("cost")
    cost = _amount(told.get("total_cost") if isinstance(told, dict) else told)
    ticks = _amount(counts.get("cost_in_usd_ticks"))
    if cost is None and ticks is not None:
        cost = ticks / _TICKS_PER_DOLLAR
    if cost is not None and counts.get("is_byok") is True:  # OpenRouter's fee; the provider sends a bill of its own
        upstream = _amount(_object(counts, "cost_details").get("upstream_inference_cost"))
        cost = None if upstream is None else cost + upstream
    return cost if cost is not None and cost < _MOST_DOLLARS else None


def _amount(number: Any) -> float | None:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return float(number) if is_number and 0 <= number < _MOST_TICKS else None


def _count(tokens: Any) -> int | None:
    """Return a number of tokens; None for what no answer can have, since keys pay for it."""
    if isinstance(tokens, float) and tokens.is_integer():  # as of a service whose numbers are all of that kind
        tokens = int(tokens)
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= MOST_TOKENS else None
