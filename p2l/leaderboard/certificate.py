"""How few votes a leaderboard rests on: the fewest whose removal, or reversal, changes the first place or a rank.

An interval says what other votes of the same kind would change; this says what a few of these votes decide, which no
interval shows where two models are close. The effect of one vote on all coefficients is its influence function,
H^-1 times the vote's score (Broderick, Giordano and Meager, 2020): votes are changed in the order of their influence
on the difference of two models, the leaderboard is fitted again, and the number is the least at which the fit itself
has changed the rank. It is therefore an upper bound that was checked, and in practice the least.

Shapes: M models, P rows of the table of pairs, K outcomes, D parameters, Q parameters of a row, 4 winners.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from p2l.common.cli import counted
from p2l.common.errors import ConvergenceError
from p2l.leaderboard.intervals import winner_scores
from p2l.leaderboard.newton import Expansion, Objective, minimise, winner_targets
from p2l.leaderboard.pair_tables import Ints, PairTable

Floats = npt.NDArray[np.float64]
Refit = Callable[[PairTable], Floats]
"""Fits a table completely, its prior too, and returns the coefficients (M,)."""
MAX_RANKED = 200
"""Models, the best first, whose ranks get a certificate: each costs some fits."""
_MAX_ROWS = 50_000  # of a table: with covariates each vote may be a row of its own
_EQUAL = 1e-6  # a difference of coefficients, in logits, that rounding may make
_REFIT_TOLERANCE = 1e-4  # a last Newton step of this size, which is not looked at again, leaves an error of 1e-8
_ONE_STEP = 16  # votes that one expansion is taken to rank rightly
_STAGES = 4  # in which more are changed, each ranked by the fit to those that are left
_MAX_STAGES = 40
_MARGIN = 1.25  # by which the estimate of the votes between two models may be too high
_SHARE_OF_LOST = 0.5  # of the votes that a model did not win, whose change may be enough to put it first
_MAX_EXTRA_STEPS = 50  # in which votes are added until the complete fit agrees

# What becomes of a vote, by the place of its winner: rows are added to the counts of the four winners.
_REMOVED = -np.eye(4)
_REVERSED = np.array([[-1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4])


class ChangedVotes(NamedTuple):
    """Votes of one kind that a certificate changes."""

    model_a: str
    model_b: str
    winner: str
    votes: int


@dataclasses.dataclass(frozen=True)
class FirstPlace:
    """The fewest votes whose removal, or reversal, gives another model the first place.

    Attributes:
        number: of these votes.
        leader: the model that is first then.
        votes: which votes they are, by pair of models (in the order of codes) and winner.
    """

    number: int
    leader: str
    votes: tuple[ChangedVotes, ...]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How few votes decide a leaderboard.

    Attributes:
        total: votes that were counted.
        first: the model that is first.
        removed, reversed: what changes the first place; None where no change of that kind does.
        rank_removed, rank_reversed: (M,) the fewest votes whose removal, or reversal, changes the rank of each model;
            NaN where nothing does, and for models that are not shown or beyond the first `MAX_RANKED`.
    """

    total: int
    first: str
    removed: FirstPlace | None
    reversed: FirstPlace | None
    rank_removed: Floats = dataclasses.field(repr=False)
    rank_reversed: Floats = dataclasses.field(repr=False)

    @property
    def sentence(self) -> str:
        """What decides the first place, in words."""
        removed, turned = self.removed, self.reversed
        if removed is None and turned is None:
            return f"No removal or reversal of votes was found that takes the first place from {self.first}."
        texts = []
        if removed is not None:
            decide, them = ("decides", "it") if removed.number == 1 else ("decide", "them")
            votes = f"{counted(removed.number, 'vote')} of {self.total:,}"
            texts.append(f"{votes} {decide} the first place: without {them} {removed.leader} leads.")
        else:
            texts.append(f"No removal of votes was found that takes the first place from {self.first}.")
        if turned is not None:
            would = "would do too" if removed is not None else "would do"
            texts.append(
                f"{counted(turned.number, 'vote')}, turned to the other model, {would}: then {turned.leader} leads."
            )
        return " ".join(texts)


