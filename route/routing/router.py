"""Which model answers a request: coefficients, a budget and what is at hand in, a decision out.

    router = Router(models, kind="grk-endpoint", rng=np.random.default_rng())
    decision = router.decide(Coefficients({"small": 0.3, "large": 1.2}), budget=2.0)

A kind (`candidates.py`) says where coefficients come from and what they mean: those of `bt-*` are compared with
opponents, by default all models of the leaderboard; those of `grk-*` are grounded; `random` has none. Without
coefficients, when none came in time, the configured order decides, and the decision says so.

With probability `explore` the model is any one that keeps to budget and limits by itself, each equally likely, so that
the whole policy keeps to them as the mixture does.

Shapes: M models of the configuration, cheapest first; K candidates, Q opponents, P models of a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from route.routing.candidates import Menu, get, pair
from route.routing.decision import Coefficients, Decision, FrontierPoint, Limit, RoutedModel
from route.routing.optimizers import Mixture, Opponents, Problem, check_budget

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
Mask: TypeAlias = npt.NDArray[np.bool_]
_NOBODY: Indices = np.empty(0, dtype=np.intp)
_NO_OPPONENTS = Opponents(np.empty(0), np.empty(0))


@dataclass
class _Draw:
    """Which candidate, with which probability."""

    position: int
    propensity: float = 1.0
    explored: bool = False


class Router:
    """Decides for every request; holds no state but its random generator."""

    def __init__(
        self,
        models: Sequence[RoutedModel],
        *,
        kind: str,
        rng: np.random.Generator,
        optimizer: str | None = None,
        opponents: Mapping[str, float] | None = None,
        limits: Sequence[Limit] = (),
        static_order: Sequence[str] = (),
        explore: float = 0.0,
    ) -> None:
        """Arrays are made here, once.

        Args:
            models: whom requests can go to.
            kind: a name or alias of `ROUTERS`.
            rng: draws from mixtures.
            optimizer: a name of `OPTIMIZERS` that goes with the kind; by default the kind's own.
            opponents: weight by name of a model of the leaderboard, for `bt-*`; by default all models alike.
            limits: of the optimizer `lp`.
            static_order: names, the first choice first, for requests without coefficients; models that it leaves out
                come after it, the dearest first.
            explore: share of the requests that go to any model.

        Raises:
            ConfigError: names the model, weight or limit that cannot be, or a kind and an optimizer that do not fit.
            InfeasibleError: no mixture of the models keeps to the limits.
        """
        self.kind = get(kind)
        self.optimizer = pair(self.kind, optimizer)
        if limits and not self.optimizer.takes_limits:
            raise ConfigError(f"limits need the cost optimizer lp; {self.optimizer.name} would not keep to them")
        if not 0.0 <= explore <= 1.0:
            raise ConfigError(f"explore must be a share between 0 and 1, not {explore}")
        self.menu = Menu(models, limits)
        self._ranks = _static_ranks(self.menu, static_order)
        self._named_opponents = _named_opponents(opponents)
        self._explore = explore
        self._rng = rng
        if limits:  # a solver that is missing, and limits that nothing keeps, are better found now
            self.optimizer.solve(self._problem(np.zeros(len(models)), np.arange(len(models)), None))

    def unknown(self, model_list: Sequence[str]) -> list[str]:
        """Configured models that P2L does not know and that have no `prior_coef`: requests never go to them.

        Raises:
            ConfigError: P2L knows none of the configured models, or none of the opponents.
        """
        if not self.kind.scored:
            return []
        if self.menu.places.keys().isdisjoint(model_list):
            raise ConfigError(
                f"P2L knows none of the configured models: {_some(self.menu.names)} are not among "
                f"{_some(model_list)}; name them under model_configs as P2L's model list does"
            )
        named, _ = self._named_opponents
        if named and set(named).isdisjoint(model_list):
            raise ConfigError(f"opponent_weights: P2L knows none of {_some(named)}; it knows {_some(model_list)}")
        return self.menu.unknown(model_list)

    def decide(
        self,
        coefficients: Coefficients | None,
        budget: float | None,
        *,
        allowed: Collection[str] | None = None,
        without: Collection[str] = (),
        tokens: int | None = None,
        fixed: str | None = None,
    ) -> Decision:
        """Choose a model.

        Args:
            coefficients: of the prompt; None for the static order.
            budget: most that an answer may cost, on average over requests, or by itself under `strict` and without
                coefficients; None buys the best.
            allowed: names that may be chosen, or None for all.
            without: names that may not: they failed, or rest.
            tokens: of the prompt; models whose context window is smaller are left out.
            fixed: the model of this conversation, kept while it is a candidate that the budget admits.

        Raises:
            InputError: the budget is negative, infinite or no number.
            InfeasibleError: there is no choice within the budget and the limits.
            NoModelError: there is none whatever the budget.
        """
        check_budget(budget)
        coefs, known = self._coefs(coefficients)
        places = self.menu.candidates(known, allowed, without, tokens)
        if coefficients is None or coefs is None:
            return self._unscored(places, budget, fixed)
        return self._scored(coefficients, coefs, known, places, budget, fixed)

    def _coefs(self, coefficients: Coefficients | None) -> tuple[Floats | None, Mask | None]:
        """(M,), or None where no model has any; and which models have one, or None for all."""
        if coefficients is None or not self.kind.scored:
            return None, None
        coefs = self.menu.coefs(coefficients)
        known = np.isfinite(coefs)
        if known.all():
            return coefs, None
        return (coefs, known) if known.any() else (None, None)

    def _scored(
        self,
        said: Coefficients,
        coefs: Floats,
        known: Mask | None,
        places: Indices,
        budget: float | None,
        fixed: str | None,
    ) -> Decision:
        opponents = self._opponents(said) if self.kind.compares else _NO_OPPONENTS
        scores = self._scores(coefs, known, opponents)
        problem = self._problem(scores[places], places, budget)
        kept = self._kept(fixed, problem, places)
        mixture = kept or self.optimizer.solve(problem)
        draw = self._draw(problem, mixture) if kept is None else _Draw(kept.positions[0])
        by_name = self.menu.by_name(scores)
        return Decision(
            model=self.menu.names[places[draw.position]],
            probabilities=self._by_name(mixture, places),
            propensity=draw.propensity,
            scores=by_name,
            costs=self.menu.costs_of(by_name),
            expected_score=mixture.mean(problem.scores),
            expected_cost=mixture.mean(problem.costs),
            strength=self.kind.strength(coefs[places[list(mixture.positions)]], np.array(mixture.shares), opponents),
            frontier=self._frontier(problem, places),
            budget=budget,
            explored=draw.explored,
            optimizer=self.optimizer.name,
            revision=said.revision,
        )

    def _unscored(self, places: Indices, budget: float | None, fixed: str | None) -> Decision:
        """Without scores: the first of the static order, or under `random` any model; within the budget by itself."""
        problem = self._problem(np.zeros(len(places)), places, budget)
        kept = self._kept(fixed, problem, places)
        mixture = kept or self._blind(problem, places)
        position = mixture.draw(self._rng)
        return Decision(
            model=self.menu.names[places[position]],
            probabilities=self._by_name(mixture, places),
            propensity=mixture.shares[0],
            scores={},
            costs=self.menu.cost_of.copy(),
            expected_score=None,
            expected_cost=mixture.mean(problem.costs),
            strength=None,
            frontier=(),
            budget=budget,
            static=self.kind.scored and kept is None,
            optimizer=self.optimizer.name,
        )

    def _blind(self, problem: Problem, places: Indices) -> Mixture:
        """Of the candidates that fit by themselves, the first in the static order; under `random` all alike."""
        free = problem.fitting if len(problem.fitting) else np.arange(problem.num_affordable)
        if self.kind.scored:
            return Mixture((int(free[self._ranks[places[free]].argmin()]),), (1.0,))
        return Mixture(tuple(free.tolist()), (1.0 / len(free),) * len(free))

    def _scores(self, coefs: Floats, known: Mask | None, opponents: Opponents) -> Floats:
        """(M,), NaN for unknown models."""
        if known is None:
            return self.kind.score(coefs, opponents)
        scores = np.full(len(coefs), np.nan)
        scores[known] = self.kind.score(coefs[known], opponents)
        return scores

    def _opponents(self, said: Coefficients) -> Opponents:
        """The models of the leaderboard by weight; all alike where it has none of those that were named."""
        names, weights = self._named_opponents
        if names:
            coefs = np.fromiter(map(said.coefs.get, names, repeat(np.nan)), np.float64, len(names))
            if np.isfinite(coefs).any():
                return _weighted(coefs, weights)
        coefs = np.fromiter(said.coefs.values(), np.float64, len(said.coefs))
        return _weighted(coefs, np.ones(len(coefs)))

    def _problem(self, scores: Floats, places: Indices, budget: float | None) -> Problem:
        menu = self.menu
        amounts = menu.amounts[:, places] if len(menu.most) else menu.amounts
        return Problem(scores, menu.costs[places], budget, amounts, menu.most)

    def _kept(self, fixed: str | None, problem: Problem, places: Indices) -> Mixture | None:
        """The conversation's own model, if it can be had.

        Where a budget holds on average, the conversation's first draw was part of that average; so are its later turns.
        """
        if fixed is None:
            return None
        reach = problem.num_affordable
        position = np.flatnonzero(places == self.menu.places.get(fixed, -1))
        if not len(position) or (self.optimizer.keeps_each and position[0] >= reach):
            return None
        return Mixture((int(position[0]),), (1.0,))

    def _draw(self, problem: Problem, mixture: Mixture) -> _Draw:
        """One candidate: of the mixture, or with probability `explore` of all that fit by themselves."""
        free = problem.fitting if self._explore else _NOBODY
        share = self._explore if len(free) else 0.0
        explored = share > 0.0 and self._rng.random() < share
        position = int(free[self._rng.integers(len(free))]) if explored else mixture.draw(self._rng)
        propensity = (1.0 - share) * dict(mixture.items()).get(position, 0.0)
        if share > 0.0 and position in free:
            propensity += share / len(free)
        return _Draw(position, propensity, explored)

    def _frontier(self, problem: Problem, places: Indices) -> tuple[FrontierPoint, ...]:
        corners = problem.corners
        rows = zip(
            places[corners].tolist(), problem.costs[corners].tolist(), problem.scores[corners].tolist(), strict=True
        )
        return tuple(FrontierPoint(self.menu.names[place], cost, score) for place, cost, score in rows)

    def _by_name(self, mixture: Mixture, places: Indices) -> dict[str, float]:
        return {self.menu.names[places[position]]: share for position, share in mixture.items()}


def _static_ranks(menu: Menu, order: Sequence[str]) -> Indices:
    """Rank (M,) of each model of the menu in the static order."""
    for name in order:
        if name not in menu.places:
            raise ConfigError(f"static_order: no model is configured as {name!r}{nearest(name, menu.names)}")
    rank = {name: number for number, name in enumerate(dict.fromkeys([*order, *reversed(menu.names)]))}
    return np.array([rank[name] for name in menu.names])


def _named_opponents(weights: Mapping[str, float] | None) -> tuple[tuple[str, ...], Floats]:
    """Names (Q,) and weights (Q,) of the opponents with a weight; none of both where all models are opponents."""
    if weights is None:
        return (), np.empty(0)
    for name, weight in weights.items():
        if not 0.0 <= weight < math.inf:
            raise ConfigError(f"opponent_weights: {name!r} must have a weight of at least 0, not {weight}")
    heavy = {name: weight for name, weight in weights.items() if weight > 0.0}
    if not heavy:
        raise ConfigError("opponent_weights: give at least one model a weight above 0, or leave the key out")
    return tuple(heavy), np.array(list(heavy.values()), dtype=np.float64)


def _weighted(coefs: Floats, weights: Floats) -> Opponents:
    """Opponents whose coefficient is a number, by normalised weight."""
    there = np.isfinite(coefs)
    if not there.all():
        coefs, weights = coefs[there], weights[there]
    return Opponents(coefs, weights / weights.sum())


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
