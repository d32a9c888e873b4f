"""Where a run keeps what it has used up, over all its starts."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Ledger", "Tally"]


class Ledger(Protocol):
    """The calls and dollars of a run; `coeval.storage.meta.Meta` is one that lasts."""

    @property
    def spent_usd(self) -> float:
        """Dollars so far."""
        ...

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a request, unless the model has had as many as it may; then False, and nothing is counted."""
        ...

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        ...


class Tally:
    """A ledger of this process alone, for what belongs to no run."""

    def __init__(self) -> None:
        self.quota_used: dict[str, int] = {}
        self.spent_usd = 0.0

    def reserve_call(self, model: str, limit: int | None) -> bool:
        """Count a request, unless the model has had as many as it may."""
        used = self.quota_used.get(model, 0)
        if limit is not None and used >= limit:
            return False
        self.quota_used[model] = used + 1
        return True

    def add_spent(self, usd: float) -> None:
        """Count dollars."""
        self.spent_usd += usd
