"""What the routes work with while the service runs, and how it is put together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from route.config import KeyConfig, RouterConfig
from route.database import Database
from route.feedback import Feedback
from route.ledger import KeyRecord, Ledger, key_record
from route.logs import LOGGER
from route.providers.base import ProviderError
from route.routers import Router
from route.scoring import Scorer, make_scorer
from route.service.dispatch import Dispatcher
from route.service.fleet import Fleet, make_fleet
from route.service.metrics import RouterMetrics
from route.service.settings import Settings
from route.sticky import Sticky

__all__ = ["Roster", "Service", "make_router", "make_service"]


@dataclass
class Service:
    """One worker's router and everything around it."""

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
        """Open the database and begin to ask for scores."""
        await self.database.start()
        for part in (self.ledger, self.feedback, self.sticky):
            await part.start()
        await self.scorer.start()

    async def close(self) -> None:
        """Write what is not yet written and close every connection."""
        for part in (self.ledger, self.feedback, self.sticky):
            await part.close()
        await self.database.close()
        await self.scorer.close()
        await self.fleet.close()


class Roster:
    """Which models requests may be routed to: those that P2L knows, or whose worth the configuration states."""

    def __init__(self, router: Router, names: Sequence[str]) -> None:
        """All of `names`, until the model list of P2L is known."""
        self._router = router
        self._names = names
        self.routable = list(names)

    def hear(self, model_list: Sequence[str]) -> None:
        """Take note of the models that P2L knows.

        Raises:
            ConfigError: it knows none of ours.
        """
        unknown = self._router.unknown(model_list)
        if unknown:
            LOGGER.warning(
                "P2L does not know %s: only direct_model reaches them; a prior_coef makes them routable",
                ", ".join(unknown),
            )
        self.routable = [name for name in self._names if name not in unknown]


def make_router(config: RouterConfig, settings: Settings) -> Router:
    """The router of a configuration.

    Raises:
        ConfigError: the router type, the optimizer and the limits do not go together.
    """
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


def _heard_by(metrics: RouterMetrics) -> Callable[[str, ProviderError], None]:
    def hear(model: str, error: ProviderError) -> None:
        metrics.failed(model, error)
        # Without the provider's words, which may quote the prompt.
        fields = {"model": model, "fault": error.fault.value, "provider_status": error.status}
        LOGGER.warning("no answer", extra={"fields": fields})

    return hear


def make_service(config: RouterConfig, settings: Settings) -> Service:
    """All parts, not yet started; call it within the event loop."""
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
            on_models=roster.hear,
        ),
        dispatcher=Dispatcher(fleet, config.max_attempts, config.timeouts, failed=_heard_by(metrics)),
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
