"""What P2L said of recent prompts: a prompt that comes again costs nothing, and one on its way is asked for once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from route.decision import Coefficients

__all__ = ["Ask", "Memory"]

Ask: TypeAlias = "Callable[[Sequence[str]], Awaitable[Coefficients | None]]"
"""Coefficients for the user's turns; None where there are none."""


class Memory:
    """A bounded cache in front of `ask`, for one event loop.

    Prompts are kept as digests only. An entry of 130 models takes about 8 kB. The one used longest ago goes first.
    """

    def __init__(self, ask: Ask, *, capacity: int = 2000, most_waiting: int = 256) -> None:
        """`capacity` prompts are kept; while `most_waiting` are being asked for, further ones get None at once."""
        self._ask = ask
        self._capacity = capacity
        self._most_waiting = most_waiting
        self._kept: OrderedDict[bytes, Coefficients] = OrderedDict()
        self._waiting: dict[bytes, asyncio.Task[Coefficients | None]] = {}

    def recall(self, turns: Sequence[str], revision: str) -> Coefficients | None:
        """What this revision of the model said of the prompt, if that is known."""
        key = _key(turns, revision)
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    async def ask(self, turns: Sequence[str], timeout: float | None) -> Coefficients | None:
        """Ask for the prompt, or join those who wait for it.

        Args:
            turns: of the user.
            timeout: seconds; the answer is remembered even if it comes later.

        Raises:
            TimeoutError: there is no answer yet.
        """
        key = _key(turns)
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= self._most_waiting:
                return None
            task = self._waiting[key] = asyncio.create_task(self._asked(key, turns))
        # Unlike wait_for, this leaves the task alone when the time is over or the request is cancelled.
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        """Ask no more."""
        tasks = list(self._waiting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _asked(self, waiting: bytes, turns: Sequence[str]) -> Coefficients | None:
        try:
            said = await self._ask(turns)
        finally:
            del self._waiting[waiting]
        if said is not None:
            self._kept[_key(turns, said.revision)] = said
            if len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        return said


def _key(turns: Sequence[str], revision: str = "") -> bytes:
    """A digest of both; lengths keep turns apart."""
    found = hashlib.blake2b(digest_size=20)
    for text in (revision, *turns):
        content = text.encode("utf-8", "surrogatepass")
        found.update(len(content).to_bytes(8, "little") + content)
    return found.digest()
