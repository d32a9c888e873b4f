"""A request lives as long as its client is there and its time is not up; whichever ends first cancels the work.

Everything happens in the task of the request itself: a second task listens for the end of the connection, a timer for
the deadline, and both cancel the first. So closing a provider's connection needs no code of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from starlette.types import Receive

from route.service.errors import ApiError, Gone


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


class _Ending:
    """Cancels the task that makes it, for a reason that is told apart from other cancellations."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        """Cancel the task; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def reason(self) -> Exception | None:
        """Why the task was cancelled; None when somebody else did it."""
        if self._reason is not None and hasattr(self._task, "uncancel"):  # from Python 3.11
            self._task.uncancel()
        return self._reason


@contextlib.contextmanager
def within(seconds: float, late: Exception) -> Iterator[None]:
    """Run the block, or raise `late` when it takes longer; a fifth of the cost of a cancel scope."""
    ending = _Ending()
    timer = asyncio.get_running_loop().call_later(seconds, ending.end, late)
    try:
        yield
    except asyncio.CancelledError:
        reason = ending.reason()
        if reason is None:
            raise
        raise reason from None
    finally:
        timer.cancel()


@contextlib.asynccontextmanager
async def alive(receive: Receive, deadline: Deadline) -> AsyncIterator[None]:
    """Run the block while the client is there and the deadline is not over; the body must have been read.

    Raises:
        Gone: the client left.
        ApiError: 504, the time is up.
    """
    ending = _Ending()
    listener = asyncio.ensure_future(_leaves(receive))
    listener.add_done_callback(lambda done: None if done.cancelled() else ending.end(Gone()))
    timer = asyncio.get_running_loop().call_at(deadline.at, ending.end, _late())
    try:
        yield
    except asyncio.CancelledError:
        reason = ending.reason()
        if reason is None:
            raise
        raise reason from None
    finally:
        timer.cancel()
        listener.cancel()


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _late() -> ApiError:
    return ApiError(504, "deadline_exceeded", "the time of this request was up before its answer was complete")
