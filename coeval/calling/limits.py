"""Whose turn it is at a provider: so many calls in flight, so many a minute, none while it asks to be left alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from coeval.config.interfaces import in_flight

__all__ = ["Limits", "OneModelAtATime", "Turns"]

_ONE_AT_A_TIME = ("huggingface",)


class Turns:
    """The turns at one interface."""

    def __init__(self, concurrency: int, per_minute: float | None = None) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = self._paused_until = float("-inf")

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncGenerator[None, None]:  # noqa: ARG002
        """Wait for a turn of a model; it lasts as long as the block."""
        async with self._free:
            await self._slot()
            yield

    def pause(self, seconds: float) -> None:
        """Let no turn begin for a while."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    async def _slot(self) -> None:
        clock = asyncio.get_running_loop().time
        if self._gap:
            slot = max(clock(), self._next, self._paused_until)
            self._next = slot + self._gap
            await asyncio.sleep(slot - clock())
        while clock() < self._paused_until:
            await asyncio.sleep(self._paused_until - clock())


class OneModelAtATime(Turns):
    """Turns where changing the model is dear: one that is at it stays while anybody waits for it."""

    def __init__(self) -> None:
        super().__init__(1)
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncGenerator[None, None]:
        """Wait for a turn of a model; it lasts as long as the block."""
        await self._take(who)
        try:
            yield
        finally:
            self._pass_on(who)

    async def _take(self, who: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # the turn came with the cancellation
                self._pass_on(who)
            raise

    def _pass_on(self, who: str) -> None:
        """To the next that waits for the same model, else to the model that has waited longest."""
        for model in [who, *(other for other in self._waiting if other != who)]:
            queue = self._waiting.get(model, deque())
            while queue:
                following = queue.popleft()
                if not following.done():
                    following.set_result(None)
                    return
            self._waiting.pop(model, None)
        self._is_taken = False


class Limits:
    """The turns at all interfaces."""

    def __init__(self, concurrency: int | Mapping[str, int], per_minute: Mapping[str, float]) -> None:
        """Of each interface.

        Args:
            concurrency: calls in flight; of one that a map does not name, 10. Models that run here go one by one.
            per_minute: calls that may begin in a minute, evenly spread; of one that is not named, any number.
        """
        self._concurrency, self._per_minute = concurrency, per_minute
        self._turns: dict[str, Turns] = {}

    def at(self, interface: str) -> Turns:
        """The turns at an interface."""
        if interface not in self._turns:
            self._turns[interface] = self._new(interface)
        return self._turns[interface]

    def _new(self, interface: str) -> Turns:
        if interface in _ONE_AT_A_TIME:
            return OneModelAtATime()
        return Turns(in_flight(self._concurrency, interface), self._per_minute.get(interface))
