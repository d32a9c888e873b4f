"""A circuit breaker for one model: after enough failures in a row it is left alone, then tried by one request.

    closed --failures in a row--> open --seconds--> half open --success--> closed
                                    ^                   |
                                    +-----failure-------+

A rate limit opens it for as long as the provider says, an hour at most. Each worker has its own breakers.
"""

from __future__ import annotations

from collections.abc import Callable

from route.providers.base import Fault, ProviderError

__all__ = ["Breaker"]

_BLAMELESS = (Fault.CONTEXT_LENGTH, Fault.CONTENT_FILTER, Fault.REQUEST, Fault.UNSUPPORTED)
_NOT_THERE = 404
_LONGEST_REST = 3600.0
"""Seconds; a provider that says a nonsensical time is tried all the same."""


class Breaker:
    """Whether a model may be asked."""

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float]) -> None:
        """Open for `seconds` after `failures` in a row; `clock` only grows."""
        self._most = failures
        self._seconds = seconds
        self._clock = clock
        self._failures = 0
        self._opened_until: float | None = None
        self._probing = False
        self.fault: ProviderError | None = None
        """The last one, while the model is not known to be well."""

    @property
    def is_blocked(self) -> bool:
        """Whether no request may go there now: it is open, or another request is trying it."""
        return self._opened_until is not None and (self._probing or self._clock() < self._opened_until)

    @property
    def opens_in(self) -> float:
        """Seconds until a request may try the model again."""
        return max(0.0, (self._opened_until or 0.0) - self._clock())

    def begin(self) -> bool:
        """A request goes there; True if it is the one that tries whether the model is well again."""
        if self._opened_until is None or self._probing:
            return False
        self._probing = True
        return True

    def give_up(self, probe: bool) -> None:
        """The request was cancelled and nothing was learned."""
        if probe:
            self._probing = False

    def began(self, probe: bool) -> None:
        """An answer has begun: others may come too, but should it break off the model is as unwell as before."""
        if probe:
            self._opened_until = None
            self._probing = False

    def succeeded(self) -> None:
        """The model answered to the end, or refused for reasons that are the request's."""
        self._failures = 0
        self._opened_until = None
        self._probing = False
        self.fault = None

    def failed(self, error: ProviderError, probe: bool = False) -> None:
        """Take note of a fault; `probe` as `begin` said."""
        if error.fault in _BLAMELESS and error.status != _NOT_THERE:
            self.succeeded()
            return
        self.fault = error
        self._failures += 1
        if error.retry_after:
            self._open(min(error.retry_after, _LONGEST_REST))
        elif probe or self._failures >= self._most:
            self._open(self._seconds)
        if probe:
            self._probing = False

    def _open(self, seconds: float) -> None:
        self._opened_until = max(self._opened_until or 0.0, self._clock() + seconds)
