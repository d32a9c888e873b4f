"""Metrics of predicted votes and of coefficients, as functions on arrays, each registered once under its name.

A vote metric gives one value for each vote; its score is their weighted mean, `bootstrap_mean(vote_values(...))` its
interval. A whole metric describes all votes or all coefficients at once. Both kinds are in `METRICS`.

A metric that means nothing under a likelihood (Tie_Loss under bt), or that no vote counts towards, is None. Votes that
a metric does not count (ties under bt, all but decided votes for BCELoss, models whose coefficient is NaN) are NaN in
`vote_values` and left out of the mean.

With p_k the probability of outcome k and y its target (a bt-tie tie is half win, half loss):

    Loss          -sum y log p
    BCELoss       -log sigmoid(d) of decided votes
    MSELoss       (1 - p of what happened)^2, ties under bt-tie at p = 1/2
    Brier         sum_k (p_k - y_k)^2, between 0 and 2
    RPS           ranked probability score over loss < tie < win, tie and bothbad taken together, between 0 and 1
    Accuracy      the likeliest outcome happened; between equal coefficients no win is correct, as in bt (d > 0)
    Tie_*, Tie_bb_*   any tie against none, bothbad against the rest
    ECE           calibration error of `p2l.metrics.calibration`, overall and for each outcome
    *-BT          spread of the coefficients, of all rows together or averaged over rows; weights play no part

Shapes: N votes, M models, K outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError
from p2l.likelihood import Likelihood, counted, get, targets
from p2l.metrics import calibration

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.integer[Any]]
_SMALLEST_EXACT = 1e-290  # below this a probability may have lost digits: take its logarithm in log space


@dataclass(frozen=True)
class ScoredVotes:
    """Votes beside what was predicted of them; what several metrics need is computed once.

    Attributes:
        likelihood: the outcome model.
        coefs: (N, M), or (M,) when one leaderboard predicts every vote; NaN for models without a coefficient.
        labels: (N, 3) integers `[winner, loser, tie]`.
        eta: (N,), one number, or None.
        gamma: (N,), one number, or None.
        weights: (N,) or None for ones.
        shift: (N, 3) what covariates add to the winner's coefficient, to the loser's and to eta; None for nothing.
    """

    likelihood: Likelihood
    coefs: npt.NDArray[np.floating[Any]]
    labels: Ints
    eta: Any = None
    gamma: Any = None
    weights: Any = None
    shift: Any = None

    @cached_property
    def ties(self) -> Ints:
        """(N,) 0 none, 1 tie, 2 tie (bothbad)."""
        return np.ascontiguousarray(self.labels[:, 2])

    @cached_property
    def raw_pair(self) -> tuple[Floats, Floats]:
        """Coefficients (N,) of the winners and of the losers, NaN where there are none."""
        pair: list[Any] = []
        for side in (0, 1):
            models = self.labels[:, side]
            column = self.coefs[models] if self.coefs.ndim == 1 else self.coefs[np.arange(len(models)), models]
            column = column.astype(np.float64)
            pair.append(column if self.shift is None else column + self.shift[:, side])
        return pair[0], pair[1]

    @cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """(N,) whether both models have a coefficient."""
        winner, loser = self.raw_pair
        return ~(np.isnan(winner) | np.isnan(loser))

    @cached_property
    def inputs(self) -> tuple[Any, Any, Any, Any]:
        """Coefficients of winners and losers with 0 for NaN, eta and gamma: the arguments of a likelihood."""
        winner, loser = (np.where(self.known, side, 0.0) for side in self.raw_pair)
        eta = _flat(self.eta)
        if eta is not None and self.shift is not None:
            eta = eta + self.shift[:, 2]
        return winner, loser, eta, _flat(self.gamma)

    @cached_property
    def probs(self) -> Floats:
        """Probabilities (N, K) of the outcomes."""
        return np.asarray(self.likelihood.probs(*self.inputs))

    @cached_property
    def log_probs(self) -> Floats:
        """Log-probabilities (N, K): slower than `probs`, for where those vanish."""
        return np.asarray(self.likelihood.log_probs(*self.inputs))

    @cached_property
    def coef_rows(self) -> npt.NDArray[np.floating[Any]]:
        """Rows of coefficients (N, M), or (1, M) of one leaderboard, without rows that are NaN throughout."""
        rows = np.atleast_2d(self.coefs)
        empty = np.isnan(rows).all(axis=1)
        return rows[~empty] if empty.any() else rows

    @cached_property
    def reliability(self) -> calibration.Reliability | None:
        """Data of the reliability diagram in 15 bins; None when no vote counts."""
        counts = self.known & (self.targets.sum(axis=1) > 0)
        return reliability(self) if counts.any() else None

    @cached_property
    def targets(self) -> Floats:
        """Target distributions (N, K); a row of zeros for a vote that does not count."""
        return np.asarray(targets(self.likelihood, self.ties))

    def mass(self, *outcomes: str) -> Floats:
        """Return the probability (N,) that one of these outcomes happens; outcomes the likelihood lacks add nothing."""
        return np.asarray(sum((self.probs[:, k] for k in self._places(outcomes)), np.zeros(len(self.labels))))

    def log_mass(self, *outcomes: str) -> Floats:
        """Return the logarithm (N,) of `mass`, exact where the probability itself is too small to represent."""
        mass = self.mass(*outcomes)
        if mass.min(initial=1.0) > _SMALLEST_EXACT:
            return np.asarray(np.log(mass))
        return np.asarray(np.logaddexp.reduce(self.log_probs[:, self._places(outcomes)], axis=1))

    def _places(self, outcomes: tuple[str, ...]) -> list[int]:
        return [self.likelihood.outcomes.index(name) for name in outcomes if name in self.likelihood.outcomes]


def _flat(value: Any) -> Floats | None:
    if value is None:
        return None
    array = np.asarray(value, dtype=np.float64)
    return array.reshape(-1) if array.ndim else array


@dataclass(frozen=True)
class Metric:
    """A registered metric: one of the two functions, and the outcomes without which it means nothing."""

    name: str
    per_vote: Callable[[ScoredVotes], Floats] | None = None
    whole: Callable[[ScoredVotes], float] | None = None
    outcomes: tuple[str, ...] = ()
    apart: bool = False  # whether it also needs ties that are apart from votes of which both answers are bad

    def applies(self, likelihood: Likelihood) -> bool:
        """Return whether the metric means something under this likelihood."""
        return {*self.outcomes} <= {*likelihood.outcomes} and not (self.apart and likelihood.merges_ties)


METRICS: dict[str, Metric] = {}
_PerVote: TypeAlias = Callable[[ScoredVotes], Floats]


def vote_metric(name: str, *outcomes: str, apart: bool = False) -> Callable[[_PerVote], _PerVote]:
    """Register a metric that is a mean over votes."""

    def add(function: _PerVote) -> _PerVote:
        METRICS[name] = Metric(name, per_vote=function, outcomes=outcomes, apart=apart)
        return function

    return add


def evaluate(name: str, votes: ScoredVotes) -> float | None:
    """Return the value of one metric, None where it means nothing or no vote counts; ConfigError if it is unknown."""
    metric = _find(name)
    if not metric.applies(votes.likelihood):
        return None
    if metric.whole is not None:
        value = metric.whole(votes)
        return value if np.isfinite(value) else None
    return _weighted_mean(vote_values(name, votes), votes.weights)


def vote_values(name: str, votes: ScoredVotes) -> Floats:
    """Return one value (N,) for each vote, NaN for votes that the metric does not count.

    Raise ConfigError for a metric that is unknown, is not a mean over votes, or means nothing under this likelihood.
    """
    metric = _find(name)
    if metric.per_vote is None:
        raise ConfigError(f"metric {name} is not a mean over votes: it has no value for a single vote")
    if not metric.applies(votes.likelihood):
        raise ConfigError(f"metric {name} is not defined under likelihood {votes.likelihood.name}")
    counts = votes.known & (counted(votes.likelihood, votes.labels) > 0)
    return np.where(counts, metric.per_vote(votes), np.nan)


def simple_metrics(
    coefs: Any,
    labels: Any,
    eta: Any = None,
    gamma: Any = None,
    *,
    likelihood: Likelihood | str,
    weights: Any = None,
    shift: Any = None,
    names: Iterable[str] | None = None,
) -> dict[str, float | None]:
    """Return the metrics of predicted votes by name, all of `METRICS` by default; None where one means nothing.

    The votes are those of `ScoredVotes`; `likelihood` may be a name. Raise ConfigError for an unknown name of a metric
    or likelihood, or a missing eta or gamma.
    """
    model = get(likelihood) if isinstance(likelihood, str) else likelihood
    votes = ScoredVotes(
        likelihood=model,
        coefs=np.asarray(coefs),
        labels=np.asarray(labels),
        eta=eta,
        gamma=gamma,
        weights=weights,
        shift=shift,
    )
    return {name: evaluate(name, votes) for name in (METRICS if names is None else names)}


def skill(losses: Any, reference: Any, weights: Any = None) -> float | None:
    """Return 1 - mean(losses) / mean(reference) for losses (N,) of the same votes.

    1 is a perfect prediction, 0 no better than the reference. Votes that either does not count are left out.
    """
    losses, reference = np.asarray(losses, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    counts = ~(np.isnan(losses) | np.isnan(reference))
    above, below = (_weighted_mean(np.where(counts, side, np.nan), weights) for side in (losses, reference))
    return None if above is None or not below else 1.0 - above / below


def reliability(votes: ScoredVotes, bins: int = calibration.DEFAULT_BINS) -> calibration.Reliability:
    """Return the reliability diagram's data, a row for each of win, tie, bothbad that the likelihood has."""
    weights = np.ones(len(votes.labels)) if votes.weights is None else np.asarray(votes.weights, dtype=np.float64)
    weights = np.where(votes.known, weights, 0.0)
    return calibration.reliability(votes.probs, votes.targets, votes.likelihood.outcomes, weights=weights, bins=bins)


