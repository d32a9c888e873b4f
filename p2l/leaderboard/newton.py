"""Damped Newton for smooth functions of a few hundred parameters that need not be convex everywhere.

Each step solves (H + mu diag|H|) s = -g. The damping mu is zero while H is positive definite and the step keeps what
the quadratic model promises, and grows tenfold otherwise, so that the method is plain Newton near the optimum and
descends elsewhere. It ends only at a point whose Hessian is positive definite and whose gradient vanishes.

Where two parameters can stand in for each other (the level and eta of rk-reparam), the optimum lies in a flat curved
valley, and a long step along it climbs its wall. Such a step is judged together with the one that leads back down.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from p2l.common.errors import ConvergenceError
from p2l.leaderboard.closed_forms import outcome_slopes, row_sums
from p2l.leaderboard.pair_tables import Ints, components
from p2l.likelihood import Likelihood, targets

# One BLAS thread for small matrices.
#
# Factorising a 130 x 130 matrix takes a third of a millisecond on one thread. Several threads gain nothing there, and
# on a busy machine they wait for each other: a hundred milliseconds were measured.


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold NumPy's and SciPy's linear algebra to one thread; does nothing where threadpoolctl is not installed."""
    pools = _pools()
    with contextlib.nullcontext() if pools is None else pools.limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _pools() -> Any:
    if importlib.util.find_spec("threadpoolctl") is None:
        return None
    # NumPy and SciPy bring a library each, and only what is loaded now can be held.
    for name in ("numpy.linalg", "scipy.linalg"):
        importlib.import_module(name)
    return importlib.import_module("threadpoolctl").ThreadpoolController()


Floats = npt.NDArray[np.float64]
_LARGEST_STEP = 4.0  # in logits
_ROUNDING = 1e-13  # of a sum of logarithms, relative to it
_NO_GRADIENT = 1e-15
_NOISE_STEP = 1e-2  # below which a step may come from rounding errors alone
# After a step as short as this no other is worth an evaluation.
_LAST_STEP = 1e-9


class Expansion(NamedTuple):
    """A function at one argument: value, gradient (D,), Hessian (D, D)."""

    theta: Floats
    value: float
    gradient: Floats
    hessian: Floats


@one_blas_thread()
def minimise(
    evaluate: Callable[[Floats], Expansion],
    start: Floats | Expansion,
    *,
    tolerance: float = 1e-7,
    last_step: float = _LAST_STEP,
    max_steps: int = 200,
) -> Expansion:
    """Find the local minimum that descent from `start` (D,), or from a point already evaluated, leads to.

    `evaluate` may move its argument into the domain of the function: the point it returns says where it was taken.
    It ends with the first undamped step of at most `tolerance`; what is left after such a step is of the order of its
    square. The gradient there must be below a hundredth of `tolerance`, or ConvergenceError is raised, as it is after
    `max_steps` steps. After a step of at most `last_step` value and Hessian are those of the point before, which
    differ by no more.
    """
    point, damping = (start if isinstance(start, Expansion) else evaluate(start)), 0.0
    for _ in range(max_steps):
        step = _step(point, damping)
        if step is None:
            damping = _raised(damping)
            continue
        if damping == 0.0 and np.abs(step).max(initial=0.0) <= min(last_step, tolerance):
            return point._replace(theta=point.theta + step, gradient=np.zeros_like(step))
        trial = evaluate(point.theta + step)
        step = trial.theta - point.theta
        length = float(np.abs(step).max(initial=0.0))
        # A short step may be all rounding, as where weights of 1e9 and 1e-9 meet.
        if damping == 0.0 and length < _NOISE_STEP and np.abs(point.gradient).max(initial=0.0) < _NO_GRADIENT:
            return point
        if not _descends(point, trial, step):
            # One more step on may lead back to the floor of the valley.
            back = _step(trial, damping) if np.isfinite(trial.value) else None
            trial = trial if back is None else evaluate(trial.theta + back)
            if not _descends(point, trial, step):
                damping = _raised(damping)
                continue
        done = damping == 0.0 and length <= tolerance
        point, damping = trial, damping / 10 if damping > 1e-6 else 0.0
        if done:
            size = float(np.abs(point.gradient).max(initial=0.0))
            if size > tolerance / 100 * max(1.0, float(np.abs(point.hessian).max(initial=0.0))):
                raise ConvergenceError(f"the fit stopped at a gradient of {size:.1e}")
            return point
    raise ConvergenceError(
        f"no optimum after {max_steps} Newton steps (gradient {np.abs(point.gradient).max():.1e}); "
        "with the prior switched off, models that never lost or never won have none"
    )


