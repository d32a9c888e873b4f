"""The coefficients of a new model from a few votes or graded answers: MAP under a prior fitted to the known models.

The row of a new model in the head is an affine combination of the rows of the M known ones, so that all that is needed
of a prompt are their coefficients, whatever the backbone:

    coef_new(x) = mean_m coef_m(x) + o + sum over k of z_k e_k(x)

with o an offset and e_k the principal components of what the known models' coefficients differ by from prompt to prompt
beside the offsets. The known models have offsets and scores of their own: theta = (o, z) of a new one has their mean
(zero, or as far as organisations differ that of the models of its own) and their covariance, correlations shrunk.
Votes are outcomes of `p2l.likelihood` against coefficients that are known; graded answers are Bernoulli. Newton's
method finds the maximum, its Hessian the covariance. An N(0, 5) prior is as good after forty votes as this after ten.

NumPy alone, so that a router can use it too.

Shapes: N observations, P prompts, M known models, K components, D = 1 + K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard.newton import Expansion, derivatives, minimise
from p2l.likelihood import Likelihood, targets

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MAX_COMPONENTS = 4
"""Most components of a prior: each takes some ten known models to know its variance."""
_MODELS_A_COMPONENT = 4
_LEAST_VARIANCE = 0.05**2
LEAST_SLOPE = 0.05
_MODELS_TO_BELIEVE_HALF = 10.0  # known models at which half of a correlation is believed


@dataclass(frozen=True)
class RowPrior:
    """The prior of a new model's row, fitted to the rows of known models."""

    weights: Floats
    """(D, M) of the known models' coefficients, each component's with sum zero; the offset's are zero."""
    shifts: Floats
    """(D,) constants that are added to them."""
    mean: Floats
    """(D,)"""
    covariance: Floats
    """(D, D)"""
    own_variance: float
    """Variance of a prompt's coefficient around its row: the part that the components leave."""

    def design(self, coefs: Floats) -> Floats:
        """Return the design matrix (N, D) of theta at prompts of these coefficients (N, M)."""
        return np.asarray(coefs @ self.weights.T + self.shifts)

    def combination(self, theta: Floats) -> tuple[Floats, float]:
        """Return the weights (M,) of the known models' rows, with sum one, and the shift of the bias of a new row."""
        count = self.weights.shape[1]
        return 1.0 / count + theta @ self.weights, float(theta @ self.shifts)


@dataclass(frozen=True)
class NewRow:
    """The row of a new model with its uncertainty."""

    prior: RowPrior
    theta: Floats
    """(D,) the most probable one."""
    covariance: Floats
    """(D, D)"""

    def coefs(self, known: Floats) -> Floats:
        """Return the new model's coefficients (N,) at prompts where the known ones have these (N, M)."""
        return np.asarray(known.mean(axis=1) + self.prior.design(known) @ self.theta)

    def sd(self, known: Floats) -> Floats:
        """Return their standard deviations (N,), a prompt's own part included."""
        design = self.prior.design(known)
        return np.asarray(np.sqrt((design @ self.covariance * design).sum(axis=1) + self.prior.own_variance))


