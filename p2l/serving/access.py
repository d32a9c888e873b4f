"""Who may ask: keys are compared in constant time and are never written anywhere."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets

__all__ = ["is_loopback", "matches", "new_key"]


def matches(given: bytes | None, expected: str) -> bool:
    """Whether a request's key is the right one, in a time that tells nothing about either."""
    right = hmac.compare_digest(_digest(given or b""), _digest(expected.encode("utf-8", "surrogatepass")))
    return right and given is not None


def new_key() -> str:
    """A random key of 256 bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()  # of one length, whatever the keys' lengths are