def certificate(
    objective: Objective, point: Expansion, table: PairTable, models: list[str], shown: Ints, refit: Refit
) -> tuple[Certificate | None, str]:
    """Return the certificate of a fit, and what it leaves out, in words.

    `shown` are the codes of the models that are ranked. The first place is checked by `refit`, ranks with the prior as
    it is. There is no certificate where votes of one kind have different weights, since the table has their sum alone.
    """
    if len(table.first) > _MAX_ROWS:
        return None, (
            f"How few votes decide ranks was not computed: covariates keep {len(table.first):,} rows apart, and at "
            f"most {_MAX_ROWS:,} are searched (--control-steps rounds them)."
        )
    if not np.allclose(table.squares * table.votes, table.weights**2):
        return None, "How few votes decide ranks was not computed: the votes have different weights."
    order = shown[np.argsort(-point.theta[shown], kind="stable")]
    if len(order) < 2 or len(set(objective.graph[order].tolist())) > 1:
        why = "fewer than two models are listed" if len(order) < 2 else "not all models were compared"
        return None, f"How few votes decide ranks was not computed: {why}."
    try:
        found = _searched(objective, point, table, models, order, refit)
    except (ConvergenceError, LinAlgError) as error:
        # The leaderboard stands; it is a fit to fewer votes that has no optimum.
        return None, f"How few votes decide ranks was not computed: without some of them, {error}."
    left_out = len(order) - MAX_RANKED
    note = f"How few votes decide the rank was computed for the first {MAX_RANKED} models." if left_out > 0 else ""
    return found, note


def _searched(
    objective: Objective, point: Expansion, table: PairTable, models: list[str], order: Ints, refit: Refit
) -> Certificate:
    """Return the certificate of models that are ranked, the best first."""
    numbers = []
    firsts = []
    for moves in (_REMOVED, _REVERSED):
        search = _Search(objective, point, table, order, moves)
        ranks = np.full(len(models), np.nan)
        for place, model in enumerate(order[:MAX_RANKED].tolist()):
            change = search.rank_change(model)
            if place == 0:
                change = search.confirmed(change, refit)
                firsts.append(None if change is None else _first_place(search, change, models))
            ranks[model] = math.nan if change is None else change.number
        numbers.append(ranks)
    return Certificate(
        total=round(float(table.votes.sum())),
        first=models[order[0]],
        removed=firsts[0],
        reversed=firsts[1],
        rank_removed=numbers[0],
        rank_reversed=numbers[1],
    )


class _Change(NamedTuple):
    """Votes (P, 4) that are changed between two models, and the coefficients (M,) after it."""

    above: int
    below: int
    taken: Floats
    coefs: Floats

    @property
    def number(self) -> int:
        """How many votes."""
        return round(float(self.taken.sum()))


def _first_place(search: _Search, change: _Change, models: list[str]) -> FirstPlace:
    from p2l.votes.schema import WINNERS  # the package of votes imports Arrow, which a served model does without

    table, taken = search.table, np.rint(change.taken).astype(np.int64)
    votes = tuple(
        ChangedVotes(models[table.first[row]], models[table.second[row]], WINNERS[winner], int(taken[row, winner]))
        for row, winner in np.argwhere(taken > 0).tolist()
    )
    return FirstPlace(change.number, models[int(search.ranked(change.coefs)[0])], votes)


