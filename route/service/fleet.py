"""The models that can be asked: each with its provider and its breaker; models of one account share its connections."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from p2l.errors import ConfigError
from route.config import BreakerConfig, ModelConfig, RouterConfig
from route.providers.base import Account, Provider
from route.providers.make import account_for, make_provider
from route.service.breaker import Breaker

__all__ = ["Fleet", "Target", "account_of", "make_fleet"]


@dataclass(frozen=True)
class Target:
    """One model."""

    name: str
    """As the configuration and P2L call it."""
    config: ModelConfig
    provider: Provider
    breaker: Breaker


class Fleet:
    """All models of the configuration."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        """By name, in the order of the configuration."""
        self.targets = dict(targets)
        windows = [target.config.context_window for target in targets.values()]
        self.smallest_window = min((window for window in windows if window is not None), default=None)

    def blocked(self) -> set[str]:
        """Names of the models that are left alone for now."""
        return {name for name, target in self.targets.items() if target.breaker.is_blocked}

    def no_larger_than(self, name: str) -> set[str]:
        """Names of the models that a prompt which is too long for this one does not fit into either."""
        window = self.targets[name].config.context_window
        if window is None:
            return {name}
        known = ((other, target.config.context_window) for other, target in self.targets.items())
        return {other for other, size in known if size is not None and size <= window}

    async def close(self) -> None:
        """Close all connections."""
        for provider in {id(target.provider): target.provider for target in self.targets.values()}.values():
            await provider.close()


def account_of(model: ModelConfig, env: Mapping[str, str]) -> Account:
    """Where a model is and who asks.

    Raises:
        ConfigError: an unknown type, or no key.
    """
    return account_for(model.type, model.api_key, model.base_url, env, model.options)


def make_fleet(config: RouterConfig, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> Fleet:
    """Providers and breakers of a configuration; call it within the event loop.

    Raises:
        ConfigError: names the model whose provider cannot be made.
    """
    providers: dict[str, Provider] = {}
    targets = {}
    for name, model in config.model_configs.items():
        with _blaming(name):
            account = account_of(model, env)
            same = json.dumps([model.type, account.base_url, account.api_key, account.options], default=repr)
            if same not in providers:
                providers[same] = make_provider(model.type, account)
        targets[name] = Target(name, model, providers[same], _breaker(config.breaker, clock))
    return Fleet(targets)


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"model_configs.{name}: {error}") from error


def _breaker(config: BreakerConfig, clock: Callable[[], float]) -> Breaker:
    return Breaker(config.failures, config.seconds, clock)
