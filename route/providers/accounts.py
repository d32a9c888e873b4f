"""From a provider's name in the configuration to its address, key and client.

make_provider("groq", account_for("groq", None, None, os.environ))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from route.providers.base import SECRET_OPTIONS, Account, Provider
from route.providers.registry import PROVIDERS, ProviderSpec, spec_of

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def clients() -> dict[str, tuple[Callable[[Account], Provider], tuple[str, ...]]]:
    """Return the client of each protocol with the account options that it reads."""
    # Imported here: a configuration is checked without loading an HTTP client.
    from route.providers import anthropic, bedrock, cohere, gemini, mock, openai

    reasoning = partial(openai.OpenAICompatible, prepare=openai.for_reasoning)
    return {
        "openai": (
            openai.OpenAICompatible,
            ("dialect", "keep", "omit", "record", "responses", "think_tags", "tool_ids"),
        ),
        "openai-responses": (openai.ResponsesAlone, ("keep", "omit", "record", "responses", "tool_ids")),
        "openai-reasoning": (reasoning, ("omit", "responses")),
        "openai-o1": (openai.WholeAnswers, ("omit",)),
        "azure": (openai.azure, ("api_version", "dialect", "keep", "omit", "responses", "think_tags", "tool_ids")),
        "anthropic": (anthropic.Anthropic, ("max_tokens", "omit")),
        "cohere": (cohere.cohere, ("omit",)),
        "gemini": (gemini.Gemini, ("omit",)),
        "vertex": (gemini.Vertex, ("location", "omit", "project", "service_account_key")),
        "bedrock": (bedrock.Bedrock, ("max_tokens", "omit", "region", *SECRET_OPTIONS)),
        "mock": (mock.MockProvider, tuple(mock.Script.__dataclass_fields__)),
    }


def make_provider(kind: str, account: Account) -> Provider:
    """Return a client, which connects at its first request. Raise ConfigError for an unknown provider or option."""
    protocols = clients()
    batching = () if kind in protocols and kind not in PROVIDERS else spec_of(kind).batch_options
    make, options = protocols[kind if kind in protocols else spec_of(kind).protocol]
    for option in account.options:
        if option not in (*options, *batching):
            hint = nearest(option, options) or f"; there are {', '.join(sorted(options))}"
            raise ConfigError(f"{kind}: options: {option!r} is not known{hint}")
    return make(account)


def account_for(
    kind: str,
    api_key: str | None,
    base_url: str | None,
    env: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
) -> Account:
    """Return the address and key of a provider: from the configuration, a `${VARIABLE}` in it, or the environment.

    A key from the environment is only sent to its own provider: a `base_url` elsewhere needs an `api_key` as well.
    Raise ConfigError for an unknown provider, an unset variable, no address, no key, or one that no header can carry.
    """
    spec = spec_of(kind)
    chosen = {option: _first(env, tuple(names.split())) for option, names in spec.option_variables.items()}
    options = {**spec.options, **{key: value for key, value in chosen.items() if value}, **(options or {})}
    if spec.base_url and "{" in spec.base_url:  # an address for each region
        name = "region" if "{region}" in spec.base_url else "location"
        region = str(options.get(name))
        # It becomes part of a host's name, so that any other text could lead the key elsewhere.
        if not re.fullmatch(r"[a-z0-9-]{1,40}", region):
            raise ConfigError(f"{kind}: {name} {region[:40]!r} is not a name of a region, such as us-east-1")
        place, text = (f"{{{name}}}-", "") if region == "global" else (f"{{{name}}}", region)
        spec = replace(spec, base_url=spec.base_url.replace(place, text))
    url = _base_url(kind, spec, base_url, env)
    key = expand(api_key, env, f"{kind}: api_key") if api_key else _key_of_environment(kind, spec, base_url, url, env)
    if key is not None:
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{kind}: the API key is empty or has characters that no HTTP header can carry")
    return Account(base_url=url, api_key=key, headers=spec.headers, options=options)


def expand(text: str, env: Mapping[str, str], where: str) -> str:
    """Replace each `${VARIABLE}` in a text by its value. Raise ConfigError if one is not set, or empty."""

    def value(match: re.Match[str]) -> str:
        variable = env.get(match[1])
        if not variable:
            raise ConfigError(f"{where}: the environment variable {match[1]} is not set; set it, or write the value")
        return variable

    return _VARIABLE.sub(value, text)


def _base_url(kind: str, spec: ProviderSpec, base_url: str | None, env: Mapping[str, str]) -> str:
    if base_url:
        url = expand(base_url, env, f"{kind}: base_url")
    else:
        url = _first(env, spec.url_variables) or spec.base_url or ""
    if not url:
        variables = " or ".join(spec.url_variables)
        raise ConfigError(f"{kind}: no address: write base_url in the configuration or set {variables}")
    if "://" not in url:
        url = f"http://{url}"  # OLLAMA_HOST is host:port
    # No message repeats the address, which may hold a secret.
    try:
        parts = urlsplit(url)
        # To read a port that is out of range raises ValueError.
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 80) > 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"{kind}: base_url is not an http or https address; write for example https://api.openai.com/v1"
        )
    if parts.username or parts.password:
        raise ConfigError(f"{kind}: base_url holds a name or password; write the key as api_key instead")
    if "OLLAMA_HOST" in spec.url_variables and parts.path in ("", "/"):
        url = f"{url.rstrip('/')}/v1"
    return url.rstrip("/")


def _key_of_environment(
    kind: str, spec: ProviderSpec, configured: str | None, url: str, env: Mapping[str, str]
) -> str | None:
    # Another host must not get the provider's key, which the environment has for the provider alone.
    if configured and spec.base_url and urlsplit(url).hostname != urlsplit(spec.base_url).hostname:
        return None
    key = _first(env, spec.key_variables)
    if key is None and spec.needs_key:
        variables = " or ".join(spec.key_variables)
        raise ConfigError(f"{kind}: no API key: set {variables}, or write api_key in the configuration")
    return key


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)
