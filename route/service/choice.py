"""Which model a request goes to: called by name, or chosen by the router from the scores of its prompt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from route.decision import Coefficients, Decision
from route.routers import NoModelError, Router

__all__ = ["Choice", "Direct", "Routed"]


class Choice(Protocol):
    """Chooses, and chooses again when a model has failed."""

    @property
    def decision(self) -> Decision | None:
        """The last one, which tells why; None where nothing was decided."""
        ...

    @property
    def allowed(self) -> Collection[str]:
        """Names of all models that may be chosen."""
        ...

    def choose(self, without: Collection[str]) -> str:
        """The name of a model that is none of `without`.

        Raises:
            InfeasibleError: none that is left keeps to the budget.
            NoModelError: none is left.
        """
        ...


@dataclass(frozen=True)
class Direct:
    """The client named the model; no other will do."""

    model: str
    decision: None = None

    @property
    def allowed(self) -> Collection[str]:
        """See `Choice`."""
        return (self.model,)

    def choose(self, without: Collection[str]) -> str:
        """See `Choice`."""
        if self.model in without:
            raise NoModelError(f"{self.model} is not available")
        return self.model


@dataclass
class Routed:
    """The router decides."""

    router: Router
    coefficients: Coefficients | None
    """None: there were no scores in time, the static order decides."""
    budget: float | None
    allowed: Collection[str]
    tokens: int | None = None
    fixed: str | None = None
    """The model of this conversation."""
    decision: Decision | None = None

    def choose(self, without: Collection[str]) -> str:
        """See `Choice`."""
        self.decision = self.router.decide(
            self.coefficients,
            self.budget,
            allowed=self.allowed,
            without=without,
            tokens=self.tokens,
            fixed=self.fixed,
        )
        return self.decision.model
