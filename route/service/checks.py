"""Whether a configuration and the flags go together, before anything is opened."""

from __future__ import annotations

import os
import re

from p2l.errors import ConfigError
from route.config import RouterConfig, line_of
from route.kinds import get, pair
from route.providers.make import make_provider
from route.service.fleet import account_of
from route.service.settings import Settings
from route.service.state import make_router

__all__ = ["check_together"]


def check_together(config: RouterConfig, settings: Settings) -> None:
    """Refuse what could never be served.

    Raises:
        ConfigError: names the flag, or the line and key of the configuration.
    """
    kind = get(settings.router_type)
    pair(kind, settings.cost_optimizer)
    if kind.source == "local" and not settings.router_model_name:
        raise ConfigError(f"--router-type {settings.router_type} needs --router-model-name FOLDER")
    for name, model in config.model_configs.items():
        try:
            make_provider(model.type, account_of(model, os.environ))  # opens nothing yet
        except ConfigError as error:
            line = line_of(settings.config, ["model_configs", name])
            raise ConfigError(f"{settings.config}:{line}: model_configs.{name}: {error}") from error
    try:
        make_router(config, settings)
    except ConfigError as error:
        raise ConfigError(f"{settings.config}{_line(settings.config, str(error))}: {error}") from error


def _line(path: str, problem: str) -> str:
    """`:LINE` where the problem begins with a key of the configuration."""
    key = re.match(r"\w*", problem)
    return f":{line_of(path, [key[0]])}" if key and key[0] in RouterConfig.model_fields else ""
