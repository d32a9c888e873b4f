"""Damped Newton for smooth functions of a few hundred parameters that need not be convex everywhere.

Each step solves (H + mu diag|H|) s = -g. The damping mu is zero while H is positive definite and the step keeps what
the quadratic model promises, and grows tenfold otherwise, so that the method is plain Newton near the optimum and
descends elsewhere. It ends only at a point whose Hessian is positive definite and whose gradient vanishes.

Where two parameters can stand in for each other (the level and eta of rk-reparam), the optimum lies in a flat curved
valley, and a long step along it climbs its wall. Such a step is judged together with the one that leads back down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from p2l.errors import ConvergenceError
from p2l.leaderboard.threads import one_blas_thread

__all__ = ["Point", "minimise"]

Floats = npt.NDArray[np.float64]

_LARGEST_STEP = 4.0
_ROUNDING = 1e-13
_NO_GRADIENT, _NOISE_STEP = 1e-15, 1e-2


class Point(NamedTuple):
    """A function at one argument: value, gradient (D,), Hessian (D, D)."""

    theta: Floats
    value: float
    gradient: Floats
    hessian: Floats


@one_blas_thread()
def minimise(
    evaluate: Callable[[Floats], Point], start: Floats | Point, *, tolerance: float = 1e-7, max_steps: int = 200
) -> Point:
    """Find the local minimum that descent from `start` (D,), or from a point already evaluated, leads to.

    `evaluate` may move its argument into the domain of the function: the point it returns says where it was taken.
    It ends with the first undamped step of at most `tolerance`; what is left after such a step is of the order of its
    square. The gradient there must be below a hundredth of `tolerance`.

    Raises:
        ConvergenceError: the gradient did not vanish within `max_steps` steps.
    """
    point, damping = (start if isinstance(start, Point) else evaluate(start)), 0.0
    for _ in range(max_steps):
        step = _step(point, damping)
        if step is None:
            damping = _raised(damping)
            continue
        trial = evaluate(point.theta + step)
        step = trial.theta - point.theta
        if damping == 0.0 and _is_noise(point, step):
            return point
        if not _descends(point, trial, step):
            trial = _led_back(evaluate, trial, damping)
            if not _descends(point, trial, step):
                damping = _raised(damping)
                continue
        done = damping == 0.0 and float(np.abs(step).max(initial=0.0)) <= tolerance
        point, damping = trial, damping / 10 if damping > 1e-6 else 0.0
        if done:
            return _checked(point, tolerance / 100)
    raise ConvergenceError(
        f"no optimum after {max_steps} Newton steps (gradient {np.abs(point.gradient).max():.1e}); "
        "with the prior switched off, models that never lost or never won have none"
    )


def _step(point: Point, damping: float) -> Floats | None:
    """The damped Newton step, cut to a length that probabilities can follow; None when H is not positive definite."""
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


def _is_noise(point: Point, step: Floats) -> bool:
    """Whether a short step is all rounding, as where weights of 1e9 and 1e-9 meet."""
    least = float(np.abs(point.gradient).max(initial=0.0)) < _NO_GRADIENT
    return least and float(np.abs(step).max(initial=0.0)) < _NOISE_STEP


def _led_back(evaluate: Callable[[Floats], Point], trial: Point, damping: float) -> Point:
    """The point one more step on: back on the floor of the valley."""
    step = _step(trial, damping) if np.isfinite(trial.value) else None
    return trial if step is None else evaluate(trial.theta + step)


def _descends(point: Point, trial: Point, step: Floats) -> bool:
    """Whether the step kept a tenth of a thousandth of what the quadratic model promised, rounding aside."""
    promised = -float(point.gradient @ step + 0.5 * step @ point.hessian @ step)
    slack = _ROUNDING * (1.0 + abs(point.value))
    return bool(np.isfinite(trial.value)) and point.value - trial.value >= 1e-4 * max(promised, 0.0) - slack


def _raised(damping: float) -> float:
    if damping > 1e12:
        raise ConvergenceError("the fit cannot descend any further; are there enough votes for every model?")
    return max(10.0 * damping, 1e-4)


def _checked(point: Point, tolerance: float) -> Point:
    size = float(np.abs(point.gradient).max(initial=0.0))
    if size > tolerance * max(1.0, float(np.abs(point.hessian).max(initial=0.0))):
        raise ConvergenceError(f"the fit stopped at a gradient of {size:.1e}")
    return point
