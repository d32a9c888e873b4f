"""Which pairs a judge sees: all, or as many as it may, the closest first.

The active schedule works in rounds. Before each, a Bradley-Terry leaderboard is fitted to the verdicts of the rounds
before; then the pairs of models are taken for which another verdict tells most: p (1 - p) / (1 + n), with p the chance
that one beats the other and n the verdicts on the two so far. So close models meet often, and none is forgotten. A
round depends on the seed and on the rounds before it alone: a run that was stopped goes on as if it had not been.

Shapes: M models.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coeval.pairs.compare import draw

__all__ = ["Meeting", "Schedule", "meetings"]

_ROUNDS = 10
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

    def __init__(self, possible: Sequence[Meeting], known: Mapping[Meeting, str], limit: int | None, seed: int) -> None:
        """Begin, or go on.

        Args:
            possible: all meetings that there can be.
            known: winner by meeting, `model_a` standing for the first name; of earlier starts of the run.
            limit: meetings that the judge may see in all.
            seed: of the order.
        """
        self._order = sorted(possible, key=lambda one: draw(seed, "order", one))
        self.known = {one: winner for one, winner in known.items() if one in set(possible)}
        self._limit = len(possible) if limit is None else min(limit, len(possible))

    @property
    def left(self) -> int:
        """Meetings still to come."""
        return max(0, self._limit - len(self.known))

    def everything(self) -> list[Meeting]:
        """The meetings still to come, without regard to ratings."""
        return [one for one in self._order if one not in self.known][: self.left]

    def rounds(self) -> _Rounds:
        """The meetings still to come, round after round."""
        return _Rounds(self._order, self.known, self._limit)


class _Rounds:
    """The rounds of an active schedule: `next()`, then `tell()` what came of them."""

    def __init__(self, order: Sequence[Meeting], known: Mapping[Meeting, str], limit: int) -> None:
        self._limit = limit
        self._known = dict(known)
        self._waiting: dict[tuple[str, str], list[Meeting]] = {}
        for one in reversed(order):
            self._waiting.setdefault((one.first, one.second), []).append(one)
        self._size = max(len(self._waiting), math.ceil(limit / _ROUNDS))
        self._told: dict[Meeting, str] = {}
        self._planned = 0

    def next(self) -> list[Meeting]:
        """The meetings of the next round that are not known yet; rounds that are known whole are passed over."""
        while self._planned < self._limit:
            planned = self._plan(min(self._size, self._limit - self._planned))
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
        worth = _uncertainty(self._told, self._waiting)
        seen = Counter((one.first, one.second) for one in self._told)
        heap = [(-worth[pair] / (1 + seen[pair]), pair) for pair, waiting in self._waiting.items() if waiting]
        heapq.heapify(heap)
        planned: list[Meeting] = []
        while heap and len(planned) < size:
            _, pair = heapq.heappop(heap)
            planned.append(self._waiting[pair].pop())
            seen[pair] += 1
            if self._waiting[pair]:
                heapq.heappush(heap, (-worth[pair] / (1 + seen[pair]), pair))
        return planned


def _uncertainty(told: Mapping[Meeting, str], pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """p (1 - p) of each pair of models; 1/4 where nothing is known."""
    models = sorted({name for pair in pairs for name in pair})
    coefs = dict(zip(models, _ratings(told, models), strict=True))
    chances = {(first, second): 1 / (1 + math.exp(coefs[second] - coefs[first])) for first, second in pairs}
    return {pair: chance * (1 - chance) for pair, chance in chances.items()}


def _ratings(told: Mapping[Meeting, str], models: Sequence[str]) -> list[float]:
    """Coefficients (M,) by the verdicts that name a winner; the prior holds the unbeaten."""
    from p2l.leaderboard import fit

    decided = {one: winner for one, winner in told.items() if winner in ("model_a", "model_b")}
    if not decided:
        return [0.0] * len(models)
    place = {name: number for number, name in enumerate(models)}
    codes = np.array([(place[one.first], place[one.second], _CODES[winner]) for one, winner in decided.items()])
    board = fit(codes[:, 0], codes[:, 1], codes[:, 2], models=models, intervals=None)
    return [float(coef) for coef in board.coefs]
