"""A conversation keeps its model between turns.

A conversation is what the header `x-p2l-conversation` names, else what begins with the same messages: the digest of key,
`user` and the messages up to the first one of the user's. Two conversations that begin alike may share a model; a first
turn never looks it up, so what begins alike is still routed anew each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from route.database import Database

__all__ = ["HEADER", "Sticky", "conversation_of", "goes_on"]

HEADER = "x-p2l-conversation"


def conversation_of(body: Mapping[str, Any], *, key: str, header: str | None = None) -> str:
    """Which conversation a chat request belongs to: a digest; `key` is the name of the API key, `header` that of HEADER."""
    raise NotImplementedError


def goes_on(body: Mapping[str, Any]) -> bool:
    """Whether a chat request holds an answer already, so that it is not the first of its conversation."""
    raise NotImplementedError


class Sticky:
    """Which model answers which conversation; used from one event loop."""

    def __init__(self, database: Database, *, capacity: int = 100_000) -> None:
        """Remembers the `capacity` conversations that were last used."""
        self._database = database
        self._capacity = capacity

    async def start(self) -> None:
        """Write what is remembered every 100 ms from now on."""

    async def close(self) -> None:
        """Write what is not yet written; the database stays open."""

    async def model_of(self, conversation: str) -> str | None:
        """The model that answered it last, here or in another worker; None where none is known."""
        raise NotImplementedError

    def remember(self, conversation: str, model: str) -> None:
        """Take note of who answered, without waiting."""
