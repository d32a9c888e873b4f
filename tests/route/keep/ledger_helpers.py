"""What tests of the router's database share: a clock that is set by hand, and parts that are opened together."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from route.keep.database import Database
from route.keep.feedback import Feedback
from route.keep.ledger import KeyRecord, Ledger
from route.keep.location import open_database
from route.keep.reservations import NOTHING, Reservation
from tests.conftest import ROOT
from tests.route.keep.stores import Store

NOON = 1_790_000_000 // 86_400 * 86_400 + 43_200.0
"""Of some day, UTC."""
NEVER = 3600.0
"""Seconds between two flushes, where a test flushes by itself."""


STORE = Store()
"""Where the databases of the test that runs are; set by its fixture."""

LEDGERS: dict[Database, list[Ledger]] = {}
"""The ledgers of databases that are open."""


class Clock:
    """Seconds since 1970, set by hand."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def new_database(path: Path | None = None, *, flush_seconds: float = NEVER) -> Database:
    """A database that is not open yet, in the store of this test."""
    return open_database(STORE.location(path), flush_seconds=flush_seconds)


@contextlib.asynccontextmanager
async def database(path: Path | None = None) -> AsyncIterator[Database]:
    """An open database that writes only when it is told to, and when it closes."""
    opened = new_database(path)
    await opened.start()
    try:
        yield opened
    finally:
        for accounts in LEDGERS.pop(opened, []):
            if accounts.shared is not None:
                await accounts.shared.close()
        await opened.close()


@contextlib.asynccontextmanager
async def ledger(*keys: KeyRecord, path: Path | None = None, clock: Clock | None = None) -> AsyncIterator[Ledger]:
    """A ledger on a database of its own: one worker."""
    async with database(path) as opened:
        started = new_ledger(keys, opened, clock=clock)
        await started.start()
        yield started


def new_ledger(keys: Sequence[KeyRecord], opened: Database, *, clock: Clock | None = None) -> Ledger:
    """A worker's ledger that is not started, with the limits of the store."""
    accounts = Ledger(keys, opened, clock=clock or Clock(), shared_limits=STORE.limits, grace=0.0)
    LEDGERS.setdefault(opened, []).append(accounts)
    return accounts


async def flushed(opened: Database) -> bool:
    """Whether all that has gathered is written, here and in Redis."""
    is_written = await opened.flush()
    for accounts in LEDGERS.get(opened, []):
        if accounts.shared is not None:
            await accounts.shared.settle()
    return is_written


async def spend(
    accounts: Ledger,
    key: KeyRecord,
    model: str,
    cost: float,
    *,
    answers: int = 1,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> None:
    """Book a request that cost so much, for which nothing had to be reserved."""
    reservation = await accounts.reserve(key, NOTHING)
    assert isinstance(reservation, Reservation)
    accounts.settle(
        reservation, model, cost, answers=answers, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
    )


@contextlib.asynccontextmanager
async def feedback(
    path: Path | None = None,
    *,
    clock: Clock | None = None,
    store_prompts: bool = False,
) -> AsyncIterator[Feedback]:
    """Feedback on a database of its own: one worker."""
    async with database(path) as opened:
        started = Feedback(opened, store_prompts=store_prompts, clock=clock or Clock())
        await started.start()
        yield started


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What another program finds there."""
    return STORE.rows(path, query)


def _located(argument: object) -> object:
    return STORE.location(argument) if isinstance(argument, Path) else argument


@contextlib.contextmanager
def worker(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a Python script; killed at the end if it still runs."""
    words = [sys.executable, "-c", script, *(str(_located(argument)) for argument in arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()
