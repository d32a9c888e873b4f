"""The protocols that a client exists for. To add one, decorate its maker:

@protocol("pigeon")
def pigeon(account: Account) -> Provider: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from route.providers.base import Account, Provider

__all__ = ["PROTOCOLS", "Maker", "protocol"]

Maker: TypeAlias = Callable[[Account], Provider]

PROTOCOLS: dict[str, Maker] = {}
"""How the client of each protocol is made."""


def protocol(name: str) -> Callable[[Maker], Maker]:
    """Register the decorated maker of a client, a function or a class."""

    def register(make: Maker) -> Maker:
        PROTOCOLS[name] = make
        return make

    return register
