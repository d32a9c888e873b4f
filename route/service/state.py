"""The service: its parts, and the checks before it starts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2l.common.errors import ConfigError
from route.config import KeyConfig, RouterConfig, line_of
from route.providers.accounts import make_provider
from route.providers.base import ProviderError
from route.routing.candidates import get, pair
from route.routing.router import Router
from route.routing.scoring import Scorer, make_scorer
from route.service.dispatch import Dispatcher, Fleet, account_of, make_fleet
from route.service.observability import LOGGER, RouterMetrics
from route.service.settings import Settings
from route.storage.conversations import Sticky
from route.storage.database import Database
from route.storage.feedback import Feedback
from route.storage.ledger import KeyRecord, Ledger, key_record


@dataclass
class Service:
    """The parts of one worker."""

    settings: Settings
    config: RouterConfig
    fleet: Fleet
    router: Router
    roster: Roster
    scorer: Scorer
    dispatcher: Dispatcher
    database: Database
    ledger: Ledger
    feedback: Feedback
    sticky: Sticky
    metrics: RouterMetrics
    started: int
    """Seconds since 1970."""

    async def start(self) -> None:
        """Open the database and start the scorer."""
        await self.database.start()
        for buffer in (self.ledger, self.feedback, self.sticky):
            await buffer.start()
        await self.scorer.start()

    async def close(self) -> None:
        """Write what has gathered and close every connection."""
        await self.database.close()
        await self.scorer.close()
        await self.fleet.close()


class Roster:
    """The models that requests may be routed to: those that P2L knows, or that have a prior coefficient."""

    def __init__(self, router: Router, names: Sequence[str]) -> None:
        """Route to all of `names`, until the model list of P2L is known."""
        self._router = router
        self._names = names
        self.routable = list(names)

    def update(self, model_list: Sequence[str]) -> None:
        """Route to the models that P2L knows; raise ConfigError if it knows none of them."""
        unknown = self._router.unknown(model_list)
        if unknown:
            LOGGER.warning(
                "P2L does not know %s: only direct_model reaches them; a prior_coef makes them routable",
                ", ".join(unknown),
            )
        self.routable = [name for name in self._names if name not in unknown]


def make_router(config: RouterConfig, settings: Settings) -> Router:
    """Build the router of a configuration; raise ConfigError if type, optimizer and limits do not fit."""
    return Router(
        config.routed_models(),
        kind=settings.router_type,
        optimizer=settings.cost_optimizer,
        opponents=config.opponent_weights,
        limits=config.routed_limits(),
        static_order=config.static_order,
        explore=config.explore,
        rng=np.random.default_rng(),
    )


def _on_fault(metrics: RouterMetrics) -> Callable[[str, ProviderError], None]:
    def report(model: str, error: ProviderError) -> None:
        metrics.failed(model, error)
        # Without the text of the provider, which may quote the prompt.
        fields = {"model": model, "fault": error.fault.value, "provider_status": error.status}
        LOGGER.warning("no answer", extra={"fields": fields})

    return report


def make_service(config: RouterConfig, settings: Settings) -> Service:
    """Build all parts without starting them; call it within the event loop."""
    metrics = RouterMetrics()
    fleet = make_fleet(config, os.environ)
    path = settings.database or config.database
    database = Database(None if path is None else Path(path))
    router = make_router(config, settings)
    roster = Roster(router, list(fleet.targets))
    return Service(
        settings=settings,
        config=config,
        fleet=fleet,
        router=router,
        roster=roster,
        scorer=make_scorer(
            router.kind,
            endpoint=settings.router_model_endpoint,
            api_key=settings.router_api_key,
            path=settings.router_model_name,
            on_models=roster.update,
        ),
        dispatcher=Dispatcher(fleet, config.max_attempts, config.timeouts, failed=_on_fault(metrics)),
        database=database,
        ledger=Ledger([*_unlimited(settings), *map(_record, config.keys)], database),
        feedback=Feedback(database, store_prompts=config.store_prompts),
        sticky=Sticky(database),
        metrics=metrics,
        started=int(time.time()),
    )


def _record(key: KeyConfig) -> KeyRecord:
    return key_record(
        key.key,
        name=key.name,
        spend_per_day=key.spend_per_day,
        requests_per_minute=key.requests_per_minute,
        models=key.models,
        cost=key.cost,
    )


def _unlimited(settings: Settings) -> list[KeyRecord]:
    return [KeyRecord(name=f"key-{digest[:12]}", digest=digest) for digest in settings.api_keys]


def check_together(config: RouterConfig, settings: Settings) -> None:
    """Raise ConfigError, with the flag or the line of the configuration, if the two do not go together."""
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
    """Return `:LINE` if the problem begins with a key of the configuration."""
    key = re.match(r"\w*", problem)
    return f":{line_of(path, [key[0]])}" if key and key[0] in RouterConfig.model_fields else ""
