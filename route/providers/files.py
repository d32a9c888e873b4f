"""What providers offer besides single answers: files for batch jobs, and the list of their models."""

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
from route.providers.base import JSON, Account, ProviderError, Timeouts
from route.providers.http import Translation, Transport, too_large
from route.providers.registry import PROVIDERS, spec_of

_LONGEST_LINE = 64 << 20  # bytes; who reads the file takes it line by line


class FileTransport(Transport):
    """Connections to one account, with upload, download and removal of files."""

    async def send_file(self, url: str, path: Path, fields: dict[str, str], name: str, timeouts: Timeouts) -> JSON:
        """Upload a file as the form field `file` under a name and return the provider's JSON object."""
        form = aiohttp.FormData(fields)
        with path.open("rb") as file:
            form.add_field("file", file, filename=name, content_type="application/jsonl")
            body = form()
            return self.parsed(await self._sent("POST", url, timeouts, body, {"Content-Type": body.content_type}))

    async def send_bytes(self, url: str, body: bytes, timeouts: Timeouts) -> JSON:
        """Post encoded JSON and return the provider's JSON object."""
        return self.parsed(await self._sent("POST", url, timeouts, body))

    async def send_object(self, url: str, content: bytes, timeouts: Timeouts) -> None:
        """Put bytes at an address."""
        await self._sent("PUT", url, timeouts, content)

    async def fetch_file(self, url: str, path: Path, timeouts: Timeouts) -> None:
        """Append the lines at an address, which may exceed memory, to a file and end it with a newline.

        Raise ProviderError if they cannot be fetched; the file is then as it was.
        """
        with path.open("ab") as file:
            start = file.tell()
            try:
                with Translation(self):
                    await self._copy(url, file, timeouts)
            except BaseException:
                file.flush()
                os.ftruncate(file.fileno(), start)
                raise

    async def remove(self, url: str, timeouts: Timeouts) -> None:
        """Delete what lies at an address."""
        await self._sent("DELETE", url, timeouts)

    async def _sent(self, method: str, url: str, timeouts: Timeouts, *contents: Any) -> bytes:
        with Translation(self), anyio.fail_after(timeouts.total):
            return await self._text(method, url, timeouts, *contents)

    async def _copy(self, url: str, file: Any, timeouts: Timeouts) -> None:
        with anyio.fail_after(timeouts.first_token):
            response = await self._open("GET", url, timeouts)
        last, size, line = b"\n", 0, 0
        try:
            while block := await asyncio.wait_for(response.content.readany(), timeouts.stall):
                size += len(block)
                if size > timeouts.max_bytes:
                    raise too_large(timeouts.max_bytes)
                end = block.rfind(b"\n") + 1
                line = len(block) - end + (0 if end else line)
                if line > _LONGEST_LINE:
                    raise ValueError(f"a line of more than {_LONGEST_LINE >> 20} MiB")
                file.write(block)
                last = block
        finally:
            response.close()
        if not last.endswith(b"\n"):
            file.write(b"\n")


class Catalogue:
    """The models that an account can reach; listing them costs no tokens."""

    def __init__(self, kind: str, account: Account) -> None:
        """Set up a client; `kind` is as in `make_provider`. Raise ConfigError for the mock, which lists no models."""
        spec = spec_of(kind)
        if spec.protocol == "mock":
            raise ConfigError("mock: answers in this process and lists no models")
        base = account.base_url.rstrip("/")
        self._url = f"{base.removesuffix(spec.models.strip)}{spec.models.path}"
        self._query = spec.models.query
        self.names_models = spec.protocol not in ("azure", "bedrock", "vertex")
        """Whether the list has the names that requests go to, and not deployments, profiles or versions of models."""
        if spec.protocol == "bedrock":
            self._url = self._url.replace("//bedrock-runtime.", "//bedrock.")
        if spec.protocol == "azure" and not base.endswith("/v1"):
            self._url = f"{base.partition('/openai')[0]}/openai/models"
            self._query = f"?api-version={quote(str(account.options.get('api_version', '')))}"
        # By host, not by provider: the address of one with a public list may be written for any compatible type.
        specs = [spec for spec in PROVIDERS.values() if spec.base_url]
        key_checks = {urlsplit(spec.base_url).hostname: spec.models.key_check for spec in specs}
        self._key_check = key_checks.get(urlsplit(base).hostname)
        self._transport = Transport(account, spec.protocol)

    async def models(self, timeouts: Timeouts) -> list[str]:
        """Return their names, sorted. Raise ProviderError if the key is refused or the answer does not list models."""
        if self._key_check is not None:
            await self._transport.fetch(self._key_check, timeouts)
        answer = await self._transport.fetch(f"{self._url}{self._query}", timeouts)
        return sorted(self._transport.understood(_names, {"list": answer}))

    async def has(self, model: str, timeouts: Timeouts) -> bool:
        """Whether the provider has a model by a name that is not on its list, such as an alias."""
        try:
            await self._transport.fetch(f"{self._url}/{quote(model, safe='/')}", timeouts)
        except ProviderError as error:
            if error.status is None:
                raise
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


_LISTS = ("data", "models", "modelSummaries", "publisherModels")
_IDS = ("id", "name", "modelId")


def _names(answer: Mapping[str, Any]) -> list[str]:
    """Return the names in a list of models, as OpenAI, Google, AWS, Cohere or GitHub write it."""
    models = answer["list"]
    if isinstance(models, dict):
        models = models[next((key for key in _LISTS if key in models), _LISTS[0])]
    if not isinstance(models, list):
        raise TypeError
    names = []
    for model in models:
        name = model if isinstance(model, str) else model[next((key for key in _IDS if model.get(key)), _IDS[0])]
        names.append(str(name).removeprefix("models/"))  # as Google writes them
    return names
