"""Keys and addresses of the HTTP services: what their commands check before anything large is loaded."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from p2l.common.cli import Flags, number_of
from p2l.common.errors import ConfigError


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
