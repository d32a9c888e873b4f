"""A provider's client for each model; models of one account share their connections."""

from __future__ import annotations

from typing import Protocol

from coeval.config.interfaces import INTERFACES
from coeval.config.schema import Model
from p2l.errors import ConfigError
from route.providers.base import Account, Provider
from route.providers.make import make_provider

__all__ = ["Accounts", "Clients", "kind_of"]

_MOCK = Account("http://mock")


class Accounts(Protocol):
    """Where the keys are."""

    def account(self, model: Model) -> Account:
        """Where a model is and the key for it.

        Raises:
            ConfigError: there is no key; names the variable and the file looked in.
        """
        ...


def kind_of(interface: str) -> str:
    """What `route.providers` calls an interface that is asked over the network.

    Raises:
        ConfigError: nothing here can ask it.
    """
    known = INTERFACES.get(interface)
    if known is None or known.provider is None:
        raise ConfigError(f"interface: {interface} cannot be asked over the network")
    return known.provider


class Clients:
    """The clients of one run, each made when its first model is asked."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._of_model: dict[str, tuple[Account, Provider]] = {}
        self._made: list[tuple[str, Account, Provider]] = []

    def client_for(self, model: Model) -> tuple[Account, Provider]:
        """Where a model is, and who asks it.

        Raises:
            ConfigError: no key for it, or no client of its interface.
        """
        if model.name not in self._of_model:
            self._of_model[model.name] = self._client(model)
        return self._of_model[model.name]

    async def close(self) -> None:
        """Close all connections."""
        for _, _, provider in self._made:
            await provider.close()

    def _client(self, model: Model) -> tuple[Account, Provider]:
        account = _MOCK if model.interface == "mock" else self._accounts.account(model)
        for interface, other, provider in self._made:
            if (interface, other) == (model.interface, account):
                return account, provider
        provider = _make(model.interface, account)
        self._made.append((model.interface, account, provider))
        return account, provider


def _make(interface: str, account: Account) -> Provider:
    if interface == "mock":
        from coeval.mock.provider import MockModel

        return MockModel(account)
    if interface == "huggingface":
        from coeval.calling.local import LocalModels

        return LocalModels(account)
    return make_provider(kind_of(interface), account)
