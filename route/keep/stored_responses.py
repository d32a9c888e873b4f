"""Responses that clients come back to by their identifier: to retrieve them, or to go on from them.

Each row holds what was new in one request and its response; what came before is reached through `previous`. A response
is on the disk before its client has it, so that any worker can go on from it. It is kept for 30 days, unless its key,
or all keys together, have more than their space: then the oldest leave first, with a line in the log. Where the disk is
nearly full nothing is kept, so that votes and spend find room.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from p2l.common.long_texts import from_json, to_json
from route.keep.database import Connection, Database, DatabaseError

JSON: TypeAlias = dict[str, Any]
KEPT_SECONDS = 30 * 86_400
"""Seconds after which a response is forgotten."""
_MOST_REFERENCES = 10_000  # items of one request or response
_MOST_FORGOTTEN = 100  # in one transaction, so that none takes long
_MOST_BYTES_IN_ALL = 10 * 2**30
_LOGGER = logging.getLogger("route")
LONGEST_CHAIN = 1000  # responses of one conversation


class StoredResponse(NamedTuple):
    """One response, and the input that was new in its request."""

    response: JSON
    items: list[JSON]
    size: int
    """Bytes of both."""


class NoRoomError(DatabaseError):
    """A response cannot be stored within the space of its key, or of the disk."""


class ResponseStore:
    """The responses of all keys; a key sees its own alone."""

    def __init__(self, database: Database, *, enabled: bool, most_mb: float) -> None:
        """Keep responses in `database`, if `enabled`, of each key at most `most_mb` MB of text."""
        self.enabled = enabled
        self.most_mb = most_mb
        self._database = database
        self.evicted = 0
        """Responses that left before their time, so that newer ones had room."""

    async def put(self, key: str, response: JSON, items: list[JSON]) -> None:
        """Store a response; raise DatabaseError if it is not on the disk."""
        previous, now = response.get("previous_response_id"), time.time()
        texts = (await to_json(response)).decode(), (await to_json(items)).decode()
        size = sum(len(text.encode()) for text in texts)
        most = self._most_bytes(size)

        def write(connection: Connection) -> int:
            row = (response["id"], key, now, previous, *texts, size)
            evicted = _make_room(connection, key, response["id"], size, most)
            columns = "id, key, time, previous, response, items, size"
            # A provider's own identifier is kept once.
            insert = f"INSERT INTO responses ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
            connection.execute(insert, row)
            _note_items(connection, response)
            old = "SELECT id FROM responses WHERE time < ? ORDER BY time LIMIT ?"
            for table, column in (("response_items", "response"), ("responses", "id")):
                since = (now - KEPT_SECONDS, _MOST_FORGOTTEN)
                connection.execute(f"DELETE FROM {table} WHERE {column} IN ({old})", since)
            return evicted

        self._tell_evicted(await self._database.run(write), key)

    async def renew(self, key: str, row: StoredResponse, response: JSON) -> None:
        """Put a response that was made in the background in the place of what was kept while it was being made.

        Raise DatabaseError if it is not on the disk.
        """
        text = (await to_json(response)).decode()
        size = len(text.encode()) + len(await to_json(row.items))
        most = self._most_bytes(size)

        def write(connection: Connection) -> int:
            evicted = _make_room(connection, key, response["id"], size, most)
            update = "UPDATE responses SET response = ?, size = ? WHERE id = ? AND key = ?"
            connection.execute(update, (text, size, response["id"], key))
            _note_items(connection, response)
            return evicted

        self._tell_evicted(await self._database.run(write), key)

    def _most_bytes(self, size: int) -> int:
        """Return the space of a key; raise NoRoomError if a response of `size` bytes does not fit, or on the disk."""
        most = int(self.most_mb * 2**20)
        if size > most:
            raise NoRoomError(
                f"the response and its input have {size:,} bytes, of at most {most:,} that a key may keep"
            )
        room = self._database.room()
        if room is not None and size > room:
            raise NoRoomError("the disk is nearly full")
        return most

    def _tell_evicted(self, evicted: int, key: str) -> None:
        if evicted:
            self.evicted += evicted
            _LOGGER.warning("%d stored responses left before their time, to make room for one of key %s", evicted, key)

    async def is_anothers(self, key: str, identifier: str) -> bool:
        """Return whether a response is kept for another key."""
        query = "SELECT 1 FROM responses WHERE id = ? AND key <> ?"
        row = await self._database.read(lambda connection: connection.execute(query, (identifier, key)).fetchone())
        return row is not None

    async def items(self, key: str, identifiers: Sequence[str]) -> dict[str, JSON]:
        """Return output items of a key's responses by their identifiers, as far as they are kept.

        Raise DatabaseError if the database cannot be read.
        """
        since = time.time() - KEPT_SECONDS
        wanted = list(dict.fromkeys(identifiers))[:_MOST_REFERENCES]
        query = (
            "SELECT responses.response FROM response_items JOIN responses ON responses.id = response_items.response"
            " WHERE response_items.id = ? AND responses.key = ? AND responses.time >= ?"
        )

        def look_up(connection: Connection) -> list[str]:
            rows = (connection.execute(query, (name, key, since)).fetchone() for name in wanted)
            return [row[0] for row in rows if row is not None]

        texts = dict.fromkeys(await self._database.read(look_up))
        outputs = [(await from_json(text))["output"] for text in texts]
        return {item["id"]: item for output in outputs for item in output if item.get("id") in wanted}

    async def delete(self, key: str, identifier: str) -> None:
        """Forget a response."""

        def forget(connection: Connection) -> None:
            owned = "SELECT id FROM responses WHERE id = ? AND key = ?"
            connection.execute(f"DELETE FROM response_items WHERE response IN ({owned})", (identifier, key))
            connection.execute("DELETE FROM responses WHERE id = ? AND key = ?", (identifier, key))

        await self._database.run(forget)

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


def _note_items(connection: Connection, response: JSON) -> None:
    """Note the items of a response, which later requests may refer to."""
    insert = "INSERT INTO response_items VALUES (?, ?) ON CONFLICT DO NOTHING"
    for item in response["output"][:_MOST_REFERENCES]:
        if isinstance(item.get("id"), str):
            connection.execute(insert, (item["id"], response["id"]))


def _make_room(connection: Connection, key: str, identifier: str, size: int, most: int) -> int:
    """Forget the oldest responses of a key, and then of all, that leave one too little room; return how many."""
    evicted = 0
    before = connection.execute("SELECT size FROM responses WHERE id = ? AND key = ?", (identifier, key)).fetchone()
    growth = size - (0 if before is None else before[0])
    for where, parameters, limit in (("key = ?", (key,), most), ("1 = 1", (), _MOST_BYTES_IN_ALL)):
        used = connection.execute(f"SELECT coalesce(sum(size), 0) FROM responses WHERE {where}", parameters).fetchone()
        excess = used[0] + growth - limit
        while excess > 0:
            query = f"SELECT id, size FROM responses WHERE {where} AND id <> ? ORDER BY time, id LIMIT ?"
            oldest = connection.execute(query, (*parameters, identifier, _MOST_FORGOTTEN)).fetchall()
            if not oldest:
                break
            for identifier, its_size in oldest:
                connection.execute("DELETE FROM response_items WHERE response = ?", (identifier,))
                connection.execute("DELETE FROM responses WHERE id = ?", (identifier,))
                evicted += 1
                excess -= its_size
                if excess <= 0:
                    break
    return evicted
