"""The router: coefficients, a budget and the available models in, a decision out.

    router = Router(models, kind="grk-endpoint", rng=np.random.default_rng())
    decision = router.decide(Coefficients({"small": 0.3, "large": 1.2}), budget=2.0)

Coefficients of the kinds `bt-*` are compared with opponents, by default all models of the leaderboard; those of `grk-*`
are grounded; `random` has none. Without coefficients, when none came in time, the configured order decides, and the
decision says so.

With probability `explore` the model is drawn uniformly from those within budget and limits by themselves, so that the
whole policy stays within them as the mixture does.

Shapes: M models of the configuration, cheapest first; K candidates, Q opponents, P models of a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import compress, repeat
from typing import NamedTuple

import numpy as np

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from route.routing.candidates import Menu, NoModelError, get, pair
from route.routing.decision import (
    NO_DEMAND,
    Coefficients,
    Decision,
    Demand,
    FrontierPoint,
    Held,
    Limit,
    RoutedModel,
)
from route.routing.dollars import Dollars
from route.routing.guard import Guard
from route.routing.offsets import Offsets
from route.routing.optimizers import (
    Floats,
    Indices,
    InfeasibleError,
    Mask,
    Mixture,
    Opponents,
    Problem,
    check_budget,
)

_EMPTY: Indices = np.empty(0, dtype=np.intp)
_NO_OPPONENTS = Opponents(np.empty(0), np.empty(0))


class _Scored(NamedTuple):
    """What the choices of one prompt have in common."""

    coefs: Floats
    """(M,)"""
    mask: Mask | None
    """(M,) of the models that have a coefficient; None for all."""
    opponents: Opponents
    scores: Floats
    """(M,); NaN where there is no coefficient."""


class Router:
    """Decides every request; its only state is its random generator."""

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
        guard: Guard | None = None,
    ) -> None:
        """Build the arrays that all decisions share.

        Raise ConfigError if a model, weight or limit is wrong, or kind and optimizer do not fit; InfeasibleError if no
        mixture of the models is within the limits.

        Args:
            models: candidates of every request.
            kind: a name or alias of `ROUTERS`.
            rng: draws from mixtures.
            optimizer: a name of `OPTIMIZERS` that goes with the kind; by default the kind's own.
            opponents: weight by name of a model of the leaderboard, for `bt-*`; by default all models alike.
            limits: of the optimizer `lp`.
            static_order: names, the first choice first, for requests without coefficients; models that it leaves out
                come after it, the dearest first.
            explore: share of the requests that go to a random model.
            guard: bounds how far scores depart from the mean scores of graded answers; it has every model.
        """
        self.kind = get(kind)
        self.optimizer = pair(self.kind, optimizer)
        if limits and not self.optimizer.takes_limits:
            raise ConfigError(f"limits need the cost optimizer lp; {self.optimizer.name} would not keep to them")
        if not 0.0 <= explore <= 1.0:
            raise ConfigError(f"explore must be a share between 0 and 1, not {explore}")
        self.menu = Menu(models, limits)
        for name in static_order:
            if name not in self.menu.places:
                hint = nearest(name, self.menu.names)
                raise ConfigError(f"static_order: no model is configured as {name!r}{hint}")
        order = dict.fromkeys([*static_order, *reversed(self.menu.names)])
        rank_of = {name: number for number, name in enumerate(order)}
        self._ranks = np.array([rank_of[name] for name in self.menu.names])
        """(M,) in the static order."""
        self._named_opponents = _named_opponents(opponents)
        self.offsets: Offsets | None = None
        """What ratings say beside P2L's coefficients."""
        self._explore = explore
        self._guard = guard
        self._constant = None if guard is None else guard.constant(self.menu.names)
        """(M,) scores that all prompts have in common."""
        self._rng = rng
        if limits:  # so that a missing solver and infeasible limits show at start
            self.optimizer.solve(self._problem(np.zeros(len(models)), np.arange(len(models)), None))

    def unknown(self, model_list: Sequence[str]) -> list[str]:
        """Return the models without coefficient, to which requests never go.

        Raises ConfigError if P2L knows none of the configured models, or none of the opponents.
        """
        if not self.kind.scored:
            return []
        if self.menu.places.keys().isdisjoint(model_list):
            raise ConfigError(
                f"P2L knows none of the configured models: {_some(self.menu.names)}; it knows "
                f"{_some(model_list)}; name them under model_configs as P2L's model list does"
            )
        names, _ = self._named_opponents
        if names and set(names).isdisjoint(model_list):
            raise ConfigError(f"opponent_weights: P2L knows none of {_some(names)}; it knows {_some(model_list)}")
        return self.menu.unknown(model_list)

    def decide(
        self,
        coefficients: Coefficients | None,
        budget: float | None,
        *,
        allowed: Collection[str] | None = None,
        without: Collection[str] = (),
        demand: Demand = NO_DEMAND,
        fixed: str | None = None,
        held: Held | None = None,
        dollars: Dollars | None = None,
    ) -> Decision:
        """Choose a model.

        Raise InputError for a budget that is negative, infinite or not a number, InfeasibleError if there is no choice
        within the budget and the limits, NoModelError if there is none whatever the budget.

        Args:
            coefficients: of the prompt; None for the static order.
            budget: most that an answer may cost, on average over requests, or by itself under `strict` and without
                coefficients; None buys the best.
            allowed: names that may be chosen, or None for all.
            without: names that may not, since they failed or are blocked.
            demand: models that cannot do what the request needs are left out.
            fixed: the model of this conversation, kept while it is a candidate within the budget.
            held: the model that the conversation was with, kept unless the gain is worth its prompt cache.
            dollars: what answers are expected to cost, in the unit of the budget or of a ceiling beside it.
        """
        check_budget(budget)
        scored = self._scored(coefficients)
        places = self.menu.candidates(None if scored is None else scored.mask, allowed, without, demand)
        if dollars is not None:
            costs = dollars.costs[places]
            if dollars.permitted is not None:
                permitted = dollars.permitted[places]
                # A ceiling that has room for none of them leaves the cheapest: the pacer has refused what it must.
                permitted[costs.argmin()] = True
                places, costs = places[permitted], costs[permitted]
            if dollars.is_budget:  # the order of costs, which `Problem` needs, is that of dollars then
                places = places[costs.argsort(kind="stable")]
        if coefficients is None or scored is None:
            return self._unscored(places, budget, fixed, dollars)
        return self._by_scores(coefficients, scored, places, budget, fixed, held, dollars)

    def scores(self, coefficients: Coefficients | None) -> Floats | None:
        """Return the scores (M,) of a prompt, NaN for models without a coefficient; None where there are none."""
        scored = self._scored(coefficients)
        return None if scored is None else scored.scores

    def fitting(
        self, budget: float | None, allowed: Collection[str], without: Collection[str], demand: Demand
    ) -> set[str]:
        """Return the models within budget and limits by themselves; arguments as of `decide`."""
        try:
            places = self.menu.candidates(None, allowed, without, demand)
            positions = self._problem(np.zeros(len(places)), places, budget).fitting
        except (InfeasibleError, NoModelError):
            return set()
        return {self.menu.names[place] for place in places[positions]}

    def _scored(self, coefficients: Coefficients | None) -> _Scored | None:
        """Return a prompt's scores; None where no model has one. They are kept with the prompt while they last."""
        if coefficients is None:
            return None
        kept = coefficients.scored
        # A reload makes another menu, whose models stand in other places.
        if kept and kept[0] is self.menu and (self.offsets is None or self.offsets.is_idle):
            scored: _Scored = kept[1]
            return scored
        if not self.kind.scored:
            return None
        coefs = self.menu.coefs(coefficients)
        if self.offsets is not None and not self.offsets.is_idle:
            coefs = self.offsets.apply(coefs)
        mask = np.isfinite(coefs)
        if not mask.any():
            return None
        opponents = self._opponents(coefficients) if self.kind.compares else _NO_OPPONENTS
        if mask.all():
            scored = _Scored(coefs, None, opponents, self._guarded(self.kind.score(coefs, opponents), self.menu.names))
        else:
            scores = np.full(len(coefs), np.nan)
            names = list(compress(self.menu.names, mask))
            scores[mask] = self._guarded(self.kind.score(coefs[mask], opponents), names)
            scored = _Scored(coefs, mask, opponents, scores)
        # With offsets, scores are good for one request alone: a rating moves them, and newcomers are drawn anew.
        if self.offsets is None or self.offsets.is_idle:
            kept[:] = self.menu, scored
        return scored

    def _guarded(self, scores: Floats, names: Sequence[str]) -> Floats:
        return scores if self._guard is None else self._guard.guarded(scores, names)

    def _over_constant(
        self, mixture: Mixture, problem: Problem, places: Indices, dollars: Dollars | None
    ) -> float | None:
        """Return how much more a mixture is expected to score than the constant that this budget buys."""
        if self._constant is None:
            return None
        constant = self._solve(replace(problem, scores=self._constant[places]), places, dollars)
        return mixture.mean(problem.scores) - constant.mean(problem.scores)

    def _by_scores(
        self,
        coefficients: Coefficients,
        scored: _Scored,
        places: Indices,
        budget: float | None,
        fixed: str | None,
        held: Held | None,
        dollars: Dollars | None,
    ) -> Decision:
        coefs, _, opponents, scores = scored
        problem = self._problem(scores[places], places, budget, dollars)
        own = self._own_model(fixed, problem, places)
        mixture = own or self._solve(problem, places, dollars)
        if own is None and held is not None:
            own = self._worth_keeping(held, problem, mixture, places, dollars)
            mixture = own or mixture
        position, propensity, explored = (own.positions[0], 1.0, False) if own else self._draw(problem, mixture)
        by_name = self.menu.by_name(scores)
        return Decision(
            model=self.menu.names[places[position]],
            probabilities=self._by_name(mixture, places),
            propensity=propensity,
            scores=by_name,
            costs=self._costs_of(by_name, dollars),
            expected_score=mixture.mean(problem.scores),
            expected_cost=mixture.mean(problem.costs),
            strength=self._strength(coefs, places, mixture, opponents),
            find_frontier=partial(self._frontier, problem, places),
            budget=budget,
            explored=explored,
            optimizer=self.optimizer.name,
            revision=coefficients.revision,
            average=coefficients.is_average,
            familiarity=coefficients.familiarity,
            over_constant=self._over_constant(mixture, problem, places, dollars),
            guard_is_stale=None if self._guard is None else self._guard.is_stale(coefficients.revision),
            in_dollars=dollars is not None and dollars.is_budget,
        )

    def _strength(self, coefs: Floats, places: Indices, mixture: Mixture, opponents: Opponents) -> float:
        if len(mixture.positions) == 1:
            return float(coefs[places[mixture.positions[0]]])
        return self.kind.strength(coefs[places[list(mixture.positions)]], np.array(mixture.shares), opponents)

    def _frontier(self, problem: Problem, places: Indices) -> tuple[FrontierPoint, ...]:
        return tuple(
            FrontierPoint(self.menu.names[places[corner]], float(problem.costs[corner]), float(problem.scores[corner]))
            for corner in problem.corners
        )

    def _solve(self, problem: Problem, places: Indices, dollars: Dollars | None) -> Mixture:
        """Mix the candidates for the best score or, under a ceiling, for the best score less what dollars must buy."""
        if dollars is None or not dollars.rate:
            return self.optimizer.solve(problem)
        shares: dict[int, float] = {}
        hopeful = dollars.hopeful[places]
        for probability, rate in dollars.rates:
            priced = replace(problem, scores=problem.scores - rate * hopeful)
            for position, share in self.optimizer.solve(priced).items():
                shares[position] = shares.get(position, 0.0) + probability * share
        return Mixture(tuple(shares), tuple(shares.values()))

    def _costs_of(self, names: Collection[str], dollars: Dollars | None) -> dict[str, float]:
        if dollars is not None and dollars.is_budget:
            return {name: float(dollars.costs[self.menu.places[name]]) for name in names}
        # Most requests have scores of all models, and a copy is quicker than a new dictionary.
        cost_of = self.menu.cost_of
        return cost_of.copy() if len(names) == len(cost_of) else {name: cost_of[name] for name in names}

    def _unscored(self, places: Indices, budget: float | None, fixed: str | None, dollars: Dollars | None) -> Decision:
        """Choose without scores: the first of the static order, or under `random` any model, within the budget."""
        problem = self._problem(np.zeros(len(places)), places, budget, dollars)
        own = self._own_model(fixed, problem, places)
        if own is not None:
            mixture = own
        else:
            free = problem.fitting if len(problem.fitting) else np.arange(problem.num_affordable)
            if self.kind.scored:
                mixture = Mixture((int(free[self._ranks[places[free]].argmin()]),), (1.0,))
            else:
                mixture = Mixture(tuple(free.tolist()), (1.0 / len(free),) * len(free))
        position = mixture.draw(self._rng)
        return Decision(
            model=self.menu.names[places[position]],
            probabilities=self._by_name(mixture, places),
            propensity=mixture.shares[0],
            costs=self._costs_of(self.menu.names, dollars),
            in_dollars=dollars is not None and dollars.is_budget,
            expected_cost=mixture.mean(problem.costs),
            budget=budget,
            static=self.kind.scored and own is None,
            optimizer=self.optimizer.name,
        )

    def _opponents(self, coefficients: Coefficients) -> Opponents:
        """Return the opponents by weight; all models of the leaderboard alike if it has none of those configured."""
        names, weights = self._named_opponents
        if names:
            coefs = np.fromiter(map(coefficients.coefs.get, names, repeat(np.nan)), np.float64, len(names))
            if np.isfinite(coefs).any():
                return _weighted(coefs, weights)
        coefs = coefficients.array
        # The sum is finite only if all of them are, and takes less time than a mask.
        if len(coefs) and math.isfinite(np.add.reduce(coefs)):
            return Opponents(coefs, _alike(len(coefs)))
        return _weighted(coefs, np.ones(len(coefs)))

    def _problem(
        self, scores: Floats, places: Indices, budget: float | None, dollars: Dollars | None = None
    ) -> Problem:
        menu = self.menu
        amounts = menu.amounts[:, places] if len(menu.most) else menu.amounts
        costs = menu.costs if dollars is None or not dollars.is_budget else dollars.costs
        return Problem(scores, costs[places], budget, amounts, menu.most)

    def _own_model(self, fixed: str | None, problem: Problem, places: Indices) -> Mixture | None:
        """Return the conversation's own model, if it is a candidate within a budget that holds for each request.

        A budget that holds on average already counted the conversation's first draw, so later turns may exceed it.
        """
        if fixed is None:
            return None
        # It raises where the budget buys nothing, whichever model the conversation has.
        num_affordable = problem.num_affordable
        positions = np.flatnonzero(places == self.menu.places.get(fixed, -1))
        if not len(positions) or (self.optimizer.keeps_each and positions[0] >= num_affordable):
            return None
        return Mixture((int(positions[0]),), (1.0,))

    def _worth_keeping(
        self, held: Held, problem: Problem, mixture: Mixture, places: Indices, dollars: Dollars | None
    ) -> Mixture | None:
        """Return the held model if moving to the mixture gains less than its prompt cache is worth.

        Both in scores: what a model costs, where the budget binds, and the cache at the rate at which the budget buys
        scores. Two models of one mixture are worth the same, so that a conversation does not move between them.
        """
        own = self._own_model(held.model, problem, places)
        if own is None:
            return None
        rate = problem.rate
        cost_rate = rate if len(mixture.positions) > 1 else 0.0
        values = problem.scores - cost_rate * problem.costs
        if dollars is not None and dollars.rate:  # what a dollar must buy, by the ceiling
            rate = dollars.rate
            values = problem.scores - rate * dollars.costs[places]
        gain = mixture.mean(values) - own.mean(values)
        return own if gain <= rate * held.lost else None

    def _draw(self, problem: Problem, mixture: Mixture) -> tuple[int, float, bool]:
        """Draw from the mixture, or with probability `explore` from all candidates that fit by themselves.

        Return the position, the probability of choosing it, and whether it was explored.
        """
        free = problem.fitting if self._explore else _EMPTY
        share = self._explore if len(free) else 0.0
        explored = share > 0.0 and self._rng.random() < share
        position = int(free[self._rng.integers(len(free))]) if explored else mixture.draw(self._rng)
        # Both ways to this model count: what is learned from votes later divides by how likely the choice was.
        propensity = (1.0 - share) * dict(mixture.items()).get(position, 0.0)
        if share > 0.0 and position in free:
            propensity += share / len(free)
        return position, propensity, explored

    def _by_name(self, mixture: Mixture, places: Indices) -> dict[str, float]:
        return {self.menu.names[places[position]]: share for position, share in mixture.items()}


@lru_cache(maxsize=8)
def _alike(count: int) -> Floats:
    """Return equal weights (count,), which nobody changes."""
    return np.full(count, 1.0 / count)


def _named_opponents(weights: Mapping[str, float] | None) -> tuple[tuple[str, ...], Floats]:
    """Return names (Q,) and weights (Q,) of the opponents; both empty if all models are opponents."""
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
    """Return the opponents that have a coefficient, with normalised weights."""
    finite = np.isfinite(coefs)
    if not finite.all():
        coefs, weights = coefs[finite], weights[finite]
    return Opponents(coefs, weights / weights.sum())


def _some(names: Sequence[str]) -> str:
    first = ", ".join(names[:3])
    return f"{first} and {len(names) - 3} more" if len(names) > 3 else first
