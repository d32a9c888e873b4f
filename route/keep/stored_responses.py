"""Responses that clients come back to by their identifier: to retrieve them, or to go on from them.

Each row holds what was new in one request and its response; what came before is reached through `previous`. A response
is on the disk before its client has it, so that any worker can go on from it. It is kept for 30 days.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, TypeAlias

from p2l.common.long_texts import from_json, to_json
from route.keep.database import Connection, Database

JSON: TypeAlias = dict[str, Any]
KEPT_SECONDS = 30 * 86_400
"""Seconds after which a response is forgotten."""
_MOST_FORGOTTEN = 100  # in one transaction, so that none takes long
LONGEST_CHAIN = 1000  # responses of one conversation


class StoredResponse(NamedTuple):
    """One response, and the input that was new in its request."""

    response: JSON
    items: list[JSON]
    size: int
    """Bytes of both."""


class ResponseStore:
    """The responses of all keys; a key sees its own alone."""

    def __init__(self, database: Database, *, enabled: bool) -> None:
        """Keep responses in `database`, if `enabled`."""
        self.enabled = enabled
        self._database = database

    async def put(self, key: str, response: JSON, items: list[JSON]) -> None:
        """Store a response; raise DatabaseError if it is not on the disk."""
        previous, now = response.get("previous_response_id"), time.time()
        texts = (await to_json(response)).decode(), (await to_json(items)).decode()

        def write(connection: Connection) -> None:
            row = (response["id"], key, now, previous, *texts)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
            connection.execute(
                "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE time < ? ORDER BY time LIMIT ?)",
                (now - KEPT_SECONDS, _MOST_FORGOTTEN),
            )

        await self._database.run(write)

    async def delete(self, key: str, identifier: str) -> None:
        """Forget a response."""
        query = "DELETE FROM responses WHERE id = ? AND key = ?"
        await self._database.run(lambda connection: connection.execute(query, (identifier, key)))

    async def chain(self, key: str, identifier: str, *, most: int = LONGEST_CHAIN) -> list[StoredResponse]:
        """Return a response and those that it went on from, oldest first; empty if it is not there.

        Raise DatabaseError if the database cannot be read.
        """
        since = time.time() - KEPT_SECONDS

        def look_up(connection: Connection) -> list[tuple[str, str]]:
            rows: list[tuple[str, str]] = []
            name: str | None = identifier
            while name is not None and len(rows) < most:
                row = connection.execute(
                    "SELECT previous, response, items FROM responses WHERE id = ? AND key = ? AND time >= ?",
                    (name, key, since),
                ).fetchone()
                if row is None:
                    break  # what came before was forgotten or deleted
                name, response, items = row
                rows.append((response, items))
            return rows

        rows = await self._database.read(look_up)
        return [
            StoredResponse(await from_json(response), await from_json(items), len(response) + len(items))
            for response, items in reversed(rows)
        ]
