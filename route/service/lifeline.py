"""A request lives as long as its client is there and its time is not up; whichever ends first cancels the work.

Everything happens in the task of the request itself: a second task listens for the end of the connection, a timer for
the deadline, and both cancel the first. So closing a provider's connection needs no code of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Receive

from route.service.errors import ApiError, Gone

__all__ = ["Deadline", "alive"]


@dataclass(frozen=True)
class Deadline:
    """When a request has to be over, by the clock of the event loop."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(asyncio.get_running_loop().time() + seconds)

    def left(self) -> float:
        """Seconds; negative when it is over."""
        return self.at - asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def alive(receive: Receive, deadline: Deadline) -> AsyncIterator[None]:
    """Run the block while the client is there and the deadline is not over; the body must have been read.

    Raises:
        Gone: the client left.
        ApiError: 504, the time is up.
    """
    task = asyncio.current_task()
    assert task is not None
    reason: list[Exception] = []

    def end(why: Exception) -> None:
        if not reason:
            reason.append(why)
            task.cancel()

    timer = asyncio.get_running_loop().call_at(deadline.at, end, _late())
    listener = asyncio.ensure_future(_leaves(receive))
    listener.add_done_callback(lambda done: None if done.cancelled() else end(Gone()))
    try:
        yield
    except asyncio.CancelledError:
        if not reason:
            raise
        if hasattr(task, "uncancel"):  # from Python 3.11
            task.uncancel()
        raise reason[0] from None
    finally:
        timer.cancel()
        listener.cancel()


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _late() -> ApiError:
    return ApiError(504, "deadline_exceeded", "the time of this request was up before its answer was complete")
