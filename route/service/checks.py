"""Whether a configuration and the flags go together, before anything is opened."""

from __future__ import annotations

import os

from p2l.errors import ConfigError
from route.config import RouterConfig
from route.kinds import get
from route.service.fleet import accounts_of
from route.service.settings import Settings
from route.service.state import make_router

__all__ = ["check_together"]


def check_together(config: RouterConfig, settings: Settings) -> None:
    """Refuse what could never be served.

    Raises:
        ConfigError: names the key of the configuration or the flag.
    """
    try:
        accounts_of(config, os.environ)
        make_router(config, settings)
    except ConfigError as error:
        raise ConfigError(f"{settings.config}: {error}") from error
    if get(settings.router_type).source == "local" and not settings.router_model_name:
        raise ConfigError(f"--router-type {settings.router_type} needs --router-model-name FOLDER")
