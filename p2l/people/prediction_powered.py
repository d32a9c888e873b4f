"""Prediction-powered leaderboards: verdicts of judges, or a model's forecasts, narrow intervals and never bias them.

People voted on n battles, and a forecast (the mean verdict of the judges, or what a P2L model forecasts) says of these
and of N more battles how likely each outcome is. The leaderboard minimises

    mean_n loss(vote) + lambda (mean_N loss(forecast) - mean_n loss(forecast)),

whose last two means agree on average whatever the forecast is worth, as long as the battles that people voted on are a
random sample of all (PPI++: Angelopoulos, Duchi and Zrnic, 2023). lambda is the one under which the intervals are the
narrowest; a forecast that says nothing has lambda = 0, which is the leaderboard of people's votes. Intervals are the
sandwich of both parts.

A battle of a file of votes is a question (`question_id`, else the prompt) and two models. Votes on it by several judges
make one forecast: the mean of their verdicts. Votes of people on battles without a verdict count as they are: what the
forecasts take away is shared among those that have one.

Shapes: n votes, N other battles, M models, K outcomes, D parameters (M coefficients; eta where there is one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.fitting import suited
from p2l.leaderboard.newton import (
    BROAD,
    Expansion,
    derivatives,
    extras,
    has_eta,
    minimise,
    one_blas_thread,
    prior_terms,
    shift_invariant,
    winner_targets,
)
from p2l.likelihood import Likelihood, get
from p2l.people.voters import by_people, find_people, sources_of
from p2l.votes import VoteStore, open_votes
from p2l.votes.splitting import hash_prompts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEAST_VOTES = 20  # of people, with a forecast
_BLOCK_BATTLES = 1 << 14  # whose derivatives are in memory at a time


@dataclass(frozen=True)
class Battles:
    """Battles between two models each, with how likely each outcome is, or which one it was."""

    first: npt.NDArray[np.integer]
    """(n,) codes of the models shown first."""
    second: npt.NDArray[np.integer]
    """(n,)"""
    outcomes: Floats
    """(n, K) in the order of the likelihood's outcomes; a vote has ones and zeros, or two halves."""

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Powered:
    """A prediction-powered leaderboard, and what the forecasts were worth."""

    board: Leaderboard
    weight: float
    """lambda"""
    worth: float
    """How many times as many votes of people would give as narrow intervals without forecasts (mean over models)."""


@one_blas_thread()
def fit_powered(
    votes: Battles,
    forecasts: Floats,
    others: Battles,
    *,
    models: Sequence[str],
    likelihood: str,
    level: float = 0.95,
    weight: float | None = None,
    prior: Prior | None = None,
) -> Powered:
    """Fit people's votes (n), forecasts (n, K) of the same battles, and the other battles (N) with their forecasts.

    `weight` is lambda; by default the best one. InputError where there are too few votes or no other battles.
    """
    if len(votes) < _LEAST_VOTES or not len(others):
        raise InputError(
            f"forecasts narrow no intervals: {len(votes)} votes of people have one (at least {_LEAST_VOTES} are "
            f"needed), and {len(others)} other battles"
        )
    problem = _Problem(get(likelihood), len(models), votes, forecasts, others, prior or Prior(sd=BROAD))
    plain = problem.fit(0.0)
    chosen = problem.best_weight(plain) if weight is None else weight
    theta = problem.fit(chosen)
    size = len(models)
    centre = np.eye(size) - 1.0 / size if shift_invariant(problem.model) else np.eye(size)
    covariance = centre @ problem.covariance(theta, chosen)[:size, :size] @ centre.T
    without = centre @ problem.covariance(plain, 0.0)[:size, :size] @ centre.T
    width = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(np.diag(covariance))
    coefs = centre @ theta[:size]
    worth = float(np.trace(without) / np.trace(covariance))
    note = (
        f"Prediction-powered: {len(votes):,} votes of people and forecasts of {len(others):,} other battles, weight "
        f"{chosen:.2f}; intervals as of {worth:.2f} times as many votes."
    )
    met = np.bincount(np.concatenate([votes.first, votes.second]), minlength=size)
    board = Leaderboard(
        models=list(models),
        coefs=coefs,
        lower=coefs - width,
        upper=coefs + width,
        eta=float(theta[size]) if has_eta(problem.model) else None,
        gamma=problem.model.board_gamma,
        likelihood=problem.model.name,
        loss=problem.loss(theta),
        votes=met.astype(np.int64),
        components=np.zeros(size, dtype=np.int64),
        notes=(note,),
        level=level,
        prior_sd=problem.prior.sd,
        covariance=covariance,
    )
    return Powered(board, chosen, worth)


