"""How a budget becomes a choice: the shares of the models that buy the best expected score.

With scores s, costs c and a budget C, all on average over requests:

    maximise s.p   subject to   c.p <= C,  sum p = 1,  p >= 0

With one budget the optimum mixes at most two models, neighbours on the upper concave hull of the points (c, s). The
hull is found exactly by a monotone chain over the models in the order of cost. That order is fixed by the
configuration, so that a request costs O(M). `lp` takes further linear limits, and a solver.

Shapes: K candidates, always cheapest first; L limits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import choose
from p2l.common.errors import ConfigError, InputError

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
Mask: TypeAlias = npt.NDArray[np.bool_]
_DUST = 1e-9  # shares below this are a solver's noise


class InfeasibleError(InputError):
    """No mixture of the models is within the budget and the limits."""


@dataclass(frozen=True)
class Mixture:
    """Positions of candidates and their probabilities: positive, 1 in sum."""

    positions: tuple[int, ...]
    shares: tuple[float, ...]

    def items(self) -> Iterator[tuple[int, float]]:
        """Return the pairs of position and share."""
        return zip(self.positions, self.shares, strict=True)

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a position by the shares."""
        if len(self.positions) == 1:
            return self.positions[0]
        mark = rng.random() * math.fsum(self.shares)
        return self.positions[min(bisect_right(list(accumulate(self.shares)), mark), len(self.positions) - 1)]

    def mean(self, values: Floats) -> float:
        """Return the expectation of `values` (K,)."""
        return sum(share * float(values[position]) for position, share in self.items())


@dataclass
class Problem:
    """The optimisation problem of one request."""

    scores: Floats
    """(K,)"""
    costs: Floats
    """(K,), not negative, ascending; among equal costs the earlier candidate wins a tie"""
    budget: float | None = None
    """At most this on average, in the unit of the costs; None buys the best."""
    amounts: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(L, K) of the limited quantities"""
    most: Floats = field(default_factory=lambda: np.empty(0))
    """(L,)"""

    @cached_property
    def corners(self) -> list[int]:
        """Return the positions of the hull's corners, cheapest first."""
        return hull(self.scores, self.costs)

    @property
    def rate(self) -> float:
        """Return the score that one more unit of cost buys at this budget, on the hull; 0: no cost is too high.

        Beyond the best model it is that of the hull's last edge, which is what its price buys.
        """
        corners = self.corners
        if len(corners) == 1:
            cost = float(self.costs[corners[0]])
            return float(self.scores[corners[0]]) / cost if cost else 0.0
        xs, ys = self.costs[corners], self.scores[corners]
        end = len(corners) - 1 if self.budget is None else int(xs.searchsorted(self.budget, side="right"))
        end = min(max(end, 1), len(corners) - 1)
        return float((ys[end] - ys[end - 1]) / (xs[end] - xs[end - 1]))

    @property
    def fitting(self) -> Indices:
        """Return the positions of the candidates that are within the budget and every limit by themselves.

        There may be none; InfeasibleError is raised where all cost more than the budget.
        """
        count = self.num_affordable
        if not len(self.most):
            return np.arange(count)
        return np.flatnonzero((self.amounts[:, :count] <= self.most[:, None]).all(axis=0))

    @property
    def num_affordable(self) -> int:
        """Return how many candidates, the first ones, cost no more than the budget; raise InfeasibleError for 0."""
        if self.budget is None:
            return len(self.costs)
        count = bisect_right(self.costs, self.budget)
        if not count:
            raise InfeasibleError(
                f"a budget of {self.budget:g} buys no answer: the cheapest model costs {self.costs[0]:g}"
            )
        return count


def check_budget(budget: float | None) -> None:
    """Raise InputError for a budget that is negative, infinite or not a number."""
    if budget is not None and not 0.0 <= budget < math.inf:
        raise InputError(f"a budget must be a number of at least 0, not {budget}; leave it out to get the best model")


def hull(scores: Floats, costs: Floats) -> list[int]:
    """Return the positions of the corners of the upper concave hull of (costs, scores), from cheapest to best.

    Costs (K,) ascend. Scores rise strictly from corner to corner; points on an edge are not corners; of models with
    equal cost and score the first counts.
    """
    xs: list[float] = []
    ys: list[float] = []
    corners: list[int] = []
    best = -math.inf
    # Lists, since the calls of NumPy take longer than a loop over the models that a menu has.
    for position, (x, y) in enumerate(zip(costs.tolist(), scores.tolist(), strict=True)):
        if y <= best:  # no better than one that costs less
            continue
        best = y
        while xs:
            # The last point is no corner if it lies on or below the line from the one before it to (x, y).
            is_below = len(xs) > 1 and (ys[-1] - ys[-2]) * (x - xs[-1]) <= (y - ys[-1]) * (xs[-1] - xs[-2])
            if xs[-1] != x and not is_below:
                break
            del xs[-1], ys[-1], corners[-1]
        xs.append(x)
        ys.append(y)
        corners.append(position)
    return corners


