"""The values of `interface`: which provider of `route.providers` each is, and what it can do. Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Interface:
    """What stands behind the name."""

    provider: str | None = None
    """Its name in `route.providers`; None where nothing is asked over HTTP."""
    batches: bool = False


INTERFACES: Mapping[str, Interface] = {
    "openai": Interface("openai", batches=True),
    "anthropic": Interface("anthropic", batches=True),
    "gemini": Interface("gemini", batches=True),
    "azure_openai": Interface("azure", batches=True),
    "azure_ai": Interface("azure-ai"),
    "openrouter": Interface("openrouter"),
    "groq": Interface("groq"),
    "deepseek": Interface("deepseek"),
    "mistral": Interface("mistral"),
    "deepinfra": Interface("deepinfra"),
    "cerebras": Interface("cerebras"),
    "cohere": Interface("cohere"),
    "huggingface_api": Interface("huggingface"),
    "together": Interface("together"),
    "fireworks": Interface("fireworks"),
    "xai": Interface("xai"),
    "ollama": Interface("ollama"),
    "vllm": Interface("vllm"),
    "huggingface": Interface(),
    "mock": Interface("mock"),
    "benchmark": Interface(),
    "metric": Interface(),
    "label": Interface(),
}
"""By the name in the configuration; beside them there is `auto`."""
BATCHING = tuple(name for name, interface in INTERFACES.items() if interface.batches)
VIRTUAL = ("benchmark", "metric", "label")
"""Nothing is ever asked."""
LOCAL = ("huggingface", "mock")
"""Answered by this process."""
_IN_FLIGHT = 10
LATER = ("bedrock", "vertex")
"""Known, but not spoken here."""


def in_flight(concurrency: int | Mapping[str, int], interface: str) -> int:
    """Calls that may be in flight at an interface; 10 where a map does not name it, 1 for models that run here."""
    if interface == "huggingface":
        return 1
    return concurrency if isinstance(concurrency, int) else concurrency.get(interface, _IN_FLIGHT)


def tells_logprobs(interface: str) -> bool:
    """Whether log-probabilities of tokens can be asked for: of OpenAI's protocol, and of mocks."""
    return interface not in ("anthropic", "gemini", "huggingface", *VIRTUAL)
