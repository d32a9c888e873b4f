"""Derivatives of the likelihoods of votes in closed form: what a fit to counts spends its time on.

`p2l.leaderboard.newton` differentiates any likelihood from its formula alone. For those written down here the same sums
over outcomes come from a few logarithms of sums, ten times as fast: with A = exp(coef_a), B = exp(coef_b) and
t = exp(eta) + 1 + excess,

    grk, ba    D_a = A + t B + 1, D_b = t A + B + 1, D_0 = A + B + 1, and log P(tie) is
               a + b + log(t - 1) + log(D_a + D_b) - log D_a - log D_b - log D_0
    rk         with h(eta): log P(tie) = 2 h + log(1 - exp(-2 h)) + log P(win) + log P(loss)

A form belongs to a formula, not to a name: a likelihood that a user registers over an old one is differentiated anew.

Shapes: P rows, K outcomes, Q parameters of a row (coef_a, coef_b[, eta]), T = Q (Q + 1) / 2 entries of a triangle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.likelihood import BA_EXCESS, GRK_EXCESS, RK_FLOOR, Likelihood

Floats = npt.NDArray[np.float64]
_REACH = 30.0  # exponentials of much more leave the range of float64


class _RowSums(NamedTuple):
    """Of each row: the sum over outcomes of mass times log-probability, its gradient and its Hessian."""

    value: Floats
    """(P,)."""
    slope: list[Floats]
    """Q arrays (P,)."""
    bend: list[Floats]
    """T arrays (P,): aa, ab, bb[, a eta, b eta, eta eta]."""

    def matrix(self) -> Floats:
        """Return the Hessians (P, Q, Q)."""
        size = len(self.slope)
        out = np.empty((size, size, len(self.value)))
        for (row, column), cells in zip(_TRIANGLE[size], self.bend, strict=True):
            out[row, column] = out[column, row] = cells
        return np.moveaxis(out, -1, 0)


_TRIANGLE = {2: [(0, 0), (0, 1), (1, 1)], 3: [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]}


def row_sums(
    likelihood: Likelihood, masses: Floats, coef_a: Floats, coef_b: Floats, eta: Any, gamma: float | None
) -> _RowSums | None:
    """Return the sums of rows by masses (P, K) or (K,) of the outcomes; None where only the formula will do."""
    if not _serves(likelihood, coef_a, coef_b, eta, gamma):
        return None
    by_outcome = np.moveaxis(masses, -1, 0)
    excess = _EXCESSES.get(likelihood.log_terms)
    if excess is not None:
        return _Grounded(coef_a, coef_b, eta, excess).sums(*by_outcome)
    return _FORMS[likelihood.log_terms](by_outcome, coef_a, coef_b, eta)


def outcome_slopes(
    likelihood: Likelihood, coef_a: Floats, coef_b: Floats, eta: Any, gamma: float | None
) -> Floats | None:
    """Return the gradient (P, K, Q) of the log-probability of each outcome; None where only the formula will do."""
    if not _serves(likelihood, coef_a, coef_b, eta, gamma):
        return None
    excess = _EXCESSES.get(likelihood.log_terms)
    if excess is not None:
        slopes = _Grounded(coef_a, coef_b, eta, excess).slopes()
    else:
        form = _FORMS[likelihood.log_terms]
        # All mass on an outcome gives its own slope.
        slopes = [form(mass, coef_a, coef_b, eta).slope for mass in np.eye(len(likelihood.outcomes))]
    return np.transpose(np.array([[*row] for row in slopes]), (2, 0, 1))


def _serves(likelihood: Likelihood, coef_a: Floats, coef_b: Floats, eta: Any, gamma: float | None) -> bool:
    """Whether there is a closed form, and its exponentials stay in the range of float64."""
    parameters = [values for values in (coef_a, coef_b, eta) if values is not None]
    is_near = all(float(np.abs(values).max(initial=0.0)) <= _REACH for values in parameters)
    return (likelihood.log_terms in _FORMS or likelihood.log_terms in _EXCESSES) and not gamma and is_near


def _log_sigmoid(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log(1 / (1 + e^-x)), its derivative, and how much that falls."""
    small = np.exp(-np.abs(x))  # at most one, so that nothing overflows
    lesser = small / (1.0 + small)
    slope = np.where(x > 0, lesser, 1.0 - lesser)
    return np.minimum(x, 0.0) - np.log1p(small), slope, slope * (1.0 - slope)


