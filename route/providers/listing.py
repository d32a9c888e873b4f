"""Which models an account can reach, asked without a token: every provider lists them, each at its own address.

Where the list is open to everybody, the key is checked at another address.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from p2l.errors import ConfigError
from route.providers.base import Account, ProviderError, Timeouts
from route.providers.make import service_of
from route.providers.transport import Transport

__all__ = ["Catalogue"]

_OPEN_LISTS = {
    "openrouter.ai": "https://openrouter.ai/api/v1/key",
    "router.huggingface.co": "https://huggingface.co/api/whoami-v2",
}
"""Host -> where its keys are checked."""


class Catalogue:
    """The models of one account."""

    def __init__(self, kind: str, account: Account) -> None:
        """`kind` as in `make_provider`.

        Raises:
            ConfigError: no provider has this name.
        """
        self._protocol = service_of(kind).protocol
        self._is_cohere = kind == "cohere"
        self._base = account.base_url.rstrip("/")
        self._version = quote(str(account.options.get("api_version", "")))
        self._transport = Transport(account, _headers(self._protocol, account))

    @property
    def names_models(self) -> bool:
        """Whether the list has the names that requests go to; at Azure those are names of deployments."""
        return self._protocol != "azure"

    async def models(self, timeouts: Timeouts) -> list[str]:
        """Their names, in order.

        Raises:
            ProviderError: the list is not to be had, the key is not accepted, or this is no provider.
        """
        check = _OPEN_LISTS.get(urlsplit(self._base).hostname or "")
        if check is not None:
            await self._transport.fetch(check, timeouts)
        found = await self._transport.fetch(self._list_url(), timeouts)
        return sorted(self._transport.understood(_names, {"found": found}))

    async def has(self, model: str, timeouts: Timeouts) -> bool:
        """Whether the provider knows a model by a name that is not on its list, such as an alias."""
        try:
            await self._transport.fetch(f"{self._models_url()}/{quote(model, safe='/')}", timeouts)
        except ProviderError as error:
            if error.status is None:
                raise
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def _list_url(self) -> str:
        if self._protocol == "azure" and not self._base.endswith("/v1"):
            return f"{self._models_url()}?api-version={self._version}"
        if self._is_cohere:
            return f"{self._models_url()}?page_size=1000"
        sizes: Mapping[str, str] = {"anthropic": "?limit=1000", "gemini": "?pageSize=1000"}
        return self._models_url() + sizes.get(self._protocol, "")

    def _models_url(self) -> str:
        if self._is_cohere:
            return f"{self._base.removesuffix('/compatibility/v1')}/v1/models"
        if self._protocol == "anthropic":
            return f"{self._base.removesuffix('/v1')}/v1/models"
        if self._protocol == "azure" and not self._base.endswith("/v1"):
            return f"{self._base.partition('/openai')[0]}/openai/models"
        return f"{self._base}/models"


def _headers(protocol: str, account: Account) -> dict[str, str]:
    if protocol == "mock":
        raise ConfigError("mock: is in this process and lists no models")
    if protocol == "anthropic":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": account.api_key} if account.api_key else {})
    if not account.api_key:
        return {}
    names = {"gemini": "x-goog-api-key", "azure": "api-key"}
    if protocol in names:
        return {names[protocol]: account.api_key}
    return {"Authorization": f"Bearer {account.api_key}"}


def _names(answer: Mapping[str, object]) -> list[str]:
    """The names in a list of models, as OpenAI, Google, Cohere or GitHub write it."""
    found = answer["found"]
    if isinstance(found, dict):
        found = found["data"] if "data" in found else found["models"]
    if not isinstance(found, list):
        raise TypeError
    names = [entry if isinstance(entry, str) else entry.get("id") or entry["name"] for entry in found]
    return [str(name).removeprefix("models/") for name in names]
