"""The asynchronous batcher: many requests in, few forward passes through one model, each request its answer.

A prompt is tokenised in a thread, a short one of a light model at once, a long one in threads for such; its answer is
looked up among the recent ones; a prompt that is already on its way is waited for, not computed twice; the rest goes
into a bounded queue, from which computing threads take batches. A prompt that nobody waits for any more leaves the
queue before it costs anything.

Everything but these threads happens in one event loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from array import array
from asyncio import AbstractEventLoop, Future
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
import torch

from p2l.common.cache import LRUCache
from p2l.common.errors import InputError, P2LError
from p2l.common.long_texts import LONG, LongWork
from p2l.common.long_texts import BusyError as BusyError
from p2l.inference import P2L, Prediction, free_memory, is_out_of_memory
from p2l.model.encoding import Encoding
from p2l.serving.metrics import Metrics
from p2l.serving.score_cache import Answer, ScoreCache


class TooLargeError(InputError):
    """A prompt alone does not fit into the memory of the device."""


class ModelFailedError(P2LError):
    """The forward pass failed for a reason that is not the client's."""


# Prompts that wait for a forward pass, and the choice of those that share one.
#
# The queue is bounded, first come first served, and read by the threads that compute.

_FULL_PASS_TOKENS = 160
"""Tokens of a pass on a CPU that more tokens would hardly make cheaper, for each of them."""


@dataclass(frozen=True)
class BatchLimits:
    """Size of one forward pass, and its wait for more prompts."""

    tokens: int
    """Most tokens of a pass; a longer prompt goes alone."""
    prompts: int
    wait: float
    """Seconds that the oldest prompt may wait for company; 0 takes what is there."""
    company: float = 0.0
    """Seconds that the oldest prompt may wait for company while another thread computes."""
    threads: int | None = None
    """OpenMP threads of a pass that is alone; None leaves torch's number."""
    streams: int = 1
    """Threads that compute: each takes its share of the tokens that wait, so that none is left without. 0 computes in
    the event loop: right for passes so short that handing them to a thread takes longer."""


@dataclass(eq=False, slots=True)
class Job:
    """One different prompt on its way through the model."""

    model: P2L
    encoded: Encoding
    future: Future[Answer]
    queue: JobQueue
    """The queue that it waits in."""
    waiting: int = 0
    """Requests that wait for the answer."""
    since: float = field(default_factory=time.monotonic)
    size: int = field(init=False)
    """Tokens; kept, as batching asks for it often."""

    def __post_init__(self) -> None:
        """Count the tokens."""
        self.size = len(self.encoded.ids)