@dataclass(frozen=True)
class _Problem:
    """The loss of votes (n) and of the forecasts, as a function of the parameters (D,)."""

    model: Likelihood
    num_models: int
    votes: Battles
    forecasts: Floats
    others: Battles
    prior: Prior

    def fit(self, weight: float) -> Floats:
        """Return the parameters (D,) under a weight of the forecasts."""
        mean, precision = prior_terms(self.prior, self.model, self.num_models)
        precision = precision / float(self.votes.outcomes.sum())
        share = len(self.votes) / float(self.votes.outcomes.sum())
        terms = [
            (self.votes, (self.votes.outcomes - weight * self.forecasts) * share / len(self.votes)),
            (self.others, self.others.outcomes * weight * share / len(self.others)),
        ]

        def point(theta: Floats) -> Expansion:
            value = 0.5 * float(precision @ (theta - mean) ** 2)
            gradient, hessian = precision * (theta - mean), np.diag(precision)
            for battles, outcomes in terms if weight else terms[:1]:
                sums = self._sums(theta, battles, outcomes)
                value += sums[0]
                gradient = gradient + sums[1]
                hessian = hessian + sums[2]
            return Expansion(theta, value, gradient, hessian)

        start = np.zeros(len(mean))
        if has_eta(self.model):
            start[self.num_models] = self.model.eta_scale.start
        return minimise(point, start).theta

    def _sums(self, theta: Floats, battles: Battles, outcomes: Floats) -> tuple[float, Floats, Floats]:
        """Return the sum of losses of outcomes (n, K), which may be negative, its slope (D,) and Hessian (D, D)."""
        size, width = len(theta), 2 + has_eta(self.model)
        value, gradient, hessian = 0.0, np.zeros(size), np.zeros((size, size))
        for start in range(0, len(battles), _BLOCK_BATTLES):
            rows = slice(start, start + _BLOCK_BATTLES)
            logs, slopes, bends = derivatives(self.model, *self._parameters(theta, battles, rows))
            places, mass = self._places(battles, rows), outcomes[rows]
            value -= float((mass * logs).sum())
            score = np.einsum("nk,nkq->nq", mass, slopes)[:, :width]
            gradient -= np.bincount(places.ravel(), score.ravel(), size)
            squares = np.einsum("nk,nkqr->nqr", mass, bends)[:, :width, :width]
            cells = places[:, :, None] * size + places[:, None, :]
            hessian -= np.bincount(cells.ravel(), squares.ravel(), size * size).reshape(size, size)
        return value, gradient, hessian

    def loss(self, theta: Floats) -> float:
        """Return the mean loss of people's votes."""
        logs = self.model.log_probs(*self._parameters(theta, self.votes, slice(None)))
        outcomes = self.votes.outcomes
        return -float(np.sum(outcomes * logs, where=outcomes > 0)) / float(outcomes.sum())

    def _parameters(
        self, theta: Floats, battles: Battles, rows: slice
    ) -> tuple[Floats, Floats, Floats | None, float | None]:
        eta = theta[self.num_models] if has_eta(self.model) else 0.0
        return (
            theta[battles.first[rows].astype(np.int64)],
            theta[battles.second[rows].astype(np.int64)],
            *extras(self.model, eta),
        )

    def _covariances(self, theta: Floats, battles: Battles, columns: Sequence[Floats]) -> list[Floats]:
        """Return the covariances (D, D) of the slopes of the battles' losses.

        `columns` are outcomes (n, K); the covariances are of the first with itself, of the first with the second, and
        so on.
        """
        size, width = len(theta), 2 + has_eta(self.model)
        # Sums of squares block by block: the slopes of all battles along all parameters would not fit into memory.
        means = np.zeros((len(columns), size))
        products = [np.zeros((size, size)) for _ in range(len(columns) ** 2)]
        for start in range(0, len(battles), _BLOCK_BATTLES):
            rows = slice(start, start + _BLOCK_BATTLES)
            _, slopes, _ = derivatives(self.model, *self._parameters(theta, battles, rows))
            places = self._places(battles, rows)
            scores = []
            for outcomes in columns:
                score = np.zeros((len(places), size))
                np.put_along_axis(score, places, np.einsum("nk,nkq->nq", outcomes[rows], slopes)[:, :width], axis=1)
                scores.append(-score)
            means += np.stack([score.sum(axis=0) for score in scores]) / len(battles)
            for place, (left, right) in enumerate((a, b) for a in scores for b in scores):
                products[place] += left.T @ right / len(battles)
        squares = [np.outer(left, right) for left in means for right in means]
        return [product - square for product, square in zip(products, squares, strict=True)]

    def _places(self, battles: Battles, rows: slice) -> Ints:
        """Return which parameters (n, 2 or 3) each battle has."""
        columns = [battles.first[rows], battles.second[rows]]
        if has_eta(self.model):
            columns.append(np.full(len(columns[0]), self.num_models))
        return np.stack(columns, axis=1).astype(np.int64)

    def _inverse(self, theta: Floats, weight: float) -> Floats:
        """Return the inverse (D, D) of the mean Hessian."""
        _, precision = prior_terms(self.prior, self.model, self.num_models)
        rectified = self.votes.outcomes - weight * self.forecasts
        hessian = np.diag(precision) + self._sums(theta, self.votes, rectified)[2]
        if weight:
            more = self._sums(theta, self.others, weight * self.others.outcomes)[2]
            hessian = hessian + more * len(self.votes) / len(self.others)
        return np.asarray(np.linalg.inv(hessian / len(self.votes)), dtype=np.float64)

    def _slopes(self, theta: Floats) -> tuple[list[Floats], Floats]:
        """Return covariances of the slopes of votes and their forecasts, and of the other forecasts."""
        of_votes = self._covariances(theta, self.votes, [self.votes.outcomes, self.forecasts])
        return of_votes, self._covariances(theta, self.others, [self.others.outcomes])[0]

    def best_weight(self, theta: Floats) -> float:
        """Return the weight of the forecasts, from 0 to 1, under which the intervals are the narrowest."""
        inverse = self._inverse(theta, 0.0)
        (_, cross, back, of_forecasts), of_others = self._slopes(theta)
        size = self.num_models
        keep = np.eye(len(inverse))[:size]
        if shift_invariant(self.model):
            keep = keep - keep.mean(axis=0)
        turn = keep @ inverse
        gain = float(np.trace(turn @ (cross + back) @ turn.T)) / 2.0
        cost = float(np.trace(turn @ (of_forecasts + len(self.votes) / len(self.others) * of_others) @ turn.T))
        return float(np.clip(gain / cost, 0.0, 1.0)) if cost > 0 else 0.0

    def covariance(self, theta: Floats, weight: float) -> Floats:
        """Return the covariance (D, D) of the parameters."""
        inverse = self._inverse(theta, weight)
        (of_votes, cross, back, of_forecasts), of_others = self._slopes(theta)
        rectified = of_votes - weight * (cross + back) + weight**2 * of_forecasts
        middle = rectified / len(self.votes) + weight**2 * of_others / len(self.others)
        return np.asarray(inverse @ middle @ inverse)


