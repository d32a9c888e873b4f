"""What the clients of one API say and hear; between the two everything is one of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from route.providers.base import JSON
from route.service.errors import ApiError

__all__ = ["OPENAI", "Dialect", "Events"]


class Events(Protocol):
    """The events of one stream, as they are sent."""

    def take(self, chunk: JSON) -> bytes:
        """What a chunk of a chat completion becomes; may be nothing.

        Raises:
            ProviderError: it is no chunk, or does not fit to those before.
        """
        ...

    def fail(self, error: ApiError) -> bytes:
        """The last event of a stream that broke: nothing that looks like an end comes after it."""
        ...

    def end(self) -> bytes:
        """The end of a stream that is complete."""
        ...


@dataclass(frozen=True)
class Dialect:
    """The translation from and to one API."""

    request: Callable[[JSON], JSON]
    """The body of a chat completion from that of a request; raises `ApiError`."""
    answer: Callable[[JSON], JSON]
    """A whole answer from a chat completion; raises `ApiError`."""
    error: Callable[[ApiError], JSON]
    """The body of an error."""
    events: Callable[[], Events]
    """A new stream."""


class _ChunkEvents:
    def take(self, chunk: JSON) -> bytes:
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def fail(self, error: ApiError) -> bytes:
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n"

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"


def _as_it_is(body: JSON) -> JSON:
    return body


OPENAI = Dialect(_as_it_is, _as_it_is, ApiError.body, _ChunkEvents)
"""Chat completions."""
