"""Scores as a linear function of features of prompts, with what models share in it learned from the scores.

    scores = mean + features @ weights + noise,    a feature's weights ~ N(0, signal),    a prompt's noise ~ N(0, noise)

`signal` and `noise` are covariances over models. The first knows which models do well on the same prompts, the second
whose errors coincide; what is foreseen of the difference between two models is shrunk as that difference deserves, so
that two good models that hardly differ are not told apart by luck. Both maximise the restricted likelihood, by the
minorise-maximise steps of Zhou, Hu, Zhou and Lange (2019). In the basis of models in which both are diagonal each
column is a ridge regression of its own.

Shapes: Q prompts, M models, F features, D directions that prompts differ in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from route.evaluation.table import Floats, Rows

STEPS = 60
_FIRST_SHARE = 0.05  # of the variance of scores that the first step takes for signal
_LEAST = 1e-9


@dataclass(frozen=True)
class Gaussian:
    """The fitted model."""

    mean: Floats
    """(M,)"""
    weights: Floats
    """(F, M)"""

    def expected(self, features: Floats) -> Floats:
        """Return the expected scores (Q, M) of prompts with these features."""
        return np.asarray(self.mean + features @ self.weights)


def fit_gaussian(features: Floats, scores: Floats, *, steps: int = STEPS) -> Gaussian:
    """Fit the model to features (Q, F), each of mean zero, and scores (Q, M)."""
    mean = scores.mean(axis=0)
    centred = scores - mean
    lengths, basis = np.linalg.eigh(features.T @ features)
    nonzero = lengths > max(lengths.max(), _LEAST) * _LEAST  # directions that no prompt has
    lengths, basis = lengths[nonzero], basis[:, nonzero]
    rows = features @ (basis / np.sqrt(lengths))
    along = rows.T @ centred
    basis_of_models = _Basis.learned(lengths, along, centred, steps=steps)
    keep = 1.0 - 1.0 / (lengths[:, None] * basis_of_models.ratios + 1.0)
    kept = keep * (along @ basis_of_models.to)
    return Gaussian(mean, basis @ (kept / np.sqrt(lengths)[:, None]) @ basis_of_models.back)


def held_out(features: Floats, scores: Floats, parts: Rows) -> Floats:
    """Return the scores (Q, M) that are expected of prompts by a fit to those of all other `parts` (Q,).

    Leaving out one prompt would say too much: the covariances would have seen it.
    """
    expected = np.tile(scores.mean(axis=0), (len(scores), 1))
    for part in np.unique(parts):
        here, others = parts == part, parts != part
        if others.any():
            centre = features[others].mean(axis=0)
            expected[here] = fit_gaussian(features[others] - centre, scores[others]).expected(features[here] - centre)
    return expected


@dataclass(frozen=True)
class _Basis:
    """The basis of models in which the noise is one and the signal `ratios` (M,) times the squared length."""

    ratios: Floats
    to: Floats
    """(M, M)"""
    back: Floats
    """(M, M), its inverse"""

    @staticmethod
    def of(signal: Floats, noise: Floats) -> _Basis:
        """Diagonalise both covariances at once."""
        root = np.linalg.cholesky(noise)
        whitened = np.linalg.solve(root, np.linalg.solve(root, signal).T)
        ratios, turn = np.linalg.eigh((whitened + whitened.T) / 2)
        return _Basis(np.maximum(ratios, _LEAST), np.linalg.solve(root.T, turn), turn.T @ root.T)

    @staticmethod
    def learned(lengths: Floats, along: Floats, centred: Floats, *, steps: int) -> _Basis:
        """Find the covariances: D squared lengths, the scores along them (D, M), and centred scores (Q, M)."""
        questions, models = centred.shape
        total = centred.T @ centred
        beyond = total - along.T @ along  # what no feature can explain is noise
        free = max(questions - 1 - len(lengths), 0)
        floor = (np.trace(total) / max(questions * models, 1) + _LEAST) * 1e-6 * np.eye(models)
        noise = (1.0 - _FIRST_SHARE) * total / max(questions - 1, 1) + floor
        signal = _FIRST_SHARE / (1.0 - _FIRST_SHARE) * noise
        for _ in range(steps):
            basis = _Basis.of(signal, noise)
            spread = lengths[:, None] * basis.ratios + 1.0
            scaled = (along @ basis.to) / spread
            ahead = basis.ratios[:, None] * ((scaled * lengths[:, None]).T @ scaled) * basis.ratios
            rest = scaled.T @ scaled + basis.to.T @ beyond @ basis.to
            signal, noise = (
                basis.back.T @ _geometric(pull, push) @ basis.back
                for pull, push in (
                    ((lengths[:, None] / spread).sum(axis=0), ahead),
                    ((1.0 / spread).sum(axis=0) + free, rest),
                )
            )
            noise = noise + floor
        return _Basis.of(signal, noise)


def _geometric(pull: Floats, push: Floats) -> Floats:
    """Return the positive S (M, M) with S diag(pull) S = push."""
    roots = np.sqrt(np.maximum(pull, _LEAST))
    values, turn = np.linalg.eigh(roots[:, None] * push * roots)
    middle = (turn * np.sqrt(np.maximum(values, 0.0))) @ turn.T
    return np.asarray(middle / (roots[:, None] * roots))
