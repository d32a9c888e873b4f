"""Coefficients of graded answers, fitted to features of prompts: the grounded likelihood against an answer of no use.

Under grk a model whose coefficient is minus infinity never gives a usable answer. A vote of model m against it is won
with probability sigmoid(coef_m), is both-bad otherwise, and cannot be tied or lost (`p2l.likelihood`, b = 0). A graded
answer is such a vote, a fractional score s two of them with weights s and 1 - s; their log-likelihood is

    sum over answers of  s log sigmoid(coef) + (1 - s) log sigmoid(-coef),    coef_m = x (w + v_m) + c_m

with features x of a prompt, a part w that all models share (how hard the prompt is) and a part v_m of each (what the
choice between them rests on). Both have a normal prior, of precisions `shared` and `own`; c_m has none, so that with
large precisions every model is as good as its mean score. Votes between two answers need more: they also have to say
how the errors of two models coincide, which no choice of one model depends on.

The precisions are found by leaving one prompt out, in the linear model of scores that has the same prior, where that
takes one decomposition: mean score over models and deviations from it are two ridge regressions there.

Shapes: Q prompts, M models, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["OWN", "Fit", "Precision", "fit_graded", "graded_loss", "left_out"]

Floats: TypeAlias = npt.NDArray[np.float64]

SHARED = (1.0, 3.0, 10.0, 30.0, 100.0)
OWN = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
MOST_STEPS = 200
_LEAST_RATE = 1e-3  # mean scores of 0 and 1 would have infinite coefficients


@dataclass(frozen=True)
class Precision:
    """Precisions of the priors of weights, in the linear model: in units of one prompt whose features have length 1."""

    shared: float
    own: float


@dataclass(frozen=True)
class Fit:
    """coef = x @ weights.T + bias."""

    weights: Floats
    """(M, F)"""
    bias: Floats
    """(M,)"""

    def coefs(self, features: Floats) -> Floats:
        """(Q, M) of prompts with these features."""
        return np.asarray(features @ self.weights.T + self.bias)


def left_out(features: Floats, scores: Floats, own: float) -> tuple[Precision, Floats]:
    """The scores (Q, M) that the linear model expects of each prompt where it has not seen it, under an own precision.

    The shared precision is the one of `SHARED` with the least squared error of the mean score over models; it matters
    little to the choice between them. Features have mean zero.
    """
    lengths, basis = np.linalg.eigh(features.T @ features)
    kept = lengths > lengths.max() * 1e-10
    lengths, rows = lengths[kept], features @ (basis[:, kept] / np.sqrt(lengths[kept]))
    squares, mean = rows**2, scores.mean(axis=0)
    level = (scores - mean).mean(axis=1, keepdims=True)

    def without(target: Floats, precision: float) -> Floats:
        keep = lengths / (lengths + precision)
        leverage = (squares @ keep)[:, None]
        return np.asarray(((rows * keep) @ (rows.T @ target) - leverage * target) / (1.0 - leverage))

    levels = {value: without(level, value) for value in SHARED}
    shared = min(SHARED, key=lambda value: float(((levels[value] - level) ** 2).sum()))
    return Precision(shared, own), mean + levels[shared] + without(scores - mean - level, own)


def fit_graded(features: Floats, scores: Floats, precision: Precision) -> Fit:
    """The most probable weights.

    Args:
        features: (Q, F) of mean zero.
        scores: (Q, M) between 0 and 1.
        precision: of the linear model; a unit of coefficient moves a score by p (1 - p) at most, so that the prior of
            the weights here has the precision times the mean of that.
    """
    from scipy.optimize import minimize

    rates = scores.mean(axis=0).clip(_LEAST_RATE, 1.0 - _LEAST_RATE)
    task = _task(features, scores, precision, float((rates * (1.0 - rates)).mean()))
    start = np.concatenate([np.zeros(task.rows.shape[1] * (len(rates) + 1)), np.log(rates / (1.0 - rates))])
    found = minimize(task, start, jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "ftol": 1e-10})
    shared, own, bias = task.parts(np.asarray(found.x))
    return Fit(task.back(shared, own), bias)


def graded_loss(coefs: Floats, scores: Floats) -> Floats:
    """Minus the log-likelihood (Q, M) of each graded answer."""
    return np.asarray(np.logaddexp(0.0, coefs) - scores * coefs)


@dataclass(frozen=True)
class _Task:
    """Minus the log-posterior per prompt, and its gradient, in coordinates in which it is nearly round."""

    rows: Floats
    """(Q, F) features along the principal axes"""
    scores: Floats
    scales: tuple[Floats, Floats]
    """(F,) standard deviations of the shared and the own weights given the data; the coordinates' units"""
    precisions: tuple[float, float]
    back: Callable[[Floats, Floats], Floats]

    def parts(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Shared weights (F,), own weights (M, F) and biases (M,)."""
        count, width = self.scores.shape[1], self.rows.shape[1]
        cut = x[: width * (count + 1)].reshape(count + 1, width)
        return cut[0] * self.scales[0], cut[1:] * self.scales[1], x[width * (count + 1) :]

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        shared, own, bias = self.parts(x)
        coefs, number = self.rows @ (own + shared).T + bias, len(self.scores)
        slope = 0.5 + 0.5 * np.tanh(0.5 * coefs) - self.scores
        pull = slope.T @ self.rows
        first, second = self.precisions
        value = graded_loss(coefs, self.scores).sum() + 0.5 * (first * (shared**2).sum() + second * (own**2).sum())
        gradient = [
            (pull.sum(axis=0) + first * shared) * self.scales[0],
            ((pull + second * own) * self.scales[1]).ravel(),
        ]
        return float(value) / number, np.concatenate([*gradient, slope.sum(axis=0)]) / number


def _task(features: Floats, scores: Floats, precision: Precision, slope: float) -> _Task:
    lengths, basis = np.linalg.eigh(features.T @ features)
    lengths, count = lengths.clip(0.0), scores.shape[1]
    # The mean over models has the precision `shared` in the linear model; M models pull at the shared weights.
    precisions = (precision.shared * slope * count, precision.own * slope)
    scales = (
        np.sqrt(len(scores) / (lengths * slope * count + precisions[0])),
        np.sqrt(len(scores) / (lengths * slope + precisions[1])),
    )

    def back(shared: Floats, own: Floats) -> Floats:
        return np.asarray((own + shared) @ basis.T)

    return _Task(features @ basis, scores, scales, precisions, back)
