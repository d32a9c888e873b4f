"""From a name in the configuration to a client.

make_provider("groq", account_for("groq", None, None, os.environ))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from route.providers.base import PROTOCOLS, Account, Provider

# Which providers are known by name, where they are and which environment variables hold their keys: data alone.
#
# Any other service that speaks OpenAI's protocol is `openai` with a `base_url`.


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

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def make_provider(kind: str, account: Account) -> Provider:
    """A client of the provider; no connection is made before the first call.

    Raises:
        ConfigError: no provider or protocol has this name, or it has not the account's options.
    """
    # Here, not above: a configuration is checked without loading an HTTP client.
    from route.providers import anthropic, gemini, mock, openai  # noqa: F401

    name = kind if kind in PROTOCOLS else service_of(kind).protocol
    make, known = PROTOCOLS[name]
    for option in account.options:
        if option not in known:
            hint = nearest(option, known) or f"; there are {', '.join(sorted(known))}"
            raise ConfigError(f"{kind}: options: {option!r} is not known{hint}")
    return make(account)


def account_for(
    kind: str,
    api_key: str | None,
    base_url: str | None,
    env: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
) -> Account:
    """Where a provider is and the key for it: from the configuration, `${VARIABLE}` in it, or the environment.

    A key of the environment goes to the provider it belongs to and to no other address: for a `base_url` elsewhere the
    key has to be given as well, where one is needed.

    Raises:
        ConfigError: an unknown provider, an unset variable, no address, no key, or one that no header can carry.
    """
    service = service_of(kind)
    url = _base_url(kind, service, base_url, env)
    key = (
        expand(api_key, env, f"{kind}: api_key") if api_key else _key_of_environment(kind, service, base_url, url, env)
    )
    return Account(
        base_url=url,
        api_key=_checked_key(kind, key),
        headers=service.headers,
        options={**service.options, **_options_of_environment(service, env), **(options or {})},
    )


def service_of(kind: str) -> Service:
    """What the table says of a provider.

    Raises:
        ConfigError: it does not know this name.
    """
    name = kind.strip().lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name not in SERVICES:
        known = ", ".join(SERVICES)
        raise ConfigError(
            f"type: there is no provider {kind!r}{nearest(name, SERVICES)}; choose from {known}, "
            "or openai with a base_url for any other service that speaks OpenAI's protocol"
        )
    return SERVICES[name]


def expand(text: str, env: Mapping[str, str], where: str) -> str:
    """`text` with each `${VARIABLE}` replaced by its value.

    Raises:
        ConfigError: the variable is not set, or empty.
    """

    def value(match: re.Match[str]) -> str:
        found = env.get(match[1])
        if not found:
            raise ConfigError(f"{where}: the environment variable {match[1]} is not set; set it, or write the value")
        return found

    return _VARIABLE.sub(value, text)


def _base_url(kind: str, service: Service, base_url: str | None, env: Mapping[str, str]) -> str:
    if base_url:
        url = expand(base_url, env, f"{kind}: base_url")
    else:
        url = _first(env, service.url_variables) or service.base_url or ""
    if not url:
        variables = " or ".join(service.url_variables)
        raise ConfigError(f"{kind}: no address: write base_url in the configuration or set {variables}")
    if "://" not in url:
        url = f"http://{url}"  # OLLAMA_HOST is host:port
    path = _checked_path(kind, url)
    if "OLLAMA_HOST" in service.url_variables and path in ("", "/"):
        url = f"{url.rstrip('/')}/v1"
    return url.rstrip("/")


def _checked_path(kind: str, url: str) -> str:
    """The path of an address that can be asked; the message does not repeat it, since it may hold a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 80) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{kind}: base_url is no http or https address; write for example https://api.openai.com/v1")
    if parts.username or parts.password:
        raise ConfigError(f"{kind}: base_url holds a name or password; write the key as api_key instead")
    return parts.path


def _key_of_environment(
    kind: str, service: Service, configured: str | None, url: str, env: Mapping[str, str]
) -> str | None:
    elsewhere = configured and service.base_url and urlsplit(url).hostname != urlsplit(service.base_url).hostname
    if elsewhere:
        return None
    key = _first(env, service.key_variables)
    if key is None and service.needs_key:
        variables = " or ".join(service.key_variables)
        raise ConfigError(f"{kind}: no API key: set {variables}, or write api_key in the configuration")
    return key


def _checked_key(kind: str, key: str | None) -> str | None:
    if key is None:
        return None
    stripped = key.strip()
    if not stripped or not stripped.isascii() or not stripped.isprintable():
        raise ConfigError(f"{kind}: the API key is empty or has characters that no HTTP header can carry")
    return stripped


def _options_of_environment(service: Service, env: Mapping[str, str]) -> dict[str, str]:
    return {option: env[name] for option, name in service.option_variables.items() if env.get(name)}


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)
