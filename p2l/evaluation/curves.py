"""Leaderboards of random parts of a category: how near they come to the votes, and how fast with more prompts.

Random subsets: drawn without replacement; the model's aggregate on them against a fit of their own votes, which a weak
prior holds (small subsets seldom have a best fit). Aggregation scale: drawn with replacement; the model's aggregate
against the ground truth of the whole category. The same seed, category and size draw the same rows.

Shapes: N votes, S subsets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.evaluation.results import SubsetScore
from p2l.evaluation.subjects import ManyFits, Subject, fit_many
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.newton import has_eta, prior_terms, winner_targets
from p2l.likelihood import Likelihood
from p2l.metrics import Comparison, Interval, Standing, compare

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
_SUBSETS, _ROWS = 100, 20_000  # taken together, at most


@dataclass(frozen=True)
class Draws:
    """What is drawn and measured.

    Attributes:
        sizes, samples: votes of a subset, and how many subsets of that size.
        metrics: names of leaderboard metrics.
        seed: of the draws, with `what` beside it (the category).
        level: coverage of the intervals.
    """

    sizes: Sequence[int]
    samples: Sequence[int]
    metrics: Sequence[str]
    seed: int
    what: str
    level: float = 0.95

    def rows(self, number: int, size: int, samples: int, *, replace: bool) -> Iterator[list[Ints]]:
        """Lists of subsets, each of positions below `number`."""
        rng = np.random.default_rng([self.seed, zlib.crc32(self.what.encode()), size, int(replace)])
        step = max(1, min(_SUBSETS, _ROWS // size))
        for start in range(0, samples, step):
            count = min(step, samples - start)
            yield [rng.choice(number, size, replace=replace) for _ in range(count)]


def random_subsets(subject: Subject, labels: Ints, truth: Leaderboard, draws: Draws) -> Iterator[SubsetScore]:
    """Scores by size; sizes that exceed the number of votes have no samples."""
    fits = _VoteFits(subject.likelihood, len(subject.models), truth, subject.models)
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        if size > len(labels):
            yield SubsetScore(size, 0, dict.fromkeys(draws.metrics), {})
            continue
        values = []
        for subsets in draws.rows(len(labels), size, samples, replace=False):
            models = subject.aggregates(subsets)
            votes = [labels[rows] for rows in subsets]
            for model, fitted, own in zip(models, fits.fit(votes), votes, strict=True):
                values.append(_compared(subject, fitted, model, own, draws.metrics))
        yield _score(size, values, draws)


def aggregation_scale(subject: Subject, labels: Ints, truth: Standing, draws: Draws) -> Iterator[SubsetScore]:
    """Scores by size."""
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        values = []
        for subsets in draws.rows(len(labels), size, samples, replace=True):
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
    single = {name: [one[name] for one in values if isinstance(one[name], float)] for name in draws.metrics}
    width = NormalDist().inv_cdf(0.5 + draws.level / 2)
    intervals = {name: _interval(means[name], samples, width) for name, samples in single.items() if len(samples) > 1}
    return SubsetScore(size, len(values), means, intervals)


def _mean(values: Sequence[Any]) -> Any:
    """Mean of numbers, or of dictionaries key by key; values that do not apply are left out."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    if isinstance(numbers[0], dict):
        return {key: _mean([value[key] for value in numbers]) for key in numbers[0]}
    return float(np.mean(numbers))


def _interval(mean: float, values: Sequence[float], width: float) -> Interval:
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(mean, mean - width * error, mean + width * error, error)


class _VoteFits:
    """Fits of small sets of votes of M models, all from the same start."""

    def __init__(self, likelihood: Likelihood, num_models: int, truth: Leaderboard, models: Sequence[str]) -> None:
        self.likelihood, self.num_models = likelihood, num_models
        self.mean, precision = prior_terms(Prior(), likelihood, num_models)
        self.fits = ManyFits(likelihood, num_models, precision, 0.0)
        self.start = self._start(truth, models)
        self.outcomes = winner_targets(likelihood)
        self.pair = np.zeros((num_models, num_models), dtype=np.int64)
        self.pair[self.fits.first, self.fits.second] = np.arange(len(self.fits.first))

    def _start(self, truth: Leaderboard, models: Sequence[str]) -> Floats:
        place = dict(zip(truth.models, truth.coefs.tolist(), strict=True))
        coefs = np.clip([place.get(name, 0.0) for name in models], -5.0, 5.0)
        if not has_eta(self.likelihood):
            return np.asarray(coefs, dtype=np.float64)
        return np.append(coefs, self.likelihood.eta_scale.start if truth.eta is None else truth.eta)

    def fit(self, votes: Sequence[Ints]) -> list[Standing]:
        """Leaderboards of sets of labels; models without a vote that counts are NaN."""
        targets = np.stack([self._table(labels) for labels in votes])
        counts = targets.sum(axis=2)
        seen = counts @ self.fits.incidence[0] + counts @ self.fits.incidence[1] > 0
        mean, start = (np.tile(vector, (len(votes), 1)) for vector in (self.mean, self.start))
        theta = fit_many(self.fits, targets, mean, start)
        gamma = self.likelihood.board_gamma
        size = self.num_models
        etas = theta[:, -1].tolist() if has_eta(self.likelihood) else [None] * len(votes)
        return [
            Standing(np.where(listed, one[:size], np.nan), eta, gamma)
            for one, listed, eta in zip(theta, seen, etas, strict=True)
        ]

    def _table(self, labels: Ints) -> Floats:
        """Outcome masses (P, K) of labels (n, 3)."""
        a, b, tie = labels.T.astype(np.int64)
        winner = np.array([0, 2, 3])[tie]
        column = np.where((a > b) & (winner == 0), 1, winner)
        pair = self.pair[np.minimum(a, b), np.maximum(a, b)]
        counts = np.bincount(pair * 4 + column, minlength=4 * len(self.fits.first)).reshape(-1, 4)
        return np.asarray(counts @ self.outcomes, dtype=np.float64)
