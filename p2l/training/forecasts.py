"""Forecasts of votes: a model's, and those of one leaderboard for all prompts, which a model must beat.

A model of few votes, or one that is trained too long, differs from prompt to prompt by chance. So its coefficients are
shrunk towards those m of one leaderboard by the factor that votes on other prompts allow:

    coefs_f = f coefs + (1 - f) m,    eta and gamma likewise,    0 <= f <= 1

The head's last layers are linear, so the factor goes into their weights.

Shapes: N votes, M models, E points of a run at which it was looked at, G factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import VoteError
from p2l.leaderboard import Leaderboard, Prior, fit_labels, fit_table
from p2l.leaderboard.pair_tables import VoteCounter
from p2l.likelihood import Likelihood, counted, get, vote_losses
from p2l.metrics import ScoredVotes, bootstrap_mean, vote_values
from p2l.people.judges import Forecast as Forecast
from p2l.training.run_records import HeldOutComparison
from p2l.votes import VoteStore

Floats = NDArray[np.float64]
Labels = NDArray[np.int32]
Ids = NDArray[np.int64]
CATEGORY_SD = 1.0
"""Expected distance, in coefficients, between a category's leaderboard and the overall one."""
FACTORS = np.linspace(0.0, 1.0, 41)
"""Shrinkage factors that are tried."""
_LEAST_CONTRAST = 8  # factors apart: the losses of nearer ones differ by rounding where a model knows nothing
_PRIOR_OF_DEFAULT = 2 / 3  # two to one that votes show nothing: what knows nothing must not differ by chance
_BLOCK = 1 << 16  # votes in memory at a time


class Votes(Protocol):
    """Votes by their ids (n,): a `VoteStore`, or a stream."""

    def __len__(self) -> int:
        """Return votes that are there."""

    def prompts(self, ids: Ids) -> list[list[str]]:
        """Return the user's turns of each vote."""

    def labels(self, ids: Ids) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """(n,) weights; ones where there are none."""


class ListedVotes(Votes, Protocol):
    """Votes and the names of their models: a `VoteStore`, or the first votes of a stream."""

    @property
    def model_list(self) -> list[str]:
        """The models, which labels number."""


@dataclass(frozen=True)
class SomeVotes:
    """Some votes of others, by their ids there."""

    votes: Votes
    ids: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def prompts(self, ids: Ids) -> list[list[str]]:
        """Return the user's turns of each vote."""
        return self.votes.prompts(self.ids[ids])

    def labels(self, ids: Ids) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""
        return self.votes.labels(self.ids[ids])

    def weights(self, ids: Ids) -> NDArray[np.float64]:
        """(n,) weights."""
        return self.votes.weights(self.ids[ids])


def check_counted(votes: VoteStore, loss_type: str, *, weighted: bool = False) -> None:
    """Raise VoteError if the likelihood leaves out all votes, or all their weights are zero."""
    likelihood = get(loss_type)
    for ids in chunks(len(votes)):
        takes = counted(likelihood, votes.labels(ids))
        if np.any(takes * votes.weights(ids) if weighted else takes):
            return
    why = f"holds ties alone, which loss_type {loss_type!r} leaves out"
    raise VoteError(f"{votes.name}: {why + ', or votes of weight zero' if weighted else why}")


def chunks(count: int, size: int = _BLOCK) -> Iterator[Ids]:
    """Yield the numbers below `count`, `size` at a time."""
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


# One leaderboard for all prompts, and one for each category.


def marginal(train: Labels, num_votes: int, models: Sequence[str], likelihood: str) -> Forecast:
    """Fit a single leaderboard to the training labels (n, 3) and repeat it for each of `num_votes` votes."""
    return repeated(fit_labels(train, models=models, likelihood=likelihood, intervals=None), num_votes)


