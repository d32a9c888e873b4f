"""A conversation keeps its model: through the rounds of tools, and between turns where that is configured or worth it.

A conversation is named by the header `x-p2l-conversation`, else by the texts it begins with: the digest of key, `user`
and the messages up to the first one of the user. Two conversations that begin alike may share a model. A first request
is always routed, because only a request that already holds an answer looks its model up.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from p2l.common.cache import LRUCache
from route.keep.database import Connection, Database, DatabaseError, WriteBehind
from route.providers.completions import has_role

HEADER = "x-p2l-conversation"
KEPT_SECONDS = 86_400
"""Seconds after its last turn until a conversation is forgotten."""
_MOST_FORGOTTEN = 1_000  # in one transaction, so that none takes long


def conversation_of(body: Mapping[str, Any], *, key: str, header: str | None = None) -> str:
    """Return the digest that names the conversation of a request; `key` is the name of its API key."""
    parts: list[Any] = [key, header]
    if not header:
        opening = []
        for message in body.get("messages") or []:
            role, content = (
                (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
            )
            if isinstance(content, list):  # without images and the like, which may be large
                content = [part.get("text") for part in content if isinstance(part, Mapping)]
            opening.append([role, content])
            if role == "user":
                break
        parts = [key, body.get("user"), opening]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def goes_on(body: Mapping[str, Any], *, header: str | None = None) -> bool:
    """Return whether a request continues a conversation: it holds an answer, or HEADER names one."""
    return bool(header) or has_role(body.get("messages"), "assistant")


def is_tool_round(body: Mapping[str, Any]) -> bool:
    """Return whether a request brings results of tools to the model that called them.

    Text of the user may follow them, as in the Messages API.
    """
    messages = body.get("messages") or []
    if not has_role(messages, "tool", "function"):
        return False
    for message in reversed(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            return False
        if role in ("tool", "function"):
            return True
    return False


class Last(NamedTuple):
    """The last turn of a conversation."""

    model: str
    time: float
    """Seconds since 1970."""


class Sticky(WriteBehind):
    """The model of each conversation; used from one event loop."""

    def __init__(self, database: Database, *, capacity: int = 100_000, clock: Callable[[], float] = time.time) -> None:
        """Keep the `capacity` conversations used last in memory, and those of a day in the database."""
        super().__init__(database, clock)
        self._capacity = capacity
        self._last: LRUCache[str, Last] = LRUCache(capacity)
        self._gathered: dict[str, Last] = {}  # by conversation

    async def last_of(self, conversation: str) -> Last | None:
        """Return which model answered last, and when, here or in another worker, or None.

        It reads the database only for a conversation that this worker does not have in memory.
        """
        if (last := self._last.get(conversation)) is not None:
            return last
        query = "SELECT model, time FROM conversations WHERE conversation = ? AND time >= ?"
        parameters = (conversation, self._clock() - KEPT_SECONDS)
        try:
            row = await self._database.read(lambda connection: connection.execute(query, parameters).fetchone())
        except DatabaseError:
            return None  # the request is routed anew, which costs less than to refuse it
        if row is None:
            return None
        last = Last(*row)
        self._last.put(conversation, last)
        return last

    def seconds_since(self, last: Last) -> float:
        """Return the seconds since a turn."""
        return self._clock() - last.time

    def remember(self, conversation: str, model: str) -> None:
        """Remember which model answered, without waiting."""
        last = Last(model, self._clock())
        self._last.put(conversation, last)
        self._gathered[conversation] = last
        if len(self._gathered) > self._capacity:
            del self._gathered[next(iter(self._gathered))]

    def take(self) -> dict[str, Last]:
        """See `WriteBehind`."""
        batch, self._gathered = self._gathered, {}
        return batch

    def write(self, connection: Connection, batch: dict[str, Last]) -> None:
        """See `WriteBehind`."""
        connection.executemany(
            "INSERT INTO conversations VALUES (?, ?, ?) "
            "ON CONFLICT (conversation) DO UPDATE SET model = excluded.model, time = excluded.time",
            [(conversation, *last) for conversation, last in sorted(batch.items())],  # in one order in every worker
        )
        connection.execute(
            "DELETE FROM conversations WHERE conversation IN "
            "(SELECT conversation FROM conversations WHERE time < ? ORDER BY time LIMIT ?)",
            (self._clock() - KEPT_SECONDS, _MOST_FORGOTTEN),
        )

    def give_back(self, batch: dict[str, Last]) -> None:
        """See `WriteBehind`."""
        self._gathered = batch | self._gathered
