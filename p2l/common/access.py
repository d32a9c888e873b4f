"""Keys and addresses of the HTTP services: what their commands check before anything large is loaded."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from p2l.common.cache import LRUCache
from p2l.common.cli import Flags, number_of
from p2l.common.errors import ConfigError

_FIRST_PAUSE_SECONDS = 0.5
PAUSE_SECONDS = 8.0
"""Longest pause after a wrong key, in seconds."""
_FORGOTTEN_AFTER_SECONDS = 600.0
"""Seconds after the last wrong key of an address until its pauses begin anew."""
_MAX_WAITING = 3  # keys of one address that wait to be judged
_MAX_ADDRESSES = 10_000
_SHORTEST_ADMIN_KEY = 12
_SHORTEST_NUMBER = 20  # digits of an admin key that is nothing but a number
_FEWEST_CHARACTERS = 6  # different ones of an admin key


def digest_of(key: str | bytes) -> str:
    """Return the SHA-256 of a key in hexadecimal: enough to recognise the key, too little to use it."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).hexdigest()


def matches(key: str | bytes | None, digest: str) -> bool:
    """Return whether a request's key has this digest."""
    # In constant time: how long a comparison takes tells nothing of the key.
    return hmac.compare_digest(digest_of(key or b""), digest) and key is not None


def new_key() -> str:
    """Return a random key of 256 bits."""
    return secrets.token_urlsafe(32)


def weakness_of(admin_key: str) -> str | None:
    """Return why an admin key is too easy to guess, in words that follow its name, or None."""
    advice = "write a random one (python -c 'import secrets; print(secrets.token_urlsafe(32))')"
    least = _SHORTEST_NUMBER if admin_key.isdigit() else _SHORTEST_ADMIN_KEY
    if len(admin_key) < least:
        return f"has {len(admin_key)} characters, of at least {least}: {advice}"
    # A text that repeats stands in its double before its end.
    if len(set(admin_key)) < _FEWEST_CHARACTERS or admin_key in (admin_key * 2)[1:-1]:
        return f"repeats itself, so that it is easy to guess: {advice}"
    return None


class TooManyKeysError(Exception):
    """An address sends wrong keys faster than they are judged; the text is for the client."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("too many wrong keys came from this address; try again later")


@dataclass
class _Guesses:
    """The wrong keys of one address, one after another."""

    wrong: int = 0
    last: float = 0.0
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeyJudge:
    """Judges keys that people bring to one door: wrong ones of an address are slowed down more and more, and logged."""

    # An address whose last key was wrong is judged one key at a time, the right one too: else many tries at once would
    # be as fast as one. Behind a proxy that hides addresses everybody waits for whoever guesses.

    def __init__(self, door: str, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`door` names in the log what the key opens; `clock` returns seconds."""
        self._door = door
        self._log = log
        self._clock = clock
        self._guesses: LRUCache[str, _Guesses] = LRUCache(_MAX_ADDRESSES)

    async def is_right(self, key: str | bytes | None, digest: str, address: str | None) -> bool:
        """Return whether a key has this digest, a wrong one after a pause; raise TooManyKeysError."""
        address = address or "an unknown address"
        guesses = self._guesses.get(address)
        if guesses is None:
            if matches(key, digest):
                return True
            guesses = _Guesses()
            self._guesses.put(address, guesses)
        if guesses.waiting >= _MAX_WAITING:
            raise TooManyKeysError
        guesses.waiting += 1
        try:
            async with guesses.turn:
                return await self._judge(guesses, matches(key, digest), address)
        finally:
            guesses.waiting -= 1

    async def _judge(self, guesses: _Guesses, is_right: bool, address: str) -> bool:
        now = self._clock()
        if is_right or now - guesses.last > _FORGOTTEN_AFTER_SECONDS:
            guesses.wrong = 0
        if is_right:
            return True
        guesses.last = now
        guesses.wrong += 1
        self._log.warning("wrong key for %s from %s, %d in a row", self._door, address, guesses.wrong)
        await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** (guesses.wrong - 1), PAUSE_SECONDS))
        return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1, as a socket for both families says it
        return (mapped or address).is_loopback
    except ValueError:
        return False


# A proxy adds at least one of these headers; then the peer is the proxy, and not the client.
_FORWARDED = (
    *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"),
    *("cf-connecting-ip", "true-client-ip", "x-client-ip"),
)


def is_from_this_machine(peer: str | None, headers: Mapping[str, str], http_version: str = "1.1") -> bool:
    """Return whether a request comes from this machine, as far as can be told; names of `headers` are in lower case."""
    # nginx speaks HTTP/1.0 to services behind it, and adds no header, unless it is configured to.
    if http_version == "1.0":
        return False
    # The host that the client asked for must be this machine too, or a page in a browser here could ask for others.
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:  # brackets without an address
        return False
    return is_loopback(peer or "") and is_loopback(name) and not any(header in headers for header in _FORWARDED)


def port(text: str) -> int:
    """Parse a port, for `type=` of a flag."""
    return number_of(text, int, lambda number: 0 < number < 65536, "a whole number from 1 to 65535")


def add_address_flags(flags: Flags, *, host: str, port_number: int) -> None:
    """Add --host and --port, where a server listens."""
    flags.add_argument("--host", "-H", default=host, help="address to listen on")
    flags.add_argument("--port", "-p", type=port, default=port_number, help="to listen on")


def check_address(host: str, number: int) -> None:
    """Raise ConfigError unless the address can be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{number}: {error.strerror or error}; choose another --port or --host"
        ) from error
