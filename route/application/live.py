"""The service of one worker while it answers, and its configuration taken anew without a request that notices.

A request keeps the service that it began with. A reload builds another one beside it, out of the file as it is now, and
puts that in its place only if nothing is wrong with it; accounts, scores and connections are those of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2l.common.config import line_of
from p2l.common.errors import ConfigError, P2LError
from p2l.common.processes import hold_hangups, take_hangups
from route.application.service import Service, check_together, key_records
from route.application.settings import Settings
from route.config import RouterConfig, load_config
from route.keep.database import Changes, DatabaseError
from route.observability.logs import LOGGER
from route.observability.recent import POINT_SECONDS
from route.routing.experiments import policies_in
from route.send.fleet import Fleet

# Between two settings of a worker's gauges: /metrics of any worker shows those of all.
_OBSERVE_SECONDS = 5.0
# Keys of the configuration that only a restart can change; flags such as the port are likewise.
_FIXED = ("database", "shared_limits", "journal")
_SPARE_SECONDS = 5.0  # beyond the time limit of requests, for the end of the last one


@dataclass(frozen=True)
class Reloaded:
    """The outcome of a reload."""

    changed: tuple[str, ...]
    """Keys of the configuration that have changed; for models, `model_configs.NAME`."""
    models: int
    keys: int
    everywhere: bool
    """Whether the other workers were told, who follow within 0.2 seconds; not where the database cannot be written."""


class Live:
    """The service that requests begin with, one after the other."""

    def __init__(self, config: RouterConfig, settings: Settings) -> None:
        """Build the first service without starting it; call it within the event loop."""
        self.service = Service(config, settings)
        path = str(Path(settings.config).expanduser().resolve())
        self.changes = Changes(self.service.database)
        self.changes.on(path, self._follow)
        self._path = path
        self._one_reload = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: list[Fleet] = []
        """Fleets of earlier configurations that may still have requests under way."""
        self._is_blind = False

    async def start(self) -> None:
        """Start the service, and take SIGHUP for a reload."""
        self.service.scorer.on_change = self._notice
        await self.service.start()
        await self.changes.start()
        self._begin(self._observe())
        self._begin(self._count())
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):
            # There is no such signal on Windows, and none for a loop outside the main thread.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._follow)
            take_hangups()

    async def close(self) -> None:
        """Write what has gathered and close every connection."""
        hold_hangups()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for fleet in self._leaving:
            await fleet.close(self.service.fleet)
        await self.service.close()

    async def reload(self, *, spread: bool = True) -> Reloaded:
        """Take the configuration anew, here and, with `spread`, in every worker; raise ConfigError if it is faulty.

        Then everything stays as it is. What a worker has taken, the others take within 0.2 seconds.
        """
        async with self._one_reload:
            before = self.service
            config = await asyncio.to_thread(load_config, before.settings.config)
            # What only a restart can change.
            for name in _FIXED:
                if getattr(before.config, name) != getattr(config, name):
                    line = line_of(before.settings.config, [name]) or 1
                    raise ConfigError(
                        f"{before.settings.config}:{line}: {name}: cannot change while the router runs; restart it, "
                        "or write what it was (host, port and workers are flags of the command, and need a restart as "
                        "well)"
                    )
            policies = policies_in(config.experiments, config.shadow).values()
            if {policy.p2l for policy in policies} - {None} != before.policy_scorers.keys():
                raise ConfigError(
                    f"{before.settings.config}:1: the p2l of a policy cannot change while the router runs; restart it"
                )
            check_together(config, before.settings)
            service = Service(config, before.settings, before)
            service.ledger.check_keys(key_records(config, before.settings))
            if before.scorer.model_list is not None:  # else the scorer tells it when it has connected
                service.limit_to(before.scorer.model_list)
            # Nothing can fail from here on, so that no worker is left between two configurations.
            service.take_over(before)
            self.service = service
            self._leaving.append(before.fleet)
            self._begin(self._close_later(before))
        changed = tuple(_differences(before.config, config))
        LOGGER.info("the configuration was reloaded", extra={"fields": {"changed": list(changed)}})
        everywhere = True
        if spread:
            try:
                await self.changes.tell(self._path)
            except DatabaseError as error:
                LOGGER.error("other workers could not be told of the reload: %s", error)
                everywhere = False
        return Reloaded(
            changed=changed,
            models=len(config.model_configs),
            keys=len(service.ledger.names),
            everywhere=everywhere,
        )

    def _follow(self) -> None:
        """Reload alone: another worker has reloaded, or the supervisor hands a signal to every worker."""
        self._begin(self._reload_or_say_why())

    async def _reload_or_say_why(self) -> None:
        try:
            await self.reload(spread=False)
        except P2LError as error:
            LOGGER.error("the configuration was not reloaded, the old one stays: %s", error)

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_later(self, service: Service) -> None:
        """Close what only requests of an earlier service used, when the last of them is over."""
        # No request lasts longer than this, so that nobody need count who still holds the old service.
        await asyncio.sleep(service.config.timeouts.total + _SPARE_SECONDS)
        self._leaving.remove(service.fleet)
        await service.fleet.close(self.service.fleet, *self._leaving)
        if service.answer_cache is not None:
            await service.answer_cache.close()

    async def _observe(self) -> None:
        while True:
            self.service.observe()
            await asyncio.sleep(_OBSERVE_SECONDS)

    async def _count(self) -> None:
        """Add points to the rates of the console, which there is with an admin key."""
        while True:
            if self.service.config.admin_key is not None:
                self.service.recent.observe(self.service.metrics.counts())
            await asyncio.sleep(POINT_SECONDS)

    def _notice(self, trouble: str) -> None:
        """Log that P2L gives no scores any more, and what decides instead, or that it does again."""
        if trouble:
            fields = {"why": trouble, "fallback": self.service.fallback}
            LOGGER.warning("P2L gives no scores", extra={"fields": fields})
        elif self._is_blind:  # not at start, when the model has been loaded
            LOGGER.warning("P2L gives scores again")
        self._is_blind = bool(trouble)


def _differences(before: RouterConfig, config: RouterConfig) -> Iterator[str]:
    for name in RouterConfig.model_fields:
        old, new = getattr(before, name), getattr(config, name)
        if old == new:
            continue
        if name != "model_configs":
            yield name
            continue
        yield from (f"{name}.{model}" for model in {**old, **new} if old.get(model) != new.get(model))
