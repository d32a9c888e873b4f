"""Samples of held-out prompts and of training prompts, and intervals over both.

A sample weighs each held-out prompt by a draw of the exponential distribution (the Bayesian bootstrap), and beside them
two prompts that nobody has seen, of half the weight: one on which a figure is the highest that it can be, and one on
which it is the lowest. For a share of successes that is the interval of Jeffreys' prior. Without them an interval has
no width where all prompts agree, which a handful does by luck: 5 gains in 5 prompts would be "100 % (100 to 100)".

Policies are trained again on random halves of the training prompts. Trainings on halves depart from each other as
trainings on the whole do from those on other prompts (the variance of a half, drawn without replacement, around the
whole is that of the whole around the population), so that each sample adds the departure of one of them from their
mean.

Shapes: Q questions, R samples, H halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2l.metrics import Interval
from route.evaluation.table import Floats, Rows, places

DRAWS = 1000
LEVEL = 0.95
_UNSEEN_WEIGHT = 0.5
"""Of each of the two unseen prompts, beside a mean weight of one of those that were held out."""


@dataclass(frozen=True)
class Samples:
    """What R samples hold of each question, and of the two prompts that nobody has seen."""

    weights: Floats
    """(R, Q)"""
    highest: Floats
    """(R,) share of the prompt on which a figure is the highest that it can be"""
    lowest: Floats
    """(R,) share of the prompt on which it is the lowest"""

    @staticmethod
    def of(prompts: Sequence[str], *, draws: int = DRAWS, seed: int = 0) -> Samples:
        """Draw samples; questions with one prompt are drawn together."""
        _, groups = np.unique(np.array(prompts, dtype=object), return_inverse=True)
        rng = np.random.default_rng(seed)
        weights = rng.standard_exponential((draws, int(groups.max()) + 1))
        unseen = rng.gamma(_UNSEEN_WEIGHT, size=(2, draws))
        highest, lowest = unseen / (weights.sum(axis=1) + unseen.sum(axis=0))
        return Samples(weights=weights[:, groups], highest=highest, lowest=lowest)

    def with_unseen(self, figures: Floats, *, low: float, high: float) -> Floats:
        """Return figures (1 + R,), of all prompts and of each sample, with the unseen prompts in the samples.

        `low` and `high` are the least and the most that the figure can be on a prompt.
        """
        mixed = (1.0 - self.highest - self.lowest) * figures[1:] + self.highest * high + self.lowest * low
        return np.concatenate([figures[:1], mixed])


def halves(prompts: Sequence[str], count: int, *, seed: int = 0) -> list[Rows]:
    """Return the questions of `count` random halves of the prompts; equal prompts are in a half together.

    A prompt is drawn by its text, so that trainings of several folds are on the same halves.
    """
    drawn = (places(prompts, seed + 1 + number) for number in range(count))
    return [np.flatnonzero(place <= np.median(place)) for place in drawn]


def departures(figures: Sequence[Floats]) -> Floats:
    """Return how far the training of each sample departs (1 + R,) from the mean of H trainings; zero for all prompts.

    `figures` has (1 + R,) of each training.
    """
    every = np.stack(figures)
    count = len(every)
    own = np.arange(every.shape[1]) % count
    apart = (every - every.mean(axis=0))[own, np.arange(every.shape[1])] * np.sqrt(count / max(count - 1, 1))
    return np.concatenate([np.zeros(1), apart[1:]])


def interval(figures: Floats) -> Interval:
    """Return the estimate (first figure) with percentiles of the samples (the others), infinite ones included."""
    tail = (1.0 - LEVEL) / 2
    estimate, draws = float(figures[0]), figures[1:]
    lower, upper = (float(np.quantile(draws, share, method="nearest")) for share in (tail, 1.0 - tail))
    spread = float(draws.std(ddof=1)) if np.isfinite(draws).all() else float("nan")
    # Where few trainings differ much, the estimate may be beyond all of the samples.
    return Interval(estimate, min(lower, estimate), max(upper, estimate), spread)