class _Search:
    """The search for the fewest votes that turn models around, by one kind of change."""

    def __init__(self, objective: Objective, point: Expansion, table: PairTable, order: Ints, moves: Floats) -> None:
        self.objective, self.point, self.table, self.order, self.moves = objective, point, table, order, moves
        votes = np.maximum(table.votes, 1.0)
        self.weight = table.weights / votes  # of each vote of a kind
        self.changeable = np.where(moves.any(axis=1), table.votes, 0.0) * (table.weights > 0)
        self.outcomes = winner_targets(objective.likelihood)
        self.moved_outcomes = moves @ self.outcomes
        self.changes: dict[tuple[int, int], _Change | None] = {}
        self.estimates: dict[tuple[int, int], float] = {}
        ties = self.changeable[:, 2:].sum(axis=1)
        self.not_won, self.not_lost = (
            np.bincount(table.first, self.changeable[:, of_first] + ties, objective.num_models)
            + np.bincount(table.second, self.changeable[:, 1 - of_first] + ties, objective.num_models)
            for of_first in (1, 0)
        )
        self.expansion = _Influence.of(self, point)
        self.inverse = cho_solve(self.expansion.factor, np.eye(objective.size))

    def ranked(self, coefs: Floats) -> Ints:
        """Return the models that are ranked, the best first; those that rounding tells apart stay as they were."""
        ordered = self.order[np.argsort(-coefs[self.order], kind="stable")].tolist()
        before = {model: rank for rank, model in enumerate(self.order.tolist())}
        for end in range(1, len(ordered)):
            place = end
            while place and self._still_above(ordered, place, coefs, before):
                ordered[place - 1], ordered[place] = ordered[place], ordered[place - 1]
                place -= 1
        return np.asarray(ordered, dtype=np.int64)

    @staticmethod
    def _still_above(ordered: list[int], place: int, coefs: Floats, before: dict[int, int]) -> bool:
        upper, lower = ordered[place - 1], ordered[place]
        return before[lower] < before[upper] and float(coefs[upper] - coefs[lower]) < _EQUAL

    def rank_change(self, model: int) -> _Change | None:
        """Return the fewest votes whose change gives a model another rank, or None."""
        rank = int(np.flatnonzero(self.order == model)[0])
        best: _Change | None = None
        for above, below, estimate in self._rivals(model):
            if best is not None and estimate > _MARGIN * best.number:
                break
            if (above, below) not in self.changes:
                self.changes[above, below] = self._change(above, below)
            change = self.changes[above, below]
            if change is None or (best is not None and change.number >= best.number):
                continue
            if self.ranked(change.coefs)[rank] != model:
                best = change
        return best

    def _rivals(self, model: int) -> Iterator[tuple[int, int, float]]:
        """Yield the pairs of a model and another, upper first, in the order of the votes that they seem to need."""
        gaps = self.point.theta[model] - self.point.theta[self.order]
        reach = np.abs(self.inverse[model] - self.inverse[self.order]).max(axis=1) * self.expansion.largest
        rank = int(np.flatnonzero(self.order == model)[0])
        is_above = np.arange(len(self.order)) < rank
        most = np.where(
            is_above,
            np.minimum(self.not_lost[self.order], self.not_won[model]),
            np.minimum(self.not_lost[model], self.not_won[self.order]),
        )
        bounds = np.minimum(np.abs(gaps) / np.maximum(reach, 1e-300), _SHARE_OF_LOST * most)
        estimates: list[tuple[float, int, int]] = []
        for place in np.argsort(bounds, kind="stable").tolist():
            if place == rank:
                continue
            if estimates and bounds[place] > _MARGIN * min(estimates)[0]:
                break
            other = int(self.order[place])
            pair = (other, model) if place < rank else (model, other)
            if pair not in self.estimates:
                self.estimates[pair] = self._estimate(*pair)
            estimates.append((self.estimates[pair], *pair))
        for estimate, above, below in sorted(estimates):
            yield above, below, estimate

    def _estimate(self, above: int, below: int) -> float:
        """Return how many votes it takes to turn two models around, by influence alone; infinite where none do."""
        effect = self.expansion.effects(above, below)
        steps = _greatest_first(effect, self.changeable, float(self.point.theta[above] - self.point.theta[below]))
        # The influence of what is left grows as a model loses its votes, and without lost ones it is as good as first.
        most = _SHARE_OF_LOST * min(self.not_won[below], self.not_lost[above])
        return min(float(steps.votes.sum()), most) if steps.is_enough else float(most)

    def _change(self, above: int, below: int) -> _Change | None:
        """Return the fewest votes whose change puts one model below another."""
        taken, expansion = np.zeros_like(self.changeable), self.expansion
        gap = float(self.point.theta[above] - self.point.theta[below])
        stage = gap / _STAGES
        for _ in range(_MAX_STAGES):
            left = self.changeable - taken
            effect = expansion.effects(above, below)
            steps = _greatest_first(effect, left, gap + _EQUAL)
            if not len(steps.cells):
                return None
            if steps.votes.sum() > _ONE_STEP and gap > stage:
                steps = _greatest_first(effect, left, stage)
            more = steps.first(int(steps.votes.sum()), taken.shape)
            after = self._fit(taken + more, expansion.moved(more))
            if float(after.theta[above] - after.theta[below]) < -_EQUAL:
                return self._trimmed(above, below, taken, steps, expansion, after)
            taken = taken + more
            expansion = _Influence.of(self, after, taken)
            gap = max(float(after.theta[above] - after.theta[below]), 0.0)
        return None

    def _trimmed(
        self, above: int, below: int, taken: Floats, steps: _Steps, expansion: _Influence, after: Expansion
    ) -> _Change:
        """Return the least of the last votes that turn the two around, by fits to fewer of them."""
        low, high, best = 0, int(steps.votes.sum()), after
        gap_low = float(expansion.point.theta[above] - expansion.point.theta[below])
        gap_high = float(after.theta[above] - after.theta[below])
        while high - low > 1:
            middle = low + math.ceil((high - low) * gap_low / max(gap_low - gap_high, 1e-300))
            middle = min(max(middle, low + 1), high - 1)
            more = steps.first(middle, taken.shape)
            trial = self._fit(taken + more, expansion.moved(more))
            gap = float(trial.theta[above] - trial.theta[below])
            if gap < -_EQUAL:
                high, gap_high, best = middle, gap, trial
            else:
                low, gap_low = middle, gap
        changed = taken + steps.first(high, taken.shape)
        return _Change(above, below, changed, best.theta[: self.objective.num_models])

    def confirmed(self, change: _Change | None, refit: Refit) -> _Change | None:
        """Return a change of the first place with what it lacks when the prior is fitted again too."""
        if change is None:
            return None
        for _ in range(_MAX_EXTRA_STEPS):
            table = self.changed_table(change.taken)
            if not (table.weights @ self.outcomes).sum() > 0:
                return None  # nothing is left that could be fitted
            coefs = refit(table)
            change = change._replace(coefs=coefs)
            if self.ranked(coefs)[0] != self.order[0]:
                return change
            point = self._fit(change.taken, self.point.theta)
            effect = _Influence.of(self, point, change.taken).effects(change.above, change.below)
            steps = _greatest_first(effect, self.changeable - change.taken, math.inf)
            if not len(steps.cells):
                return None
            more = steps.first(max(1, change.number // 100), effect.shape)
            change = change._replace(taken=change.taken + more)
        return None

    def changed_table(self, taken: Floats) -> PairTable:
        """Return the table of pairs with some votes (P, 4) changed."""
        weights = (taken * self.weight) @ self.moves
        squares = (taken * self.weight**2) @ self.moves
        return dataclasses.replace(
            self.table,
            weights=np.maximum(self.table.weights + weights, 0.0),
            squares=np.maximum(self.table.squares + squares, 0.0),
            votes=self.table.votes + taken @ self.moves,
        )

    def changed_objective(self, taken: Floats) -> Objective:
        """Return what is minimised when some votes (P, 4) are changed."""
        targets = np.maximum(self.objective.targets + (taken * self.weight) @ self.moved_outcomes, 0.0)
        return dataclasses.replace(self.objective, targets=targets)

    def _fit(self, taken: Floats, start: Floats) -> Expansion:
        objective = self.changed_objective(taken)
        return minimise(objective, start, tolerance=_REFIT_TOLERANCE, last_step=_REFIT_TOLERANCE)


class _Influence(NamedTuple):
    """What a change of each vote does to the parameters, to first order around a fit."""

    objective: Objective
    point: Expansion
    factor: Any
    """Cholesky factor of the Hessian (D, D), in units of votes."""
    slopes: Floats
    """What a change of a vote does to the score (4, Q, P)."""

    @classmethod
    def of(cls, search: _Search, point: Expansion, taken: Floats | None = None) -> _Influence:
        """Expand a fit to the votes of a search, but for those (P, 4) that were changed."""
        objective = search.objective if taken is None else search.changed_objective(taken)
        scores = np.tensordot(search.moves, winner_scores(objective, point), axes=1)
        factor = cho_factor(point.hessian * objective.total, lower=True)
        return cls(objective, point, factor, scores * search.weight.T[:, None, :])

    @property
    def largest(self) -> float:
        """The largest change of a score."""
        return float(np.abs(self.slopes).sum(axis=1).max(initial=0.0))

    def effects(self, above: int, below: int) -> Floats:
        """Return by how much (P, 4) a change of each vote raises the lower model against the upper."""
        contrast = np.zeros(self.objective.size)
        contrast[below], contrast[above] = 1.0, -1.0
        direction = cho_solve(self.factor, contrast)
        columns = [direction[self.objective.first], direction[self.objective.second]]
        if self.slopes.shape[1] > 2:
            columns.append(np.full(len(self.objective.first), direction[self.objective.num_models]))
        along = np.stack(columns)
        if self.objective.covariates is not None and self.objective.roles is not None:
            roles = self.objective.roles
            along += ((self.objective.covariates * direction[-len(roles) :]) @ roles[:, : len(along)]).T
        return np.asarray(np.einsum("wqp,qp->pw", self.slopes, along))

    def moved(self, taken: Floats) -> Floats:
        """Return where the parameters (D,) are when some votes (P, 4) more are changed."""
        score = self.objective.scatter(np.einsum("wqp,pw->pq", self.slopes, taken))
        return np.asarray(self.point.theta + cho_solve(self.factor, score))


class _Steps(NamedTuple):
    """Kinds of votes in the order in which they are changed."""

    cells: Ints
    """Positions in the flattened counts (P, 4)."""
    votes: Ints
    is_enough: bool
    """Whether their effects add up to what is needed."""

    def first(self, number: int, shape: tuple[int, ...]) -> Floats:
        """Return the first votes as counts (P, 4)."""
        before = np.cumsum(self.votes) - self.votes
        taken = np.zeros(math.prod(shape))
        taken[self.cells] = np.clip(number - before, 0, self.votes)
        return taken.reshape(shape)


def _greatest_first(effect: Floats, left: Floats, needed: float) -> _Steps:
    """Return the fewest of the votes (P, 4) left whose effects add up to what is needed, or all with an effect."""
    effects, numbers = effect.ravel(), left.ravel()
    gains = np.where(numbers > 0.5, effects, 0.0)
    largest = float(gains.max(initial=0.0))
    # Sorting all of them takes most of the time, and those of the two models themselves are mostly enough.
    for least in (largest / 4.0, largest / 64.0, 0.0):
        useful = np.flatnonzero((gains >= least) & (gains > 0.0))
        order = useful[np.argsort(-effects[useful], kind="stable")]
        sums = np.cumsum(effects[order] * numbers[order])
        last = int(np.searchsorted(sums, needed))
        if last < len(order):
            break
    if last >= len(order):
        return _Steps(order, np.rint(numbers[order]).astype(np.int64), False)
    cells = order[: last + 1]
    votes = np.rint(numbers[cells]).astype(np.int64)
    before = float(sums[last - 1]) if last else 0.0
    votes[-1] = min(votes[-1], max(1, math.ceil((needed - before) / float(effects[cells[-1]]))))
    return _Steps(cells, votes, True)
