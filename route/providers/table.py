"""Which providers are known by name, where they are and which environment variables hold their keys: data alone.

Any other service that speaks OpenAI's protocol is `openai` with a `base_url`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ALIASES", "SERVICES", "Service"]


@dataclass(frozen=True)
class Service:
    """One provider, or one way to speak with it."""

    protocol: str
    base_url: str | None
    """None where every user has an address of their own."""
    key_variables: tuple[str, ...] = ()
    """Environment variables with the key; the first that is set wins."""
    url_variables: tuple[str, ...] = ()
    """Environment variables with the address."""
    needs_key: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    option_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with options."""


_OPENAI = "https://api.openai.com/v1"


def _compatible(base_url: str, *key_variables: str) -> Service:
    return Service("openai", base_url, key_variables)


def _classic(base_url: str, *key_variables: str) -> Service:
    return Service("openai", base_url, key_variables, options={"dialect": "classic"})


SERVICES: Mapping[str, Service] = {
    "openai": Service("openai", _OPENAI, ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "openai-reasoning": Service("openai-reasoning", _OPENAI, ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "openai-o1": Service("openai-o1", _OPENAI, ("OPENAI_API_KEY",), ("OPENAI_BASE_URL",)),
    "anthropic": Service("anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",)),
    "gemini": Service(
        "gemini", "https://generativelanguage.googleapis.com/v1beta", ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    ),
    "gemini-compatible": Service(
        "openai",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        options={"keep": ("extra_content",)},
    ),
    "azure": Service(
        "azure",
        None,
        ("AZURE_OPENAI_API_KEY",),
        ("AZURE_OPENAI_ENDPOINT",),
        options={"api_version": "2024-08-01-preview"},
        option_variables={"api_version": "AZURE_OPENAI_API_VERSION"},
    ),
    "azure-ai": _compatible("https://models.inference.ai.azure.com", "AZURE_AI_API_KEY", "GITHUB_TOKEN"),
    "openrouter": Service(
        "openai",
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        headers={"HTTP-Referer": "http://localhost", "X-Title": "P2L"},
        options={"keep": ("reasoning", "reasoning_details", "extra_content")},
    ),
    "groq": _compatible("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Service(
        "openai",
        "https://api.deepseek.com/v1",
        ("DEEPSEEK_API_KEY",),
        options={"dialect": "classic", "keep": ("reasoning_content",)},
    ),
    "mistral": Service(
        "openai",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        # It refuses fields that it does not know, this one too: the usage comes with every stream.
        options={"dialect": "classic", "omit": ("stream_options",)},
    ),
    "deepinfra": _classic("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "cerebras": _compatible("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "cohere": _classic("https://api.cohere.com/compatibility/v1", "COHERE_API_KEY"),
    "huggingface": _classic("https://router.huggingface.co/v1", "HF_TOKEN", "HUGGINGFACE_HUB_TOKEN"),
    "together": _classic("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "fireworks": _compatible("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "xai": _compatible("https://api.x.ai/v1", "XAI_API_KEY"),
    "ollama": Service(
        "openai",
        "http://localhost:11434/v1",
        url_variables=("OLLAMA_HOST",),
        needs_key=False,
        options={"dialect": "classic"},
    ),
    "vllm": Service(
        "openai", "http://localhost:8000/v1", ("VLLM_API_KEY",), needs_key=False, options={"dialect": "classic"}
    ),
    "mock": Service("mock", "http://mock", needs_key=False),
}
"""By the name in the configuration, `type:`."""

ALIASES: Mapping[str, str] = {
    "azure-openai": "azure",
    "huggingface-api": "huggingface",
    "openai-compatible": "openai",
}
"""Other spellings; an underscore stands for a hyphen too."""