def _step(point: Expansion, damping: float) -> Floats | None:
    """Return the damped Newton step, cut to a length probabilities can follow; None when H is not positive definite."""
    matrix = point.hessian
    if damping:
        scale = np.maximum(np.abs(np.diag(matrix)), 1e-8)
        matrix = matrix + damping * np.diag(scale)
    try:
        step = -cho_solve(cho_factor(matrix, lower=True, check_finite=False), point.gradient, check_finite=False)
    except LinAlgError:
        return None
    longest = float(np.abs(step).max(initial=0.0))
    if not np.isfinite(longest):
        return None
    return np.asarray(step * min(1.0, _LARGEST_STEP / max(longest, 1e-300)))


def _descends(point: Expansion, trial: Expansion, step: Floats) -> bool:
    """Whether the step kept a tenth of a thousandth of what the quadratic model promised, rounding aside."""
    promised = -float(point.gradient @ step + 0.5 * step @ point.hessian @ step)
    slack = _ROUNDING * (1.0 + abs(point.value))
    return bool(np.isfinite(trial.value)) and point.value - trial.value >= 1e-4 * max(promised, 0.0) - slack


def _raised(damping: float) -> float:
    if damping > 1e12:
        raise ConvergenceError("the fit cannot descend any further; are there enough votes for every model?")
    return max(10.0 * damping, 1e-4)


# Exact gradients and Hessians of the outcome models for Newton fits: NumPy, float64, no torch.
#
# The formulas of `p2l.likelihood` are not written a second time. Their one text runs on jets: numbers that carry their
# first and second derivatives with respect to P parameters, by the rules
#
#     f(x)' = f' x',  f(x)'' = f'' x' x' + f' x'',  and with w = sigmoid(x - y), D = x' - y':
#     logaddexp(x, y)' = y' + w D,  logaddexp(x, y)'' = y'' + w (x'' - y'') + w (1 - w) D D.
#
# So a likelihood that a user registers has derivatives too. All pairs of 130 models under grk take about 5 ms.
#
# Shapes: (...) the broadcast shape of the inputs, K outcomes, P parameters (coef_a, coef_b[, eta[, gamma]]),
# T entries of a triangle, P(P+1)/2 of them.


def derivatives(
    likelihood: Likelihood, coef_a: Any, coef_b: Any, eta: Any = None, gamma: Any = None
) -> tuple[Floats, Floats, Floats]:
    """Log-probabilities (..., K), their gradients (..., K, P) and Hessians (..., K, P, P)."""
    names = ("coef_a", "coef_b", *likelihood.parameters)
    inputs = likelihood.needed(coef_a, coef_b, eta, gamma)
    values = [None if value is None else np.asarray(value, dtype=np.float64) for value in inputs]
    shape = np.broadcast_shapes(*(value.shape for value in values if value is not None))
    places = iter(range(len(names)))
    seeds = [None if value is None else _seed(value, next(places), len(names), len(shape)) for value in values]
    terms = likelihood.log_terms(_JetNamespace, *seeds)
    rows, columns = _triangle(len(names))
    logs = np.empty((len(terms), *shape))
    firsts = np.empty((len(terms), len(names), *shape))
    seconds = np.empty((len(terms), len(names), len(names), *shape))
    for k, term in enumerate(terms):
        logs[k], firsts[k] = term.value, term.first
        seconds[k, rows, columns] = term.second
        seconds[k, columns, rows] = term.second
    return (
        np.moveaxis(logs, 0, -1),
        np.moveaxis(firsts, (0, 1), (-2, -1)),
        np.moveaxis(seconds, (0, 1, 2), (-3, -2, -1)),
    )


