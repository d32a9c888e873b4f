"""How far a model's coefficients may differ from one leaderboard: the factor that votes on other prompts allow.

    coefs_f = f coefs + (1 - f) m,    eta and gamma likewise,    0 <= f <= 1

with m the one leaderboard of the votes that were trained on. At f = 0 the model is that leaderboard, at f = 1 what
training made of it. The loss of validation votes is least at some f; the factor is the smallest one whose loss exceeds
the least by no more than its standard error, so that a few votes cannot speak for the model by chance, and many lower
the factor by little. The head's last layers are linear, so the factor goes into their weights.

Shapes: N votes, M models, E points of a run at which it was looked at, G factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from p2l.leaderboard import Leaderboard
from p2l.likelihood import Likelihood, counted, vote_losses
from p2l.training.facts import Forecast

Floats = NDArray[np.float64]
FACTORS = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True)
class Shrinkage:
    """What validation votes say of a run."""

    point: int
    """The point of the run that is best when it is shrunk, from 0."""
    factor: float
    loss: float
    """Least loss of that point over all factors."""


@dataclass(frozen=True)
class ValidationVotes:
    """Votes (N, 3) to choose by, their prompts as codes (N,), and their weights (N,)."""

    likelihood: Likelihood
    labels: NDArray[np.int32]
    prompts: NDArray[np.int64]
    weights: Floats

    @property
    def mass(self) -> Floats:
        """Weights (N,) of the votes that count."""
        return np.asarray(self.weights * counted(self.likelihood, self.labels))

    def losses(self, model: Forecast, board: Forecast) -> Floats:
        """Return the loss (G, N) of each vote under each factor."""
        ours, theirs = _pairs(model, self.labels), _pairs(board, self.labels)
        sides = np.array([0, 1, 0]) + self.labels * np.array([0, 0, 1])
        rows = [blend(ours, theirs, float(factor)) for factor in FACTORS]
        return np.stack([vote_losses(self.likelihood, row.coefs, sides, row.eta, row.gamma) for row in rows])

    def choose(
        self, losses: Sequence[Floats], among: NDArray[np.bool_] | None = None, *, near: float = 0.0
    ) -> Shrinkage:
        """Choose point and factor by the losses (G, N) of each of E points; `among` (N,) are the votes that say.

        Of the factors whose loss is within a standard error of the least, the nearest to `near` is chosen.
        """
        mass = self.mass if among is None else self.mass * among
        means = np.stack([part @ mass for part in losses]) / mass.sum()
        point, best = divmod(int(means.argmin()), len(FACTORS))
        rows, distances = losses[point], np.abs(FACTORS - near)
        for place in np.argsort(distances, kind="stable"):
            if distances[place] >= distances[best]:
                break
            excess, error = _mean_and_error((rows[place] - rows[best]) * mass, mass, self.prompts)
            if excess <= error:
                best = int(place)
                break
        return Shrinkage(point, float(FACTORS[best]), float(means.min()))


def blend(model: Forecast, board: Forecast, factor: float | Floats) -> Forecast:
    """Return the forecast between one leaderboard and a model; `factor` is a number, or (N,)."""

    def mixed(own: NDArray[np.floating] | None, other: NDArray[np.floating] | None) -> Floats | None:
        if own is None or other is None:
            return None
        part = np.reshape(factor, (-1, 1)) if own.ndim > 1 else np.asarray(factor)
        return np.asarray(part * own + (1 - part) * other, dtype=np.float64)

    coefs = mixed(model.coefs, board.coefs)
    assert coefs is not None
    return Forecast(coefs, mixed(model.eta, board.eta), mixed(model.gamma, board.gamma))


def repeated(board: Leaderboard, votes: int) -> Forecast:
    """Return one leaderboard as the forecast of each of `votes` votes."""

    def column(value: float | None) -> Floats | None:
        return None if value is None else np.full(votes, value)

    return Forecast(np.broadcast_to(board.coefs, (votes, len(board.coefs))), column(board.eta), column(board.gamma))


def _pairs(forecast: Forecast, labels: NDArray[np.int32]) -> Forecast:
    """Return the forecast with the coefficients (N, 2) of winner and loser alone."""
    rows = np.arange(len(labels))
    return replace(forecast, coefs=np.stack([forecast.coefs[rows, labels[:, side]] for side in (0, 1)], axis=1))


def _mean_and_error(values: Floats, mass: Floats, prompts: NDArray[np.int64]) -> tuple[float, float]:
    """Return a mean and its standard error, prompts drawn whole; the error is infinite for a single prompt."""
    from scipy.stats import norm, t

    mean = float(values.sum() / mass.sum())
    sums = np.bincount(prompts, values - mean * mass)
    drawn = int((np.bincount(prompts, mass) > 0).sum())
    if drawn < 2:
        return mean, np.inf
    # Of few prompts the error itself is uncertain, as Student's t has it.
    wider = float(t.ppf(norm.cdf(1.0), drawn - 1))
    return mean, wider * float(np.sqrt((sums**2).sum() * drawn / (drawn - 1)) / mass.sum())
