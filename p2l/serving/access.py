"""Who may ask: keys are compared in constant time and are never written anywhere."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets

__all__ = ["digest_of", "is_loopback", "matches", "new_key"]


def matches(given: bytes | None, digest: str) -> bool:
    """Whether a request's key is the one with this digest, in a time that tells nothing about either."""
    return hmac.compare_digest(hashlib.sha256(given or b"").hexdigest(), digest) and given is not None


def digest_of(key: str) -> str:
    """What is kept of a key: enough to recognise it, too little to use it."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


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
