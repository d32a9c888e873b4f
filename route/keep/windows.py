"""What keys used in the last minute, requests or tokens: sums by whole seconds, which workers share.

A minute is any 60 seconds. Seconds later than the clock are of one that was ahead and has jumped back: they must not
lock a key until then.
"""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 61
"""Whole seconds that any 60 seconds can touch."""
AHEAD = 5  # seconds that the clock of another worker may be ahead


class Windows:
    """The sums of one quantity by key and second."""

    def __init__(self) -> None:
        """Start with none."""
        self._sums: dict[str, dict[int, int]] = {}
        self._totals: dict[str, int] = {}
        """Of all seconds that are kept, those that have left the window among them: no minute holds more."""

    def add(self, name: str, second: int, amount: int) -> None:
        """Add to the sum of a second."""
        self.note(name, second, self._sums.get(name, {}).get(second, 0) + amount)

    def note(self, name: str, second: int, amount: int) -> None:
        """Set the sum of a second, and forget seconds that have left the window."""
        window = self._sums.setdefault(name, {})
        if second not in window:
            for old in [other for other in window if other <= second - WINDOW]:
                self._forget(name, old)
        self._totals[name] = self._totals.get(name, 0) + amount - window.get(second, 0)
        window[second] = amount

    def wait(self, name: str, now: float, *, most: int, more: int) -> float | None:
        """Return the seconds until `more` fit in `most` a minute, at most a whole window; None if they fit now."""
        if self._totals.get(name, 0) + more <= most:
            return None  # as for most requests, which need not look at each second
        window = self._sums.get(name, {})
        for second in [second for second in window if second > now + AHEAD]:
            self._forget(name, second)
        recent = sorted((second, amount) for second, amount in window.items() if second > now - WINDOW)
        excess = sum(amount for _, amount in recent) + more - most
        return None if excess <= 0 else _until_free(recent, excess, now)

    def _forget(self, name: str, second: int) -> None:
        self._totals[name] -= self._sums[name].pop(second)


def _until_free(recent: Sequence[tuple[int, int]], excess: int, now: float) -> float:
    """Return the seconds until `excess`, oldest first, has left the window; at most a whole window."""
    for second, amount in recent:
        excess -= amount
        if excess <= 0:
            return second + WINDOW - now
    return float(WINDOW)