# Battles of a file of votes on which people voted, with what judges say of them and of others.


class _JudgedBattles(NamedTuple):
    """Votes of people, forecasts (n, K) of their battles, and battles on which judges alone voted."""

    votes: Battles
    forecasts: Floats
    others: Battles
    paired: int
    """Votes of people on battles of which judges say something."""


def _judged_battles(votes: VoteStore, people: str, likelihood: str) -> _JudgedBattles:
    """Return the battles of a store; the models are numbered as in its list."""
    model, is_person = get(likelihood), by_people(votes, people)
    pairs, labels = votes.pairs().astype(np.int64), votes.labels()
    b_won = labels[:, 0] != pairs[:, 0]
    winner = np.where(labels[:, 2] > 0, labels[:, 2] + 1, b_won)
    outcomes = np.asarray(winner_targets(model)[winner], dtype=np.float64)
    swapped = pairs[:, 0] > pairs[:, 1]
    names = [{"win": "loss", "loss": "win"}.get(name, name) for name in model.outcomes]
    outcomes[swapped] = outcomes[swapped][:, [model.outcomes.index(name) for name in names]]
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    _, at, battle = np.unique(
        np.stack([_questions(votes), low, high], axis=1), axis=0, return_index=True, return_inverse=True
    )
    battle = battle.reshape(-1)
    verdicts = np.bincount(battle[~is_person], minlength=len(at))
    sums = np.stack([np.bincount(battle[~is_person], column, len(at)) for column in outcomes[~is_person].T], axis=1)
    means: Floats = np.asarray(sums / np.maximum(verdicts, 1)[:, None], dtype=np.float64)
    of_people = battle[is_person]
    paired = verdicts[of_people] > 0
    # Battles without a verdict have a forecast of zero: the others stand for them, or both means would not agree.
    share = len(of_people) / max(1, int(paired.sum()))
    alone = np.flatnonzero((verdicts > 0) & (np.bincount(of_people, minlength=len(at)) == 0))
    return _JudgedBattles(
        votes=Battles(low[is_person], high[is_person], outcomes[is_person]),
        forecasts=np.where(paired[:, None], means[of_people] * share, 0.0),
        others=Battles(low[at[alone]], high[at[alone]], means[alone]),
        paired=int(paired.sum()),
    )


