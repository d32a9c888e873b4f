"""Leaderboards of random subsets of a category: how close they come to the votes, and how fast with more prompts.

Random subsets are drawn without replacement: the model's aggregate on them against a fit of their own votes, which a
weak prior holds (small subsets seldom have a best fit). For the aggregation scale, subsets are drawn with replacement:
the model's aggregate against the ground truth of the whole category. Draws depend on seed, category and size alone.

Shapes: N votes, S subsets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.evaluation.boards import WINNERS_OF_TIES, standing
from p2l.evaluation.results import SubsetScore
from p2l.evaluation.subjects import ManyFits, Subject, as_standing, fit_many
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.newton import has_eta, prior_terms, winner_targets
from p2l.likelihood import Likelihood
from p2l.metrics import Comparison, Interval, Standing, compare

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
_SUBSETS, _ROWS = 100, 20_000  # at most, in one step


@dataclass(frozen=True)
class Draws:
    """Sizes of subsets, how many of each size, and the metrics on them; `what` (the category) joins the seed."""

    sizes: Sequence[int]
    samples: Sequence[int]
    metrics: Sequence[str]
    seed: int
    what: str
    level: float = 0.95

    def rows(self, number: int, size: int, samples: int, *, repeated: bool) -> Iterator[list[Ints]]:
        """Yield lists of subsets, each of positions below `number`."""
        rng = np.random.default_rng([self.seed, zlib.crc32(self.what.encode()), size, int(repeated)])
        step = max(1, min(_SUBSETS, _ROWS // size))
        for start in range(0, samples, step):
            yield [rng.choice(number, size, replace=repeated) for _ in range(min(step, samples - start))]


def random_subsets(subject: Subject, labels: Ints, truth: Leaderboard, draws: Draws) -> Iterator[SubsetScore]:
    """Yield scores by size; sizes beyond the number of votes have no samples."""
    fits = _VoteFits(subject.likelihood, truth, subject.models)
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        if size > len(labels):
            yield SubsetScore(size, 0, dict.fromkeys(draws.metrics), {})
            continue
        values = []
        for subsets in draws.rows(len(labels), size, samples, repeated=False):
            models = subject.aggregates(subsets)
            votes = [labels[rows] for rows in subsets]
            for model, fitted, own in zip(models, fits.fit(votes), votes, strict=True):
                values.append(_compared(subject, fitted, model, own, draws.metrics))
        yield _score(size, values, draws)


def aggregation_scale(subject: Subject, labels: Ints, truth: Standing, draws: Draws) -> Iterator[SubsetScore]:
    """Yield scores by size."""
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        values = []
        for subsets in draws.rows(len(labels), size, samples, repeated=True):
            references: dict[int, dict[str, Any]] = {}
            for model in subject.aggregates(subsets):  # one leaderboard is the same for all subsets
                if id(model) not in references:
                    references[id(model)] = _compared(subject, truth, model, labels, draws.metrics)
                values.append(references[id(model)])
        yield _score(size, values, draws)


def _compared(
    subject: Subject, truth: Standing, model: Standing, labels: Ints, metrics: Iterable[str]
) -> dict[str, Any]:
    if np.isnan(model.coefs).all() or np.isnan(truth.coefs).all():
        return dict.fromkeys(metrics)
    comparison = Comparison(subject.likelihood, truth, model, subject.models, labels)
    return {name: compare(name, comparison) for name in metrics}


def _score(size: int, values: Sequence[dict[str, Any]], draws: Draws) -> SubsetScore:
    means = {name: _mean([one[name] for one in values]) for name in draws.metrics}
    width = NormalDist().inv_cdf(0.5 + draws.level / 2)
    intervals = {}
    for name, mean in means.items():
        numbers = [one[name] for one in values if isinstance(one[name], float)]
        if len(numbers) > 1:
            error = float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5
            intervals[name] = Interval(mean, mean - width * error, mean + width * error, error)
    return SubsetScore(size, len(values), means, intervals)


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of dictionaries key by key, without those that do not apply."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    if isinstance(numbers[0], dict):
        return {key: _mean([value[key] for value in numbers]) for key in numbers[0]}
    return float(np.mean(numbers))


class _VoteFits:
    """Fits of small sets of votes, all from the same start."""

    def __init__(self, likelihood: Likelihood, truth: Leaderboard, models: Sequence[str]) -> None:
        self.likelihood, num_models = likelihood, len(models)
        self.mean, precision = prior_terms(Prior(), likelihood, num_models)
        self.fits = ManyFits(likelihood, num_models, precision, 0.0)
        self.start = self._start(truth, models)
        self.outcomes = winner_targets(likelihood)
        self.pair = np.zeros((num_models, num_models), dtype=np.int64)
        self.pair[self.fits.first, self.fits.second] = np.arange(len(self.fits.first))

    def _start(self, truth: Leaderboard, models: Sequence[str]) -> Floats:
        coefs = np.clip(np.nan_to_num(standing(truth, models).coefs), -5.0, 5.0)
        if not has_eta(self.likelihood):
            return np.asarray(coefs, dtype=np.float64)
        return np.append(coefs, self.likelihood.eta_scale.start if truth.eta is None else truth.eta)

    def fit(self, votes: Sequence[Ints]) -> list[Standing]:
        """Fit a leaderboard to each set of labels; models without a vote that counts are NaN."""
        targets = np.stack([self._table(labels) for labels in votes])
        counts = targets.sum(axis=2)
        seen = counts @ self.fits.incidence[0] + counts @ self.fits.incidence[1] > 0
        mean, start = (np.tile(vector, (len(votes), 1)) for vector in (self.mean, self.start))
        standings = [as_standing(theta, self.likelihood) for theta in fit_many(self.fits, targets, mean, start)]
        return [
            replace(one, coefs=np.where(listed, one.coefs, np.nan)) for one, listed in zip(standings, seen, strict=True)
        ]

    def _table(self, labels: Ints) -> Floats:
        """Return outcome masses (P, K) of labels (n, 3)."""
        a, b, tie = labels.T.astype(np.int64)
        winner = WINNERS_OF_TIES[tie]
        column = np.where((a > b) & (winner == 0), 1, winner)
        pair = self.pair[np.minimum(a, b), np.maximum(a, b)]
        counts = np.bincount(pair * 4 + column, minlength=4 * len(self.fits.first)).reshape(-1, 4)
        return np.asarray(counts @ self.outcomes, dtype=np.float64)
