"""Many small leaderboards at once: Newton on stacks of pair tables, for the thousands of fits of an aggregation curve.

The objective is that of `p2l.leaderboard.objective`: the mean negative log-likelihood of a table of outcomes, a normal
prior and, where only differences count, a curvature along the shift that changes nothing. Steps of all subsets are
computed together; a subset on which plain Newton does not descend is fitted alone by `p2l.leaderboard.newton`, damped.

Shapes: S subsets, M models, P = M (M - 1) / 2 pairs, K outcomes, D parameters (M coefficients, then eta), Q of a pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from p2l.derivatives import derivatives
from p2l.errors import ConvergenceError
from p2l.leaderboard.newton import Point, minimise
from p2l.leaderboard.objective import Objective, has_eta, least_eta, shift_invariant
from p2l.leaderboard.threads import one_blas_thread
from p2l.likelihood import Likelihood

__all__ = ["ManyFits", "fit_many"]

Floats = npt.NDArray[np.float64]

_PAIRS_AT_ONCE = 1 << 14  # temporary arrays of the derivatives then stay in a core's cache
_STEPS = 12
_LARGEST_STEP = 4.0
_TOLERANCE = 1e-3  # a last Newton step of this size leaves an error of the order of its square
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ManyFits:
    """What the fits share.

    Attributes:
        likelihood: the outcome model.
        num_models: M.
        precision: of the prior of each coefficient and of eta, (D,).
        ridge: curvature for the sake of arithmetic alone, per unit of target mass.
    """

    likelihood: Likelihood
    num_models: int
    precision: Floats
    ridge: float = 1e-10
    first: npt.NDArray[np.intp] = field(init=False)
    second: npt.NDArray[np.intp] = field(init=False)
    incidence: tuple[Floats, Floats] = field(init=False)

    def __post_init__(self) -> None:
        first, second = np.triu_indices(self.num_models, 1)
        eye = np.eye(self.num_models)
        for name, value in (("first", first), ("second", second), ("incidence", (eye[first], eye[second]))):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """D."""
        return self.num_models + has_eta(self.likelihood)

    def evaluate(self, theta: Floats, targets: Floats, mean: Floats) -> tuple[Floats, Floats, Floats]:
        """Value (S,), gradient (S, D) and Hessian (S, D, D) at theta (S, D) for targets (S, P, K)."""
        eta = theta[:, -1:] if has_eta(self.likelihood) else None
        gamma = np.zeros(()) if self.likelihood.head == "ba" else None
        a, b = theta[:, self.first], theta[:, self.second]
        log_probs, slopes, bends = derivatives(self.likelihood, a, b, eta, gamma)
        own = 2 + has_eta(self.likelihood)
        weights = np.moveaxis(targets, -1, 0)
        slope = np.einsum("ksp,kqsp->qsp", weights, np.moveaxis(slopes, (-2, -1), (0, 1))[:, :own])
        bend = np.einsum("ksp,kqrsp->qrsp", weights, np.moveaxis(bends, (-3, -2, -1), (0, 1, 2))[:, :own, :own])
        value = -np.sum(targets * log_probs, axis=(1, 2), where=targets > 0)
        total = np.maximum(targets.sum(axis=(1, 2)), 1e-300)
        return self._with_prior(theta, mean, total, value, -self._scatter(slope), -self._scatter_square(bend))

    def _with_prior(
        self, theta: Floats, mean: Floats, total: Floats, value: Floats, gradient: Floats, hessian: Floats
    ) -> tuple[Floats, Floats, Floats]:
        offset = theta - mean
        precision = self.precision + self.ridge * total[:, None]
        value = (value + 0.5 * (precision * offset**2).sum(axis=1)) / total
        gradient = (gradient + precision * offset) / total[:, None]
        diagonal = np.arange(self.size)
        hessian[:, diagonal, diagonal] += precision
        hessian /= total[:, None, None]
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
        """One fit (D,) by the damped method; NaN where there is no optimum."""
        gauge = np.zeros(self.num_models, dtype=np.int64) if shift_invariant(self.likelihood) else None
        first, second = self.first.astype(np.int64), self.second.astype(np.int64)
        size, terms = self.num_models, (targets, mean, self.precision)
        objective = Objective(self.likelihood, size, first, second, *terms, gauge, self.ridge)
        try:
            found: Point = minimise(objective, start, tolerance=_TOLERANCE / 10)
        except ConvergenceError:
            return np.full(self.size, np.nan)
        return found.theta


@one_blas_thread()
def fit_many(fits: ManyFits, targets: Floats, mean: Floats, start: Floats) -> Floats:
    """Fit S leaderboards.

    Args:
        fits: what they share.
        targets: (S, P, K) mass of each outcome of each pair (first < second).
        mean: (S, D) of the priors, and what holds the mean score where only differences count.
        start: (S, D).

    Returns:
        (S, D); NaN where there is no optimum.
    """
    if fits.num_models < 2:
        return np.array(start)
    step = max(1, _PAIRS_AT_ONCE // len(fits.first))
    parts = [slice(place, place + step) for place in range(0, len(targets), step)]
    fitted = [_fit_block(fits, targets[part], mean[part], start[part]) for part in parts]
    return np.concatenate(fitted)


def _fit_block(fits: ManyFits, targets: Floats, mean: Floats, start: Floats) -> Floats:
    theta: Floats = start.copy()
    before = np.full(len(start), np.inf)
    active, least = np.arange(len(start)), least_eta(fits.likelihood)
    failed: list[int] = []
    for _ in range(_STEPS):
        value, gradient, hessian = fits.evaluate(theta[active], targets[active], mean[active])
        steps = _steps(gradient, hessian)
        bad = np.isnan(steps).any(axis=1) | ~(value <= before[active] + _ROUNDING * (1 + np.abs(value)))
        if least is not None:
            bad |= (theta[active] + steps)[:, -1] <= least
        failed += active[bad].tolist()
        going = active[~bad]
        theta[going] += steps[~bad]
        before[going] = value[~bad]
        active = going[np.abs(steps[~bad]).max(axis=1, initial=0.0) > _TOLERANCE]
        if not len(active):
            break
    for one in [*failed, *active.tolist()]:
        theta[one] = fits.alone(targets[one], mean[one], start[one])
    return theta


def _steps(gradient: Floats, hessian: Floats) -> Floats:
    """Newton steps (S, D), cut to a length that probabilities can follow; NaN where a Hessian is not definite."""
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