def _find(name: str) -> Metric:
    if name not in METRICS:
        raise ConfigError(f"unknown metric {name!r}{nearest(name, METRICS)}; use some of {', '.join(METRICS)}")
    return METRICS[name]


def _weighted_mean(values: Floats, weights: Any) -> float | None:
    counts = ~np.isnan(values)
    scale = counts.astype(np.float64) if weights is None else np.where(counts, weights, 0.0)
    total = float(scale.sum())
    return float(np.where(counts, values, 0.0) @ scale) / total if total > 0 else None


# Metrics of votes.
@vote_metric("Loss")
def _loss(votes: ScoredVotes) -> Floats:
    win = votes.log_mass("win")
    if len(votes.likelihood.outcomes) == 2:
        return -np.where(votes.ties == 0, win, 0.5 * (win + votes.log_mass("loss")))
    if "bothbad" not in votes.likelihood.outcomes:
        return -np.where(votes.ties == 0, win, votes.log_mass("tie"))
    tie = np.where(votes.ties == 1, votes.log_mass("tie"), votes.log_mass("bothbad"))
    return -np.where(votes.ties == 0, win, tie)


@vote_metric("BCELoss")
def _bce_loss(votes: ScoredVotes) -> Floats:
    winner, loser, *_ = votes.inputs
    return np.where(votes.ties == 0, np.logaddexp(0.0, loser - winner), np.nan)