def marginal_board(
    votes: ListedVotes, likelihood: str, *, weighted: bool = False, prior: Prior | None = None
) -> Leaderboard:
    """Fit a single leaderboard to all votes; models without a vote have the prior's mean, or coefficient zero.

    A `prior` has means (M,). Memory holds a count for each pair and outcome, and a block of votes.
    """
    counter = VoteCounter()
    for ids in chunks(len(votes)):
        first, second, tie = votes.labels(ids).T.astype(np.int64)
        weights = votes.weights(ids) if weighted else np.ones(len(ids))
        counter.add(np.zeros(len(ids), dtype=np.int64), first, second, np.array([0, 2, 3])[tie], weights)
    models = votes.model_list
    table, names = counter.table(0, models)
    coefs = np.zeros(len(models)) if prior is None or prior.coefs is None else prior.coefs.copy()
    row_of = {name: row for row, name in enumerate(models)}
    rows = [row_of[name] for name in names]
    if prior is not None:
        prior = replace(prior, coefs=coefs[rows])
    # Without a prior one is fitted to the models: with few votes on many models the best fit follows noise, and one
    # that is shrunk towards equal models predicts other votes better.
    board = fit_table(table, models=names, likelihood=likelihood, intervals=None, prior=prior)
    coefs[rows] = board.coefs
    unknown = np.full(len(coefs), np.nan)
    return replace(board, models=list(models), coefs=coefs, lower=unknown, upper=unknown, votes=None)


def per_category(
    train: Labels,
    train_categories: NDArray[np.object_],
    categories: NDArray[np.object_],
    models: Sequence[str],
    likelihood: str,
    *,
    sd: float = CATEGORY_SD,
) -> Forecast:
    """Fit a leaderboard per category, shrunk towards the overall one, which stands in for categories that are new.

    `train` are the labels (n, 3) of training votes with `train_categories` (n,), `categories` (N,) those of the votes
    to predict, `sd` the expected distance, in coefficients, between a category's leaderboard and the overall one.
    """
    overall = fit_labels(train, models=models, likelihood=likelihood, intervals=None)
    prior = Prior(coefs=overall.coefs, eta=overall.eta, sd=sd)
    forecast = repeated(overall, len(categories))
    forecast = replace(forecast, coefs=forecast.coefs.copy())
    for category in np.unique(categories):
        votes = train[train_categories == category]
        if not len(votes):
            continue
        board = fit_labels(votes, models=models, likelihood=likelihood, intervals=None, prior=prior)
        here = categories == category
        forecast.coefs[here] = board.coefs
        for values, value in ((forecast.eta, board.eta), (forecast.gamma, board.gamma)):
            if values is not None and value is not None:
                values[here] = value
    return forecast


# Whether a trained model reads prompts: its loss on held-out votes beside that of one leaderboard for all prompts.

_COMPARED_METRICS = ("Loss", "Accuracy")


def compare(
    model: Forecast,
    board: Forecast,
    labels: Labels,
    prompts: NDArray[Any],
    likelihood: str,
    *,
    factor: float | None = None,
    folds: int | None = None,
) -> HeldOutComparison:
    """Compare a model with one leaderboard on votes that neither has seen, each with its covariates counted in.

    `labels` are (N, 3), `prompts` (N,) codes or hashes; a forecast holds coefs (N, M), that of `board` also (M,).
    """

    def scores(forecast: Forecast) -> Floats:
        votes = ScoredVotes(get(likelihood), forecast.coefs, labels, forecast.eta, forecast.gamma, shift=forecast.shift)
        return np.stack([vote_values(name, votes) for name in _COMPARED_METRICS], axis=1)

    by_model, by_board = scores(model), scores(board)
    clusters = np.unique(prompts, return_inverse=True)[1]
    return HeldOutComparison(
        votes=len(labels),
        prompts=int(clusters.max()) + 1,
        one_leaderboard=dict(zip(_COMPARED_METRICS, np.nanmean(by_board, axis=0).tolist(), strict=True)),
        model=dict(zip(_COMPARED_METRICS, np.nanmean(by_model, axis=0).tolist(), strict=True)),
        gain=bootstrap_mean(by_board[:, 0] - by_model[:, 0], clusters=clusters),
        factor=factor,
        folds=folds,
    )


