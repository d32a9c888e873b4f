"""The service: its parts, and the checks before it starts."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2l.common.errors import ConfigError
from route.config import RouterConfig, line_of
from route.providers.base import ProviderError
from route.routing.candidates import get, pair
from route.routing.router import Router
from route.routing.scoring import make_scorer
from route.service.charges import UNKNOWN_LONGEST, Charge
from route.service.dispatch import Dispatcher, make_fleet
from route.service.observability import LOGGER, RouterMetrics
from route.service.settings import Settings
from route.storage.conversations import Sticky
from route.storage.database import Database
from route.storage.feedback import Feedback
from route.storage.ledger import KeyRecord, Ledger, key_record


class Service:
    """The parts of one worker."""

    def __init__(self, config: RouterConfig, settings: Settings) -> None:
        """Build all parts without starting them; call it within the event loop."""
        self.config = config
        self.settings = settings
        self.started = int(time.time())
        self.metrics = RouterMetrics()
        self.fleet = make_fleet(config, os.environ)
        self.router = make_router(config, settings)
        self.routable = list(self.fleet.targets)
        """Models that requests may be routed to: all, until the model list of P2L is known."""
        self.scorer = make_scorer(
            self.router.kind,
            endpoint=settings.router_model_endpoint,
            api_key=settings.router_api_key,
            path=settings.router_model_name,
            on_models=self._limit_to,
        )
        path = settings.database or config.database
        self.database = Database(None if path is None else Path(path))
        unlimited = [KeyRecord(name=f"key-{digest[:12]}", digest=digest) for digest in settings.api_keys]
        limited = [key_record(**key.model_dump(exclude={"votes_per_day"})) for key in config.keys]
        self.ledger = Ledger([*unlimited, *limited], self.database)
        self.dispatcher = Dispatcher(
            self.fleet,
            config.max_attempts,
            config.timeouts,
            int(config.max_answer_mb * 2**20),
            failed=self._count_fault,
            ledger=self.ledger,
            settle=self.settle,
        )
        self.finishing: set[asyncio.Task[None]] = set()
        """Requests whose client left, and whose answer is waited for since it has to be paid."""
        votes_per_day = {
            record.name: key.votes_per_day
            for record, key in zip(limited, config.keys, strict=True)
            if key.votes_per_day is not None
        }
        self.feedback = Feedback(self.database, store_prompts=config.store_prompts, votes_per_day=votes_per_day)
        self.sticky = Sticky(self.database)

    async def start(self) -> None:
        """Open the database and start the scorer."""
        unbound = [name for name, model in self.config.model_configs.items() if not model.is_bound]
        if unbound and any(key.spend_per_day is not None for key in self.config.keys):
            LOGGER.warning(
                "answers of %s have at most %d tokens for keys with spend_per_day; longest_answer lets them have more",
                ", ".join(unbound),
                UNKNOWN_LONGEST,
            )
        await self.database.start()
        for buffer in (self.ledger, self.feedback, self.sticky):
            await buffer.start()
        await self.scorer.start()

    async def close(self) -> None:
        """Write what has gathered and close every connection."""
        for task in self.finishing:
            task.cancel()
        await asyncio.gather(*self.finishing, return_exceptions=True)
        await self.ledger.close()
        await self.database.close()
        await self.scorer.close()
        await self.fleet.close()

    def settle(self, charge: Charge, has_cost: bool, answers: int | None = None) -> float:
        """Book what an attempt has cost, if it has; return that. A failed attempt is no answer."""
        cost = charge.cost() if has_cost else 0.0
        prompt, completion = charge.tokens if charge.is_measured else (None, None)
        self.ledger.settle(
            charge.reservation,
            charge.model,
            cost,
            answers=answers or 0,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )
        if cost or answers:
            self.metrics.cost.labels(charge.model).inc(cost)
            self.metrics.spend.labels(charge.reservation.key).inc(cost)
            self.metrics.used(charge.model, (prompt, completion))
        return cost

    def _limit_to(self, model_list: Sequence[str]) -> None:
        """Route only to models that P2L knows or that have a prior coefficient."""
        unknown = self.router.unknown(model_list)
        if unknown:
            LOGGER.warning(
                "P2L does not know %s: only direct_model reaches them; a prior_coef makes them routable",
                ", ".join(unknown),
            )
        self.routable = [name for name in self.fleet.targets if name not in unknown]

    def _count_fault(self, model: str, error: ProviderError) -> None:
        self.metrics.failed(model, error)
        # Without the text of the provider, which may quote the prompt.
        fields = {"model": model, "fault": error.fault.value, "provider_status": error.status}
        LOGGER.warning("no answer", extra={"fields": fields})


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


def check_together(config: RouterConfig, settings: Settings) -> None:
    """Raise ConfigError, with the flag or the line of the configuration, if the two do not go together."""
    kind = get(settings.router_type)
    pair(kind, settings.cost_optimizer)
    if kind.source == "local" and not settings.router_model_name:
        raise ConfigError(f"--router-type {settings.router_type} needs --router-model-name FOLDER")
    try:
        make_fleet(config, os.environ)  # opens nothing yet
        make_router(config, settings)
    except ConfigError as error:
        # The key that is wrong comes first: `model_configs.NAME: ...`, `limits need ...`, `explore must ...`.
        place = re.split(r": | (?=need|must)", str(error))[0].split(".")
        line = f":{line_of(settings.config, place)}" if place[0] in RouterConfig.model_fields else ""
        raise ConfigError(f"{settings.config}{line}: {error}") from error
