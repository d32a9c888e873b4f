"""What providers have besides single answers: files that are sent and fetched, and things that are removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import anyio

from p2l.common.errors import ConfigError
from route.providers.accounts import service_of
from route.providers.base import JSON, Account, ProviderError, Timeouts
from route.providers.errors import refusal
from route.providers.http import Transport

_BLOCK = 1 << 16


class FileTransport(Transport):
    """The connections to one account at one provider, for files too."""

    async def send_file(self, url: str, path: Path, fields: dict[str, str], name: str, timeouts: Timeouts) -> JSON:
        """Send a file as a form's field `file`, called `name`; the JSON object that the provider answers with.

        Raises:
            ProviderError: it refuses the file, or cannot be reached.
        """
        form = aiohttp.FormData(fields)
        with path.open("rb") as file:
            form.add_field("file", file, filename=name, content_type="application/jsonl")
            body = form()
            with self._translated(), anyio.fail_after(timeouts.total):
                text = await self._request("POST", url, timeouts, body, {"Content-Type": body.content_type})
        return self.parsed(text)

    async def send_bytes(self, url: str, body: bytes, timeouts: Timeouts) -> JSON:
        """Send JSON that is written already; the JSON object that the provider answers with.

        Raises:
            ProviderError: it refuses it, or cannot be reached.
        """
        with self._translated(), anyio.fail_after(timeouts.total):
            text = await self._request("POST", url, timeouts, body, {})
        return self.parsed(text)

    async def fetch_file(self, url: str, path: Path, timeouts: Timeouts) -> None:
        """Append what lies at an address to a file, ended with a newline; may be larger than memory.

        Raises:
            ProviderError: it is not to be had; the file is then as it was.
            OSError: the file cannot be written.
        """
        with path.open("ab") as file:
            start = file.tell()
            try:
                with self._translated():
                    await self._copy(url, file, timeouts)
            except BaseException:
                file.flush()
                os.ftruncate(file.fileno(), start)
                raise

    async def remove(self, url: str, timeouts: Timeouts) -> None:
        """Remove what lies at an address.

        Raises:
            ProviderError: it cannot be.
        """
        with self._translated(), anyio.fail_after(timeouts.total):
            await self._request("DELETE", url, timeouts, None, {})

    async def _copy(self, url: str, file: Any, timeouts: Timeouts) -> None:
        with anyio.fail_after(timeouts.first_token):
            response = await self._open(url, None, timeouts)
        last = b"\n"
        try:
            while block := await asyncio.wait_for(response.content.read(_BLOCK), timeouts.stall):
                file.write(block)
                last = block
        finally:
            response.close()
        if not last.endswith(b"\n"):
            file.write(b"\n")

    async def _request(self, method: str, url: str, timeouts: Timeouts, body: Any, headers: dict[str, str]) -> bytes:
        response = await self._pool().request(
            method,
            url,
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=timeouts.connect),
            proxy=self._proxy,
            allow_redirects=False,
        )
        try:
            text = await response.read()
        finally:
            response.close()
        if 200 <= response.status < 300:
            return text
        raise refusal(self._host, response.status, response.headers, text, self._secrets)


# Which models an account can reach, asked without a token: every provider lists them, each at its own address.
#
# Where the list is open to everybody, the key is checked at another address.

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
