"""The dollars of requests: what they are expected to cost, and the ceilings of the service and of its keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from route.routing.candidates import Menu
from route.routing.dollars import Dollars, Estimator, Prompt
from route.routing.optimizers import Floats
from route.routing.pacing import Pacer, Ticket


@dataclass
class Allowance:
    """One request under ceilings, until `close`; it is counted when its model is chosen."""

    prompt: Prompt
    dollars: Dollars | None
    """None: a ceiling has no room for it."""
    pacers: tuple[Pacer, ...] = ()
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def target(self) -> float:
        """Return the dollars that the next requests may cost on average; infinite without a ceiling."""
        return min((pacer.target for pacer in self.pacers), default=np.inf)

    def begin(self, place: int | None) -> None:
        """Count the request, for the model at a place of the menu, or refused; a second call does nothing."""
        if self.tickets:
            return
        expected, error = 0.0, 0.0
        if place is not None and self.dollars is not None:
            expected = float(self.dollars.costs[place])
            error = 1.0 if self.dollars.errors is None else float(self.dollars.errors[place])
        self.tickets = [pacer.begin(expected, error) for pacer in self.pacers]

    def close(self, dollars: float) -> None:
        """Count what all attempts at the request have cost."""
        for pacer, ticket in zip(self.pacers, self.tickets, strict=False):
            pacer.settle(ticket, dollars)
        self.pacers = ()


class Key(Protocol):
    """A key, as far as its ceiling is concerned."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def budget_usd(self) -> float | None:
        """Return its ceiling in dollars a request; None: it has none."""
        ...


class Spending:
    """The estimates and ceilings of one worker; used from one event loop."""

    def __init__(self, menu: Menu, ceiling: float | None, before: Spending | None = None) -> None:
        """Keep a ceiling of the service, in dollars a request on average.

        What another one has seen of costs is known, and blocks under the same ceiling go on: a reload must not give
        them another thousand requests' worth.
        """
        self.estimator = Estimator(menu)
        if before is not None:
            self.estimator.inherit(before.estimator)
        self._menu = menu
        self._everybody = None if ceiling is None else Pacer(ceiling, len(menu.names))
        if before is not None and before._everybody is not None and before._everybody.ceiling == ceiling:
            self._everybody = before._everybody
        self._keys: dict[str, Pacer] = {} if before is None else before._keys

    def pacers_of(self, key: Key) -> tuple[Pacer, ...]:
        """Return what keeps the ceilings that a key's requests are under."""
        if key.budget_usd is None:
            return () if self._everybody is None else (self._everybody,)
        pacer = self._keys.get(key.name)
        if pacer is None or pacer.ceiling != key.budget_usd:
            pacer = self._keys[key.name] = Pacer(key.budget_usd, len(self._menu.names))
        return (pacer,) if self._everybody is None else (self._everybody, pacer)

    def plan(self, key: Key, scores: Floats | None, prompt: Prompt, *, is_budget: bool) -> Allowance | None:
        """Return what a decision needs to know of dollars; None where neither budget nor ceiling is in dollars.

        `scores` are (M,), NaN for models that are not candidates, or None; `is_budget` is of the request's own budget.
        """
        pacers = self.pacers_of(key)
        if not pacers:
            return Allowance(prompt, Dollars(self.estimator.costs(prompt))) if is_budget else None
        plans = [pacer.plan(scores, self.estimator, prompt) for pacer in pacers]
        narrowest = plans[0]
        for plan in plans:
            if plan is None or narrowest is None:
                return Allowance(prompt, None, pacers)
            masks = [mask for mask in (narrowest.permitted, plan.permitted) if mask is not None]
            stricter = plan if plan.rate > narrowest.rate else narrowest
            narrowest = replace(stricter, permitted=np.logical_and.reduce(masks) if masks else None)
        assert narrowest is not None
        return Allowance(prompt, replace(narrowest, is_budget=is_budget), pacers)

    def plan_named(self, key: Key, name: str, prompt: Prompt) -> Allowance | None:
        """Return the allowance of a request that names its model, counted already; None without a ceiling."""
        pacers, place = self.pacers_of(key), self._menu.places.get(name)
        if not pacers or place is None:
            return None
        costs = self.estimator.costs(prompt)
        plans = [pacer.plan(None, self.estimator, prompt) for pacer in pacers]
        is_permitted = all(plan is not None and plan.permitted is not None and plan.permitted[place] for plan in plans)
        allowance = Allowance(
            prompt, Dollars(costs, False, errors=self.estimator.errors) if is_permitted else None, pacers
        )
        allowance.begin(place)
        return allowance

    def plan_cost(self, key: Key, expected: float) -> Allowance | None:
        """Return the allowance of a request of these expected dollars that no model is chosen for, counted already.

        None without a ceiling.
        """
        pacers = self.pacers_of(key)
        if not pacers:
            return None
        has_room = all(pacer.has_room(expected, self.estimator) for pacer in pacers)
        tickets = [pacer.begin(expected if has_room else 0.0) for pacer in pacers]
        return Allowance(Prompt(0, 0), Dollars(np.array([expected])) if has_room else None, pacers, tickets)
