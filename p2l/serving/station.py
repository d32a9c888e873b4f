"""A queue of prompts and what computes them: threads, or the event loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from p2l.serving.compute import Report, compute, start_streams
from p2l.serving.jobs import BatchLimits, Job, JobQueue

__all__ = ["Station"]


class Station:
    """Belongs to one event loop, in which `report` is called with each batch's outcomes."""

    def __init__(self, limits: BatchLimits, capacity: int, report: Report) -> None:
        """Start the threads."""
        self.limits = limits
        self.queue = JobQueue(capacity, limits)
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._threads = start_streams(self.queue, self._loop, report)

    @property
    def alive(self) -> bool:
        """Whether every thread is running."""
        return all(thread.is_alive() for thread in self._threads)

    def put(self, jobs: Sequence[Job]) -> bool:
        """Queue the jobs; False queues none, because there is no room or the station is closed."""
        accepted = self.queue.put(jobs)
        if accepted and not self._threads:
            self._loop.call_soon(self._compute_here)
        return accepted

    def close(self) -> None:
        """Accept nothing more; what waits is still computed, and then the threads end."""
        self.queue.close()

    async def ended(self) -> None:
        """Wait until the threads of a closed station have ended."""
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _compute_here(self) -> None:
        """One batch, without a thread; between two batches the event loop does what else there is."""
        if len(self.queue):
            self._report(*compute(self.queue, self.queue.take()))
            self._loop.call_soon(self._compute_here)