@dataclass(frozen=True)
class Optimizer:
    """A way to spend a budget."""

    name: str
    solve: Callable[[Problem], Mixture]
    """Raises InfeasibleError where there is no choice."""
    families: tuple[str, ...]
    """The families of router kinds whose scores it understands."""
    keeps_each: bool = False
    """Whether the budget holds for every request, rather than on average over requests."""
    takes_limits: bool = False


OPTIMIZERS: dict[str, Optimizer] = {}
Solve: TypeAlias = Callable[[Problem], Mixture]


def register(
    name: str, *, families: tuple[str, ...] = ("bt", "grk"), keeps_each: bool = False, takes_limits: bool = False
) -> Callable[[Solve], Solve]:
    """Register the decorated function as a new optimizer."""

    def add(solve: Solve) -> Solve:
        OPTIMIZERS[name] = Optimizer(name, solve, families, keeps_each, takes_limits)
        return solve

    return add


def get(name: str) -> Optimizer:
    """Return the optimizer of that name; raise ConfigError with the list of names if there is none."""
    return choose("cost optimizer", name, OPTIMIZERS)


@register("strict", families=("bt", "grk", "random"), keeps_each=True)
def _strict(problem: Problem) -> Mixture:
    """Take the best model that costs no more than the budget."""
    return Mixture((int(problem.scores[: problem.num_affordable].argmax()),), (1.0,))


@register("simple-lp", families=("grk",))
@register("optimal-lp", families=("bt",))
def _on_the_hull(problem: Problem) -> Mixture:
    """Take the point of the hull above the budget: one corner, or a mixture of two neighbours."""
    # num_affordable is never 0: it raises where the budget buys nothing.
    if not problem.num_affordable or problem.budget is None:
        # The last corner of the hull: the first of the best, which is the cheapest of these.
        return Mixture((int(problem.scores.argmax()),), (1.0,))
    corners = problem.corners
    costs = [float(problem.costs[corner]) for corner in corners]
    right = bisect_right(costs, problem.budget)
    if right == len(corners):
        return Mixture((corners[-1],), (1.0,))
    left = right - 1
    share = (problem.budget - costs[left]) / (costs[right] - costs[left])
    if share in (0.0, 1.0):
        return Mixture((corners[right if share else left],), (1.0,))
    return Mixture((corners[left], corners[right]), (1.0 - share, share))


@register("lp", takes_limits=True)
def _linear_program(problem: Problem) -> Mixture:
    """Solve for the budget and L further limits, which mixes at most 1 + L + 1 models; without limits use the hull."""
    if not len(problem.most):
        return _on_the_hull(problem)
    problem.num_affordable  # noqa: B018 (raises the clearer message where the budget alone is too small)
    rows, most = problem.amounts, problem.most
    if problem.budget is not None:
        rows, most = np.vstack([problem.costs, rows]), np.append(problem.budget, most)
    shares = _vertex(problem.scores, rows, most)
    if shares is None:
        raise InfeasibleError(f"no mixture of the {len(problem.costs)} models keeps to the budget and all limits")
    shares = np.where(shares > _DUST, shares, 0.0)
    mixed = np.flatnonzero(shares)
    return Mixture(tuple(mixed.tolist()), tuple((shares[mixed] / shares.sum()).tolist()))


def _vertex(scores: Floats, rows: Floats, most: Floats) -> Floats | None:
    """Return the shares p (K,) that maximise scores.p under rows (L, K) p <= most (L,); None if infeasible.

    The simplex method ends at a vertex, which mixes as few models as possible; an interior-point method would mix all.
    """
    try:
        import cvxpy
    except ImportError as error:
        raise ConfigError("cost optimizer lp needs cvxpy under further limits: pip install 'p2l[lp]'") from error
    cp: Any = cvxpy  # its types are incomplete
    scale = np.maximum(np.abs(rows).max(axis=1), np.abs(most))  # solvers have absolute tolerances
    scale[scale == 0.0] = 1.0
    shares: Any = cp.Variable(len(scores), nonneg=True)
    limits = [(rows / scale[:, None]) @ shares <= most / scale, cp.sum(shares) == 1.0]
    task = cp.Problem(cp.Maximize(scores @ shares), limits)
    task.solve(solver=cp.SCIPY, scipy_options={"method": "highs-ds"})
    return None if task.status != cp.OPTIMAL else np.asarray(shares.value, dtype=np.float64)