def _bt(masses: Any, a: Floats, b: Floats, _eta: Any) -> _RowSums:
    win, loss = masses
    d = a - b
    value, up, bend = _log_sigmoid(d)
    slope, steep = win * up - loss * (1.0 - up), (win + loss) * bend
    return _RowSums(win * value + loss * (value - d), [slope, -slope], [-steep, steep, -steep])


def _rk(masses: Any, a: Floats, b: Floats, eta: Any) -> _RowSums:
    win, loss, tie = masses
    raised = 0.1 * (np.asarray(eta, dtype=np.float64) - 22.5)
    share = 0.5 * (1.0 + np.tanh(0.5 * raised))
    h, h_slope, h_bend = 10.0 * np.logaddexp(raised, 0.0), share, 0.1 * share * (1.0 - share)
    is_free = h > RK_FLOOR
    h, h_slope, h_bend = np.maximum(h, RK_FLOOR), np.where(is_free, h_slope, 0.0), np.where(is_free, h_bend, 0.0)
    gap = -np.expm1(-2.0 * h)
    d, first, second = a - b, win + tie, loss + tie
    (x, x_slope, x_bend), (y, y_slope, y_bend) = _log_sigmoid(d - h), _log_sigmoid(-d - h)
    x_slope, y_slope, x_bend, y_bend = first * x_slope, second * y_slope, first * x_bend, second * y_bend
    lead, steep, cross = x_slope - y_slope, x_bend + y_bend, (x_bend - y_bend) * h_slope
    width = 2.0 * tie / gap - x_slope - y_slope
    by_eta = (4.0 * tie * (gap - 1.0) / gap**2 - steep) * h_slope**2 + width * h_bend
    value = first * x + second * y + tie * (2.0 * h + np.log(gap))
    return _RowSums(value, [lead, -lead, width * h_slope], [-steep, steep, -steep, cross, -cross, by_eta])


