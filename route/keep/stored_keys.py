"""Keys that were made while the router runs: in its database, as digests, beside those of its configuration.

Other processes know a new key with the first request that brings it, and a change of one with their next look at the
file, every 100 ms.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from p2l.common.access import digest_of, new_key
from p2l.common.errors import InputError
from route.keep.database import Connection, Database, DatabaseError, WriteBehind, note_change, number_of
from route.keep.ledger import KeyRecord, Ledger, Refusal, key_of_digest

T = TypeVar("T")
_SUBJECT = "keys"
_WRITE_KEY = (
    "INSERT INTO keys VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, "
    "limits = excluded.limits, created = excluded.created, revoked = excluded.revoked"
)
_LOGGER = logging.getLogger("route")


class KeyTakenError(InputError):
    """There is a key of this name."""


class UnknownKeyError(InputError):
    """There is no key of this name in the database."""


class StoredKey(NamedTuple):
    """One key of the database."""

    name: str
    digest: str
    limits: dict[str, Any]
    """Limits by the names that they have in the configuration; those that do not hold are left out."""
    created: float
    """Seconds since 1970."""
    revoked: float | None


def stored_keys(connection: Connection) -> list[StoredKey]:
    """Return all keys, revoked ones too, by name."""
    rows = connection.execute("SELECT name, digest, limits, created, revoked FROM keys ORDER BY name").fetchall()
    return [StoredKey(name, digest, json.loads(limits), *times) for name, digest, limits, *times in rows]


def add_key(connection: Connection, name: str, limits: Mapping[str, Any], *, now: float) -> str:
    """Make a key and return it, the only time that anybody can; raise KeyTakenError if the name is taken."""
    connection.lock(_SUBJECT)
    if any(key.name == name and key.revoked is None for key in stored_keys(connection)):
        raise KeyTakenError(f"there is a key {name!r} already; choose another name, or revoke it first")
    # 256 random bits: a plain SHA-256 says nothing of them, where a password would need a slow digest with salt.
    key = new_key()
    limits = {limit: amount for limit, amount in limits.items() if amount is not None}
    connection.execute(_WRITE_KEY, (name, digest_of(key), json.dumps(limits), now, None))
    note_change(connection, _SUBJECT)
    return key


def limit_key(connection: Connection, name: str, changes: Mapping[str, Any]) -> StoredKey:
    """Change limits of a key, of which None ends one; return it. Raise UnknownKeyError if there is none."""
    connection.lock(_SUBJECT)
    key = _known(connection, name)
    limits = {limit: amount for limit, amount in {**key.limits, **changes}.items() if amount is not None}
    connection.execute("UPDATE keys SET limits = ? WHERE name = ?", (json.dumps(limits), name))
    note_change(connection, _SUBJECT)
    return key._replace(limits=limits)


def revoke_key(connection: Connection, name: str, *, now: float) -> StoredKey:
    """End a key; return it. Raise UnknownKeyError if there is none."""
    connection.lock(_SUBJECT)
    key = _known(connection, name)
    connection.execute("UPDATE keys SET revoked = ? WHERE name = ?", (now, name))
    note_change(connection, _SUBJECT)
    return key._replace(revoked=now)


def _known(connection: Connection, name: str) -> StoredKey:
    for key in stored_keys(connection):
        if key.name == name and key.revoked is None:
            return key
    raise UnknownKeyError(f"there is no key {name!r} in the database; those of the configuration change there")


class StoredKeys(WriteBehind):
    """The keys of the database, for the ledger of one worker; used from one event loop."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        """Know none yet."""
        super().__init__(database, time.time)
        self._ledger = ledger
        self.valid: list[str] = []
        """Names of keys that clients may use, likewise."""
        self.revoked: list[str] = []
        """Names of keys that were revoked, as of the last look."""
        self._number = -1
        self._seen: Sequence[StoredKey] = ()
        """All keys, as of the last look."""
        self._look: asyncio.Task[None] | None = None
        self._one_look = asyncio.Lock()

    async def check(self, bearer: str | None) -> KeyRecord | Refusal:
        """Return the record of a request's key as `Ledger.check` does; one that is not known may be a moment old."""
        record = self._ledger.check(bearer)
        if bearer is None or isinstance(record, KeyRecord) or record.status != 401:
            return record
        try:
            await self._look_again()
        except DatabaseError:
            return record
        return self._ledger.check(bearer)

    async def add(self, name: str, limits: Mapping[str, Any]) -> str:
        """Make a key; see `add_key`."""
        if name in self._ledger.names:
            raise KeyTakenError(f"there is a key {name!r} already; choose another name, or revoke it first")
        return await self.change(lambda connection: add_key(connection, name, limits, now=self._clock()))

    async def change(self, work: Callable[[Connection], T]) -> T:
        """Run `limit_key` or `revoke_key` in one transaction; this worker knows of the change when it returns."""
        result = await self._database.run(work)
        await self._look_again()
        return result

    async def _look_again(self) -> None:
        """Read what has changed; requests that come together share one look, so that wrong keys cost little."""
        if self._look is None:
            self._look = asyncio.ensure_future(self._read_once())
        await asyncio.shield(self._look)

    async def _read_once(self) -> None:
        async with self._one_look:
            self._look = None  # who comes from now on may ask for what is newer
            self.absorb(await self._database.read(self.read))

    def read(self, connection: Connection) -> tuple[int, list[StoredKey]] | None:
        """Return all keys and the number of their last change, if that is a new one."""
        number = number_of(connection, _SUBJECT)
        return None if number == self._number else (number, stored_keys(connection))

    def absorb(self, news: tuple[int, list[StoredKey]] | None) -> None:
        """See `WriteBehind`."""
        if news is None or news[0] < self._number:
            return
        self._number, self._seen = news
        valid = [key for key in news[1] if key.revoked is None]
        self.valid = [key.name for key in valid]
        self.revoked = [key.name for key in news[1] if key.revoked is not None]
        records = [key_of_digest(key.digest, name=key.name, **key.limits) for key in valid]
        shadowed = self._ledger.replace_stored(records)
        if shadowed:
            _LOGGER.warning("keys of the database that have the name of a configured one: %s", ", ".join(shadowed))

    def recover(self, connection: Connection, _batch: None) -> int:
        """See `WriteBehind`: keys that were made, limited or revoked, and are not there, or as they were before."""
        connection.lock(_SUBJECT)
        there = {key.name: key for key in stored_keys(connection)}
        number = number_of(connection, _SUBJECT)
        lost = [key for key in self._seen if _is_ahead(key, there.get(key.name), is_newer=number < self._number)]
        for key in lost:
            connection.execute(_WRITE_KEY, (key.name, key.digest, json.dumps(key.limits), key.created, key.revoked))
        while lost and number <= self._number:  # beyond what any worker has seen
            number = note_change(connection, _SUBJECT)
        self._number = -1
        return len(lost)


def _is_ahead(key: StoredKey, there: StoredKey | None, *, is_newer: bool) -> bool:
    """Return whether a key was changed after what is there: keys are never removed, and none is revoked for a while."""
    if there is None or key.created != there.created:
        return there is None or key.created > there.created
    if there.revoked is not None or key.revoked is not None:
        return there.revoked is None
    return is_newer and key.limits != there.limits
