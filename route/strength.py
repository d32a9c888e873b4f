"""Coefficients as scores, and expected scores back as one coefficient.

                           score of model i                      strength of a mixture p
    against opponents q    s_i = sum_j q_j sigmoid(b_i - b_j)    the root t of sum_j q_j sigmoid(t - b_j) = s.p
    grounded               s_i = sigmoid(b_i)                    logit(s.p)

sigmoid(b_i - b_j) is P(win) of the likelihood `bt` (`p2l.likelihood`), written as a_i / (a_i + a_j) with a = exp(b):
one exponential per coefficient instead of one per pair.

Shapes: M models, Q opponents, P models of a mixture.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Opponents", "grounded_scores", "grounded_strength", "scores_against", "strength_against"]

Floats: TypeAlias = npt.NDArray[np.float64]

_REACH = 300.0  # exp of larger coefficients, and its square, would leave the range of float64
_LARGEST_EXPONENT = 700.0
_LEAST_RATE = 5e-324
_LAST_STEP = 1e-5  # the error after one of Newton's steps is about its square
_ROUNDING = 1e-15
_MOST_STEPS = 60


class Opponents(NamedTuple):
    """Whom a model is compared with."""

    coefs: Floats
    """(Q,)"""
    weights: Floats
    """(Q,), 1 in sum"""


def scores_against(coefs: Floats, opponents: Opponents) -> Floats:
    """Probability (M,) with which each model wins against an opponent drawn by the weights; a tie is half a win."""
    if not max(np.abs(coefs).max(), np.abs(opponents.coefs).max()) <= _REACH:
        halves = np.tanh(0.5 * (coefs[:, None] - opponents.coefs))
        return 0.5 + 0.5 * (halves @ opponents.weights)
    worths, others = np.exp(coefs)[:, None], np.exp(opponents.coefs)
    chances = worths + others
    np.divide(worths, chances, out=chances)
    return np.asarray(chances.dot(opponents.weights))


def strength_against(coefs: Floats, shares: Floats, opponents: Opponents) -> float:
    """The coefficient of a model that would win as often as the mixture `shares` (P,) of models with `coefs` (P,).

    Newton's method on the log-odds of winning, which are nearly linear in t, between the least and the largest
    coefficient of the mixture; halving where a step leads outside.
    """
    mixed: list[float] = coefs.tolist()
    least, largest = min(mixed), max(mixed)
    if least == largest:
        return least
    # From here on t counts from the middle. An opponent further away than the reach always wins, or always loses.
    middle, low, high = 0.5 * (least + largest), 0.5 * (least - largest), 0.5 * (largest - least)
    worths = np.exp(np.minimum(np.maximum(opponents.coefs - middle, -_REACH), _REACH))
    rates = [_rates(coef - middle, worths, opponents.weights)[:2] for coef in mixed]
    won, lost = (float(shares.dot(column)) for column in zip(*rates, strict=True))
    target, bottom, top = _log_odds(won, lost), _log_odds(*min(rates)), _log_odds(*max(rates))
    t = low + (high - low) * (target - bottom) / (top - bottom) if bottom < target < top else 0.0
    for _ in range(_MOST_STEPS):
        won, lost, slope = _rates(t, worths, opponents.weights)
        error = _log_odds(won, lost) - target
        low, high = (t, high) if error < 0.0 else (low, t)
        newton = t - error * won * lost / slope if slope > 0.0 else math.nan
        before, t = t, newton if low <= newton <= high else 0.5 * (low + high)
        if abs(error) <= _ROUNDING or (t == newton and abs(t - before) <= _LAST_STEP):
            break
    return min(max(middle + t, least), largest)


def _rates(t: float, worths: Floats, weights: Floats) -> tuple[float, float, float]:
    """How often coefficient t wins and loses against opponents of worths exp(coefs), and the slope of winning in t."""
    worth = math.exp(min(max(t, -_REACH), _REACH))
    sums = worths + worth
    parts = weights / sums
    # dot takes half the time of @ here
    return worth * float(np.add.reduce(parts)), float(parts.dot(worths)), worth * float((parts / sums).dot(worths))


def _log_odds(won: float, lost: float) -> float:
    return math.log(max(won, _LEAST_RATE)) - math.log(max(lost, _LEAST_RATE))


def grounded_scores(coefs: Floats) -> Floats:
    """sigmoid (M,) of the coefficients of a grounded model: the chance to be good enough."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * coefs))


def grounded_strength(coefs: Floats, shares: Floats) -> float:
    """logit of the mean score of the mixture `shares` (P,) of models with `coefs` (P,)."""
    low, high = float(coefs.min()), float(coefs.max())
    if low == high:
        return low
    mixed = list(zip(coefs.tolist(), shares.tolist(), strict=True))
    good = sum(share * _sigmoid(coef) for coef, share in mixed)
    bad = sum(share * _sigmoid(-coef) for coef, share in mixed)
    return min(max(_log_odds(good, bad), low), high)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(min(-x, _LARGEST_EXPONENT)))
