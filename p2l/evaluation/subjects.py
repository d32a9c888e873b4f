"""What is evaluated on one category: a model's predictions for its prompts, or one leaderboard for all of them.

Shapes: N votes of the category, M models, S subsets, P pairs, K outcomes, D parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConvergenceError
from p2l.evaluation.references import standing
from p2l.leaderboard import Leaderboard, aggregate
from p2l.leaderboard.newton import (
    Expansion,
    Objective,
    derivatives,
    has_eta,
    minimise,
    one_blas_thread,
    shift_invariant,
)
from p2l.likelihood import Likelihood
from p2l.metrics import ScoredVotes, Standing

# Many small leaderboards at once: Newton on stacks of pair tables, for the thousands of fits of an aggregation curve.
#
# The objective is that of `p2l.leaderboard.newton`. Steps of all subsets are computed together; a subset on which plain
# Newton does not descend is fitted alone, damped. Q: parameters of a pair.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
_PAIRS_PER_BLOCK = 1 << 14  # temporary arrays of the derivatives then stay in a core's cache
_MAX_STEPS = 12
_LARGEST_STEP = 4.0
_TOLERANCE = 1e-3  # a last Newton step of this size leaves an error of the order of its square
_ROUNDING = 1e-12


class ManyFits:
    """Fits of M models under one prior, with precision (D,) of each coefficient and of eta.

    `ridge` is curvature for the sake of arithmetic alone, per unit of target mass.
    """

    def __init__(self, likelihood: Likelihood, num_models: int, precision: Floats, ridge: float) -> None:
        self.likelihood = likelihood
        self.num_models = num_models
        self.precision = precision
        self.ridge = ridge
        self.size = num_models + has_eta(likelihood)  # D
        self.first, self.second = np.triu_indices(num_models, 1)
        self.incidence = np.eye(num_models)[self.first], np.eye(num_models)[self.second]

    def evaluate(self, theta: Floats, targets: Floats, mean: Floats) -> tuple[Floats, Floats, Floats]:
        """Return value (S,), gradient (S, D) and Hessian (S, D, D) at theta (S, D) for targets (S, P, K)."""
        eta = theta[:, -1:] if has_eta(self.likelihood) else None
        a, b = theta[:, self.first], theta[:, self.second]
        log_probs, slopes, bends = derivatives(self.likelihood, a, b, eta, self.likelihood.board_gamma)
        num_parameters = 2 + has_eta(self.likelihood)
        weights = np.moveaxis(targets, -1, 0)
        slope = np.einsum("ksp,kqsp->qsp", weights, np.moveaxis(slopes, (-2, -1), (0, 1))[:, :num_parameters])
        bends = np.moveaxis(bends, (-3, -2, -1), (0, 1, 2))[:, :num_parameters, :num_parameters]
        bend = np.einsum("ksp,kqrsp->qrsp", weights, bends)
        value = -np.sum(targets * log_probs, axis=(1, 2), where=targets > 0)
        # No vote of a subset may count.
        total = np.maximum(targets.sum(axis=(1, 2)), 1e-300)
        offset = theta - mean
        precision = self.precision + self.ridge * total[:, None]
        value = (value + 0.5 * (precision * offset**2).sum(axis=1)) / total
        gradient = (-self._scatter(slope) + precision * offset) / total[:, None]
        hessian = -self._scatter_square(bend)
        diagonal = np.arange(self.size)
        hessian[:, diagonal, diagonal] += precision
        hessian /= total[:, None, None]
        # As in `Objective`: a direction that changes nothing gets a curvature, which holds the mean at the prior's.
        if shift_invariant(self.likelihood):
            strength = 0.5 / self.num_models**2
            sums = offset[:, : self.num_models].sum(axis=1)
            value = value + 0.5 * strength * sums**2
            gradient[:, : self.num_models] += strength * sums[:, None]
            hessian[:, : self.num_models, : self.num_models] += strength
        return value, gradient, hessian

    def _scatter(self, slope: Floats) -> Floats:
        out: Floats = np.asarray(slope[0] @ self.incidence[0] + slope[1] @ self.incidence[1])
        return np.concatenate([out, slope[2].sum(axis=1, keepdims=True)], axis=1) if len(slope) > 2 else out

    def _scatter_square(self, bend: Floats) -> Floats:
        out = np.zeros((bend.shape[2], self.size, self.size))
        out[:, self.first, self.second] = out[:, self.second, self.first] = bend[0, 1]
        places = np.arange(self.num_models)
        out[:, places, places] = bend[0, 0] @ self.incidence[0] + bend[1, 1] @ self.incidence[1]
        if len(bend) > 2:
            out[:, -1] = out[:, :, -1] = self._scatter(bend[2])
        return out

    def alone(self, targets: Floats, mean: Floats, start: Floats) -> Floats:
        """Fit one leaderboard (D,) by the damped method; NaN where there is no optimum."""
        objective = Objective(
            likelihood=self.likelihood,
            num_models=self.num_models,
            first=self.first.astype(np.int64),
            second=self.second.astype(np.int64),
            targets=targets,
            mean=mean,
            precision=self.precision,
            gauge=np.zeros(self.num_models, dtype=np.int64) if shift_invariant(self.likelihood) else None,
            ridge=self.ridge,
        )
        try:
            point: Expansion = minimise(objective, start, tolerance=_TOLERANCE / 10)
        except ConvergenceError:
            return np.full(self.size, np.nan)
        return point.theta


@one_blas_thread()
def fit_many(fits: ManyFits, targets: Floats, mean: Floats, start: Floats) -> Floats:
    """Fit S leaderboards (S, D) from targets (S, P, K), mass of each outcome of each pair (first < second).

    Means of priors and start are (S, D); where only differences count, the mean prior is also the mean score of the
    fit. A leaderboard without an optimum is NaN.
    """
    if fits.num_models < 2:
        return np.array(start)
    step = max(1, _PAIRS_PER_BLOCK // len(fits.first))
    blocks = [slice(place, place + step) for place in range(0, len(targets), step)]
    return np.concatenate([_fit_block(fits, targets[rows], mean[rows], start[rows]) for rows in blocks])


def _fit_block(fits: ManyFits, targets: Floats, mean: Floats, start: Floats) -> Floats:
    theta: Floats = start.copy()
    before = np.full(len(start), np.inf)
    active = np.arange(len(start))
    least_eta = fits.likelihood.eta_scale.least
    failed: list[int] = []
    for _ in range(_MAX_STEPS):
        value, gradient, hessian = fits.evaluate(theta[active], targets[active], mean[active])
        steps = _steps(gradient, hessian)
        bad = np.isnan(steps).any(axis=1) | ~(value <= before[active] + _ROUNDING * (1 + np.abs(value)))
        if least_eta is not None:
            # Only `Objective` knows what to do at the floor of eta.
            bad |= (theta[active] + steps)[:, -1] <= least_eta
        failed += active[bad].tolist()
        going = active[~bad]
        theta[going] += steps[~bad]
        before[going] = value[~bad]
        active = going[np.abs(steps[~bad]).max(axis=1, initial=0.0) > _TOLERANCE]
        if not len(active):
            break
    for subset in [*failed, *active.tolist()]:
        theta[subset] = fits.alone(targets[subset], mean[subset], start[subset])
    return theta


def _steps(gradient: Floats, hessian: Floats) -> Floats:
    """Return Newton steps (S, D), cut to a length that probabilities can follow; NaN where a Hessian is indefinite."""
    definite = _definite(hessian)
    steps = np.full(gradient.shape, np.nan)
    if definite.any():
        steps[definite] = -np.linalg.solve(hessian[definite], gradient[definite][..., None])[..., 0]
    longest = np.abs(steps).max(axis=1, initial=0.0, keepdims=True)
    return np.asarray(steps * np.minimum(1.0, _LARGEST_STEP / np.maximum(longest, 1e-300)))


def _definite(hessian: Floats) -> npt.NDArray[np.bool_]:
    try:
        np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        if len(hessian) > 1:
            return np.concatenate([_definite(hessian[place : place + 1]) for place in range(len(hessian))])
        return np.zeros(1, dtype=bool)
    return np.ones(len(hessian), dtype=bool)


_PROMPTS_PER_BLOCK = 64  # whose pair tables are made together
_MAX_TABLE_BYTES = 1 << 28  # of pair tables that are kept in memory


@dataclass(frozen=True)
class Fixed:
    """One leaderboard in the place of a model: its own aggregate on any prompts."""

    likelihood: Likelihood
    models: Sequence[str]
    board: Leaderboard
    shift: Floats | None = None
    """(N, 3) by which covariates move winner, loser and eta of the votes that it forecasts."""

    @cached_property
    def standing(self) -> Standing:
        """The leaderboard as columns of `models`."""
        return standing(self.board, self.models)

    def scored(self, labels: Ints) -> ScoredVotes:
        """Forecast all votes of the category (N, 3)."""
        side = self.standing
        return ScoredVotes(self.likelihood, side.coefs, labels, side.eta, side.gamma, shift=self.shift)

    def leaderboard(self, *, intervals: bool, level: float) -> Leaderboard:  # noqa: ARG002 (as of answers)
        """Return the leaderboard itself."""
        return self.board

    def aggregates(self, subsets: Sequence[Ints]) -> list[Standing]:
        """Return the leaderboard itself for each subset of the votes."""
        return [self.standing] * len(subsets)


@dataclass(frozen=True)
class ModelAnswers:
    """Predictions for each prompt: coefs (N, M), eta and gamma (N,) or None; `shift` (N, 3) is of its vote."""

    likelihood: Likelihood
    models: Sequence[str]
    coefs: npt.NDArray[np.floating[Any]]
    eta: Any = None
    gamma: Any = None
    shift: Floats | None = None

    def scored(self, labels: Ints) -> ScoredVotes:
        """Forecast all votes of the category (N, 3)."""
        return ScoredVotes(self.likelihood, self.coefs, labels, self.eta, self.gamma, shift=self.shift)

    def leaderboard(self, *, intervals: bool, level: float) -> Leaderboard:
        """Return the aggregate of all prompts."""
        blocks = [self.coefs[start : start + 4096] for start in range(0, len(self.coefs), 4096)]
        return aggregate(
            blocks,
            eta=self.eta,
            gamma=self.gamma,
            likelihood=self.likelihood.name,
            models=list(self.models),
            intervals="sandwich" if intervals else None,
            level=level,
        )

    def aggregates(self, subsets: Sequence[Ints]) -> list[Standing]:
        """Return the aggregate of each subset (positions among the N votes, with repetition)."""
        rows, multiplicity = _union(subsets, len(self.coefs))
        targets = self._tables(rows, multiplicity)
        mean = _centred(multiplicity @ self._parameters[rows], self.likelihood, len(self.models))
        sizes = np.array([[len(subset)] for subset in subsets])
        # One prompt's aggregate is its own parameters; the more prompts, the closer it comes to that of all.
        fitted = fit_many(self._fits, targets, mean, mean + (1.0 - 1.0 / sizes) * self._beyond_mean)
        return [as_standing(theta, self.likelihood) for theta in fitted]

    @cached_property
    def _fits(self) -> ManyFits:
        size = len(self.models) + has_eta(self.likelihood)
        # Without an outcome "both bad" the level of grounded coefficients shows in the ties alone.
        ridge = 1e-6 if self.likelihood.merges_ties else 1e-10
        return ManyFits(self.likelihood, len(self.models), np.zeros(size), ridge)

    @cached_property
    def _beyond_mean(self) -> Floats:
        """The aggregate of all prompts less the mean of their parameters (D,): it starts a subset near its optimum."""
        board = self.leaderboard(intervals=False, level=0.95)
        whole = board.coefs if board.eta is None else np.append(board.coefs, board.eta)
        mean = self._parameters.mean(axis=0, keepdims=True)
        return np.asarray(whole - _centred(mean, self.likelihood, len(self.models))[0])

    @cached_property
    def _parameters(self) -> Floats:
        """Coefficients relative to gamma, then eta: (N, D)."""
        coefs = np.asarray(self.coefs, dtype=np.float64)
        if "gamma" in self.likelihood.parameters:
            coefs = coefs - np.asarray(self.gamma, dtype=np.float64)[:, None]
        if not has_eta(self.likelihood):
            return coefs
        return np.concatenate([coefs, np.asarray(self.eta, dtype=np.float64)[:, None]], axis=1)

    def _tables(self, rows: Ints, multiplicity: Any) -> Floats:
        """Return mean outcome tables (S, P, K) of subsets, from their shares (S, n) of n prompts."""
        pairs, outcomes = len(self._fits.first), len(self.likelihood.outcomes)
        sums = np.zeros((multiplicity.shape[0], pairs * outcomes))
        by_column = multiplicity.tocsc()
        kept = self._kept
        step = _PROMPTS_PER_BLOCK if kept is None else _PROMPTS_PER_BLOCK * 8
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            sums += by_column[:, block] @ (self._probs(rows[block]) if kept is None else kept[rows[block]])
        return sums.reshape(-1, pairs, outcomes)

    @cached_property
    def _kept(self) -> Floats | None:
        """The outcome tables (N, P K) of all prompts; None where they are too large to keep."""
        number = len(self.coefs)
        if number * len(self._fits.first) * len(self.likelihood.outcomes) * 8 > _MAX_TABLE_BYTES:
            return None
        blocks = (
            np.arange(start, min(start + _PROMPTS_PER_BLOCK, number)) for start in range(0, number, _PROMPTS_PER_BLOCK)
        )
        return np.concatenate([self._probs(block) for block in blocks])

    def _probs(self, rows: Ints) -> Floats:
        """Return flat outcome tables (n, P K) of n prompts."""
        coefs = self.coefs[rows]
        eta, gamma = (None if value is None else value[rows, None, None] for value in (self.eta, self.gamma))
        probs = self.likelihood.probs(coefs[:, :, None], coefs[:, None, :], eta, gamma)
        return np.asarray(probs[:, self._fits.first, self._fits.second], dtype=np.float64).reshape(len(rows), -1)


Subject = ModelAnswers | Fixed


def _union(subsets: Sequence[Ints], number: int) -> tuple[Ints, Any]:
    """Return the rows that any subset holds, and the share (S, n) of each of them in each subset, sparse."""
    from scipy.sparse import csr_array

    rows = np.unique(np.concatenate(subsets))
    place = np.zeros(number, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    sizes = np.array([len(subset) for subset in subsets])
    index = np.repeat(np.arange(len(subsets)), sizes)
    shares = np.repeat(1.0 / sizes, sizes)
    return rows, csr_array((shares, (index, place[np.concatenate(subsets)])), shape=(len(subsets), len(rows)))


def _centred(parameters: Floats, likelihood: Likelihood, num_models: int) -> Floats:
    """Center the coefficients among parameters (S, D) where only differences count."""
    if shift_invariant(likelihood):
        parameters[:, :num_models] -= parameters[:, :num_models].mean(axis=1, keepdims=True)
    return parameters


def as_standing(theta: Floats, likelihood: Likelihood) -> Standing:
    """Return parameters (D,) as columns of a leaderboard."""
    eta = float(theta[-1]) if has_eta(likelihood) else None
    return Standing(theta[: len(theta) - has_eta(likelihood)], eta, likelihood.board_gamma)
