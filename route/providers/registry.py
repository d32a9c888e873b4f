"""The protocols that a client exists for. To add one, decorate its maker:

@protocol("pigeon")
def pigeon(account: Account) -> Provider: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from route.providers.base import Account, Provider

__all__ = ["PROTOCOLS", "Maker", "Registered", "protocol"]

Maker: TypeAlias = Callable[[Account], Provider]
Made = TypeVar("Made", bound=Maker)


class Registered(NamedTuple):
    """A protocol's client."""

    make: Maker
    options: frozenset[str]
    """Of an account, as far as it reads them."""


PROTOCOLS: dict[str, Registered] = {}
"""How the client of each protocol is made."""


def protocol(name: str, *options: str) -> Callable[[Made], Made]:
    """Register the decorated maker of a client, a function or a class, and the options of an account that it reads."""

    def register(make: Made) -> Made:
        PROTOCOLS[name] = Registered(make, frozenset(options))
        return make

    return register
