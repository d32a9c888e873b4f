"""Threads that compute: they take batches from the queue, run the model, hand the answers back.

When a batch does not fit into memory it is halved until it does; a prompt that does not fit alone gets an error, and
the thread goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from p2l.inference import Prediction
from p2l.out_of_memory import free_memory, is_out_of_memory
from p2l.serving.answer import Answer, ModelFailedError, TooLargeError
from p2l.serving.jobs import Job, JobQueue

__all__ = ["Outcome", "Report", "compute", "start_streams"]

Outcome = Answer | Exception
Report = Callable[[Sequence[tuple[Job, Outcome]], float], None]
"""Called in the event loop with each batch's jobs and outcomes, and the seconds that the batch took."""

_log = logging.getLogger("p2l.serving")


def start_streams(queue: JobQueue, loop: AbstractEventLoop, report: Report) -> list[threading.Thread]:
    """Start the threads that compute; they end when the queue is closed and empty.

    On a CPU each has its part of the cores, for a prompt computed on one core and another beside it take less time
    than both on two cores, one after the other. Only the first thread takes all cores, when it has been alone for a
    while: OpenMP keeps helpers for each thread that ever used several, and with more helpers than cores they sleep
    between the steps of a pass, which makes it several times as slow.
    """
    streams = queue.limits.streams
    cores = queue.limits.threads or torch.get_num_threads()
    if not streams:
        torch.set_num_threads(cores)

    def run(number: int) -> None:
        was_quiet = False
        threads = 0
        while batch := queue.take(number):
            quiet = queue.is_quiet
            alone = streams == 1 or (number == 0 and quiet and was_quiet)
            wanted = cores if alone else max(1, cores // streams)
            if threads != wanted:
                threads = wanted
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
    """Each job of a batch with its answer or error, and the seconds that it took."""
    started = time.monotonic()
    outcomes = list(zip(batch, _outcomes(queue, batch), strict=True))
    return outcomes, time.monotonic() - started


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
            coefs=array("f", said.coefs[row].tobytes()),
            eta=None if said.eta is None else float(said.eta[row]),
            gamma=None if said.gamma is None else float(said.gamma[row]),
            truncated=bool(said.truncated[row]),
            revision=revision,
        )
        if is_sound
        else ModelFailedError("the model gave no finite coefficients for this prompt")
        for row, is_sound in enumerate(sound)
    ]
