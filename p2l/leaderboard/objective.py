"""What a leaderboard minimises: the mean negative log-likelihood of a table of pairs, with its first two derivatives.

Shapes: M models, P pairs, K outcomes, D parameters (M coefficients, then eta where the likelihood has one), Q = 2 or 3
parameters of one pair (first coefficient, second coefficient, eta).

The formulas are those of `p2l.likelihood`; this file only gathers and scatters. Conventions:

- Where only differences count (`bt`, `bt-tie`, `rk`) each component of the comparison graph has mean zero.
- `ba` is left unchanged when every coefficient and gamma move together, so one leaderboard has gamma = 0, and zero
  means what it means to `grk`: an answer that is just usable.
- `rk` has no less than its floor of ties: eta stays above the value that gives it, since below nothing would move it.
- The prior is Gaussian, independent for each parameter, in units of one vote; it is what an undefeated model rests on.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2l.derivatives import derivatives
from p2l.leaderboard.newton import Point
from p2l.leaderboard.pair_table import Ints, components
from p2l.likelihood import RK_FLOOR, Likelihood, targets

__all__ = [
    "Objective",
    "Prior",
    "eta_start",
    "has_eta",
    "least_eta",
    "prior_terms",
    "shift_invariant",
    "winner_targets",
]

Floats = npt.NDArray[np.float64]

# (start, unit) of eta: `rk` scales its raw eta by a tenth before the softplus, so its steps are longer.
_ETA = {"rk": (-7.0, 5.0)}


@dataclass(frozen=True)
class Prior:
    """Independent normal distributions around `coefs` and `eta`, of standard deviation `sd` (in logits).

    Attributes:
        sd: standard deviation; infinite switches the prior off. The default holds undefeated models at a finite score
            and moves a model with a hundred votes by less than a hundredth of its distance from the mean.
        coefs: (M,) means; zero when absent. Where only differences count they also fix the mean score.
        eta: mean of eta.
    """

    sd: float = 5.0
    coefs: Floats | None = None
    eta: float | None = None


def has_eta(likelihood: Likelihood) -> bool:
    """Whether the likelihood has the tie parameter eta."""
    return likelihood.head != "bt"


def eta_start(likelihood: Likelihood) -> float:
    """Where a fit starts eta, and where a prior without a mean centres it."""
    return _ETA.get(likelihood.name, (0.0, 1.0))[0]


@functools.cache
def shift_invariant(likelihood: Likelihood) -> bool:
    """Whether adding a constant to every coefficient changes nothing (found by trying)."""
    coefs = np.array([0.4, -0.3])
    at = [likelihood.log_probs(coefs[0] + s, coefs[1] + s, *extras(likelihood, 0.1)) for s in (0.0, 1.0)]
    return bool(np.allclose(at[0], at[1], rtol=0, atol=1e-9))


def least_eta(likelihood: Likelihood) -> float | None:
    """The eta of `rk` below which nothing changes any more, or None: where votes have fewer ties, a fit ends there."""
    # 10 log(1 + exp((eta - 22.5) / 10)) = RK_FLOOR; the hair on top keeps rounding from falling below it.
    return 22.5 + 10.0 * math.log(math.expm1(RK_FLOOR / 10.0)) + 1e-9 if likelihood.name == "rk" else None


def _fixed_eta(point: Point) -> Point:
    """The function of the coefficients alone."""
    gradient, hessian = point.gradient.copy(), point.hessian.copy()
    gradient[-1] = 0.0
    hessian[-1], hessian[:, -1] = 0.0, 0.0
    hessian[-1, -1] = 1.0
    return Point(point.theta, point.value, gradient, hessian)


def extras(likelihood: Likelihood, eta: float) -> tuple[Floats | None, Floats | None]:
    """The arguments eta and gamma of a likelihood's functions for one leaderboard."""
    gamma = np.zeros(()) if likelihood.head == "ba" else None
    return (np.asarray(eta, dtype=np.float64) if has_eta(likelihood) else None), gamma


def winner_targets(likelihood: Likelihood) -> Floats:
    """Target distribution (4, K) of a vote for each winner of `WINNERS`, seen from the first model."""
    win, tie, both_bad = np.asarray(targets(likelihood, np.array([0, 1, 2])), dtype=np.float64)
    swap = [likelihood.outcomes.index({"win": "loss", "loss": "win"}.get(name, name)) for name in likelihood.outcomes]
    return np.stack([win, win[swap], tie, both_bad])