# How far a model may differ from one leaderboard.


@dataclass(frozen=True)
class Shrinkage:
    """The point of a run and the factor that validation votes choose."""

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
        """Choose point and factor by the losses (G, N) of each of E points, on the votes of the mask `among` (N,).

        The point is the one of least loss. Its factor is the mean of the factors' posterior (empirical Bayes), which
        errs less than the one of least loss: part of the prior is on `near`, the rest is spread evenly. Where `near` is
        likelier than all others together, the votes do not speak for another factor, and it is returned itself.
        """
        mass = self.mass if among is None else self.mass * among
        means = np.stack([table @ mass for table in losses]) / mass.sum()
        point, best = divmod(int(means.argmin()), len(FACTORS))
        default = int(np.abs(FACTORS - near).argmin())
        # The votes of a prompt err together, and count for fewer than they are: as many as give the contrast of two
        # factors the error that it has when prompts are drawn whole.
        beside = best if abs(best - default) >= _LEAST_CONTRAST else abs(default - _LEAST_CONTRAST)
        contrast = losses[point][beside] - losses[point][default]
        independent = np.square((contrast - contrast @ mass / mass.sum()) * mass).sum()
        error = _mean_and_error(contrast * mass, mass, self.prompts)[1] * mass.sum()
        counted_votes = mass.sum() * min(1.0, float(independent / error**2)) if error > 0 else mass.sum()
        odds = np.exp(-counted_votes * (means - means.min()))
        others = np.delete(np.arange(len(FACTORS)), default)
        # The rest of the prior is spread over the points as well, since the best of ten does well by chance.
        for_default = _PRIOR_OF_DEFAULT * odds[point, default]
        is_default = for_default / (for_default + (1.0 - _PRIOR_OF_DEFAULT) * odds[:, others].mean())
        factor = near
        if is_default < 0.5:
            mean = float(FACTORS[others] @ odds[point, others] / odds[point, others].sum())
            factor = is_default * near + (1.0 - is_default) * mean
        return Shrinkage(point, round(float(factor), 3), float(means.min()))


def blend(model: Forecast, board: Forecast, factor: float) -> Forecast:
    """Return the forecast between one leaderboard and a model."""

    def mixed(of_model: NDArray[np.floating] | None, of_board: NDArray[np.floating] | None) -> Floats | None:
        if of_model is None or of_board is None:
            return None
        # An array, because NumPy would compute the product of a number with float32 forecasts in float32.
        share = np.reshape(factor, (-1, 1)) if of_model.ndim > 1 else np.asarray(factor)
        return np.asarray(share * of_model + (1 - share) * of_board, dtype=np.float64)

    coefs = mixed(model.coefs, board.coefs)
    assert coefs is not None
    return Forecast(
        coefs, mixed(model.eta, board.eta), mixed(model.gamma, board.gamma), mixed(model.shift, board.shift)
    )


def repeated(board: Leaderboard, votes: int, shift: Floats | None = None) -> Forecast:
    """Return one leaderboard as the forecast of each of `votes` votes; `shift` (N, 3) is that of its covariates."""
    eta, gamma = (None if value is None else np.full(votes, value) for value in (board.eta, board.gamma))
    return Forecast(np.broadcast_to(board.coefs, (votes, len(board.coefs))), eta, gamma, shift)


def _pairs(forecast: Forecast, labels: NDArray[np.int32]) -> Forecast:
    """Return the forecast with the coefficients (N, 2) of winner and loser alone, covariates counted in."""
    rows, shift = np.arange(len(labels)), forecast.shift
    coefs = np.stack([forecast.coefs[rows, labels[:, side]] for side in (0, 1)], axis=1)
    if shift is None:
        return replace(forecast, coefs=coefs)
    eta = None if forecast.eta is None else forecast.eta + shift[:, 2]
    return replace(forecast, coefs=coefs + shift[:, :2], eta=eta, shift=None)


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
