"""A conversation keeps its model between turns.

A conversation is what the header `x-p2l-conversation` names, else what begins with the same texts: the digest of key,
`user` and the messages up to the first one of the user's. Two conversations that begin alike may share a model; what
begins alike is still routed anew each time, because only a request that holds an answer already looks its model up.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from p2l.common.cache import LRUCache
from route.storage.database import Database

HEADER = "x-p2l-conversation"
KEPT_SECONDS = 86_400
"""How long after its last turn a conversation is forgotten."""
_MOST_FORGOTTEN = 1_000  # in one transaction, so that none takes long


def conversation_of(body: Mapping[str, Any], *, key: str, header: str | None = None) -> str:
    """Which conversation a chat request is of: a digest; `key` is the name of the API key, `header` that of HEADER."""
    if header:
        return _digest([key, header])
    messages = body.get("messages") or []
    before = list(takewhile(lambda message: _role(message) != "user", messages))
    return _digest([key, body.get("user"), [_text(message) for message in messages[: len(before) + 1]]])


def goes_on(body: Mapping[str, Any], *, header: str | None = None) -> bool:
    """Whether a chat request is not the first of its conversation: it holds an answer already, or HEADER names one."""
    return bool(header) or any(_role(message) == "assistant" for message in body.get("messages") or [])


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _text(message: Any) -> Any:
    """Role and texts of a message; images and the like, which may be large, are left out."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        content = [part.get("text") for part in content if isinstance(part, Mapping)]
    return [_role(message), content]


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Sticky:
    """Which model answers which conversation; used from one event loop."""

    def __init__(self, database: Database, *, capacity: int = 100_000, clock: Callable[[], float] = time.time) -> None:
        """Keeps the `capacity` conversations that were used last in memory, and those of a day in the database."""
        self._database = database
        self._capacity = capacity
        self._clock = clock
        self._models: LRUCache[str, str] = LRUCache(capacity)  # by conversation
        self._gathered: dict[str, tuple[str, float]] = {}  # (model, time) by conversation

    async def start(self) -> None:
        """Write what is remembered every 100 ms from now on."""
        await self._database.add(self)

    async def close(self) -> None:
        """Write what is not yet written; the database stays open."""
        await self._database.flush()

    async def model_of(self, conversation: str) -> str | None:
        """The model that answered it last, here or before, or in another worker; None where none is known.

        It waits for the database only where this worker does not know the conversation.
        """
        if (model := self._models.get(conversation)) is not None:
            return model
        try:
            model = await self._database.read(lambda connection: _look_up(connection, conversation, self._clock()))
        except sqlite3.Error:
            return None
        if model is not None:
            self._models.put(conversation, model)
        return model

    def remember(self, conversation: str, model: str) -> None:
        """Take note of who answered, without waiting."""
        self._models.put(conversation, model)
        self._gathered[conversation] = (model, self._clock())
        if len(self._gathered) > self._capacity:
            del self._gathered[next(iter(self._gathered))]

    def take(self) -> dict[str, tuple[str, float]]:
        """See `route.storage.database.Part`."""
        taken, self._gathered = self._gathered, {}
        return taken

    def write(self, connection: sqlite3.Connection, batch: dict[str, tuple[str, float]]) -> None:
        """See `route.storage.database.Part`."""
        connection.executemany(
            "INSERT OR REPLACE INTO conversations VALUES (?, ?, ?)",
            [(conversation, *last) for conversation, last in batch.items()],
        )
        connection.execute(
            "DELETE FROM conversations WHERE conversation IN "
            "(SELECT conversation FROM conversations WHERE time < ? ORDER BY time LIMIT ?)",
            (self._clock() - KEPT_SECONDS, _MOST_FORGOTTEN),
        )

    def read(self, connection: sqlite3.Connection) -> None:
        """See `route.storage.database.Part`; what others remember is looked up when it is asked for."""

    def absorb(self, news: None) -> None:
        """See `route.storage.database.Part`."""

    def give_back(self, batch: dict[str, tuple[str, float]]) -> None:
        """See `route.storage.database.Part`."""
        self._gathered = batch | self._gathered


def _look_up(connection: sqlite3.Connection, conversation: str, now: float) -> str | None:
    row = connection.execute(
        "SELECT model FROM conversations WHERE conversation = ? AND time >= ?", (conversation, now - KEPT_SECONDS)
    ).fetchone()
    return None if row is None else str(row[0])