@dataclass(frozen=True)
class Objective:
    """Mean negative log-likelihood per unit of target mass, plus the prior's share.

    Attributes:
        likelihood: the outcome model.
        num_models: M.
        first, second: (P,) codes of each pair, first < second, each pair once.
        targets: (P, K) mass of each outcome.
        mean, precision: (D,) the prior's.
        gauge: (M,) component numbers, each to be held at its prior's mean score, or None.
        ridge: curvature around `mean` for the sake of arithmetic alone; no prior, so it does not enter intervals.
    """

    likelihood: Likelihood
    num_models: int
    first: Ints
    second: Ints
    targets: Floats
    mean: Floats
    precision: Floats
    gauge: Ints | None = None
    ridge: float = 0.0

    @property
    def total(self) -> float:
        """The target mass that counts; 1 where a bootstrap drew none, which leaves the prior."""
        return float(self.targets.sum()) or 1.0

    @property
    def size(self) -> int:
        """D."""
        return self.num_models + has_eta(self.likelihood)

    @functools.cached_property
    def graph(self) -> Ints:
        """Component (M,) of each model in the graph of the pairs whose votes count."""
        used = self.targets.sum(axis=1) > 0
        return components(self.num_models, self.first[used], self.second[used])

    def __call__(self, theta: Floats) -> Point:
        """Value, gradient (D,) and Hessian (D, D) at theta (D,), its eta raised to the least that counts."""
        least = least_eta(self.likelihood)
        if least is not None and theta[-1] < least:
            theta = np.append(theta[:-1], least)
        return self.combine(theta, self.derivatives(theta))

    def combine(self, theta: Floats, derived: tuple[Floats, Floats, Floats]) -> Point:
        """The same from the pairs' `derivatives` at theta, which do not depend on the targets."""
        log_probs, gradient, hessian = derived
        per_pair = np.einsum("pk,pkq->pq", self.targets, gradient)
        curvature = np.einsum("pk,pkqr->pqr", self.targets, hessian)
        # An outcome without mass may be impossible (log 0): it must not count, not even as 0 times infinity.
        value = -float(np.sum(self.targets * log_probs, where=self.targets > 0))
        offset = theta - self.mean
        precision = self.precision + self.ridge * self.total
        value += 0.5 * float(precision @ offset**2)
        slope = precision * offset - self.scatter(per_pair)
        matrix = np.diag(precision) - self.scatter_square(curvature)
        point = Point(theta, value / self.total, slope / self.total, matrix / self.total)
        least = least_eta(self.likelihood)
        if least is not None and theta[-1] <= least and point.gradient[-1] > 0:
            point = _fixed_eta(point)
        return point if self.gauge is None else self._held(point)

    def loss(self, theta: Floats) -> float:
        """Mean negative log-likelihood at theta (D,), without prior; NaN without pairs."""
        if not len(self.first):
            return float("nan")
        log_probs = self.likelihood.log_probs(
            theta[self.first], theta[self.second], *extras(self.likelihood, float(theta[-1]))
        )
        return -float(np.sum(self.targets * log_probs, where=self.targets > 0)) / self.total

    def derivatives(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """log p (P, K) of every pair with its gradient (P, K, Q) and Hessian (P, K, Q, Q)."""
        eta, gamma = extras(self.likelihood, float(theta[-1]))
        values, gradient, hessian = derivatives(self.likelihood, theta[self.first], theta[self.second], eta, gamma)
        own = 2 + has_eta(self.likelihood)
        return values, gradient[..., :own], hessian[..., :own, :own]

    def scatter(self, per_pair: Floats) -> Floats:
        """Sum (P, Q) into (D,)."""
        size = self.num_models
        out = np.bincount(self.first, per_pair[:, 0], size) + np.bincount(self.second, per_pair[:, 1], size)
        return np.asarray(np.append(out, per_pair[:, 2].sum()) if per_pair.shape[1] > 2 else out, dtype=np.float64)

    def scatter_square(self, per_pair: Floats) -> Floats:
        """Sum symmetric (P, Q, Q) into (D, D)."""
        size = self.num_models
        out = np.zeros((self.size, self.size))
        out[self.first, self.second] = out[self.second, self.first] = per_pair[:, 0, 1]
        diagonal = np.bincount(self.first, per_pair[:, 0, 0], size) + np.bincount(self.second, per_pair[:, 1, 1], size)
        out[np.arange(size), np.arange(size)] = diagonal
        if per_pair.shape[1] > 2:
            out[-1] = out[:, -1] = self.scatter(per_pair[:, 2])
        return out

    def _held(self, point: Point) -> Point:
        """Give every direction that changes nothing a curvature, so that each component keeps its mean."""
        assert self.gauge is not None
        sizes = np.bincount(self.gauge)
        strength = 0.5 / sizes.astype(np.float64) ** 2
        sums = np.bincount(self.gauge, (point.theta - self.mean)[: self.num_models])
        gradient, hessian = point.gradient.copy(), point.hessian.copy()
        gradient[: self.num_models] += (strength * sums)[self.gauge]
        same = self.gauge[:, None] == self.gauge[None, :]
        hessian[: self.num_models, : self.num_models] += same * strength[self.gauge][:, None]
        return Point(point.theta, point.value + 0.5 * float(strength @ sums**2), gradient, hessian)


def prior_terms(prior: Prior, likelihood: Likelihood, num_models: int) -> tuple[Floats, Floats]:
    """Mean and precision (D,) of a prior."""
    coefs = np.zeros(num_models) if prior.coefs is None else np.asarray(prior.coefs, dtype=np.float64)
    precision = np.full(num_models, prior.sd**-2.0)
    if not has_eta(likelihood):
        return coefs, precision
    start, unit = _ETA.get(likelihood.name, (0.0, 1.0))
    eta = start if prior.eta is None else prior.eta
    return np.append(coefs, eta), np.append(precision, (prior.sd * unit) ** -2.0)
