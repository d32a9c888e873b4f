"""How far a phase is: done, failed, rate, dollars, time left, on one line that is rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["Progress"]


class Progress:
    """The bar of one phase; silent where stderr is no terminal."""

    def __init__(self, description: str = "", spent: Callable[[], float] | None = None) -> None:
        """`spent` gives the dollars so far; without a description nothing is ever shown."""
        self._description = description
        self._spent = spent
        self._bar: tqdm[Any] | None = None
        self._failed = 0

    def expect(self, count: int) -> None:
        """So many more are to be done."""
        if not self._description or not count:
            return
        if self._bar is None:
            from p2l.command import progress

            self._bar = progress(description=self._description, total=count, unit="rec")
        else:
            self._bar.total = (self._bar.total or 0) + count
            self._bar.refresh()

    def advance(self, *, failed: bool = False) -> None:
        """One more is done."""
        self._failed += failed
        if self._bar is None:
            return
        notes = [f"${self._spent():.4f}"] if self._spent is not None else []
        notes += [f"{self._failed} failed"] if self._failed else []
        self._bar.set_postfix_str(", ".join(notes), refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