@dataclass(frozen=True, eq=False)
class _Jet:
    """A value (...), its gradient (P, ...) and the upper triangle of its Hessian (T, ...)."""

    value: Floats
    first: Floats
    second: Floats

    __array_ufunc__ = None  # an array on the left leaves the arithmetic to the jet

    def __add__(self, other: _Jet | float) -> _Jet:
        if isinstance(other, _Jet):
            return _Jet(self.value + other.value, self.first + other.first, self.second + other.second)
        return _Jet(self.value + other, self.first, self.second)

    def __mul__(self, other: _Jet | float) -> _Jet:
        if not isinstance(other, _Jet):
            return _Jet(self.value * other, self.first * other, self.second * other)
        cross = _outer(self.first, other.first) + _outer(other.first, self.first)
        first = self.first * other.value + other.first * self.value
        return _Jet(self.value * other.value, first, self.second * other.value + other.second * self.value + cross)

    def __neg__(self) -> _Jet:
        return self * -1.0

    def __sub__(self, other: _Jet | float) -> _Jet:
        return self + -other

    def __rsub__(self, other: float) -> _Jet:
        return -self + other

    def __lt__(self, other: float) -> npt.NDArray[np.bool_]:
        return self.value < other

    __radd__ = __add__
    __rmul__ = __mul__


