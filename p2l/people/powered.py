"""Prediction-powered leaderboards: verdicts of judges, or a model's forecasts, narrow intervals and never bias them.

People voted on n battles, and a forecast (the mean verdict of the judges, or what a P2L model forecasts) says of these
and of N more battles how likely each outcome is. The leaderboard minimises

    mean_n loss(vote) + lambda (mean_N loss(forecast) - mean_n loss(forecast)),

whose last two means agree on average whatever the forecast is worth, as long as the battles that people voted on are a
random sample of all (PPI++: Angelopoulos, Duchi and Zrnic, 2023). lambda is the one under which the intervals are the
narrowest; a forecast that says nothing has lambda = 0, which is the leaderboard of people's votes. Intervals are the
sandwich of both parts.

Shapes: n votes, N other battles, M models, K outcomes, D parameters (M coefficients; eta where there is one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard import Leaderboard, Prior
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
)
from p2l.likelihood import Likelihood, get

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEAST = 20  # votes of people with a forecast
_BLOCK = 1 << 14


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
    if len(votes) < _LEAST or not len(others):
        raise InputError(
            f"forecasts narrow no intervals: {len(votes)} votes of people have one (at least {_LEAST} are needed), and "
            f"{len(others)} other battles"
        )
    problem = _Problem(get(likelihood), len(models), votes, forecasts, others, prior or Prior(sd=BROAD))
    plain = problem.fit(0.0)
    chosen = problem.best_weight(plain) if weight is None else weight
    theta = problem.fit(chosen)
    covariance, alone = (problem.covariance(at, power) for at, power in ((theta, chosen), (plain, 0.0)))
    size = len(models)
    centre = np.eye(size) - 1.0 / size if shift_invariant(problem.model) else np.eye(size)
    own, without = (centre @ one[:size, :size] @ centre.T for one in (covariance, alone))
    width = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(np.diag(own))
    coefs = centre @ theta[:size]
    worth = float(np.trace(without) / np.trace(own))
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
        covariance=own,
    )
    return Powered(board, chosen, worth)


@dataclass(frozen=True)
class _Problem:
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
        parts = [
            (self.votes, (self.votes.outcomes - weight * self.forecasts) * share / len(self.votes)),
            (self.others, self.others.outcomes * weight * share / len(self.others)),
        ]

        def point(theta: Floats) -> Expansion:
            value = 0.5 * float(precision @ (theta - mean) ** 2)
            gradient, hessian = precision * (theta - mean), np.diag(precision)
            for battles, outcomes in parts if weight else parts[:1]:
                own = self._sums(theta, battles, outcomes)
                value, gradient, hessian = value + own[0], gradient + own[1], hessian + own[2]
            return Expansion(theta, value, gradient, hessian)

        start = np.zeros(len(mean))
        if has_eta(self.model):
            start[self.num_models] = self.model.eta_scale.start
        return minimise(point, start).theta

    def _sums(self, theta: Floats, battles: Battles, outcomes: Floats) -> tuple[float, Floats, Floats]:
        """Return the sum of losses of outcomes (n, K), which may be negative, its slope (D,) and Hessian (D, D)."""
        size, own = len(theta), 2 + has_eta(self.model)
        value, gradient, hessian = 0.0, np.zeros(size), np.zeros((size, size))
        for start in range(0, len(battles), _BLOCK):
            rows = slice(start, start + _BLOCK)
            logs, slopes, bends = derivatives(self.model, *self._parameters(theta, battles, rows))
            places, mass = self._places(battles, rows), outcomes[rows]
            value -= float((mass * logs).sum())
            score = np.einsum("nk,nkq->nq", mass, slopes)[:, :own]
            gradient -= np.bincount(places.ravel(), score.ravel(), size)
            hessian -= _scattered_square(np.einsum("nk,nkqr->nqr", mass, bends)[:, :own, :own], places, size)
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
        size, own = len(theta), 2 + has_eta(self.model)
        means = np.zeros((len(columns), size))
        products = [np.zeros((size, size)) for _ in range(len(columns) ** 2)]
        for start in range(0, len(battles), _BLOCK):
            rows = slice(start, start + _BLOCK)
            _, slopes, _ = derivatives(self.model, *self._parameters(theta, battles, rows))
            places = self._places(battles, rows)
            scores = [-_scattered(np.einsum("nk,nkq->nq", one[rows], slopes)[:, :own], places, size) for one in columns]
            means += np.stack([score.sum(axis=0) for score in scores]) / len(battles)
            for place, (left, right) in enumerate((a, b) for a in scores for b in scores):
                products[place] += left.T @ right / len(battles)
        outer = [np.outer(a, b) for a in means for b in means]
        return [product - one for product, one in zip(products, outer, strict=True)]

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
        own = self._covariances(theta, self.votes, [self.votes.outcomes, self.forecasts])
        return own, self._covariances(theta, self.others, [self.others.outcomes])[0]

    def best_weight(self, theta: Floats) -> float:
        """Return the weight of the forecasts, from 0 to 1, under which the intervals are the narrowest."""
        inverse, ((_, cross, back, own), other) = self._inverse(theta, 0.0), self._slopes(theta)
        size = self.num_models
        keep = np.eye(len(inverse))[:size]
        if shift_invariant(self.model):
            keep = keep - keep.mean(axis=0)
        turn = keep @ inverse
        gain = float(np.trace(turn @ (cross + back) @ turn.T)) / 2.0
        cost = float(np.trace(turn @ (own + len(self.votes) / len(self.others) * other) @ turn.T))
        return float(np.clip(gain / cost, 0.0, 1.0)) if cost > 0 else 0.0

    def covariance(self, theta: Floats, weight: float) -> Floats:
        """Return the covariance (D, D) of the parameters."""
        inverse, ((votes, cross, back, own), other) = self._inverse(theta, weight), self._slopes(theta)
        part = votes - weight * (cross + back) + weight**2 * own
        middle = part / len(self.votes) + weight**2 * other / len(self.others)
        return np.asarray(inverse @ middle @ inverse)


def _scattered(per_row: Floats, places: Ints, size: int) -> Floats:
    """Return slopes (n, Q) along the parameters of rows as slopes (n, D)."""
    out = np.zeros((len(per_row), size))
    np.put_along_axis(out, places, per_row, axis=1)
    return out


def _scattered_square(per_row: Floats, places: Ints, size: int) -> Floats:
    """Sum (n, Q, Q) into (D, D)."""
    cells = places[:, :, None] * size + places[:, None, :]
    sums = np.bincount(cells.ravel(), per_row.ravel(), size * size)
    return np.asarray(sums.reshape(size, size), dtype=np.float64)
