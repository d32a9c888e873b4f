"""Whose turn it is at a provider: so many calls in flight, so many a minute, none while it asks to be left alone."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from coeval.calling.calls import CallError, Reason, limit_of
from coeval.interfaces import in_flight
from route.providers.base import JSON, Fault, ProviderError

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


# Whether to ask again, and when: by the class of the error, the provider's word, and twice as long each time.
#
# wait = min(cap, base 2^n) (1 + u) / 2 with u uniform in [0, 1), and never sooner than the provider wants.


@dataclass(frozen=True)
class Retries:
    """How often and how long."""

    attempts: int = 6
    """Requests for one call, at most."""
    rate_limited: int = 12
    """The same where the provider is only full: that passes."""
    timed_out: int = 3
    """The same where an answer takes too long: each costs the whole time limit."""
    base: float = 1.0
    """Seconds, about, before the second request."""
    cap: float = 60.0
    """Seconds, at most, unless the provider wants more."""
    patience: float = 300.0
    """Seconds that a provider may ask for; if it wants more, the call has failed."""
    draw: Callable[[], float] = random.random

    def wait(self, error: ProviderError, failed: int) -> float | None:
        """Seconds until the next request after `failed` of them, or None where another makes no sense."""
        if not error.fault.may_pass or failed >= self._most(error.fault):
            return None
        wanted = error.retry_after or 0.0
        if wanted > self.patience:
            return None
        # All that were refused together should not come back together.
        spread = (1.0 + self.draw()) / 2
        return max(wanted + self.base * self.draw(), min(self.cap, self.base * 2.0 ** (failed - 1)) * spread)

    def _most(self, fault: Fault) -> int:
        return {Fault.RATE_LIMIT: self.rate_limited, Fault.TIMEOUT: self.timed_out}.get(fault, self.attempts)


# Where a run keeps what it has used up, over all its starts.


class Ledger(Protocol):
    """The calls and dollars of a run; `coeval.storage.meta.Meta` is one that lasts."""

    @property
    def spent_usd(self) -> float:
        """Dollars so far."""
        ...

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a request, unless the model has had as many as it may; then False, and nothing is counted."""
        ...

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        ...


class Tally:
    """A ledger of this process alone, for what belongs to no run."""

    def __init__(self) -> None:
        self.quota_used: dict[str, int] = {}
        self.spent_usd = 0.0

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a request, unless the model has had as many as it may."""
        used = self.quota_used.get(model, 0)
        if limit is not None and used >= limit:
            return False
        self.quota_used[model] = used + 1
        return True

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        self.spent_usd += usd


# A hard budget in dollars: what a request may cost is set aside before it is sent, and settled after.
#
# That is at list prices, with one token for each three bytes of the prompt and as many tokens of answer as it may have
# (1,024 where the request does not say). So spending exceeds the budget by no more than what the answers in flight cost
# above that: nothing where each model has a `max_tokens`.

_BYTES_PER_TOKEN = 3  # fewer than in any language that tokenizers were trained on
_FRAME = 16  # tokens around the messages
_USUAL_ANSWER = 1024
_ROUNDING = 1e-9


def most_tokens(request: JSON) -> tuple[int, int]:
    """Tokens of prompt and answer that a request is set aside for."""
    texts = (str(message.get("content") or "") for message in request["messages"])
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return size // _BYTES_PER_TOKEN + _FRAME, limit_of(request) or _USUAL_ANSWER


class Budget:
    """What is left, with the requests in flight in mind."""

    def __init__(self, limit: float | None, ledger: Ledger) -> None:
        self._limit, self._ledger = limit, ledger
        self._held = 0.0
        self._flights = 0
        self._landed = asyncio.Event()

    async def hold(self, usd: float) -> None:
        """Set dollars aside; waits for requests in flight where these may leave enough.

        Raises:
            CallError: there is not enough left, and nothing in flight.
        """
        # What costs nothing is asked when all is spent, too.
        while usd and self._limit is not None and self._ledger.spent_usd + self._held + usd > self._limit + _ROUNDING:
            if not self._flights:
                raise CallError(Reason.BUDGET, self._message(usd))
            self._landed.clear()
            await self._landed.wait()
        # Only what costs can leave something when it lands.
        self._flights += usd > 0
        self._held += usd

    def settle(self, held: float, cost: float) -> None:
        """Give back what was set aside, and count what it cost."""
        self._flights -= held > 0
        self._held = self._held - held if self._flights else 0.0
        if cost:
            self._ledger.add_spent(cost)
        self._landed.set()

    def _message(self, usd: float) -> str:
        spent = self._ledger.spent_usd
        return f"the budget of ${self._limit:g} is used up: ${spent:.4f} are spent, and this call may cost ${usd:.4f}"
