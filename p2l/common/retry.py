"""Retries: one policy of clients, router and evaluation for their number and the pauses between them.

    low = max(Retry-After, (1 - jitter) * e)  with  e = min(cap, base * 2^(failures - 1))
    pause = low + uniform(0, min(jitter * e, max(base, cap - Retry-After)))

So pauses double up to the cap, are never shorter than the server asks for, and exceed the longer of the cap and
Retry-After by no more than `base`. The random part keeps clients that failed together from coming back together.

A policy neither sends nor sleeps, so that threads and asyncio share it:

    while (pause := policy.pause(failures, retry_after, remaining=deadline.left())) is not None: ...
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_MAX_DOUBLINGS = 60  # 2.0 ** 1024 would overflow


@dataclass(frozen=True)
class RetryPolicy:
    """The number of attempts and the pauses between them, in seconds."""

    attempts: int = 6  # attempts at most, the first one included
    base: float = 1.0  # the first pause, before its random part is taken away
    cap: float = 60.0  # the longest pause, unless the server asks for more
    jitter: float = 0.5  # the share of a pause that is random
    longest_retry_after: float = math.inf  # in seconds; a server that asks for a longer pause is not tried again
    uniform: Callable[[float, float], float] = random.uniform

    def pause(
        self,
        failures: int,
        retry_after: float | None = None,
        *,
        remaining: float = math.inf,
        attempts: int | None = None,
    ) -> float | None:
        """Return the seconds until the next attempt after `failures` failed ones; None where there should be none.

        Args:
            failures: attempts that have failed, at least 1.
            retry_after: seconds that the server asks for; None or 0 where it does not say.
            remaining: seconds until the deadline; a pause that would not end before it is not made.
            attempts: in place of the policy's own, for a fault that deserves more or fewer.
        """
        least = retry_after or 0.0
        if failures >= (self.attempts if attempts is None else attempts) or least > self.longest_retry_after:
            return None
        most = min(self.cap, self.base * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
        spread = min(self.jitter * most, max(self.base, self.cap - least))
        pause = max(least, most - self.jitter * most) + self.uniform(0.0, spread)
        return pause if pause < remaining else None


def parse_retry_after(text: str | None, clock: Callable[[], float] = time.time) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None where it is missing or neither."""
    try:
        seconds = float(text or "")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text or "").timestamp() - clock()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)