class JobQueue:
    """Jobs in order of arrival; safe to use from any thread."""

    def __init__(self, capacity: int, limits: BatchLimits) -> None:
        """Start empty; at most `capacity` jobs wait."""
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
        """Add all jobs and return True, or none and return False where there is no room or the queue is closed."""
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
        """Return the next batch, of one model, for a thread that computes; wait for it.

        Threads have numbers: 0 is asked first, the others while it is busy. Empty when the queue is closed and nothing
        waits.
        """
        with self._changed:
            self._busy.discard(stream)
            while self._jobs or not self._closed:
                left = self._left_to_wait() if stream == 0 or 0 in self._busy else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            self._changed.notify_all()
            if not self._jobs:
                return []
            self._busy.add(stream)
            batch: list[Job] = []
            # Each thread takes its share, so that none is left without.
            room = min(self.limits.tokens, -(-self._tokens // max(1, self.limits.streams)))
            for job in self._jobs:
                if batch and (job.size > room or job.model is not batch[0].model or len(batch) >= self.limits.prompts):
                    break
                batch.append(job)
                room -= job.size
            for job in batch:
                self._remove(job)
            return batch

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
        """Return the seconds until the next batch is due; None while there is nothing."""
        if not self._jobs:
            return None
        limits = self.limits
        if self._closed or self._tokens >= limits.tokens or len(self._jobs) >= limits.prompts:
            return 0.0
        wait = limits.wait
        # Clients that were answered together come back together, and some prompts at once take less time each.
        if self._busy and self._tokens < _FULL_PASS_TOKENS:
            wait = max(wait, limits.company)
        return next(iter(self._jobs)).since + wait - time.monotonic()

    def _remove(self, job: Job) -> None:
        del self._jobs[job]
        self._tokens -= job.size


# Threads that compute: they take batches from the queue, run the model, hand the answers back.
#
# When a batch does not fit into memory it is halved until it does; a prompt that does not fit alone gets an error, and
# the thread goes on.

Outcome = Answer | Exception
Report = Callable[[Sequence[tuple[Job, Outcome]], float], None]
"""Called in the event loop with each batch's jobs and outcomes, and the seconds that the batch took."""
_log = logging.getLogger("p2l.serving")


def start_streams(queue: JobQueue, loop: AbstractEventLoop, report: Report) -> list[threading.Thread]:
    """Start the threads that compute; they end when the queue is closed and empty."""
    streams = queue.limits.streams
    cores = queue.limits.threads or torch.get_num_threads()
    if not streams:
        torch.set_num_threads(cores)

    def run(number: int) -> None:
        was_quiet = False
        threads = 0
        while batch := queue.take(number):
            quiet = queue.is_quiet
            # On a CPU each thread has its part of the cores: two prompts beside each other on one core each take less
            # time than one after the other on both. Only the first thread takes all cores, when it has been alone for a
            # while: OpenMP keeps helpers for each thread that ever used several, and with more helpers than cores they
            # sleep between the steps of a pass, which makes it several times as slow.
            alone = streams == 1 or (number == 0 and quiet and was_quiet)
            share = cores if alone else max(1, cores // streams)
            if threads != share:
                threads = share
                torch.set_num_threads(threads)
            was_quiet = quiet
            loop.call_soon_threadsafe(report, *compute(queue, batch))

    threads = [
        threading.Thread(target=run, args=(number,), name=f"p2l-compute-{number}", daemon=True)
        for number in range(streams)
    ]
    for thread in threads:
        thread.start()
    return threads


def compute(queue: JobQueue, batch: Sequence[Job]) -> tuple[list[tuple[Job, Outcome]], float]:
    """Return each job of a batch with its answer or error, and the seconds that it took."""
    started = time.monotonic()
    outcomes = list(zip(batch, _outcomes(queue, batch), strict=True))
    return outcomes, time.monotonic() - started


def _outcomes(queue: JobQueue, batch: Sequence[Job]) -> list[Outcome]:
    """Return an answer or an error for each job."""
    try:
        prediction = batch[0].model.answer([job.encoded for job in batch], max_batch_tokens=queue.limits.tokens)
        return _answers(prediction, batch[0].model.revision)
    except Exception as error:
        if not is_out_of_memory(error):
            # The text of the error is left out: nobody knows what of the prompt is in it.
            _log.error("a forward pass of %d prompts failed: %s", len(batch), type(error).__name__)
            return [ModelFailedError("the model failed on this prompt")] * len(batch)
    # Beyond the `except` block: the error would hold the tensors whose memory is freed here.
    free_memory()
    size = sum(job.size for job in batch)
    if len(batch) == 1:
        _log.warning("a prompt of %d tokens does not fit into memory", size)
        return [TooLargeError(f"the prompt has {size} tokens, more than fit into the memory here; send a shorter one")]
    queue.limits = replace(queue.limits, tokens=max(1, min(queue.limits.tokens, size // 2)))
    _log.warning("out of memory with %d tokens; batches hold at most %d from now on", size, queue.limits.tokens)
    middle = len(batch) // 2
    return [*_outcomes(queue, batch[:middle]), *_outcomes(queue, batch[middle:])]


def _answers(prediction: Prediction, revision: str) -> list[Outcome]:
    coefs, eta, gamma, variances = prediction.coefs, prediction.eta, prediction.gamma, prediction.variances
    familiarity = prediction.familiarity
    outcomes: list[Outcome] = []
    for row in range(len(coefs)):
        if not np.isfinite(coefs[row]).all():
            outcomes.append(ModelFailedError("the model gave no finite coefficients for this prompt"))
            continue
        answer = Answer(
            coefs=array("f", coefs[row].tobytes()),
            eta=None if eta is None else float(eta[row]),
            gamma=None if gamma is None else float(gamma[row]),
            truncated=bool(prediction.truncated[row]),
            revision=revision,
            variances=None if variances is None else array("f", variances[row].tobytes()),
            familiarity=None if familiarity is None else float(familiarity[row]),
        )
        outcomes.append(answer)
    return outcomes


_Key = tuple[str, bytes]
_CHARS_ENCODED_AT_ONCE = 4_000  # tokenised in less time than a thread takes to answer
_CHARS_OF_A_TURN = 20  # that take as long as a turn of none


class _ComputePool:
    """A queue and the threads that compute from it, for one event loop; `report` is called there with the outcomes."""

    def __init__(self, limits: BatchLimits, capacity: int, report: Report) -> None:
        """Start the threads."""
        self.limits = limits
        self.queue = JobQueue(capacity, limits)
        self._report = report
        self._loop = asyncio.get_running_loop()
        self.threads = start_streams(self.queue, self._loop, report)

    def put(self, jobs: Sequence[Job]) -> bool:
        """Queue all jobs and return True, or none and return False where there is no room or the pool is closed."""
        accepted = self.queue.put(jobs)
        if accepted and not self.threads:
            self._loop.call_soon(self._compute_here)
        return accepted

    def _compute_here(self) -> None:
        """Compute a batch without a thread; between two batches the event loop does what else there is."""
        if len(self.queue):
            self._report(*compute(self.queue, self.queue.take()))
            self._loop.call_soon(self._compute_here)


class Batcher:
    """Answers prompts with the model that it holds; make and use it inside one event loop."""

    def __init__(
        self,
        model: P2L,
        limits: BatchLimits,
        metrics: Metrics | None = None,
        *,
        queue_size: int = 1024,
        cache_size: int = 8192,
        shared: ScoreCache | None = None,
    ) -> None:
        """Start the threads.

        At most `queue_size` prompts may be between arrival and answer; of the answers the `cache_size` that were used
        last are kept, and those of other workers come from `shared`.
        """
        self.model = model
        self._metrics = metrics or Metrics()
        self._queue_size = queue_size
        self.pending = 0
        """Prompts that were accepted and not answered yet."""
        self._flying: dict[_Key, Job] = {}
        self._cache: LRUCache[_Key, Answer] = LRUCache(cache_size)
        self._shared = shared
        self._pool = _ComputePool(limits, queue_size, self._report)
        self.long_work = LongWork()
        self._closed = False
        self._last_answer = -float("inf")

    @property
    def alive(self) -> bool:
        """Whether the threads that compute are running."""
        return not self._closed and all(thread.is_alive() for thread in self._pool.threads)

    async def ask(
        self, prompts: Sequence[Sequence[str]], *, model: P2L | None = None, fresh: bool = False
    ) -> list[Answer]:
        """Answer prompts, each the list of its turns, all by one model (the present one) and in their order.

        Cancelling it drops what no other request wants. `fresh` looks nothing up. BusyError if there is no room for the
        prompts now or the service is closing, InputError for a prompt that cannot be encoded or does not fit into
        memory, ModelFailedError if the model cannot compute.
        """
        if self._closed:
            raise BusyError("the service is shutting down")
        if self.pending + len(prompts) > self._queue_size:
            self._metrics.full.inc(len(prompts))
            raise BusyError(f"{self.pending} prompts are waiting already; try again in a moment")
        self.pending += len(prompts)
        self._metrics.pending.inc(len(prompts))
        try:
            model = model or self.model
            return await self._answers(model, await self._encode(model, prompts), fresh)
        finally:
            self.pending -= len(prompts)
            self._metrics.pending.dec(len(prompts))

    async def check(self, seconds: float) -> bool:
        """Return whether the model answers: it did within the last `seconds`, or does now within that time."""
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
        if limits is not None and limits != self._pool.limits:
            self._pool.queue.close()  # what waits there is still computed, and then its threads end
            self._pool = _ComputePool(limits, self._queue_size, self._report)

    async def close(self) -> None:
        """Answer what was accepted, then end the threads."""
        self._closed = True
        while self.pending:  # cancelled requests leave too, and no event tells of the last one
            await asyncio.sleep(0.01)
        self._pool.queue.close()
        for thread in self._pool.threads:
            await asyncio.to_thread(thread.join)
        self.long_work.close()

    async def _encode(self, model: P2L, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        size = sum(map(len, chain.from_iterable(prompts))) + _CHARS_OF_A_TURN * sum(map(len, prompts))
        if size > LONG:
            return await self.long_work.run(size, partial(model.encode, prompts))
        if size <= _CHARS_ENCODED_AT_ONCE and not self._pool.limits.streams:
            return model.encode(prompts)
        return await asyncio.to_thread(model.encode, prompts)

    async def _answers(self, model: P2L, encoded: Sequence[Encoding], fresh: bool) -> list[Answer]:
        """Look up, wait for what is on its way, and queue the rest: all of it or nothing."""
        keys = [(model.revision, prompt.key) for prompt in encoded]
        self._metrics.prompts.inc(len(keys))
        known = {} if fresh else await self._look_up(model, keys)
        pool = self._pool
        jobs: dict[_Key, Job] = {}
        new: list[Job] = []
        for key, prompt in zip(keys, encoded, strict=True):
            if key in known or key in jobs:
                continue
            if key not in self._flying or fresh:
                new.append(Job(model, prompt, asyncio.get_running_loop().create_future(), pool.queue))
                jobs[key] = new[-1]
            else:
                jobs[key] = self._flying[key]
        if new and not pool.put(new):
            raise BusyError("too many prompts are waiting already; try again in a moment")
        self._flying |= {key: job for key, job in jobs.items() if not job.future.done()}
        try:
            for job in jobs.values():
                job.waiting += 1
            # Shielded: a client that leaves must not cancel what others wait for.
            answers = await asyncio.gather(*(asyncio.shield(job.future) for job in jobs.values()))
        finally:
            for key, job in jobs.items():
                self._leave(key, job)
        known |= zip(jobs, answers, strict=True)
        for key, answer in zip(jobs, answers, strict=True):
            self._cache.put(key, answer)
        if self._shared is not None and new:
            self._shared.put({key[1]: known[key] for key, job in jobs.items() if job in new})
        return [known[key] for key in keys]

    async def _look_up(self, model: P2L, keys: Sequence[_Key]) -> dict[_Key, Answer]:
        """Return the answers that are there: the recent ones, and what other workers have computed."""
        known = {key: answer for key in keys if (answer := self._cache.get(key)) is not None}
        self._metrics.cache_hits.inc(sum(key in known for key in keys))
        if self._shared is not None:
            missing = [key for key in dict.fromkeys(keys) if key not in known and key not in self._flying]
            shared = await self._shared.get(model, [prompt for _, prompt in missing])
            self._metrics.shared_hits.inc(len(shared))
            for prompt, answer in shared.items():
                known[(model.revision, prompt)] = answer
                self._cache.put((model.revision, prompt), answer)
        return known

    def _leave(self, key: _Key, job: Job) -> None:
        """Note that a request wants the job no longer."""
        job.waiting -= 1
        if job.waiting == 0:
            if self._flying.get(key) is job:
                del self._flying[key]
            if not job.future.done() and job.queue.discard(job):
                self._metrics.gone.inc()
                job.future.cancel()

    def _report(self, outcomes: Sequence[tuple[Job, Outcome]], seconds: float) -> None:
        self._metrics.batch_prompts.observe(len(outcomes))
        self._metrics.batch_tokens.observe(sum(job.size for job, _ in outcomes))
        self._metrics.batch_seconds.observe(seconds)
        if any(isinstance(outcome, Answer) for _, outcome in outcomes):
            self._last_answer = time.monotonic()
        for job, outcome in outcomes:
            # An error that nobody waits for would be logged as never retrieved.
            if job.future.done() or job.waiting == 0:
                continue
            if isinstance(outcome, Answer):
                job.future.set_result(outcome)
            else:
                job.future.set_exception(outcome)
