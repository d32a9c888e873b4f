"""Command: list the models that your keys can reach."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coeval.command import add_keys, keys_of, run
from p2l.command import nearest, parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys

__all__ = ["build_parser", "main"]


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval models", "List the models of every provider that there is a key for.")
    made.add_argument("--providers", metavar="A,B", help="these interfaces alone (default: all with credentials)")
    made.add_argument("--verbose", action="store_true", help="with list prices and what a batch costs")
    add_keys(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Print them; a provider that does not answer is said so, and is no failure."""
    arguments = build_parser().parse_args(argv)
    keys = keys_of(arguments.keys)
    chosen = _chosen(arguments.providers, keys)
    if not chosen and arguments.providers is None:
        print("no provider has credentials; set OPENAI_API_KEY or another key, or write a key file", file=sys.stderr)
    for interface, found in asyncio.run(_all(chosen, keys)):
        print(f"{interface}: {found}" if isinstance(found, str) else f"{interface}: {len(found)} models")
        for model in [] if isinstance(found, str) else found:
            print(f"  {model}{_price(interface, model) if arguments.verbose else ''}")
    return 0


def _chosen(providers: str | None, keys: Keys) -> list[str]:
    from coeval.config.interfaces import INTERFACES, LOCAL, VIRTUAL

    listing = [name for name in INTERFACES if name not in (*VIRTUAL, *LOCAL)]
    if providers is None:
        return [name for name in listing if keys.has(name)]
    named = [name.strip() for name in providers.split(",") if name.strip()]
    for name in named:
        if name not in listing:
            print(f"{name}: no provider that lists models{nearest(name, listing)}", file=sys.stderr)
    return [name for name in named if name in listing]


async def _all(interfaces: Sequence[str], keys: Keys) -> list[tuple[str, list[str] | str]]:
    found = await asyncio.gather(*(_models(interface, keys) for interface in interfaces))
    return list(zip(interfaces, found, strict=True))


async def _models(interface: str, keys: Keys) -> list[str] | str:
    """The models, or why there is no list."""
    from coeval.config.interfaces import INTERFACES
    from coeval.probing import PATIENCE
    from p2l.errors import ConfigError
    from route.providers.base import ProviderError
    from route.providers.listing import Catalogue

    try:
        catalogue = Catalogue(INTERFACES[interface].provider or "", keys.account_of(interface))
    except ConfigError as error:
        return str(error)
    try:
        return await catalogue.models(PATIENCE)
    except ProviderError as error:
        return str(error)
    finally:
        await catalogue.close()


def _price(interface: str, model: str) -> str:
    from coeval.pricing.table import batch_discount, price_at

    price, discount = price_at(interface, model), batch_discount(interface)
    batch = f", {discount:.0%} of it in batches" if discount != 1 else ""
    return f"  ${price.input:g} in, ${price.output:g} out per million tokens{batch}"


if __name__ == "__main__":
    run(main)
