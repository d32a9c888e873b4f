"""A leaderboard in the order of its page, and how surely each model is above the next.

Shapes: R models that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from p2l.common.report.charts import percent
from p2l.leaderboard.board import POINTS_PER_LOGIT, Floats, Ints, Leaderboard, Named, to_score
from p2l.leaderboard.history import History
from p2l.leaderboard.report.provenance import Provenance

_SURE = 0.995
"""A chance that would be rounded to 100 % is more than 99 %."""


@dataclass(frozen=True)
class Leaderboards:
    """What one run of `p2l leaderboard` computes.

    Attributes:
        title: of documents that hold it.
        unit: what the sizes of groups count: votes or prompts.
        boards: that of everything first, then those of groups; empty where a history was asked for alone.
        history: of the leaderboard of all votes, or None.
        min_votes: models with fewer votes are left out.
        provenance: what made them, where that is votes.
    """

    title: str
    unit: str
    boards: Sequence[Named]
    history: History | None = None
    min_votes: int = 0
    provenance: Provenance | None = None


class Step(NamedTuple):
    """How a model stands above the next.

    The difference in points with its ends, the chance that it is truly better, and that of winning a vote against it
    (ties count half); NaN where they are not known.
    """

    above: str
    below: str
    points: float
    lower: float
    upper: float
    chance: float
    rate: float

    @property
    def is_sure(self) -> bool:
        """Whether the interval of the difference leaves no doubt."""
        return self.lower > 0

    @property
    def chance_text(self) -> str:
        """The chance as a page has it; a dash where it is not known."""
        if math.isnan(self.chance):
            return "–"
        return f">{percent(0.99)}" if self.chance > _SURE else percent(self.chance, 0)


@dataclass(frozen=True)
class Ranking:
    """The models of a leaderboard that have enough votes, the best first; `order` (R,) are their places in it."""

    board: Leaderboard
    order: Ints

    @classmethod
    def of(cls, board: Leaderboard, min_votes: int = 0) -> Ranking:
        """Sort the models of a leaderboard by score."""
        order = np.argsort(-board.coefs, kind="stable")
        return cls(board, order if board.votes is None else order[board.votes[order] >= min_votes])

    @cached_property
    def names(self) -> list[str]:
        """The models."""
        return [self.board.models[place] for place in self.order]

    @cached_property
    def scores(self) -> tuple[Floats, Floats, Floats]:
        """Lower ends, scores and upper ends (R,) of the models."""
        board = self.board
        lower, score, upper = (to_score(values[self.order]) for values in (board.lower, board.coefs, board.upper))
        return lower, score, upper

    @cached_property
    def ranks(self) -> list[tuple[int, int]]:
        """The best and the worst rank that each model may have."""
        best, worst = self.board.rank_intervals(self.order)
        return list(zip(best.tolist(), worst.tolist(), strict=True))

    @cached_property
    def rates(self) -> tuple[Floats, Floats, Floats]:
        """Lower ends, win rates and upper ends (R,): the chance of beating another model drawn at random."""
        rates = self.board.win_rates()
        lower, upper = self.board.win_rate_limits() or (np.full(len(rates), np.nan),) * 2
        return lower[self.order], rates[self.order], upper[self.order]

    @property
    def has_intervals(self) -> bool:
        """Whether any score has an interval."""
        return bool(np.isfinite(self.scores[0]).any())

    @property
    def has_differences(self) -> bool:
        """Whether it is known how far the errors of models go together."""
        return self.board.covariance is not None and len(self.order) > 1

    @property
    def leaders(self) -> list[str]:
        """The models that may be the best, as far as the intervals of their differences tell."""
        return [name for name, (best, _) in zip(self.names, self.ranks, strict=True) if best == 1]

    @cached_property
    def steps(self) -> list[Step]:
        """How each model stands above the next: R - 1 of them."""
        gaps, sds = self.board.differences(self.order)
        rates = self.board.pair_rates(self.order)
        normal = NormalDist()
        width = normal.inv_cdf(0.5 + 0.5 * self.board.level)
        steps = []
        for number, (above, below) in enumerate(pairwise(self.names)):
            gap, sd, rate = (float(values[number, number + 1]) for values in (gaps, sds, rates))
            lower, upper = (POINTS_PER_LOGIT * (gap + side * sd) for side in (-width, width))
            chance = normal.cdf(gap / sd) if sd > 0 else math.nan
            middle = math.nan if math.isnan(rate) else POINTS_PER_LOGIT * gap  # of models that were never compared
            steps.append(Step(above, below, middle, lower, upper, chance, rate))
        return steps
