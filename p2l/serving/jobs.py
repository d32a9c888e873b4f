"""Prompts that wait for a forward pass, and the choice of those that share one.

The queue is bounded, first come first served, and read by the threads that compute.
"""

from __future__ import annotations

import threading
import time
from asyncio import Future
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2l.inference import P2L, Encoded
from p2l.serving.answer import Answer

__all__ = ["BatchLimits", "Job", "JobQueue"]

_ENOUGH = 160
"""Tokens of a pass on a CPU that more tokens would hardly make cheaper, for each of them."""


@dataclass(frozen=True)
class BatchLimits:
    """How much one forward pass may hold, and how long it may wait to be fuller."""

    tokens: int
    """A longer prompt goes alone."""
    prompts: int
    wait: float
    """Seconds that the oldest prompt may wait for company; 0 takes what is there."""
    company: float = 0.0
    """Seconds that the oldest prompt may wait for company while another thread computes: clients that were answered
    together come back together, and some prompts at once take less time each."""
    threads: int | None = None
    """OpenMP threads of a pass that is alone; None leaves torch's number."""
    streams: int = 1
    """Threads that compute: each takes its share of the tokens that wait, so that none is left without. 0 computes in
    the event loop: right for passes so short that handing them to a thread takes longer."""


@dataclass(eq=False, slots=True)
class Job:
    """One different prompt on its way through the model."""

    model: P2L
    encoded: Encoded
    future: Future[Answer]
    queue: JobQueue
    """In which it waits."""
    waiting: int = 0
    """Requests that want the answer."""
    since: float = field(default_factory=time.monotonic)
    size: int = 0

    def __post_init__(self) -> None:
        """Remember the size, which batching asks for often."""
        self.size = self.encoded.size


class JobQueue:
    """Jobs in order of arrival; safe to use from any thread."""

    def __init__(self, capacity: int, limits: BatchLimits) -> None:
        """At most `capacity` jobs wait."""
        self.capacity = capacity
        self.limits = limits
        self._jobs: OrderedDict[Job, None] = OrderedDict()
        self._tokens = 0
        self._busy: set[int] = set()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, jobs: Sequence[Job]) -> bool:
        """Add all the jobs; False adds none, because there is no room or the queue is closed."""
        with self._changed:
            if self._closed or len(self._jobs) + len(jobs) > self.capacity:
                return False
            for job in jobs:
                self._jobs[job] = None
                self._tokens += job.size
            self._changed.notify_all()
            return True

    def discard(self, job: Job) -> bool:
        """Take out a job that nobody wants any more; False if a thread has it already."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._remove(job)
            return True

    def take(self, stream: int = 0) -> list[Job]:
        """The next batch, of one model, for a thread that computes; waits for it.

        Threads have numbers: 0 is asked first, the others while it is busy. Empty when the queue is closed and nothing
        waits.
        """
        with self._changed:
            self._busy.discard(stream)
            while not self._closed or self._jobs:
                left = self._left_to_wait() if stream == 0 or 0 in self._busy else None
                if left is not None and left <= 0:
                    self._busy.add(stream)
                    self._changed.notify_all()
                    return self._next_batch()
                self._changed.wait(left)
            self._changed.notify_all()
            return []

    @property
    def is_quiet(self) -> bool:
        """Whether one batch is all that there is to do."""
        return len(self._busy) <= 1 and not self._jobs

    def close(self) -> None:
        """Accept nothing more; what waits is still given out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _left_to_wait(self) -> float | None:
        """Seconds until the next batch is due; None while there is nothing."""
        if not self._jobs:
            return None
        limits = self.limits
        if self._closed or self._tokens >= limits.tokens or len(self._jobs) >= limits.prompts:
            return 0.0
        wait = limits.wait
        if self._busy and self._tokens < _ENOUGH:
            wait = max(wait, limits.company)
        return next(iter(self._jobs)).since + wait - time.monotonic()

    def _next_batch(self) -> list[Job]:
        batch: list[Job] = []
        room = min(self.limits.tokens, -(-self._tokens // max(1, self.limits.streams)))
        for job in self._jobs:
            if batch and (job.size > room or job.model is not batch[0].model or len(batch) >= self.limits.prompts):
                break
            batch.append(job)
            room -= job.size
        for job in batch:
            self._remove(job)
        return batch

    def _remove(self, job: Job) -> None:
        del self._jobs[job]
        self._tokens -= job.size