@functools.cache
def _triangle(parameters: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(parameters)


def _outer(x: Floats, y: Floats) -> Floats:
    """Return the upper triangle (T, ...) of half of x y' + y x', which is x x' for y = x."""
    rows, columns = _triangle(len(x))
    if x is y:
        return x[rows] * x[columns]
    return 0.5 * (x[rows] * y[columns] + x[columns] * y[rows])


def _seed(value: Floats, place: int, parameters: int, dimensions: int) -> _Jet:
    # All arrays get the same number of axes, so that the leading axis of the derivatives never meets one of theirs.
    value = value.reshape((1,) * (dimensions - value.ndim) + value.shape)
    ones = (1,) * dimensions
    first = np.zeros((parameters, *ones))
    first[place] = 1.0
    return _Jet(value, first, np.zeros((len(_triangle(parameters)[0]), *ones)))


_Elementwise: TypeAlias = Callable[[Floats], Floats]


def _elementwise(value: _Elementwise, slope: _Elementwise, bend: _Elementwise) -> Callable[[_Jet], _Jet]:
    """Return a function f on jets, by the chain rule, from f, f' and f''."""

    def apply(x: _Jet) -> _Jet:
        steep = slope(x.value)
        return _Jet(value(x.value), steep * x.first, bend(x.value) * _outer(x.first, x.first) + steep * x.second)

    return apply


class _JetNamespace:
    """The array functions that the formulas use, on jets."""

    @staticmethod
    def logaddexp(x: _Jet, y: _Jet) -> _Jet:
        gap = x.value - y.value
        small = np.exp(-np.abs(gap))
        value = np.maximum(x.value, y.value) + np.log1p(small)
        lesser = small / (1.0 + small)
        weight = np.where(gap > 0, 1.0 - lesser, lesser)
        step = x.first - y.first
        second = y.second + weight * (x.second - y.second) + weight * (1.0 - weight) * _outer(step, step)
        return _Jet(value, y.first + weight * step, second)

    @staticmethod
    def full_like(x: _Jet, number: float) -> _Jet:
        return _Jet(np.full_like(x.value, number), np.zeros_like(x.first), np.zeros_like(x.second))

    @staticmethod
    def zeros_like(x: _Jet) -> _Jet:
        return _JetNamespace.full_like(x, 0.0)

    @staticmethod
    def where(condition: npt.NDArray[np.bool_], x: _Jet, y: _Jet) -> _Jet:
        value, first = np.where(condition, x.value, y.value), np.where(condition, x.first, y.first)
        return _Jet(value, first, np.where(condition, x.second, y.second))

    @staticmethod
    def clip(x: _Jet, low: float, high: float | None) -> _Jet:
        value = np.clip(x.value, low, high)
        inside = np.where(value == x.value, 1.0, 0.0)
        return _Jet(value, inside * x.first, inside * x.second)

    @staticmethod
    def abs(x: _Jet) -> _Jet:
        sign = np.sign(x.value)
        return _Jet(np.abs(x.value), sign * x.first, sign * x.second)

    exp = staticmethod(_elementwise(np.exp, np.exp, np.exp))
    expm1 = staticmethod(_elementwise(np.expm1, np.exp, np.exp))
    log = staticmethod(_elementwise(np.log, lambda x: 1.0 / x, lambda x: -1.0 / x**2))
    log1p = staticmethod(_elementwise(np.log1p, lambda x: 1.0 / (1.0 + x), lambda x: -((1.0 / (1.0 + x)) ** 2)))
    sinh = staticmethod(_elementwise(np.sinh, np.cosh, np.sinh))


# What a leaderboard minimises: the mean negative log-likelihood of a table of pairs, with its first two derivatives.
#
# Shapes: M models, P rows (pairs of models, or pairs with equal covariates), K outcomes, C covariates, D parameters (M
# coefficients, then eta where the likelihood has one, then C effects), Q = 2 or 3 parameters of one row (first
# coefficient, second coefficient, eta).
#
# The formulas are those of `p2l.likelihood`; this file only gathers and scatters. Conventions:
#
# - Where only differences count (`bt`, `bt-tie`, `rk`) each component of the comparison graph has mean zero.
# - `ba` is left unchanged when every coefficient and gamma move together, so one leaderboard has gamma = 0, and zero
#   means what it means to `grk`: an answer that is just usable.
# - `rk` has no less than its floor of ties: eta stays above the value that gives it, since below nothing would move it.
# - The prior is Gaussian, in units of one vote; it is what an undefeated model rests on.
# - A covariate moves the parameters of a row by its value times its effect times its `roles`.

BROAD = 5.0
"""Standard deviation of what all models share under a fitted prior: enough to be finite, too much to be seen."""
# Derivatives of more rows at once would leave the core's cache.
_ROWS_PER_BLOCK = 1 << 13


@dataclass(frozen=True)
class Prior:
    """Normal distributions around `coefs`, `eta` and `effects`, of standard deviation `sd` (in logits).

    Attributes:
        sd: standard deviation of the coefficients; infinite switches the prior off.
        coefs: (M,) means; zero when absent. Where only differences count they also fix the mean score.
        eta: mean of eta.
        effects: means of the covariates' effects by name and role; zero where absent.
        broad: standard deviation of what all models share: eta, the effects and, where coefficients have a zero, their
            level, so that `sd` is that of the models around their level. As `sd`, and no level, when absent.
    """

    sd: float = 5.0
    coefs: Floats | None = None
    eta: float | None = None
    effects: Mapping[tuple[str, str], float] | None = None
    broad: float | None = None


def has_eta(likelihood: Likelihood) -> bool:
    """Whether the likelihood has the tie parameter eta."""
    return "eta" in likelihood.parameters


@functools.cache
def shift_invariant(likelihood: Likelihood) -> bool:
    """Whether adding a constant to every coefficient changes nothing (found by trying)."""
    coefs = np.array([0.4, -0.3])
    at = [likelihood.log_probs(coefs[0] + s, coefs[1] + s, *extras(likelihood, 0.1)) for s in (0.0, 1.0)]
    return bool(np.allclose(at[0], at[1], rtol=0, atol=1e-9))


def extras(likelihood: Likelihood, eta: npt.ArrayLike) -> tuple[Floats | None, float | None]:
    """Return eta and gamma as a likelihood's functions take them for one leaderboard."""
    return (np.asarray(eta, dtype=np.float64) if has_eta(likelihood) else None), likelihood.board_gamma


def winner_targets(likelihood: Likelihood) -> Floats:
    """Return the target distribution (4, K) of a vote for each winner of `WINNERS`, seen from the first model."""
    win, tie, both_bad = np.asarray(targets(likelihood, np.array([0, 1, 2])), dtype=np.float64)
    swap = [likelihood.outcomes.index({"win": "loss", "loss": "win"}.get(name, name)) for name in likelihood.outcomes]
    return np.stack([win, win[swap], tie, both_bad])


@dataclass(frozen=True)
class Objective:
    """Mean negative log-likelihood per unit of target mass, plus the share of the prior (`mean`, `precision`)."""

    likelihood: Likelihood
    num_models: int
    first: Ints  # (P,) codes, first < second; each pair once, but for covariates
    second: Ints
    targets: Floats  # (P, K) mass of each outcome
    mean: Floats  # (D,)
    precision: Floats  # (D,)
    gauge: Ints | None = None  # (M,) component numbers, each to be held at its prior's mean score
    ridge: float = 0.0  # around `mean`, for the sake of arithmetic alone: no prior, so it does not enter intervals
    coupling: float = 0.0  # what the prior's precision lacks between any two coefficients, which share a level
    covariates: Floats | None = None  # (P, C) values
    roles: Floats | None = None  # (C, 3): what a value of one does to the first coefficient, the second, and eta
    offsets: Floats | None = None  # (P, 3): what is added to the first coefficient, the second, and eta of each row

    @property
    def total(self) -> float:
        """The target mass that counts; 1 where a bootstrap drew none, which leaves the prior."""
        return float(self.targets.sum()) or 1.0

    @property
    def num_shared(self) -> int:
        """Q: parameters of one row."""
        return 2 + has_eta(self.likelihood)

    @property
    def size(self) -> int:
        """D."""
        return self.num_models + has_eta(self.likelihood) + (0 if self.roles is None else len(self.roles))

    @functools.cached_property
    def graph(self) -> Ints:
        """Component (M,) of each model in the graph of the pairs whose votes count."""
        used = self.targets.sum(axis=1) > 0
        return components(self.num_models, self.first[used], self.second[used])

    def eta(self, theta: Floats) -> float | None:
        """Return eta of theta (D,), or None."""
        return float(theta[self.num_models]) if has_eta(self.likelihood) else None

    def __call__(self, theta: Floats) -> Expansion:
        """Return value, gradient (D,) and Hessian (D, D) at theta (D,), its eta raised to the least that counts."""
        least = self.likelihood.eta_scale.least
        if least is not None and theta[self.num_models] < least:
            theta = theta.copy()
            theta[self.num_models] = least
        sums = []
        for rows in self._blocks():
            closed = row_sums(self.likelihood, self.targets[rows], *self._parameters(theta, rows))
            if closed is None:
                sums.append(self._sums(self.derivatives(theta, rows), rows))
            else:
                sums.append((float(closed.value.sum()), np.array(closed.slope).T, closed.matrix()))
        if len(sums) == 1:
            return self._with_prior(theta, *sums[0])
        slope, curvature = (np.concatenate([terms[place] for terms in sums]) for place in (1, 2))
        return self._with_prior(theta, sum(terms[0] for terms in sums), slope, curvature)

    def combine(self, theta: Floats, derived: tuple[Floats, Floats, Floats]) -> Expansion:
        """Return the same from the rows' `derivatives` at theta, which do not depend on the targets."""
        return self._with_prior(theta, *self._sums(derived, slice(None)))

    def _blocks(self) -> list[slice]:
        number = max(1, round(len(self.first) / _ROWS_PER_BLOCK))
        ends = [len(self.first) * place // number for place in range(number + 1)]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def _sums(self, derived: tuple[Floats, Floats, Floats], rows: slice) -> tuple[float, Floats, Floats]:
        """Return the log-likelihood of some rows, and each row's gradient (P, Q) and Hessian (P, Q, Q)."""
        log_probs, gradient, hessian = derived
        mass = self.targets[rows]
        # An outcome without mass may be impossible (log 0): it must not count, not even as 0 times infinity.
        value = float(np.sum(mass * log_probs, where=mass > 0))
        return value, np.einsum("pk,pkq->pq", mass, gradient), np.einsum("pk,pkqr->pqr", mass, hessian)

    def _with_prior(self, theta: Floats, likelihood: float, per_row: Floats, curvature: Floats) -> Expansion:
        offset = theta - self.mean
        precision = self.precision + self.ridge * self.total
        level = float(offset[: self.num_models].sum())
        value = -likelihood + self._prior_value(theta)
        slope = precision * offset - self.scatter(per_row)
        slope[: self.num_models] -= self.coupling * level
        matrix = np.diag(precision) - self.scatter_square(curvature)
        matrix[: self.num_models, : self.num_models] -= self.coupling
        point = Expansion(theta, value / self.total, slope / self.total, matrix / self.total)
        least, place = self.likelihood.eta_scale.least, self.num_models
        if least is not None and theta[place] <= least and point.gradient[place] > 0:
            # Eta stays at its floor: what is left is a function of the other parameters alone.
            point.gradient[place] = 0.0
            point.hessian[place], point.hessian[:, place] = 0.0, 0.0
            point.hessian[place, place] = 1.0
        return point if self.gauge is None else self._held(point)

    def _prior_value(self, theta: Floats) -> float:
        offset = theta - self.mean
        level = float(offset[: self.num_models].sum())
        return 0.5 * float((self.precision + self.ridge * self.total) @ offset**2) - 0.5 * self.coupling * level**2

    def loss(self, point: Expansion) -> float:
        """Return the mean negative log-likelihood at a point of this function, without prior; NaN without pairs."""
        if not len(self.first):
            return float("nan")
        gauge = 0.0 if self.gauge is None else self._gauge_value(point.theta)
        return point.value - gauge - self._prior_value(point.theta) / self.total

    def _parameters(self, theta: Floats, rows: slice) -> tuple[Floats, Floats, Floats | None, float | None]:
        """Return both coefficients, eta and gamma of some rows."""
        a, b = theta[self.first[rows]], theta[self.second[rows]]
        eta: Any = self.eta(theta) or 0.0
        if self.covariates is not None and self.roles is not None:
            shift = (self.covariates[rows] * theta[-len(self.roles) :]) @ self.roles
            a, b, eta = a + shift[:, 0], b + shift[:, 1], eta + shift[:, 2]
        if self.offsets is not None:
            a, b, eta = (value + self.offsets[rows, place] for place, value in enumerate((a, b, eta)))
        return a, b, *extras(self.likelihood, eta)

    def derivatives(self, theta: Floats, rows: slice = slice(None)) -> tuple[Floats, Floats, Floats]:
        """log p (P, K) of some rows with its gradient (P, K, Q) and Hessian (P, K, Q, Q)."""
        values, gradient, hessian = derivatives(self.likelihood, *self._parameters(theta, rows))
        shared = self.num_shared
        return values, gradient[..., :shared], hessian[..., :shared, :shared]

    def gradients(self, theta: Floats) -> Floats:
        """Return the gradient (P, K, Q) of log p of every row."""
        blocks = []
        for rows in self._blocks():
            slopes = outcome_slopes(self.likelihood, *self._parameters(theta, rows))
            blocks.append(self.derivatives(theta, rows)[1] if slopes is None else slopes)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def scatter(self, per_row: Floats) -> Floats:
        """Sum (P, Q) into (D,)."""
        size = self.num_models
        coefs = np.bincount(self.first, per_row[:, 0], size) + np.bincount(self.second, per_row[:, 1], size)
        sums = [coefs, per_row[:, 2:].sum(axis=0)]
        if self.roles is not None:
            assert self.covariates is not None
            sums.append((self.covariates * (per_row @ self.roles[:, : self.num_shared].T)).sum(axis=0))
        return np.concatenate(sums).astype(np.float64)

    def scatter_square(self, per_row: Floats) -> Floats:
        """Sum symmetric (P, Q, Q) into (D, D)."""
        size = self.num_models
        out = np.zeros((self.size, self.size))
        # Pairs are rows of their own unless votes have covariates or offsets: addressing each once is faster.
        if self.roles is None and self.offsets is None:
            out[self.first, self.second] = per_row[:, 0, 1]
        else:
            cells = np.bincount(self.first * size + self.second, per_row[:, 0, 1], size * size)
            out[:size, :size] = cells.reshape(size, size)
        out[:size, :size] += out[:size, :size].T
        diagonal = np.bincount(self.first, per_row[:, 0, 0], size) + np.bincount(self.second, per_row[:, 1, 1], size)
        out[np.arange(size), np.arange(size)] = diagonal
        shared = size + has_eta(self.likelihood)
        if has_eta(self.likelihood):
            out[size, :shared] = out[:shared, size] = self.scatter(per_row[:, 2])[:shared]
        if self.roles is not None:
            assert self.covariates is not None
            # Of each effect: its mixed derivatives (P, Q) with the parameters of the rows.
            rows = [
                self.scatter(np.asarray((per_row @ role) * self.covariates[:, place, None]))
                for place, role in enumerate(self.roles[:, : self.num_shared])
            ]
            out[shared:] = rows
            out[:, shared:] = np.transpose(rows)
        return out

    def _held(self, point: Expansion) -> Expansion:
        """Give every direction that changes nothing a curvature, so that each component keeps its mean."""
        assert self.gauge is not None
        strength, sums = self._gauge_terms(point.theta)
        gradient, hessian = point.gradient.copy(), point.hessian.copy()
        gradient[: self.num_models] += (strength * sums)[self.gauge]
        same = self.gauge[:, None] == self.gauge[None, :]
        hessian[: self.num_models, : self.num_models] += same * strength[self.gauge][:, None]
        return Expansion(point.theta, point.value + self._gauge_value(point.theta), gradient, hessian)

    def _gauge_terms(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return, of each component, how much its mean costs, and its summed distance from the prior's."""
        assert self.gauge is not None
        strength = 0.5 / np.bincount(self.gauge).astype(np.float64) ** 2
        return strength, np.bincount(self.gauge, (theta - self.mean)[: self.num_models]).astype(np.float64)

    def _gauge_value(self, theta: Floats) -> float:
        strength, sums = self._gauge_terms(theta)
        return 0.5 * float(strength @ sums**2)


def prior_terms(
    prior: Prior, likelihood: Likelihood, num_models: int, effects: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the mean and precision (D,) of a prior; `effects` are the means (C,) of those."""
    coefs = np.zeros(num_models) if prior.coefs is None else np.asarray(prior.coefs, dtype=np.float64)
    precision = np.full(num_models, prior.sd**-2.0)
    broad = prior.sd if prior.broad is None else prior.broad
    if has_eta(likelihood):
        start, unit, _ = likelihood.eta_scale
        eta = start if prior.eta is None else prior.eta
        coefs, precision = np.append(coefs, eta), np.append(precision, (broad * unit) ** -2.0)
    if effects is None:
        return coefs, precision
    return np.append(coefs, effects), np.append(precision, np.full(len(effects), broad**-2.0))


def prior_coupling(prior: Prior, likelihood: Likelihood, num_models: int) -> float:
    """Return what the precision between two coefficients lacks because their level is free within `prior.broad`."""
    if prior.broad is None or shift_invariant(likelihood) or not math.isfinite(prior.sd):
        return 0.0
    return float(prior.sd**-2.0 - 1.0 / (prior.sd**2 + num_models * prior.broad**2)) / num_models
