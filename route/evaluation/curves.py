"""The cost-quality curve of a policy and what is read from it, with intervals that draw prompts anew.

A curve is mean score over mean cost, both as paid and earned on held-out prompts, a point for each budget and straight
lines between. Left of its first point and right of its last it goes on level: who spends less than the limit keeps to
it. The area is the mean height over the logarithm of cost, between the mean cost of the cheapest and of the dearest
model on the same prompts: a score between 0 and 1, the mean quality to a user whose budget may be any order of
magnitude in that range. Differences are between policies on the same drawn prompts.

Shapes: Q questions, J budgets, R draws, G points of the cost axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.metrics import Interval
from route.evaluation.spending import Spent

__all__ = ["Axis", "Curves", "difference", "draw_counts", "interval"]

Floats: TypeAlias = npt.NDArray[np.float64]

POINTS = 201
DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Axis:
    """The costs (G,) at which curves are read, evenly spaced on a logarithmic scale."""

    costs: Floats

    @staticmethod
    def between(low: float, high: float) -> Axis:
        """From the cheapest to the dearest model; evenly spaced in dollars where one is free."""
        if low <= 0.0 or low == high:
            return Axis(np.linspace(low, high, POINTS))
        return Axis(np.geomspace(low, high, POINTS))


@dataclass(frozen=True)
class Curves:
    """A policy's curve on all prompts (row 0) and on R drawn samples of them."""

    scores: Floats
    """(1 + R, J)"""
    costs: Floats
    """(1 + R, J)"""

    @staticmethod
    def of(spent: Spent, counts: Floats) -> Curves:
        """Means over the prompts; `counts` (R, Q) says how often a sample has each."""
        weights = np.vstack([np.ones(counts.shape[1]), counts])
        weights /= weights.sum(axis=1, keepdims=True)
        return Curves(weights @ spent.scores, weights @ spent.costs)

    def heights(self, axis: Axis) -> Floats:
        """The curves (1 + R, G) read at each cost of the axis."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.stack([np.interp(axis.costs, x, y) for x, y in zip(xs, ys, strict=True)])

    def areas(self, axis: Axis) -> Floats:
        """(1 + R,) mean height over the axis."""
        heights = self.heights(axis)
        return np.asarray((heights[:, 1:] + heights[:, :-1]).mean(axis=1) / 2)

    def at(self, costs: Floats) -> Floats:
        """(1 + R,) height of each curve at a cost of its own."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.array([np.interp(cost, x, y) for cost, x, y in zip(costs, xs, ys, strict=True)])

    def cost_of(self, scores: Floats) -> Floats:
        """(1 + R,) the least cost at which each curve reaches a score of its own; infinite where it never does."""
        order = np.argsort(self.costs, axis=1, kind="stable")
        xs, ys = (np.take_along_axis(values, order, axis=1) for values in (self.costs, self.scores))
        return np.array([_first_reach(*row) for row in zip(xs, ys, scores.tolist(), strict=True)])


def _first_reach(x: Floats, y: Floats, wanted: float) -> float:
    """Where a line through the points (x, y) first comes to a height."""
    above = np.flatnonzero(y >= wanted)
    if not len(above):
        return float("inf")
    right = int(above[0])
    if right == 0:
        return float(x[0])
    share = (wanted - y[right - 1]) / (y[right] - y[right - 1])
    return float(x[right - 1] + share * (x[right] - x[right - 1]))


def draw_counts(prompts: tuple[str, ...], *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """How often (R, Q) a sample has each question; questions with one prompt are drawn together."""
    _, groups = np.unique(np.array(prompts, dtype=object), return_inverse=True)
    rng = np.random.default_rng(seed)
    number = int(groups.max()) + 1
    times = np.stack([np.bincount(rng.integers(0, number, number), minlength=number) for _ in range(draws)])
    return np.asarray(times[:, groups], dtype=np.float64)


def interval(values: Floats) -> Interval:
    """The estimate (first value) with the percentiles of the draws (the others); infinite values count as such."""
    tail = (1.0 - LEVEL) / 2
    draws = values[1:]
    lower, upper = (float(np.quantile(draws, share, method="nearest")) for share in (tail, 1.0 - tail))
    spread = float(draws.std(ddof=1)) if np.isfinite(draws).all() else float("nan")
    return Interval(float(values[0]), lower, upper, spread)


def difference(ours: Mapping[str, Curves], one: str, other: str, read: Callable[[Curves], Floats]) -> Interval:
    """How much more one policy has than another of what `read` takes from curves."""
    return interval(read(ours[one]) - read(ours[other]))
