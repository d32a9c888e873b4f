"""What a provider of batch jobs offers, and what all of them share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from coeval.batch.job import Job, custom_id, entries
from coeval.calling.retry import Retries
from route.providers.base import JSON, Fault, ProviderError, Timeouts

__all__ = [
    "TIMEOUTS",
    "Backend",
    "NoRoomError",
    "Parcel",
    "Result",
    "State",
    "UndecidedError",
    "first_custom_id",
    "patiently",
    "requests_in",
    "since",
    "unanswered",
]

T = TypeVar("T")

_CLOCKS = 600.0  # seconds that two clocks may differ
TIMEOUTS = Timeouts(connect=10.0, first_token=120.0, stall=60.0, total=1800.0)
"""A file of 100 MB has to get through."""


@dataclass(frozen=True)
class State:
    """How a job is."""

    status: str
    """In the provider's words."""
    done: bool
    """Whether nothing more will come of it."""
    failure: str = ""
    """Why the whole job was turned down, so that nothing was asked."""
    counts: str = ""
    """How many answers there are so far, if the provider says so."""
    answer: JSON | None = None
    """All that it said, for `results`."""
    later: bool = False
    """Whether it was turned down only because too many tokens would wait: its own, or those of other jobs."""


@dataclass(frozen=True)
class Result:
    """What came of one request."""

    custom_id: str
    completion: JSON | None = None
    error: ProviderError | None = None
    unasked: bool = False
    """Whether the provider never came to it: the job expired or was cancelled."""


@dataclass(frozen=True)
class Parcel:
    """A job that is sent, or looked for."""

    job: Job
    """As it was noted before it was sent."""
    questions: Path
    """In whose folder there may be further files for a moment."""
    note: Callable[[str], None]
    """Hears the name of a file that has to be sent before the job."""
    known: frozenset[str] = frozenset()
    """Ids that are those of other jobs."""


class NoRoomError(Exception):
    """A job was not taken because too many tokens would wait; the text is the provider's."""


class UndecidedError(Exception):
    """A job may be one of those at work at the provider; the end of those will tell."""


class Backend(Protocol):
    """One account at one provider of batch jobs."""

    interval: float
    """Seconds between two looks at a job."""
    most_requests: int
    """In one job."""
    most_bytes: int
    """Of one job's requests."""
    most_tokens: int | None
    """Of one job's prompts, by an estimate; None where the provider counts none."""

    def body(self, request: JSON) -> JSON:
        """A chat completion request in the provider's words.

        Raises:
            ProviderError: it asks for what the provider does not have.
        """
        ...

    async def submit(self, parcel: Parcel) -> str:
        """Send a job; its id.

        Raises:
            NoRoomError: it was not taken, and may be later, or in parts.
            ProviderError: it was not sent, or nobody knows.
        """
        ...

    async def find(self, parcel: Parcel) -> str | None:
        """The id of a job of which nobody knows whether it was sent; None where it was not.

        Raises:
            UndecidedError: that will be known later.
            ProviderError: that cannot be found out.
        """
        ...

    async def look(self, batch_id: str) -> State:
        """How a job is.

        Raises:
            ProviderError: that cannot be found out.
        """
        ...

    async def results(self, state: State, path: Path) -> None:
        """Append the results to a file, one line each.

        Raises:
            ProviderError: they are not to be had.
        """
        ...

    def read(self, line: JSON) -> Result:
        """What a line of the results says.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, IndexError: nothing.
        """
        ...

    async def tidy(self, state: State) -> None:
        """Remove what is of no use any more at the provider.

        Raises:
            ProviderError: it cannot be.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def requests_in(job: Job, questions: Path) -> Iterator[tuple[str, JSON]]:
    """The requests of a job as (id, body), in order."""
    for number, entry in enumerate(entries(questions)):
        for place, sent in enumerate(entry.sent.values()):
            yield custom_id(job.token, number, place), sent.body


async def patiently(retries: Retries, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, as long as that makes sense.

    Raises:
        ProviderError: there is none.
    """
    failed = 0
    while True:
        try:
            return await ask()
        except ProviderError as error:
            failed += 1
            wait = retries.wait(error, failed)
            if wait is None:
                raise
        await asyncio.sleep(wait)


def unanswered(custom: str, status: str) -> Result:
    """The result of a request that the provider never came to; asking again helps where the job only took too long."""
    fault = Fault.TIMEOUT if status == "expired" else Fault.REQUEST
    return Result(custom, error=ProviderError(fault, f"the batch job {status} before this request"), unasked=True)


def since(job: Job) -> float:
    """The time (Unix, seconds) before which the provider cannot have got a job."""
    return datetime.fromisoformat(job.submitted_at.replace("Z", "+00:00")).timestamp() - _CLOCKS


def first_custom_id(path: Path) -> str:
    """The id of the first request in a file of results; empty where there is none."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                return str(json.loads(line)["custom_id"])
            except (ValueError, KeyError, TypeError):
                continue
    return ""