@vote_metric("MSELoss")
def _mse_loss(votes: ScoredVotes) -> Floats:
    tie = 0.5 if len(votes.likelihood.outcomes) == 2 else votes.mass("tie")
    bothbad = votes.mass("bothbad") if "bothbad" in votes.likelihood.outcomes else tie
    happened = np.where(votes.ties == 0, votes.mass("win"), np.where(votes.ties == 1, tie, bothbad))
    return np.asarray((1.0 - happened) ** 2)


@vote_metric("Brier")
def _brier(votes: ScoredVotes) -> Floats:
    return np.asarray(((votes.probs - votes.targets) ** 2).sum(axis=1))


@vote_metric("RPS")
def _ranked_probability_score(votes: ScoredVotes) -> Floats:
    outcomes = votes.likelihood.outcomes
    gap = votes.probs - votes.targets
    win, loss = gap[:, outcomes.index("win")], gap[:, outcomes.index("loss")]
    # Cumulated from below: the gap of loss, then that of all but win, which is minus the gap of win.
    return np.asarray(win**2 if len(outcomes) == 2 else 0.5 * (loss**2 + win**2))


@vote_metric("Accuracy")
def _accuracy(votes: ScoredVotes) -> Floats:
    outcomes = votes.likelihood.outcomes
    if len(outcomes) == 2:
        winner, loser, *_ = votes.inputs
        return np.where(votes.ties == 0, winner > loser, 0.5)
    # Loss comes first, so that it takes exact draws and no win is credited to equal coefficients.
    order = [name for name in ("loss", "tie", "bothbad", "win") if name in outcomes]
    likeliest = np.stack([votes.mass(name) for name in order]).argmax(axis=0)
    happened = np.array([order.index("win"), order.index("tie"), order.index("bothbad" if len(order) == 4 else "tie")])
    return np.asarray(likeliest == happened[votes.ties], dtype=np.float64)