def fit_row_prior(coefs: npt.ArrayLike, organisations: Sequence[str] = (), organisation: str | None = None) -> RowPrior:
    """Fit the prior to the coefficients (P, M) of known models at prompts like those to come.

    `organisations` are those of the M models: where models of one differ less than those of all, the prior of a model
    of `organisation` lies nearer to its own. InputError for fewer than two models.
    """
    table = np.asarray(coefs, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] < 2 or not len(table):
        raise InputError("a prior of new models needs prompts and at least two known models")
    centred = table - table.mean(axis=1, keepdims=True)
    levels = centred.mean(axis=0)
    deviations = centred - levels
    number = min(_MAX_COMPONENTS, table.shape[1] // _MODELS_A_COMPONENT, len(table) - 1)
    _, size, right = np.linalg.svd(deviations / np.sqrt(len(table)), full_matrices=False)
    number = int((size[:number] > 1e-6 * max(float(size[0]), 1e-12)).sum())
    scores = np.concatenate([levels[:, None], (size[:number, None] * right[:number]).T], axis=1)
    weights = np.zeros((1 + number, table.shape[1]))
    weights[1:] = right[:number] / size[:number, None]
    weights[1:] -= weights[1:].mean(axis=1, keepdims=True)
    shifts = np.concatenate([[1.0], -(right[:number] / size[:number, None]) @ levels])
    own = float((size[number:] ** 2).sum()) / table.shape[1]
    mean, covariance = _moments(scores, organisations, organisation)
    return RowPrior(weights, shifts, mean, covariance, own)


def _moments(scores: Floats, organisations: Sequence[str], organisation: str | None) -> tuple[Floats, Floats]:
    """Return mean (D,) and covariance (D, D) of a new model's theta, from those of the known ones (M, D)."""
    count = len(scores)
    covariance = scores.T @ scores / max(count - 1, 1)
    believed = count / (count + _MODELS_TO_BELIEVE_HALF)
    covariance = np.where(np.eye(len(covariance), dtype=bool), covariance, believed * covariance)
    covariance += _LEAST_VARIANCE * np.eye(len(covariance))
    mean = np.zeros(scores.shape[1])
    kin = np.array([name == organisation for name in organisations], dtype=bool)
    if organisation is None or not kin.any():
        return mean, covariance
    shares = _between(scores, organisations)
    # A new model of n kin is regressed on their mean by n s / (1 + (n - 1) s), s the share between organisations.
    slopes = kin.sum() * shares / (1.0 + (kin.sum() - 1) * shares)
    left = np.sqrt(1.0 - shares * slopes)
    return slopes * scores[kin].mean(axis=0), covariance * left[:, None] * left


def _between(scores: Floats, organisations: Sequence[str]) -> Floats:
    """Return the share (D,) of the variance of scores (M, D) that lies between organisations, by moments (ANOVA)."""
    _, group = np.unique(np.asarray(organisations, dtype=object).astype(str), return_inverse=True)
    sizes = np.bincount(group).astype(np.float64)
    count, groups = len(scores), len(sizes)
    if groups < 2 or count <= groups:
        return np.zeros(scores.shape[1])
    sums = np.zeros((groups, scores.shape[1]))
    np.add.at(sums, group, scores)
    means = sums / sizes[:, None]
    within = ((scores - means[group]) ** 2).sum(axis=0) / (count - groups)
    among = (sizes[:, None] * (means - scores.mean(axis=0)) ** 2).sum(axis=0) / (groups - 1)
    typical = (count - (sizes**2).sum() / count) / (groups - 1)
    variance = np.maximum((among - within) / typical, 0.0)
    return np.asarray(variance / np.maximum(variance + within, 1e-12))


_Observe = Callable[[Floats], tuple[Floats, Floats, Floats]]
"""Coefficients (N,) of the new model -> log-likelihood of each observation, its slope and its curvature (N,)."""


def fit_row(prior: RowPrior, known: Floats, observe: _Observe) -> NewRow:
    """Return the most probable row given observations at prompts where the known models have coefficients (N, M)."""
    design, base = prior.design(known), known.mean(axis=1)
    precision = np.linalg.inv(prior.covariance)

    def evaluate(theta: Floats) -> Expansion:
        logs, slope, bend = observe(base + design @ theta)
        away = precision @ (theta - prior.mean)
        value = -float(logs.sum()) + 0.5 * float((theta - prior.mean) @ away)
        hessian = precision - (design * bend[:, None]).T @ design
        return Expansion(theta, value, away - design.T @ slope, hessian)

    point = minimise(evaluate, prior.mean.copy())
    return NewRow(prior, point.theta, np.asarray(np.linalg.inv(point.hessian), dtype=np.float64))


def votes_on_new(
    likelihood: Likelihood,
    others: Floats,
    is_first: npt.NDArray[np.bool_],
    ties: Ints,
    eta: Floats | None = None,
    gamma: Floats | None = None,
    shift: Floats | None = None,
) -> _Observe:
    """Return the observation of N votes between the new model and others of known coefficients (N,).

    `is_first` (N,) is whether the new model stands first in the label `[winner, loser, tie]`, `ties` (N,) its tie, and
    `shift` (N, 3) what covariates of the vote add to winner, loser and eta.
    """
    shares = np.asarray(targets(likelihood, ties), dtype=np.float64)
    if shift is not None and eta is not None:
        eta = eta + shift[:, 2]

    def observe(coefs: Floats) -> tuple[Floats, Floats, Floats]:
        first, second = np.where(is_first, coefs, others), np.where(is_first, others, coefs)
        if shift is not None:
            first, second = first + shift[:, 0], second + shift[:, 1]
        logs, slopes, bends = derivatives(likelihood, first, second, eta, gamma)
        place = np.where(is_first, 0, 1)
        rows = np.arange(len(coefs))
        slope, bend = slopes[rows, :, place], bends[rows, :, place, place]
        return (shares * logs).sum(axis=1), (shares * slope).sum(axis=1), (shares * bend).sum(axis=1)

    return observe


def fit_row_to_labels(
    prior: RowPrior,
    likelihood: Likelihood,
    labels: npt.NDArray[Any],
    *,
    model: int,
    known: Floats,
    coefs: Floats,
    eta: npt.NDArray[Any] | None,
    gamma: npt.NDArray[Any] | None,
    shift: npt.NDArray[Any] | None = None,
) -> NewRow:
    """Return the most probable row of the model numbered `model`, given labels (N, 3) of votes on it.

    At the votes' prompts the known models have the coefficients `known` (N, M), and those that labels number `coefs`.
    `shift` (N, 3) is what covariates of the votes add to winner, loser and eta.
    """
    is_first = labels[:, 0] == model
    others = coefs[np.arange(len(labels)), np.where(is_first, labels[:, 1], labels[:, 0])]
    eta, gamma, shift = (None if values is None else values.astype(np.float64) for values in (eta, gamma, shift))
    return fit_row(prior, known, votes_on_new(likelihood, others, is_first, labels[:, 2], eta, gamma, shift))


@dataclass(frozen=True)
class AnswerScale:
    """The chance of a right answer by the coefficient: sigmoid(slope * coefficient + level + a prompt's own logit)."""

    slope: float
    level: float
    covariance: Floats
    """(2, 2) of slope and level, given the scores."""
    variance: float
    """Variance of a prompt's own logit, before its scores are seen."""

    def information(self, coefs: Floats, own: Floats | float = 0.0) -> Floats:
        """Return the Fisher information (N,) of an answer about the coefficient, given the prompts' own logits."""
        chance = 1.0 / (1.0 + np.exp(-(self.slope * coefs + self.level + own)))
        return np.asarray(self.slope**2 * chance * (1.0 - chance))


def fit_answer_scale(coefs: Floats, scores: Floats) -> tuple[AnswerScale, Floats]:
    """Fit the scale to scores (N, M) in [0, 1] of known models, NaN where there is none; return it and prompts' own.

    A prompt's own logit (N,) says how much easier the prompt is than the coefficients (N, M) say. It takes hundreds of
    scores to know the slope well: let `scores` hold those of prompts that a new model has not answered too.
    """
    there = ~np.isnan(scores)
    filled = np.where(there, scores, 0.0)
    slope, level, variance = 1.0, 0.0, 1.0
    own = np.zeros(len(scores))
    for _ in range(30):
        for _ in range(4):
            chance = 1.0 / (1.0 + np.exp(-(slope * coefs + level + own[:, None])))
            weight = there * chance * (1.0 - chance)
            residual = there * (filled - chance)
            own = own + np.clip((residual.sum(axis=1) - own / variance) / (weight.sum(axis=1) + 1.0 / variance), -1, 1)
            cross = (weight * coefs).sum()
            gradient = np.stack([(residual * coefs).sum() - (slope - 1.0), residual.sum()])
            curve = np.array([[(weight * coefs**2).sum() + 1.0, cross], [cross, weight.sum() + 1e-3]])
            step = np.clip(np.linalg.solve(curve, gradient), -0.5, 0.5)
            # Coefficients that order models the wrong way round would turn every answer into its opposite.
            slope, level = max(slope + float(step[0]), LEAST_SLOPE), level + float(step[1])
        # The variance of prompts' own logits is that under which the scores are likeliest (Laplace's approximation).
        last, variance = variance, float((own**2 + 1.0 / (weight.sum(axis=1) + 1.0 / variance)).mean())
        if abs(np.log(variance / last)) < 0.01:
            break
    # The covariance of slope and level, by the Hessian of these and of all prompts' own logits.
    terms = np.stack([coefs, np.ones_like(coefs)])
    among = (weight * terms).sum(axis=2)
    whole = np.einsum("nm,anm,bnm->ab", weight, terms, terms) + np.diag([1.0, 1e-3])
    covariance = np.linalg.inv(whole - (among / (weight.sum(axis=1) + 1.0 / variance)) @ among.T)
    return AnswerScale(slope, level, np.asarray(covariance, dtype=np.float64), variance), own


def answers_of_new(scale: AnswerScale, own: Floats, scores: Floats) -> _Observe:
    """Return the observation of the new model's scores (N,) at prompts whose own logits (N,) are known."""

    def observe(coefs: Floats) -> tuple[Floats, Floats, Floats]:
        logits = scale.slope * coefs + scale.level + own
        chance = 1.0 / (1.0 + np.exp(-logits))
        logs = scores * logits - np.logaddexp(0.0, logits)
        return logs, scale.slope * (scores - chance), -(scale.slope**2) * chance * (1.0 - chance)

    return observe


@dataclass(frozen=True)
class ExpectedScores:
    """Forecast scores of a new model at N prompts that it was not asked."""

    scores: Floats
    """(N,)"""
    mean: float
    sd: float
    """Standard deviation of the mean score around `mean`: chance, and the uncertainty of row, scale and grades."""


def expected_scores(
    scale: AnswerScale, row: NewRow, known: Floats, own: Floats, is_graded: npt.NDArray[np.bool_]
) -> ExpectedScores:
    """Forecast the scores of a new model at prompts where the known ones have coefficients (N, M) and were graded.

    `own` (N,) are the prompts' own logits, fitted to the grades that are there (N, M).
    """
    coefs = row.coefs(known)
    # Scores are not averaged over the uncertainty of logits, scale and row: they were forecast no better that way
    # (benchmarks/LOG.md). It is in the interval of the mean alone.
    scores = 1.0 / (1.0 + np.exp(-(scale.slope * coefs + scale.level + own)))
    spread = scores * (1.0 - scores)  # at most the variance of a score in [0, 1]
    chance = 1.0 / (1.0 + np.exp(-(scale.slope * known + scale.level + own[:, None])))
    weight = is_graded * chance * (1.0 - chance)
    left = 1.0 / (weight.sum(axis=1) + 1.0 / scale.variance)
    # A steeper scale and an easier prompt explain the same grades, so that their errors partly cancel.
    of_row = scale.slope * (spread[:, None] * row.prior.design(known)).mean(axis=0)
    others = np.stack([(weight * known).sum(axis=1), weight.sum(axis=1)])
    of_scale = (spread * (np.stack([coefs, np.ones_like(coefs)]) - left * others)).mean(axis=1)
    variance = float(of_row @ row.covariance @ of_row) + float(of_scale @ scale.covariance @ of_scale)
    variance += float((spread + spread**2 * left).sum()) / len(scores) ** 2
    return ExpectedScores(scores, float(scores.mean()), variance**0.5)


def probes(prior: RowPrior, known: Floats, curvature: Floats, count: int) -> Ints:
    """Choose prompts (of N, with coefficients (N, M)) to ask a new model about first: those that teach most of its row.

    `curvature` (N,) is the Fisher information of one answer about the coefficient.
    """
    design = prior.design(known)
    whole = design.T @ design / len(design)
    covariance = prior.covariance.copy()
    chosen: list[int] = []
    free = np.ones(len(design), dtype=bool)
    # Greedy: each prompt takes most off the mean variance of the coefficient over all prompts (I-optimal design).
    for _ in range(min(count, len(design))):
        moved = design @ covariance
        taken = curvature * ((moved @ whole) * moved).sum(axis=1) / (1.0 + curvature * (moved * design).sum(axis=1))
        best = int(np.where(free, taken, -1.0).argmax())
        free[best] = False
        chosen.append(best)
        row = moved[best]
        covariance -= np.outer(row, row) * curvature[best] / (1.0 + curvature[best] * design[best] @ row)
    return np.array(chosen, dtype=np.int64)
