"""The asynchronous engine: many requests in, few forward passes through one model, each request its answer.

A prompt is tokenised by a pool of threads; its answer is looked up among the recent ones; a prompt that is already on
its way is waited for, not computed twice; the rest goes into a bounded queue, from which computing threads take
batches. A prompt that nobody waits for any more leaves the queue before it costs anything.

Everything but the two kinds of threads happens in one event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from p2l.errors import P2LError
from p2l.inference import P2L, Encoded
from p2l.serving.answer import Answer, BusyError
from p2l.serving.cache import AnswerCache
from p2l.serving.compute import Outcome
from p2l.serving.jobs import BatchLimits, Job
from p2l.serving.station import Station
from p2l.serving.tokenizing import GroupTokenizer
from p2l.serving.watchers import NO_WATCHER, Watcher

__all__ = ["Engine", "EngineOptions"]

_Key = tuple[str, bytes]


@dataclass(frozen=True)
class EngineOptions:
    """How much the engine holds at once."""

    limits: BatchLimits
    queue_size: int = 1024
    """Prompts that may be between arrival and answer."""
    cache_size: int = 8192
    """Answers kept, the least recently used are forgotten first."""
    tokenizer_threads: int = 2


class Engine:
    """Answers prompts with the model that it holds; make and use it inside one event loop."""

    def __init__(self, model: P2L, options: EngineOptions, watcher: Watcher = NO_WATCHER) -> None:
        """Start the threads."""
        self.model = model
        self._options = options
        self._watcher = watcher
        self._pending = 0
        self._flying: dict[_Key, Job] = {}
        self._cache = AnswerCache(options.cache_size)
        self._tokenizer = GroupTokenizer(options.tokenizer_threads)
        self._station = Station(options.limits, options.queue_size, self._report)
        self._closed = False
        self._last_answer = -float("inf")

    @property
    def pending(self) -> int:
        """Prompts that were accepted and not answered yet."""
        return self._pending

    @property
    def alive(self) -> bool:
        """Whether the threads that compute are running."""
        return not self._closed and self._station.alive

    async def ask(
        self, prompts: Sequence[Sequence[str]], *, model: P2L | None = None, fresh: bool = False
    ) -> list[Answer]:
        """The answers for prompts, each the list of its turns, all by one model (the present one) and in their order.

        Cancelling it drops what no other request wants. `fresh` looks nothing up.

        Raises:
            BusyError: there is no room for so many prompts now, or the engine is closing.
            InputError: a prompt that cannot be encoded, or is too large for the memory.
            ModelFailedError: the model could not compute.
        """
        if self._closed:
            raise BusyError("the service is shutting down")
        if self._pending + len(prompts) > self._options.queue_size:
            self._watcher.refused(len(prompts))
            raise BusyError(f"{self._pending} prompts are waiting already; try again in a moment")
        self._pending += len(prompts)
        self._watcher.entered(len(prompts))
        try:
            model = model or self.model
            encoded = await self._tokenizer.encode(model, prompts, here=not self._station.limits.streams)
            return await self._answers(model, encoded, fresh)
        finally:
            self._pending -= len(prompts)
            self._watcher.left(len(prompts))

    async def check(self, seconds: float) -> bool:
        """Whether the model answers: it did within the last `seconds`, or does now within that time."""
        if not self.alive:
            return False
        if time.monotonic() - self._last_answer < seconds:
            return True
        with contextlib.suppress(P2LError, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self.ask([["Are you there?"]], fresh=True), seconds)
            return True
        return False

    def replace_model(self, model: P2L, limits: BatchLimits | None = None) -> None:
        """Ask another model from now on, in its own way; what was accepted before is answered by the one before."""
        self.model = model
        self._cache.clear()
        if limits is not None and limits != self._station.limits:
            self._station.close()
            self._station = Station(limits, self._options.queue_size, self._report)

    async def close(self) -> None:
        """Answer what was accepted, then end the threads."""
        self._closed = True
        while self._pending:
            await asyncio.sleep(0.01)
        self._station.close()
        await self._station.ended()
        self._tokenizer.close()

    async def _answers(self, model: P2L, encoded: Sequence[Encoded], fresh: bool) -> list[Answer]:
        """Look up, wait for what is on its way, and queue the rest: all of it or nothing."""
        keys = [(model.revision, prompt.key) for prompt in encoded]
        known = {} if fresh else {key: answer for key in keys if (answer := self._cache.get(key)) is not None}
        self._watcher.looked_up(hits=sum(key in known for key in keys), prompts=len(keys))
        station = self._station
        wanted: dict[_Key, Job] = {}
        new: list[Job] = []
        for key, prompt in zip(keys, encoded, strict=True):
            if key in known or key in wanted:
                continue
            if key not in self._flying or fresh:
                new.append(Job(model, prompt, asyncio.get_running_loop().create_future(), station.queue))
                wanted[key] = new[-1]
            else:
                wanted[key] = self._flying[key]
        if new and not station.put(new):
            raise BusyError("too many prompts are waiting already; try again in a moment")
        self._flying |= {key: job for key, job in wanted.items() if not job.future.done()}
        try:
            for job in wanted.values():
                job.waiting += 1
            found = await asyncio.gather(*(asyncio.shield(job.future) for job in wanted.values()))
        finally:
            for key, job in wanted.items():
                self._leave(key, job)
        known |= zip(wanted, found, strict=True)
        self._cache.put_all(dict(zip(wanted, found, strict=True)))
        return [known[key] for key in keys]

    def _leave(self, key: _Key, job: Job) -> None:
        """One request wants the job no longer."""
        job.waiting -= 1
        if job.waiting == 0:
            if self._flying.get(key) is job:
                del self._flying[key]
            if not job.future.done() and job.queue.discard(job):
                self._watcher.dropped()
                job.future.cancel()

    def _report(self, outcomes: Sequence[tuple[Job, Outcome]], seconds: float) -> None:
        self._watcher.computed(len(outcomes), sum(job.size for job, _ in outcomes), seconds)
        if any(isinstance(outcome, Answer) for _, outcome in outcomes):
            self._last_answer = time.monotonic()
        for job, outcome in outcomes:
            if job.future.done() or job.waiting == 0:
                continue
            if isinstance(outcome, Answer):
                job.future.set_result(outcome)
            else:
                job.future.set_exception(outcome)
