"""Visitors of the arena: pseudonyms that nobody can trace once their salt is gone, and how many battles each began.

A visitor has two pseudonyms: of a random cookie, and of the prefix of the address (/24, or /64 of IPv6), which stays
when cookies are thrown away. Both are keyed hashes under a salt that all workers and replicas share in the database. A
new one takes its place every thirty days, and the old one is deleted. Addresses are kept nowhere.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from route.keep.database import Connection, Database, WriteBehind
from route.keep.usage import DAY

SALT_SECONDS = 30 * DAY
_KEPT_SECONDS = 2 * SALT_SECONDS  # of counts of battles: a pseudonym is used for one period and the day after it
_PSEUDONYM_DIGITS = 16  # 64 bits: no two visitors share one
_PREFIX_BITS = {4: 24, 6: 64}
_COOKIE_BYTES = 16


def new_cookie() -> str:
    """Return the text of a new visitor's cookie."""
    return secrets.token_hex(_COOKIE_BYTES)


def is_cookie(text: str) -> bool:
    """Return whether a text can be the cookie of a visitor."""
    return len(text) == 2 * _COOKIE_BYTES and set(text) <= set("0123456789abcdef")


def prefix_of(address: str) -> str:
    """Return the network of an address, /24 or /64; the text itself where it is no address, as of a local socket."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return str(ipaddress.ip_network((parsed, _PREFIX_BITS[parsed.version]), strict=False))


@dataclass(frozen=True)
class Visitor:
    """The pseudonyms of a visitor."""

    name: str
    """Of the cookie."""
    prefix: str
    """Of the prefix of the address."""


class Visitors(WriteBehind):
    """The salt of the pseudonyms, and how many battles each of them began; used from one event loop."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        """Keep both in `database`; `clock` returns seconds since 1970, UTC."""
        super().__init__(database, clock)
        self._period, self._salt = -1, b""
        self._battles = Counter[str]()

    async def of(self, cookie: str, address: str) -> Visitor:
        """Return the pseudonyms of a visitor; raise DatabaseError where a new salt cannot be read or written now."""
        period = int(self._clock() // SALT_SECONDS)
        if period != self._period:
            self._salt = await self._database.run(lambda connection: _salt_of(connection, period))
            self._period = period
        return Visitor(self._pseudonym(f"visitor {cookie}"), self._pseudonym(f"prefix {prefix_of(address)}"))

    def _pseudonym(self, text: str) -> str:
        digest = hmac.new(self._salt, text.encode("utf-8", "replace"), "sha256")
        return digest.hexdigest()[:_PSEUDONYM_DIGITS]

    def begin(self, visitor: Visitor) -> None:
        """Count a battle, whether or not a vote follows, without waiting."""
        self._battles.update((visitor.name, visitor.prefix))

    def take(self) -> Counter[str]:
        """See `WriteBehind`."""
        batch, self._battles = self._battles, Counter()
        return batch

    def write(self, connection: Connection, batch: Counter[str]) -> None:
        """See `WriteBehind`."""
        now = self._clock()
        connection.executemany(
            "INSERT INTO visits VALUES (?, ?, ?) ON CONFLICT (pseudonym) DO UPDATE SET "
            "battles = visits.battles + excluded.battles, time = excluded.time",
            [(pseudonym, battles, now) for pseudonym, battles in sorted(batch.items())],
        )
        connection.execute("DELETE FROM visits WHERE time < ?", (now - _KEPT_SECONDS,))

    def give_back(self, batch: Counter[str]) -> None:
        """See `WriteBehind`."""
        self._battles.update(batch)


def battles_of(connection: Connection, pseudonym: str | None) -> int | None:
    """Return how many battles a visitor, or the visitors of a prefix, began; None for votes outside the arena."""
    if pseudonym is None:
        return None
    row = connection.execute("SELECT battles FROM visits WHERE pseudonym = ?", (pseudonym,)).fetchone()
    return None if row is None else int(row[0])


def _salt_of(connection: Connection, period: int) -> bytes:
    """Return the salt of a period, which whoever asks first makes, and delete those before."""
    salt = secrets.token_bytes(32)
    connection.execute("INSERT INTO salts VALUES (?, ?) ON CONFLICT (period) DO NOTHING", (period, salt))
    connection.execute("DELETE FROM salts WHERE period < ?", (period,))
    return bytes(connection.execute("SELECT salt FROM salts WHERE period = ?", (period,)).fetchone()[0])