@vote_metric("Tie_Loss", "win", "tie", apart=True)
def _tie_loss(votes: ScoredVotes) -> Floats:
    return -np.where(votes.ties == 0, votes.log_mass("win", "loss"), votes.log_mass("tie", "bothbad"))


@vote_metric("Tie_Accuracy", "win", "tie", apart=True)
def _tie_accuracy(votes: ScoredVotes) -> Floats:
    tie, decided = votes.mass("tie", "bothbad"), votes.mass("win", "loss")
    # Equal mass counts as a tie where there is no outcome both bad, and as decided where there is one.
    predicted = tie > decided if "bothbad" in votes.likelihood.outcomes else tie >= decided
    return np.asarray(predicted == (votes.ties > 0), dtype=np.float64)


@vote_metric("Tie_bb_Loss", "win", "bothbad")
def _tie_bb_loss(votes: ScoredVotes) -> Floats:
    return -np.where(votes.ties == 2, votes.log_mass("bothbad"), votes.log_mass("win", "loss", "tie"))


@vote_metric("Tie_bb_Accuracy", "win", "bothbad")
def _tie_bb_accuracy(votes: ScoredVotes) -> Floats:
    predicted = votes.mass("bothbad") >= votes.mass("win", "loss", "tie")
    return np.asarray(predicted == (votes.ties == 2), dtype=np.float64)


def _calibration_error(outcome: str, votes: ScoredVotes) -> float:
    return np.nan if votes.reliability is None else votes.reliability.errors()[outcome]


# Metrics of the coefficients: functions of the rows (N, M) that have any, and of how many votes one row stands for.
_Coefs: TypeAlias = npt.NDArray[np.floating[Any]]


def _of_coefs(measure: Callable[[_Coefs, int], float], votes: ScoredVotes) -> float:
    # One leaderboard (M,) stands for N equal rows.
    rows = votes.coef_rows
    copies = len(votes.labels) if votes.coefs.ndim == 1 else 1
    return measure(rows, copies) if rows.size and copies else np.nan


def _mean(rows: Any) -> float:
    return float(np.mean(rows, dtype=np.float64))


def _std(rows: _Coefs, copies: int) -> float:
    size = copies * int((~np.isnan(rows)).sum())
    return float(np.nanstd(rows, dtype=np.float64)) * (size / (size - 1)) ** 0.5 if size > 1 else np.nan


def _mean_std(rows: _Coefs, _copies: int) -> float:
    rows = rows[(~np.isnan(rows)).sum(axis=1) > 1]
    return _mean(np.nanstd(rows, axis=1, ddof=1)) if len(rows) else np.nan


def _quartiles(rows: _Coefs) -> Any:
    """Return the upper and the lower quartile (N,) of rows."""
    if np.isnan(rows).any():
        return np.nanquantile(rows, (0.75, 0.25), axis=1)
    # To sort the rows is ten times as fast as numpy.quantile.
    ordered, quartiles = np.sort(rows, axis=1), []
    for share in (0.75, 0.25):
        position = share * (rows.shape[1] - 1)
        below = int(position)
        above = min(below + 1, rows.shape[1] - 1)
        quartiles.append(ordered[:, below] + (position - below) * (ordered[:, above] - ordered[:, below]))
    return quartiles


_WHOLE: dict[str, Callable[[ScoredVotes], float]] = {
    "ECE": partial(_calibration_error, "overall"),
    "ECE-win": partial(_calibration_error, "win"),
    "ECE-tie": partial(_calibration_error, "tie"),
    "ECE-bothbad": partial(_calibration_error, "bothbad"),
    "Mean-BT": partial(_of_coefs, lambda rows, _: float(np.nanmean(rows, dtype=np.float64))),
    "Std-BT": partial(_of_coefs, _std),
    "Spread-BT": partial(_of_coefs, lambda rows, _: float(np.nanmax(rows)) - float(np.nanmin(rows))),
    "Mean-Spread-BT": partial(_of_coefs, lambda rows, _: _mean(np.nanmax(rows, axis=1) - np.nanmin(rows, axis=1))),
    "Mean-IQR-BT": partial(_of_coefs, lambda rows, _: _mean(np.subtract(*_quartiles(rows)))),
    "Mean-Std-BT": partial(_of_coefs, _mean_std),
}
_NEEDED_OUTCOMES = {"ECE-tie": ("win", "tie"), "ECE-bothbad": ("win", "bothbad")}
METRICS |= {
    name: Metric(name, whole=measure, outcomes=_NEEDED_OUTCOMES.get(name, ())) for name, measure in _WHOLE.items()
}
