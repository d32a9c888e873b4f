"""Which pairs a judge sees: all, or as many as it may, the closest first.

The active schedule works in rounds. Before each, a leaderboard is fitted to the verdicts of the rounds before; then
pairs of models are taken one by one for which another verdict tells most: p (1 - p) R, with p the chance that one beats
the other and R the resistance between them in the network of comparisons made and planned, so that 1/R counts
comparisons of the two and those by way of others. So close models meet most, and none is forgotten. A round depends on
the seed and on the rounds before it alone, not on the budget: a run that was stopped goes on as if it had not been, and
one with a larger budget as if it had been as large from the start. A judge that answers too sees its own answers last:
what it says of them is of least use.

Shapes: M models, P pairs of models.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.pairs.compare import draw

__all__ = ["Meeting", "Schedule", "meetings"]

Floats: TypeAlias = npt.NDArray[np.float64]
Couple: TypeAlias = tuple[str, str]
"""Two models, by name."""

_GROWTH = 5  # a round is as large as all before it by this, and of one meeting for each model at least
_PRIOR_SD = 2.0  # of ratings: one verdict must not make two models look far apart
_PRIOR_TIES = 0.5  # comparisons of each model with the average that count as made
_CODES = {"model_a": 0, "model_b": 1, "tie": 2, "tie (bothbad)": 3}


@dataclass(frozen=True, order=True)
class Meeting:
    """Two models and an item that both have answered; their names are in order."""

    datapoint: str
    first: str
    second: str


def meetings(answered: Mapping[str, Iterable[str]]) -> list[Meeting]:
    """All there can be, of item -> models that answered it."""
    return [
        Meeting(datapoint, first, second)
        for datapoint, models in answered.items()
        for first, second in itertools.combinations(sorted(models), 2)
    ]


class Schedule:
    """What one judge is still to see of the items of one teacher for one task."""

    def __init__(
        self, possible: Sequence[Meeting], known: Mapping[Meeting, str], limit: int | None, seed: int, judge: str = ""
    ) -> None:
        """Begin, or go on.

        Args:
            possible: all meetings that there can be.
            known: winner by meeting, `model_a` standing for the first name; of earlier starts of the run.
            limit: meetings that the judge may see in all.
            seed: of the order.
            judge: whose own answers come last.
        """
        self._judge = judge
        self._order = sorted(possible, key=lambda one: (judge in (one.first, one.second), draw(seed, "order", one)))
        there = set(possible)
        self.known = {one: winner for one, winner in known.items() if one in there}
        self._limit = len(possible) if limit is None else min(limit, len(possible))
        self.left = max(0, self._limit - len(self.known))
        """Meetings still to come."""

    def everything(self) -> list[Meeting]:
        """The meetings still to come, without regard to ratings."""
        return [one for one in self._order if one not in self.known][: self.left]

    def rounds(self) -> _Rounds:
        """The meetings still to come, round after round."""
        return _Rounds(self._order, self.known, self._limit, self._judge)


class _Rounds:
    """The rounds of an active schedule: `next()`, then `tell()` what came of them."""

    def __init__(self, order: Sequence[Meeting], known: Mapping[Meeting, str], limit: int, judge: str) -> None:
        self._limit = limit
        self._judge = judge
        self._known = dict(known)
        self._waiting: dict[Couple, list[Meeting]] = {}
        for one in reversed(order):
            self._waiting.setdefault((one.first, one.second), []).append(one)
        self._models = sorted({name for couple in self._waiting for name in couple})
        self._told: dict[Meeting, str] = {}
        self._planned = 0

    def next(self) -> list[Meeting]:
        """The meetings of the next round that are not known yet; rounds that are known whole are passed over."""
        while self._planned < self._limit:
            size = max(len(self._models), math.ceil(self._planned / _GROWTH))
            planned = self._plan(min(size, self._limit - self._planned))
            self._planned += len(planned)
            missing = [one for one in planned if one not in self._known]
            self._told.update({one: self._known[one] for one in planned if one in self._known})
            if missing:
                return self._within_limit(missing)
            if not planned:
                break
        return []

    def tell(self, found: Mapping[Meeting, str]) -> None:
        """The winners of the round, as in `known`."""
        self._known.update(found)
        self._told.update(found)

    def _within_limit(self, missing: list[Meeting]) -> list[Meeting]:
        """Verdicts that an earlier configuration brought, and no round asks for, count as well."""
        return missing[: max(0, self._limit - len(self._known))]

    def _plan(self, size: int) -> list[Meeting]:
        """The most telling meetings by what was told."""
        couples = list(self._waiting)
        place = {name: number for number, name in enumerate(self._models)}
        first, second = (np.array([place[couple[side]] for couple in couples], dtype=np.int64) for side in (0, 1))
        close = _closeness(_ratings(self._told, self._models), first, second)
        is_open = np.array([bool(self._waiting[couple]) for couple in couples], dtype=np.bool_)
        is_own = np.array([self._judge in couple for couple in couples], dtype=np.bool_)
        inverse = _inverse(Counter((place[one.first], place[one.second]) for one in self._told), len(place))
        planned: list[Meeting] = []
        while len(planned) < size and is_open.any():
            spread = np.diag(inverse)
            worth = close * (spread[first] + spread[second] - 2 * inverse[first, second])
            others = is_open & ~is_own
            worth = np.where(others if others.any() else is_open, worth.round(9), -1)
            best = int(np.argmax(worth))  # of equal ones the first, in an order that is drawn
            waiting = self._waiting[couples[best]]
            planned.append(waiting.pop())
            is_open[best] = bool(waiting)
            _count(inverse, first[best], second[best])
        return planned


def _closeness(ratings: Floats, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> Floats:
    """p (1 - p) of each pair of models, (P,)."""
    chance = 1 / (1 + np.exp(ratings[second] - ratings[first]))
    close: Floats = np.maximum(chance * (1 - chance), 1e-6)
    return close


def _inverse(counts: Mapping[tuple[int, int], int], models: int) -> Floats:
    """The inverse (M, M) of the Laplacian of comparisons made."""
    laplacian = _PRIOR_TIES * np.eye(models)
    for (one, other), count in counts.items():
        laplacian[[one, other], [one, other]] += count
        laplacian[[one, other], [other, one]] -= count
    return np.asarray(np.linalg.inv(laplacian))


def _count(inverse: Floats, one: int, other: int) -> None:
    """Add one comparison to what `_inverse` gives, by the formula of Sherman and Morrison."""
    column = inverse[:, one] - inverse[:, other]
    inverse -= np.outer(column, column) / (1 + column[one] - column[other])


def _ratings(told: Mapping[Meeting, str], models: Sequence[str]) -> Floats:
    """Coefficients (M,) of Bradley and Terry, a tie being half a win of each; zeros where nothing was told."""
    from p2l.leaderboard import fit
    from p2l.leaderboard.objective import Prior

    if not told:
        return np.zeros(len(models))
    place = {name: number for number, name in enumerate(models)}
    codes = np.array([(place[one.first], place[one.second], _CODES[winner]) for one, winner in told.items()])
    prior = Prior(sd=_PRIOR_SD)
    columns = (codes[:, column] for column in range(3))
    return fit(*columns, models=models, likelihood="bt-tie", intervals=None, prior=prior).coefs
