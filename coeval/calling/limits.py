"""What holds calls back: concurrency and rates of providers, retries, quotas and the budget."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from coeval.calling.calls import CallError, Reason, limit_of
from coeval.interfaces import in_flight
from coeval.storage.meta import Meta
from p2l.common.retry import RetryPolicy
from route.providers.base import JSON, Fault, ProviderError


class Turns:
    """The turns at one interface: limited calls in flight, limited calls a minute, none while it is paused."""

    def __init__(self, concurrency: int, per_minute: float | None = None) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = self._paused_until = float("-inf")

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncGenerator[None, None]:  # noqa: ARG002
        """Wait for a turn of a model and hold it."""
        async with self._free:
            clock = asyncio.get_running_loop().time
            if self._gap:
                # The slot is taken before the wait, so that calls that wait together are spread too.
                slot = max(clock(), self._next, self._paused_until)
                self._next = slot + self._gap
                await asyncio.sleep(slot - clock())
            while clock() < self._paused_until:  # it may be paused anew meanwhile
                await asyncio.sleep(self._paused_until - clock())
            yield

    def pause(self, seconds: float) -> None:
        """Let no turn begin for a while."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)


class OneModelAtATime(Turns):
    """Turns where changing the model is expensive: the current model keeps its turns while any of its calls waits."""

    def __init__(self) -> None:
        super().__init__(1)
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncGenerator[None, None]:
        """Wait for a turn of a model and hold it."""
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
        """Give the turn to the next call of the same model, else to the model that has waited longest."""
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
        """Set the calls in flight (see `in_flight`) and, evenly spread, the calls a minute of each interface."""
        self._concurrency, self._per_minute = concurrency, per_minute
        self._turns: dict[str, Turns] = {}

    def at(self, interface: str) -> Turns:
        """Return the turns at an interface."""
        if interface not in self._turns:
            limits = in_flight(self._concurrency, interface), self._per_minute.get(interface)
            self._turns[interface] = OneModelAtATime() if interface == "huggingface" else Turns(*limits)
        return self._turns[interface]


@dataclass(frozen=True)
class Retries(RetryPolicy):
    """Whether to ask a provider again, and when."""

    longest_retry_after: float = 300.0
    rate_limited: int = 12  # most attempts where the provider is only overloaded, which passes
    timed_out: int = 3  # most attempts where an answer takes too long, as each costs the whole timeout

    def wait(self, error: ProviderError, failed: int) -> float | None:
        """Return the seconds until the next request after `failed` of them; None if another makes no sense."""
        if not error.fault.is_transient:
            return None
        attempts = {Fault.RATE_LIMIT: self.rate_limited, Fault.TIMEOUT: self.timed_out}.get(error.fault)
        return self.pause(failed, error.retry_after, attempts=attempts)


class MemoryLedger:
    """A ledger of this process alone, for calls that belong to no run."""

    def __init__(self) -> None:
        self.quota_used = Counter[str]()
        self.spent_usd = 0.0

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a request; return False, and count nothing, if the model has no calls left."""
        if limit is not None and self.quota_used[model] >= limit:
            return False
        self.quota_used[model] += 1
        return True

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        self.spent_usd += usd


Ledger: TypeAlias = Meta | MemoryLedger  # counts the calls and dollars of a run; `Meta` over all of its starts

# A hard budget: the most that a request may cost is held before it is sent, and settled after. That is at list prices,
# with one token for each three bytes of the prompt and as many tokens of answer as the request allows (1,024 if it does
# not say). So spending exceeds the budget by no more than what the answers in flight cost above that: nothing where
# each model has a `max_tokens`.

_BYTES_PER_TOKEN = 3  # fewer than in any language that tokenizers were trained on
_TOKENS_AROUND_MESSAGES = 16
_USUAL_ANSWER_TOKENS = 1024
ROUNDING = 1e-9  # dollars: a budget that fits exactly must not fail by the last digit of a sum


def most_tokens(request: JSON) -> tuple[int, int]:
    """Return upper bounds of a request's prompt and answer tokens."""
    texts = (str(message.get("content") or "") for message in request["messages"])
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return size // _BYTES_PER_TOKEN + _TOKENS_AROUND_MESSAGES, limit_of(request) or _USUAL_ANSWER_TOKENS


class Budget:
    """What is left of the budget, with the requests in flight in mind."""

    def __init__(self, limit: float | None, ledger: Ledger) -> None:
        self._limit, self._ledger = limit, ledger
        self._held = 0.0
        self._in_flight = 0
        self._settled = asyncio.Event()

    async def hold(self, usd: float) -> None:
        """Hold dollars, waiting for requests in flight that may leave enough. Raise CallError if nothing can."""
        # A free request is sent even when all is spent.
        while usd and self._limit is not None and self._ledger.spent_usd + self._held + usd > self._limit + ROUNDING:
            if not self._in_flight:
                spent = f"${self._ledger.spent_usd:.4f} are spent, and this call may cost ${usd:.4f}"
                raise CallError(Reason.BUDGET, f"the budget of ${self._limit:g} is used up: {spent}")
            self._settled.clear()
            await self._settled.wait()
        # Only a request that costs can leave something.
        self._in_flight += usd > 0
        self._held += usd

    def settle(self, held: float, cost: float) -> None:
        """Release what was held, and count what the request cost."""
        self._in_flight -= held > 0
        self._held = self._held - held if self._in_flight else 0.0
        if cost:
            self._ledger.add_spent(cost)
        self._settled.set()
