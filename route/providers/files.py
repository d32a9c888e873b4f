"""What providers have besides single answers: files that are sent and fetched, and things that are removed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from route.providers.base import JSON, Timeouts
from route.providers.faults import refusal
from route.providers.transport import Transport

__all__ = ["FileTransport"]

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