class _Grounded:
    """The three sums that every outcome of a grounded likelihood is made of."""

    def __init__(self, a: Floats, b: Floats, eta: Any, excess: float) -> None:
        self.a, self.b = a, b
        exp_a, exp_b, power = np.exp(a), np.exp(b), np.exp(np.asarray(eta, dtype=np.float64))
        t = power + (1.0 + excess)
        self.share, self.rise = power / t, power / (power + excess)  # of log t and of log(t - 1), by eta
        self.log_less = np.log(power + excess)
        # D_a, D_b and D_0 of the module's formula.
        first, second, none = exp_a + t * exp_b + 1.0, t * exp_a + exp_b + 1.0, exp_a + exp_b + 1.0
        self.logs = np.log(first), np.log(second), np.log(none)
        self.log_both, self.v = np.log(first + second), first / (first + second)
        # How the logarithms of these sums rise with a, and with b.
        self.p = exp_a / first, t * exp_a / second, exp_a / none
        self.q = t * exp_b / first, exp_b / second, exp_b / none

    @property
    def tie(self) -> Floats:
        """Its log-probability (P,)."""
        return np.asarray(self.a + self.b + self.log_less + self.log_both - sum(self.logs))

    def sums(self, win: Any, loss: Any, tie: Any, bothbad: Any) -> _RowSums:
        """Return the sums by masses of the outcomes."""
        (p1, p2, p0), (q1, q2, q0), s, v = self.p, self.q, self.share, self.v
        first, second = win + tie, loss + tie
        c1, c2, c0 = tie * v - first, tie * (1.0 - v) - second, -(bothbad + tie)
        value = first * self.a + second * self.b + tie * (self.log_less + self.log_both)
        value = value - first * self.logs[0] - second * self.logs[1] + c0 * self.logs[2]
        slope = [
            first + c1 * p1 + c2 * p2 + c0 * p0,
            second + c1 * q1 + c2 * q2 + c0 * q0,
            tie * self.rise + s * (c1 * q1 + c2 * p2),
        ]
        u1, u2 = c1 * q1 * (1.0 - q1), c2 * p2 * (1.0 - p2)
        n1, n2 = c1 * p1 * q1, c2 * p2 * q2
        bend = [
            c1 * p1 * (1.0 - p1) + u2 + c0 * p0 * (1.0 - p0),
            -n1 - n2 - c0 * p0 * q0,
            u1 + c2 * q2 * (1.0 - q2) + c0 * q0 * (1.0 - q0),
            s * (u2 - n1),
            s * (u1 - n2),
            tie * (self.rise * (1.0 - self.rise)) + s * s * (u1 + u2) + s * (1.0 - s) * (c1 * q1 + c2 * p2),
        ]
        return _with_outer(_RowSums(value, slope, bend), tie * v * (1.0 - v), [p1 - p2, q1 - q2, (q1 - p2) * s])

    def slopes(self) -> list[list[Floats]]:
        """Return how the log-probability of each outcome rises with each parameter: (4, 3) arrays (P,)."""
        (p1, p2, p0), (q1, q2, q0), s, v = self.p, self.q, self.share, self.v
        both = (1.0 - v) * q1 + v * p2
        return [
            [1.0 - p1, -q1, -s * q1],
            [-p2, 1.0 - q2, -s * p2],
            [1.0 - (1.0 - v) * p1 - v * p2 - p0, 1.0 - (1.0 - v) * q1 - v * q2 - q0, self.rise - s * both],
            [-p0, -q0, np.zeros_like(p0)],
        ]

    def tie_over_bothbad(self) -> list[Floats]:
        """Return how log P(tie) - log P(bothbad) rises with each parameter."""
        (p1, p2, _), (q1, q2, _), s, v = self.p, self.q, self.share, self.v
        return [
            1.0 - (1.0 - v) * p1 - v * p2,
            1.0 - (1.0 - v) * q1 - v * q2,
            np.asarray(self.rise - s * ((1.0 - v) * q1 + v * p2)),
        ]


def _with_outer(sums: _RowSums, factor: Any, step: list[Floats]) -> _RowSums:
    """Add the factor times the outer product of a vector with itself to the Hessians."""
    scaled = [factor * slope for slope in step]
    for place, (row, column) in enumerate(_TRIANGLE[3]):
        sums.bend[place] = sums.bend[place] + scaled[row] * step[column]
    return sums


def _rk_reparam(masses: Any, a: Floats, b: Floats, eta: Any) -> _RowSums:
    win, loss, either = masses
    rows = _Grounded(a, b, eta, GRK_EXCESS)
    lead = rows.tie + rows.logs[2]  # log P(tie) - log P(bothbad)
    value, share, bend = _log_sigmoid(lead)
    share = 1.0 - share
    sums = rows.sums(win, loss, either * share, either * (1.0 - share))
    # log(P(tie) + P(bothbad)) is more than the mean of both logarithms.
    extra = either * (rows.tie - value) - either * share * rows.tie + either * (1.0 - share) * rows.logs[2]
    return _with_outer(sums._replace(value=sums.value + extra), either * bend, rows.tie_over_bothbad())


_Form: TypeAlias = Callable[[Any, Floats, Floats, Any], _RowSums]
_FORMS: dict[Any, _Form] = {
    likelihoods.get(name).log_terms: form
    for name, form in (("bt", _bt), ("bt-tie", _bt), ("rk", _rk), ("rk-reparam", _rk_reparam))
}
_EXCESSES = {likelihoods.get(name).log_terms: excess for name, excess in (("grk", GRK_EXCESS), ("ba", BA_EXCESS))}
"""The excess of likelihoods that are grounded, which share their formula."""
