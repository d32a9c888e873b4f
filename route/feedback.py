"""What was shown to whom, and which answer was better: the votes that the router's own traffic gives.

An answer is remembered for a day; a vote on it names its request. A request with `compare: true` shows the answers of two
models, and a vote on it is a vote of P2L's schema: `p2l export-votes` writes those. Thumbs on a single answer are kept
too, but compare nothing, so they are no votes to train on. Prompts are kept only where the configuration says
`store_prompts: true`, and never longer than the answer they belong to unless it was voted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from route.database import Database
from route.ledger import Refusal

__all__ = ["VERDICTS", "Feedback", "ShownAnswer", "StoredVote", "Vote", "parse_vote"]

VERDICTS = ("first", "second", "tie", "both_bad", "up", "down")
"""Of two answers: the first or the second one was better, neither, or both were bad; of one: thumbs up or down."""


@dataclass(frozen=True)
class ShownAnswer:
    """What one request was answered with."""

    request_id: str
    key: str
    """Name of the key that asked: no other may vote on it."""
    models: tuple[str, ...]
    """One model, or the two of `compare: true` in the order shown (the order of the answer's choices)."""
    propensity: float
    """Probability that this model, or this pair in either order, was shown."""
    versions: tuple[str, ...] = ()
    """Of the models, in the same order; empty where none is configured."""
    revision: str = ""
    """Of the P2L model that chose."""
    prompt: tuple[str, ...] | None = None
    """The user's turns; stored only where prompts are."""
    time: float | None = None
    """Seconds since 1970; None: now."""


@dataclass(frozen=True)
class Vote:
    """What `POST /v1/feedback` says."""

    request_id: str
    verdict: str
    """One of VERDICTS."""


@dataclass(frozen=True)
class StoredVote:
    """A vote that is on the disk, as the client may hear of it."""

    request_id: str
    verdict: str
    models: tuple[str, ...]
    """Now that the vote is given: who answered, in the order shown."""
    replaced: bool
    """There was an earlier vote on this request; the new one counts."""


def parse_vote(body: Mapping[str, Any]) -> Vote:
    """Read `{"request_id": ..., "thumbs": "up" | "down"}` or `{"request_id": ..., "better": 0 | 1 | "tie" | "both_bad"}`.

    `better` is the index of the better choice.

    Raises:
        InputError: it is neither; one line that says what is wrong.
    """
    raise NotImplementedError


class Feedback:
    """Answers and votes; used from one event loop."""

    def __init__(
        self, database: Database, *, store_prompts: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds since 1970, UTC."""
        self._database = database
        self._store_prompts = store_prompts
        self._clock = clock

    async def start(self) -> None:
        """Write what is remembered every 100 ms from now on."""

    async def close(self) -> None:
        """Write what is not yet written; the database stays open."""

    def remember(self, answer: ShownAnswer) -> None:
        """Take note of an answer, without waiting; its prompt is dropped here unless prompts are stored."""

    async def vote(self, vote: Vote, *, key: str) -> StoredVote | Refusal:
        """Store a vote; it is on the disk when this returns. A later vote on the same request replaces it.

        404 where the key named `key` got no such answer within a day; 400 where thumbs are given to two answers, or
        one answer is called the better one; 503 where the database cannot be written.
        """
        raise NotImplementedError
