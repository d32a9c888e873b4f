"""What a database server has acknowledged of late, for a replica that takes its place and is behind it.

A server that copies to its replica without waiting may end before its last transactions are there. Which of a worker's
flushes the new server has is in its table `flushes`; the others are written again from here. What was acknowledged
earlier than is kept is lost, and that is said: only a server that waits for its replica loses nothing then, too.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from route.keep.database import WriteBehind

KEPT_SECONDS = 600.0
"""How far a replica may be behind without a loss."""
_LOGGER = logging.getLogger("route")
_MOST_BYTES = 64 << 20  # of prompts; the rest of a flush is a few sums


class Flush(NamedTuple):
    """A flush that the server has acknowledged."""

    number: int
    batches: Sequence[tuple[WriteBehind, Any]]
    size: int
    """Bytes of the texts in it."""
    acknowledged: float
    """By the clock of the process."""


class Acknowledged:
    """The flushes of one worker of the last minutes, those with the oldest texts left out where they are many."""

    def __init__(self) -> None:
        """Know none yet."""
        self._flushes: deque[Flush] = deque()
        self._size = 0

    def add(self, number: int, batches: Sequence[tuple[WriteBehind, Any]]) -> None:
        """Keep a flush, and forget those that are too old or too much."""
        now = time.monotonic()
        held = [(buffer, batch) for buffer, batch in batches if batch]
        flush = Flush(number, held, sum(buffer.size(batch) for buffer, batch in held), now)
        self._flushes.append(flush)
        self._size += flush.size
        while self._size > _MOST_BYTES or self._flushes[0].acknowledged < now - KEPT_SECONDS:
            self._size -= self._flushes.popleft().size
            if not self._flushes:
                break

    def after(self, number: int) -> list[Flush]:
        """Return the flushes with a higher number, oldest first."""
        return [flush for flush in self._flushes if flush.number > number]


class Lack(NamedTuple):
    """What a server lacked that took the place of another."""

    flushes: int = 0
    written: int = 0
    """Those of the flushes that were written again."""
    rows: int = 0
    """Votes and keys that were written again."""

    def tell(self) -> None:
        """Log it, if it is something."""
        if self.flushes or self.rows:
            _LOGGER.error(
                "the database lacked what it had acknowledged, as a replica does that was behind: written again are "
                "%d of %d writes, and %d votes and keys%s",
                *(self.written, self.flushes, self.rows),
                "" if self.written == self.flushes else "; spend and answers of the other writes are lost",
            )
