"""A thread that computes: takes batches from the queue, runs the model, hands the answers back.

When a batch does not fit into memory it is halved until it does; a prompt that does not fit alone gets an error, and
the thread goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from p2l.inference import Prediction
from p2l.out_of_memory import free_memory, is_out_of_memory
from p2l.serving.answer import Answer, ModelFailedError, TooLargeError
from p2l.serving.jobs import Job, JobQueue

__all__ = ["Cores", "Outcome", "Report", "start_stream"]

Outcome = Answer | Exception
Report = Callable[[Sequence[tuple[Job, Outcome]], float], None]
"""Called in the event loop with each batch's jobs and outcomes, and the seconds that the batch took."""

_log = logging.getLogger("p2l.serving")


class Cores:
    """Shares the cores among the threads that compute: a thread that is alone gets all, several get their part."""

    def __init__(self, streams: int) -> None:
        """Take torch's number of threads for the number of cores."""
        self._streams = streams
        self._cores = torch.get_num_threads()
        self._busy = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def share(self, queue: JobQueue) -> Iterator[None]:
        """Compute with a fitting number of threads inside."""
        if self._streams == 1:
            yield
            return
        with self._lock:
            self._busy += 1
            alone = self._busy == 1 and not len(queue)
        # The number is kept by each thread for itself.
        torch.set_num_threads(self._cores if alone else max(1, self._cores // self._streams))
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1


def start_stream(queue: JobQueue, loop: AbstractEventLoop, report: Report, cores: Cores) -> threading.Thread:
    """Start a thread that ends when the queue is closed and empty."""

    def run() -> None:
        while batch := queue.take():
            started = time.monotonic()
            with cores.share(queue):
                outcomes = list(zip(batch, _outcomes(queue, batch), strict=True))
            loop.call_soon_threadsafe(report, outcomes, time.monotonic() - started)

    thread = threading.Thread(target=run, name="p2l-compute", daemon=True)
    thread.start()
    return thread


def _outcomes(queue: JobQueue, batch: Sequence[Job]) -> list[Outcome]:
    """An answer or an error for each job."""
    try:
        said = batch[0].model.answer([job.encoded for job in batch], max_batch_tokens=queue.limits.tokens)
        return _answers(said, batch[0].model.revision)
    except Exception as error:
        if not is_out_of_memory(error):
            # The text of the error is left out: nobody knows what of the prompt is in it.
            _log.error("a forward pass of %d prompts failed: %s", len(batch), type(error).__name__)
            return [ModelFailedError("the model failed on this prompt")] * len(batch)
    return _in_halves(queue, batch)


def _in_halves(queue: JobQueue, batch: Sequence[Job]) -> list[Outcome]:
    free_memory()
    size = sum(job.size for job in batch)
    if len(batch) == 1:
        _log.warning("a prompt of %d tokens does not fit into memory", size)
        return [TooLargeError(f"the prompt has {size} tokens, more than fit into the memory here; send a shorter one")]
    queue.limits = replace(queue.limits, tokens=max(1, min(queue.limits.tokens, size // 2)))
    _log.warning("out of memory with %d tokens; batches hold at most %d from now on", size, queue.limits.tokens)
    middle = len(batch) // 2
    return [*_outcomes(queue, batch[:middle]), *_outcomes(queue, batch[middle:])]


def _answers(said: Prediction, revision: str) -> list[Outcome]:
    sound = [bool(np.isfinite(coefs).all()) for coefs in said.coefs]
    return [
        Answer(
            coefs=said.coefs[row].tolist(),
            eta=None if said.eta is None else float(said.eta[row]),
            gamma=None if said.gamma is None else float(said.gamma[row]),
            truncated=bool(said.truncated[row]),
            revision=revision,
        )
        if is_sound
        else ModelFailedError("the model gave no finite coefficients for this prompt")
        for row, is_sound in enumerate(sound)
    ]
