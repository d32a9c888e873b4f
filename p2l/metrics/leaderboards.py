"""Distances between leaderboards: a model's aggregate against a ground truth.

Models that either leaderboard does not know (NaN) are left out of both. With fewer than k models, the top k are all of
them.

Shapes: M models, n models known to both, N votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from p2l.likelihood import Likelihood, get
from p2l.metrics.votes import ScoredVotes, evaluate

Floats: TypeAlias = npt.NDArray[np.float64]
_TOPS = (1, 3, 5, 10)


@dataclass(frozen=True)
class Standing:
    """A leaderboard: coefs (M,), NaN for models it does not know, and eta, gamma where the likelihood has them."""

    coefs: Any
    eta: float | None = None
    gamma: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A ground truth and a model's aggregate of the same models, and the votes (N, 3) that the Aggr metrics score."""

    likelihood: Likelihood
    truth: Standing
    model: Standing
    models: Sequence[str]
    labels: Any = None
    weights: Any = None

    @cached_property
    def shared(self) -> npt.NDArray[np.intp]:
        """Indices (n,) of the models that both leaderboards know."""
        both = np.asarray(self.truth.coefs, dtype=np.float64) + np.asarray(self.model.coefs, dtype=np.float64)
        return np.flatnonzero(~np.isnan(both))

    @cached_property
    def coefs(self) -> tuple[Floats, Floats]:
        """Coefficients (n,) of the ground truth and of the model."""
        truth, model = (np.asarray(side.coefs, dtype=np.float64)[self.shared] for side in (self.truth, self.model))
        return truth, model

    @cached_property
    def ranks(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Ranks (n,) of the models, 0 the best, in the ground truth and in the model's leaderboard."""
        truth, model = (np.argsort(np.argsort(-side, kind="stable")) for side in self.coefs)
        return truth, model


def compare(name: str, comparison: Comparison) -> Any:
    """Return the value of a metric, a number or a dictionary of numbers; None where it means nothing."""
    metrics = LEADERBOARD_METRICS
    if name not in metrics:
        raise ConfigError(
            f"unknown leaderboard metric {name!r}{nearest(name, metrics)}; use some of {', '.join(metrics)}"
        )
    return metrics[name](comparison)


def leaderboard_metrics(
    truth: Standing,
    model: Standing,
    models: Sequence[str],
    *,
    likelihood: Likelihood | str,
    labels: Any = None,
    weights: Any = None,
    names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Return the metrics of two leaderboards of the same M models, all of `LEADERBOARD_METRICS` by default."""
    outcome_model = get(likelihood) if isinstance(likelihood, str) else likelihood
    comparison = Comparison(
        likelihood=outcome_model,
        truth=truth,
        model=model,
        models=models,
        labels=labels,
        weights=weights,
    )
    return {name: compare(name, comparison) for name in (LEADERBOARD_METRICS if names is None else names)}


def _two(truth: Any, model: Any) -> dict[str, Any]:
    return {"ground-truth": truth, "model-aggr": model}


def _leaderboard(comparison: Comparison) -> dict[str, list[str]]:
    names = [comparison.models[index] for index in comparison.shared]
    orders = [(coefs, np.argsort(-coefs, kind="stable")) for coefs in comparison.coefs]
    return _two(*([f"{names[index]}: {coefs[index]:.4f}" for index in order] for coefs, order in orders))


def _aggregate(name: str, comparison: Comparison) -> dict[str, float | None] | None:
    """Return a metric of votes for both leaderboards, on the votes between models that both have."""
    if comparison.labels is None:
        return None
    values = []
    for side in (comparison.truth, comparison.model):
        coefs = np.full(len(comparison.models), np.nan)
        coefs[comparison.shared] = np.asarray(side.coefs, dtype=np.float64)[comparison.shared]
        votes = ScoredVotes(
            likelihood=comparison.likelihood,
            coefs=coefs,
            labels=np.asarray(comparison.labels),
            eta=side.eta,
            gamma=side.gamma,
            weights=comparison.weights,
        )
        values.append(evaluate(name, votes))
    return _two(values[0], values[1])


def _l1_distance(comparison: Comparison) -> float | None:
    # The mean of |p - p'| over unordered pairs of different models and over the K outcomes, for every likelihood alike.
    # Published `bt` values average over ordered pairs and count the zeros of the diagonal: (n - 1) / n of these.
    sides = (comparison.truth, comparison.model)
    # Arena ratings have no eta; what both sides can say of a pair is then who wins.
    missing = any(getattr(side, name) is None for side in sides for name in comparison.likelihood.parameters)
    likelihood = get("bt") if missing else comparison.likelihood
    first, second = np.triu_indices(len(comparison.shared), 1)
    if not len(first):
        return None
    truth, model = (
        likelihood.probs(coefs[first], coefs[second], side.eta, side.gamma)
        for coefs, side in zip(comparison.coefs, sides, strict=True)
    )
    return float(np.abs(truth - model).mean())


def _spearman(comparison: Comparison) -> float | None:
    ranks = []
    for side in comparison.coefs:
        # Equal values share the mean of their ranks.
        _, place, counts = np.unique(side, return_inverse=True, return_counts=True)
        ranks.append(np.asarray((np.cumsum(counts) - (counts - 1) / 2.0)[place], dtype=np.float64))
    return _correlation(ranks[0], ranks[1])


def _kendall(comparison: Comparison) -> float | None:
    # Over signs of all pairs the product-moment correlation without centring is tau-b.
    first, second = np.triu_indices(len(comparison.shared), 1)
    truth, model = (np.sign(side[first] - side[second]) for side in comparison.coefs)
    return _correlation(truth, model, centred=False)


def _correlation(truth: Floats, model: Floats, *, centred: bool = True) -> float | None:
    """Return the product-moment correlation; None with fewer than two models or where all are equal."""
    if centred and len(truth):
        truth, model = truth - truth.mean(), model - model.mean()
    scale = float(truth @ truth) * float(model @ model)
    return float(truth @ model) / scale**0.5 if scale > 0 else None


def _spread(measure: Callable[[Floats], Any], least: int, comparison: Comparison) -> dict[str, float | None]:
    """Return a measure of the coefficients of both leaderboards, None for fewer models than `least`."""
    return _two(*(float(measure(coefs)) if len(coefs) >= least else None for coefs in comparison.coefs))


def _per_top(measure: Callable[[Any, Any, int], Any], comparison: Comparison) -> dict[int, float | None]:
    """Return a measure of the ranks for the top k models, for every k."""
    truth, model = comparison.ranks
    return {k: float(measure(truth, model, min(k, len(truth)))) if len(truth) else None for k in _TOPS}


LEADERBOARD_METRICS: dict[str, Callable[[Comparison], Any]] = {
    "Leaderboard": _leaderboard,
    "Aggr_Loss": partial(_aggregate, "Loss"),
    "Aggr_BCELoss": partial(_aggregate, "BCELoss"),
    "Aggr_Tie_Loss": partial(_aggregate, "Tie_Loss"),
    "Aggr_Tie_Accuracy": partial(_aggregate, "Tie_Accuracy"),
    "Aggr_Tie_bb_Loss": partial(_aggregate, "Tie_bb_Loss"),
    "Aggr_Tie_bb_Accuracy": partial(_aggregate, "Tie_bb_Accuracy"),
    "L1-Dist-Prob": _l1_distance,
    "Spearman-lbs": _spearman,
    "Kendall-lbs": _kendall,
    "IQR-BT": partial(_spread, lambda coefs: np.subtract(*np.quantile(coefs, [0.75, 0.25])), 1),
    "Std-BT": partial(_spread, lambda coefs: coefs.std(ddof=1), 2),
    "Spread-BT": partial(_spread, np.ptp, 1),
    "Top-k-fraction": partial(_per_top, lambda truth, model, k: ((truth < k) & (model < k)).sum() / k),
    "Top-k-displace": partial(_per_top, lambda truth, model, k: np.abs(model - truth)[truth < k].mean()),
}
