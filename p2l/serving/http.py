"""uvicorn's HTTP protocol, but headers and body leave in one write.

uvicorn writes them apart, and each write is a system call that wakes the client: a sizeable part of what a short
answer costs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    _Protocol = asyncio.Protocol
else:
    _Protocol = AutoHTTPProtocol


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop two pieces at a time."""

    def __init__(self, transport: Any) -> None:
        """Write to `transport`, which keeps its own limits."""
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send `data` with what was written before it, or else when the event loop turns."""
        self._parts.append(data)
        if len(self._parts) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._flush()

    def close(self) -> None:
        """Send what was written, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            joined = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(joined)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)


class OneWriteProtocol(_Protocol):
    """uvicorn's protocol on such a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wrap the transport."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]