# Coefficients as scores, and expected scores back as one coefficient.
#
#                            score of model i                      strength of a mixture p
#     against opponents q    s_i = sum_j q_j sigmoid(b_i - b_j)    the root t of sum_j q_j sigmoid(t - b_j) = s.p
#     grounded               s_i = sigmoid(b_i)                    logit(s.p)
#
# sigmoid(b_i - b_j) is P(win) of the likelihood `bt` (`p2l.likelihood`), written as a_i / (a_i + a_j) with a = exp(b):
# one exponential per coefficient instead of one per pair.
#
# Shapes: M models, Q opponents, P models of a mixture.

_LARGEST_COEFFICIENT = 300.0  # exp of larger coefficients, and its square, would leave the range of float64
_LARGEST_EXPONENT = 700.0
_LEAST_RATE = 5e-324
_LAST_STEP = 1e-5  # the error after one of Newton's steps is about its square
_ROUNDING = 1e-15
_MOST_STEPS = 60


class Opponents(NamedTuple):
    """The models that a model is compared with."""

    coefs: Floats
    """(Q,)"""
    weights: Floats
    """(Q,), 1 in sum"""


def scores_against(coefs: Floats, opponents: Opponents) -> Floats:
    """Return the win rates (M,) against an opponent drawn by the weights; a tie is half a win."""
    if (
        not max(np.abs(coefs).max(), np.abs(opponents.coefs).max()) <= _LARGEST_COEFFICIENT
    ):  # true of a NaN, as `>` is not
        halves = np.tanh(0.5 * (coefs[:, None] - opponents.coefs))
        return 0.5 + 0.5 * (halves @ opponents.weights)
    worths, others = np.exp(coefs)[:, None], np.exp(opponents.coefs)
    chances = worths + others
    np.divide(worths, chances, out=chances)
    return np.asarray(chances.dot(opponents.weights))


def strength_against(coefs: Floats, shares: Floats, opponents: Opponents) -> float:
    """Return the coefficient of a model that would win as often as a mixture `shares` (P,) of models `coefs` (P,).

    Newton's method on the log-odds of winning, which are nearly linear in t, between the least and the largest
    coefficient of the mixture; halving where a step leads outside.
    """
    mixed: list[float] = coefs.tolist()
    least, largest = min(mixed), max(mixed)
    if least == largest:
        return least
    # From here on t counts from the middle. An opponent further away than the reach always wins, or always loses.
    middle, low, high = 0.5 * (least + largest), 0.5 * (least - largest), 0.5 * (largest - least)
    worths = np.exp(np.minimum(np.maximum(opponents.coefs - middle, -_LARGEST_COEFFICIENT), _LARGEST_COEFFICIENT))
    rates = [_rates(coef - middle, worths, opponents.weights)[:2] for coef in mixed]
    won, lost = (float(shares.dot(column)) for column in zip(*rates, strict=True))
    target, bottom, top = _log_odds(won, lost), _log_odds(*min(rates)), _log_odds(*max(rates))
    t = low + (high - low) * (target - bottom) / (top - bottom) if bottom < target < top else 0.0
    for _ in range(_MOST_STEPS):
        won, lost, slope = _rates(t, worths, opponents.weights)
        error = _log_odds(won, lost) - target
        low, high = (t, high) if error < 0.0 else (low, t)
        newton = t - error * won * lost / slope if slope > 0.0 else math.nan
        before, t = t, newton if low <= newton <= high else 0.5 * (low + high)
        if abs(error) <= _ROUNDING or (t == newton and abs(t - before) <= _LAST_STEP):
            break
    return min(max(middle + t, least), largest)


def _rates(t: float, worths: Floats, weights: Floats) -> tuple[float, float, float]:
    """Return win rate, loss rate and slope of the win rate at coefficient t; worths are exp(coefs) of the opponents."""
    worth = math.exp(min(max(t, -_LARGEST_COEFFICIENT), _LARGEST_COEFFICIENT))
    sums = worths + worth
    parts = weights / sums
    # dot takes half the time of @ on vectors this short.
    return worth * float(np.add.reduce(parts)), float(parts.dot(worths)), worth * float((parts / sums).dot(worths))


def _log_odds(won: float, lost: float) -> float:
    return math.log(max(won, _LEAST_RATE)) - math.log(max(lost, _LEAST_RATE))


def grounded_scores(coefs: Floats) -> Floats:
    """Return the sigmoid (M,) of grounded coefficients: the probability of a good enough answer."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * coefs))


def grounded_strength(coefs: Floats, shares: Floats) -> float:
    """Return the logit of the mean score of a mixture `shares` (P,) of models `coefs` (P,)."""
    low, high = float(coefs.min()), float(coefs.max())
    if low == high:
        return low
    mixed = list(zip(coefs.tolist(), shares.tolist(), strict=True))
    good = sum(share * _sigmoid(coef) for coef, share in mixed)
    bad = sum(share * _sigmoid(-coef) for coef, share in mixed)
    return min(max(_log_odds(good, bad), low), high)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(min(-x, _LARGEST_EXPONENT)))
