"""How long a training run will still take, from the tokens that are left and the tokens per second so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["TimeLeft", "in_words"]

FIRST_WORD = 60.0  # seconds of training after which the estimate is good enough to be said
LEAST = 10.0  # seconds left that are worth a line


@dataclass
class TimeLeft:
    """An estimate that is told of every step.

    Tokens left are the votes left times the tokens per vote so far; the rate counts everything between steps too, so
    saving and validating have their part in it. The first step is left out of the rate: it holds one-time work.
    """

    votes: int
    """Left to train on when this run, or its resumption, starts; a vote counts once an epoch."""
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _after_first: float | None = None
    _first_tokens: int = 0
    _tokens: int = 0
    _seen: int = 0
    _said: bool = False

    def __post_init__(self) -> None:
        self._started = self.clock()

    def step(self, votes: int, tokens: int) -> None:
        """One more optimizer step is done, over so many votes and tokens."""
        self._seen += votes
        self._tokens += tokens
        if self._after_first is None:
            self._after_first, self._first_tokens = self.clock(), tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Of all steps but the first; None before the second."""
        if self._after_first is None or self._tokens == self._first_tokens:
            return None
        return (self._tokens - self._first_tokens) / max(self.clock() - self._after_first, 1e-9)

    @property
    def seconds(self) -> float | None:
        """What is left; None as long as nothing can be said."""
        rate = self.tokens_per_second
        return None if rate is None else (self.votes - self._seen) * (self._tokens / self._seen) / rate

    def first_word(self) -> str | None:
        """The estimate as a line, once: after the first minute, if there is something left to do."""
        left, rate = self.seconds, self.tokens_per_second
        if self._said or left is None or rate is None or self.clock() - self._started < FIRST_WORD or left < LEAST:
            return None
        self._said = True
        done = self._seen / self.votes
        return f"training will take about {in_words(left)} more ({done:.0%} done, {rate:,.0f} tokens/s)"


def in_words(seconds: float) -> str:
    """A duration to the precision that an estimate has: `40 seconds`, `12 minutes`, `3.5 hours`, `2.1 days`."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"{whole} second" + ("s" if whole > 1 else "")
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
