"""A hard budget in dollars: what a request may cost is set aside before it is sent, and settled after.

That is at list prices, with one token for each three bytes of the prompt and as many tokens of answer as it may have
(1,024 where the request does not say). So spending exceeds the budget by no more than what the answers in flight cost
above that: nothing where each model has a `max_tokens`.
"""

from __future__ import annotations

import asyncio

from coeval.calling.call import CallError, Reason
from coeval.calling.quota import Ledger
from coeval.calling.requests import limit_of
from route.providers.base import JSON

__all__ = ["Budget", "most_tokens"]

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
