"""Whether to ask again, and when: by the class of the error, the provider's word, and twice as long each time.

wait = min(cap, base 2^n) (1 + u) / 2 with u uniform in [0, 1), and never sooner than the provider wants.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from route.providers.base import Fault, ProviderError

__all__ = ["Retries"]


@dataclass(frozen=True)
class Retries:
    """How often and how long."""

    attempts: int = 6
    """Requests for one call, at most."""
    rate_limited: int = 12
    """The same where the provider is only full: that passes."""
    timed_out: int = 3
    """The same where an answer takes too long: each costs the whole time limit."""
    base: float = 1.0
    """Seconds, about, before the second request."""
    cap: float = 60.0
    """Seconds, at most, unless the provider wants more."""
    patience: float = 300.0
    """Seconds that a provider may ask for; if it wants more, the call has failed."""
    draw: Callable[[], float] = random.random

    def wait(self, error: ProviderError, failed: int) -> float | None:
        """Seconds until the next request after `failed` of them, or None where another makes no sense."""
        if not error.fault.may_pass or failed >= self._most(error.fault):
            return None
        wanted = error.retry_after or 0.0
        if wanted > self.patience:
            return None
        # All that were refused together should not come back together.
        spread = (1.0 + self.draw()) / 2
        return max(wanted + self.base * self.draw(), min(self.cap, self.base * 2.0 ** (failed - 1)) * spread)

    def _most(self, fault: Fault) -> int:
        return {Fault.RATE_LIMIT: self.rate_limited, Fault.TIMEOUT: self.timed_out}.get(fault, self.attempts)