def powered_board(source: Any, people: str | None, *, likelihood: str | None = None, **options: Any) -> Powered:
    """Return the leaderboard of people's votes in a file, narrowed by the verdicts of judges in it.

    `people` is what the column `source` calls people (None: human, or people), `likelihood` by default the one with the
    outcomes that occur in people's votes, `options` those of `fit_powered`. InputError without verdicts of judges.
    """
    with open_votes(source, need_prompt=False) as votes:
        name = find_people(sources_of(votes), people, votes.name)
        if name is None:
            raise InputError(f"{votes.name}: has no verdicts of judges (column 'source', of people and of others)")
        if likelihood is None:
            ties = votes.labels(np.flatnonzero(by_people(votes, name)))[:, 2]
            decided, tied, both_bad = np.bincount(ties, minlength=3).tolist()
            likelihood = suited(np.array([decided, 0.0, tied, both_bad]))
        judged = _judged_battles(votes, name, likelihood)
        if judged.paired < 2:
            raise InputError(f"{votes.name}: judges say nothing of battles that people voted on")
        if not len(judged.others):
            raise InputError(
                f"{votes.name}: every verdict of a judge is on a battle that people voted on, and only those on "
                "further battles narrow intervals; add these, or fit people's votes alone"
            )
        return fit_powered(
            judged.votes,
            judged.forecasts,
            judged.others,
            models=votes.model_list,
            likelihood=likelihood,
            **options,
        )


def _questions(votes: VoteStore) -> Ints:
    """Return a number (N,) for each vote's question."""
    if "question_id" not in votes.columns:
        return np.unique(np.asarray(hash_prompts(votes)), return_inverse=True)[1].astype(np.int64)
    numbers: dict[Any, int] = {}
    codes = np.empty(len(votes), dtype=np.int64)
    for ids, batch in votes.batches():
        codes[ids] = [numbers.setdefault(value, len(numbers)) for value in batch.column("question_id").to_pylist()]
    return codes
