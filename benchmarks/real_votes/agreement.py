"""Do the coefficients rank the LLMs as the votes of a category do?

For each category the leaderboard that is aggregated from a forecast of its held-out prompts is compared with the one
that is fitted to its held-out votes: the rank correlation (Spearman), averaged over categories. An interval draws
prompts anew, votes and forecasts with them.

Shapes: N votes, U distinct prompts, M models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.real_votes.parts import Part
from p2l.common.cli import progress
from p2l.leaderboard import Prior, aggregate, fit_labels
from p2l.metrics import Interval
from p2l.training.forecasts import Forecast

__all__ = ["agreement", "largest_categories", "rank_correlation"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
MOST_CATEGORIES = 12
LEAST_VOTES_PER_MODEL = 20
MOST_AGGREGATED = 200
"""Prompts that are aggregated in one draw; more cost time and move the average little."""
CATEGORY_SD = 0.5


def agreement(
    forecasts: Mapping[str, Forecast], held: Part, likelihood: str, *, draws: int, seed: int, quiet: bool = True
) -> dict[str, Interval]:
    """Mean rank correlation of each forecast (of votes) over the largest categories, with its interval."""
    rng = np.random.default_rng(seed)
    overall = fit_labels(held.labels, models=held.models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=CATEGORY_SD)
    categories = [_Category.of(name, held) for name in largest_categories(held)]
    values = np.empty((draws + 1, len(categories), len(forecasts)))
    with progress(description="agreement", total=values.shape[0] * len(categories), unit="fits", quiet=quiet) as bar:
        for draw, (column, category) in ((d, c) for d in range(draws + 1) for c in enumerate(categories)):
            rows = category.rows if draw == 0 else category.redrawn(rng)
            labels = held.labels[rows]
            truth = fit_labels(labels, models=held.models, likelihood=likelihood, intervals=None, prior=prior).coefs
            few = rows if len(rows) <= MOST_AGGREGATED else rng.choice(rows, MOST_AGGREGATED, replace=False)
            for place, forecast in enumerate(forecasts.values()):
                said = _aggregated(forecast, few, held.models, likelihood)
                values[draw, column, place] = rank_correlation(said, truth)
            bar.update(1)
    means = values.mean(axis=1)
    return {name: _interval(means[:, place]) for place, name in enumerate(forecasts)}


def largest_categories(held: Part) -> list[str]:
    """The names of the categories with the most held-out votes, as far as these suffice to rank the models."""
    names, counts = np.unique(held.categories, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    least = LEAST_VOTES_PER_MODEL * len(held.models) / 2
    return [str(names[number]) for number in order if counts[number] >= least]


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's correlation of two leaderboards (M,)."""
    return float(spearmanr(one, other).statistic)


@dataclass(frozen=True)
class _Category:
    rows: Rows
    of_prompt: list[Rows]

    @staticmethod
    def of(name: str, held: Part) -> _Category:
        rows = np.flatnonzero(held.categories == name)
        order = rows[np.argsort(held.clusters[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(held.clusters[order])) + 1
        return _Category(rows, np.split(order, starts))

    def redrawn(self, rng: np.random.Generator) -> Rows:
        """Rows of as many prompts as there are, drawn with replacement."""
        drawn = rng.integers(0, len(self.of_prompt), len(self.of_prompt))
        return np.concatenate([self.of_prompt[number] for number in drawn])


def _aggregated(forecast: Forecast, rows: Rows, models: list[str], likelihood: str) -> Floats:
    """One leaderboard (M,) of the forecasts of these votes' prompts."""
    coefs = forecast.coefs[rows]
    if (coefs == coefs[0]).all():
        return np.asarray(coefs[0], dtype=np.float64)
    eta, gamma = (None if value is None else value[rows] for value in (forecast.eta, forecast.gamma))
    return aggregate(coefs, eta, gamma, likelihood, models=models, intervals=None).coefs


def _interval(values: Floats) -> Interval:
    """The first value, and the spread of the others."""
    lower, upper = np.quantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(lower), float(upper), float(values[1:].std(ddof=1)))
