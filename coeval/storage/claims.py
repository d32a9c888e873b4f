"""Which process works on what: locks that a kill frees."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator

from coeval.errors import RunInputError
from coeval.storage.layout import Run
from p2l.claim import try_lock

__all__ = ["adding", "alone", "claimed_work", "free_work", "main_process", "replacing"]

_LOOK = 0.5  # seconds between two looks at work that another process has


@contextlib.contextmanager
def main_process(run: Run) -> Iterator[None]:
    """Be the one process that runs all models of this run.

    Raises:
        RunInputError: another is.
    """
    with _opened(run, "main") as descriptor:
        if not try_lock(descriptor):
            raise RunInputError(
                f"{run.folder}: another process is at work on this run; wait for it, or use --only-models beside it"
            )
        yield


@contextlib.contextmanager
def alone(run: Run) -> Iterator[None]:
    """Set a run up while no other process does."""
    with _opened(run, "setup") as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def adding(run: Run) -> Iterator[None]:
    """Add to the records of a run, beside others; waits while a process replaces files of them."""
    with _opened(run, "records") as descriptor:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def replacing(run: Run) -> Iterator[None]:
    """Replace or move files of a run's records: what a process adds to one that is gone would be lost.

    Raises:
        RunInputError: a process adds to them, such as one for some models.
    """
    with _opened(run, "records") as descriptor:
        if not try_lock(descriptor):
            raise RunInputError(f"{run.folder}: another process is at work on this run; wait for it")
        yield


@contextlib.asynccontextmanager
async def claimed_work(run: Run, *names: str, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Have some work to oneself, such as (phase, model); waits until no other process has it."""
    with _opened(run, "+".join(names)) as descriptor:
        if not try_lock(descriptor):
            on_wait()
            while not try_lock(descriptor):
                await asyncio.sleep(_LOOK)
        yield


@contextlib.contextmanager
def free_work(run: Run, *names: str) -> Iterator[bool]:
    """Have some work to oneself if no other process has it; whether that is so."""
    with _opened(run, "+".join(names)) as descriptor:
        yield try_lock(descriptor)


@contextlib.contextmanager
def _opened(run: Run, name: str) -> Iterator[int]:
    run.locks.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run.locks / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
