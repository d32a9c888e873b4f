"""Covariates of the votes that a model is trained on: their values, the start of their effects, and their worth.

Effects are weights of the model (`p2l.model.covariates`), trained with it. Offline they start at those of one
leaderboard for all prompts, online at zero. After training they are fitted to convergence with the model's forecasts
held fixed, by a Newton method on the votes themselves, clustered by prompt.

Shapes: N votes, M models, C covariates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.bootstrap import Interval, bootstrap_mean
from p2l.common.errors import VoteError
from p2l.common.report.text import table_text
from p2l.leaderboard import Covariates, Leaderboard, Prior, fit
from p2l.leaderboard.controls import Controls, Design, without_value
from p2l.leaderboard.covariates import SIDE, able
from p2l.leaderboard.newton import BROAD
from p2l.leaderboard.report.tables import effect_table
from p2l.likelihood import Likelihood, get
from p2l.metrics import ScoredVotes, vote_values
from p2l.model.covariates import LEVEL, CovariateEffects, Estimate
from p2l.model.model import P2LModel
from p2l.training.forecasts import Forecast, SomeVotes, Votes, repeated
from p2l.votes import VoteStore
from p2l.votes.schema import hash_turns

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Values = Callable[[Ids], Tensor]
# Of the last fit: with this many votes the error of an effect is 0.01.
_MOST_FITTED_VOTES = 50_000
_MOST_FITTED_COEFS = 20_000_000
_LINES_THAT_DECIDE = 1_000  # first lines of a growing file: their columns and texts define the covariates
_PRIOR_SD = 0.5  # of the terms for LLMs: the error of a forecast that all prompts share


class Rows(Votes, Protocol):
    """Votes of a growing file."""

    @property
    def name(self) -> str:
        """The name of the votes in messages."""

    def wait_for(self, count: int) -> int:
        """Wait for votes; return the number of votes that have come, `count` at most."""

    def rows(self, ids: Any) -> list[dict[str, Any]]:
        """Return all columns of each vote."""

    def pairs(self, ids: Any) -> NDArray[np.int32]:
        """(n, 2) models a and b."""


# The covariates of some names, and their values.


def begin(
    names: Sequence[str],
    votes: VoteStore,
    loss_type: str,
    *,
    weighted: bool = False,
    board: Leaderboard | None = None,
) -> tuple[CovariateEffects, Leaderboard]:
    """Return covariates that start at a leaderboard's effects, and the leaderboard; VoteError for a lacking column.

    The leaderboard is fitted to the votes unless `board` is given, which was fitted with their covariates.
    """
    effects, covariates = _read(names, votes, get(loss_type))
    if board is None:
        board = _fit_board(votes, covariates, loss_type, weighted=weighted)
    effects.start({(effect.name, effect.role): effect.coef for effect in board.effects})
    return effects, board


def board_beside(design: Design, votes: VoteStore, loss_type: str, *, weighted: bool = False) -> Leaderboard:
    """Return one leaderboard of stored votes, fitted with a model's covariates; VoteError for a lacking column."""
    values = np.zeros((len(votes), len(design.terms)))
    for ids, batch in votes.batches():
        values[ids] = design.read(batch, votes.name, {})
    return _fit_board(votes, design.covariates(values), loss_type, weighted=weighted)


def _fit_board(votes: VoteStore, covariates: Covariates, loss_type: str, *, weighted: bool) -> Leaderboard:
    labels, pairs = votes.labels(), votes.pairs().astype(np.int64)
    b_won = (labels[:, 0] != pairs[:, 0]).astype(np.int64)
    return fit(
        pairs[:, 0],
        pairs[:, 1],
        # The winner's place in WINNERS: the two models, then the two kinds of tie.
        np.where(labels[:, 2] > 0, labels[:, 2] + 1, b_won).astype(np.int64),
        models=votes.model_list,
        likelihood=loss_type,
        intervals=None,
        weights=votes.weights() if weighted else None,
        covariates=covariates,
    )


def begin_stream(names: Sequence[str], votes: VoteStore | Rows, loss_type: str) -> CovariateEffects:
    """Return covariates, their effects zero, of a data set or a file's first lines; VoteError for a lacking column."""
    if isinstance(votes, VoteStore):
        return _read(names, votes, get(loss_type))[0]
    there = votes.wait_for(1) if any(name != SIDE for name in names) else 0
    rows = votes.rows(range(min(_LINES_THAT_DECIDE, len(votes)))) if there else [{}]
    controls = Controls(names, sorted({key for row in rows for key in row}), votes.name, key="covariate")
    controls.add(_batch(rows, controls.columns))
    return _effects(names, controls, get(loss_type))[0]


def continues(model: P2LModel, names: Sequence[str]) -> bool:
    """Return whether the model was trained with the covariates of these names (none: without any), and go on so."""
    if model.covariates is None:
        return not names
    model.covariates.estimate = None
    roles = {term.role for term in model.covariates.design.terms}
    return model.covariates.names == tuple(names) and roles <= able(model.likelihood)


def _read(names: Sequence[str], votes: VoteStore, likelihood: Likelihood) -> tuple[CovariateEffects, Covariates]:
    controls = Controls(names, votes.columns, votes.name, key="covariate")
    for _, batch in votes.batches():
        controls.add(batch)
    return _effects(names, controls, likelihood)


def _effects(names: Sequence[str], controls: Controls, likelihood: Likelihood) -> tuple[CovariateEffects, Covariates]:
    """Return the effects, zero, of the covariates that the likelihood can tell and that vary, and their values."""
    covariates = controls.covariates()
    kept = np.array([role in able(likelihood) for role in covariates.roles]) & (covariates.values != 0).any(axis=0)
    if not kept.any():
        raise VoteError(f"covariates {', '.join(names)} are zero in every vote; leave them out")
    covariates = covariates.pick(kept)
    scales = np.sqrt((covariates.values**2).mean(axis=0))
    unit = likelihood.eta_scale.unit  # steps of eta are longer under some likelihoods
    scales /= [unit if role == "ties" else 1.0 for role in covariates.roles]
    effects = CovariateEffects(names, controls.design().pick(kept), scales)
    effects.missing = dict(controls.missing)
    return effects, covariates


def _batch(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return rows as an Arrow batch: a column is one of numbers unless it holds a text that is none."""
    arrays: dict[str, Any] = {"": pa.nulls(len(rows))}
    for name in columns:
        values = [row.get(name) for row in rows]
        numeric = all(value is None or isinstance(value, int | float) for value in values)
        texts = [None if value is None else str(value) for value in values]
        arrays[name] = pa.array(values, pa.float64()) if numeric else pa.array(texts, pa.string())
    return pa.RecordBatch.from_pydict(arrays)


def check_columns(effects: CovariateEffects | None, votes: VoteStore) -> None:
    """Raise VoteError if the votes lack a column of a covariate."""
    if effects is not None:
        _, batch = next(votes.batches())
        effects.design.read(batch.slice(0, 0), votes.name, {})


def values_of_store(effects: CovariateEffects, votes: VoteStore, by_people: NDArray[np.bool_] | None = None) -> Values:
    """Return the values of stored votes, 4 bytes each in memory; VoteError if the votes lack a column.

    Votes (N,) that are not `by_people` have none.
    """
    values = np.empty((len(votes), len(effects.scales)), dtype=np.float32)
    for ids, batch in votes.batches():
        raw = effects.design.read(batch, votes.name, {})
        values[ids] = effects.scaled(raw, votes.labels(ids)[:, 0] != votes.pairs(ids)[:, 0])
    if by_people is not None:
        values[~by_people] = 0.0
    return lambda ids: torch.from_numpy(values[ids])


def values_of_rows(effects: CovariateEffects, votes: Rows) -> Values:
    """Return the values of votes of a growing file, read from their lines when they are needed."""

    def chosen(ids: Ids) -> Tensor:
        raw = effects.design.read_rows(votes.rows(ids), votes.name, {})
        return torch.from_numpy(effects.scaled(raw, votes.labels(ids)[:, 0] != votes.pairs(ids)[:, 0]))

    return chosen


def shift_of(
    effects: CovariateEffects,
    votes: VoteStore,
    board: Leaderboard | None = None,
    by_people: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return the shifts (N, 3) of winners, losers and eta of stored votes, by the model's effects or by a board's.

    Votes (N,) that are not `by_people` have none.
    """
    values = values_of_store(effects, votes, by_people)(np.arange(len(votes))).numpy()
    return effects.shift(values, None if board is None else board.effects)


def forecast_by(
    board: Leaderboard,
    effects: CovariateEffects | None,
    votes: VoteStore,
    by_people: NDArray[np.bool_] | None = None,
) -> Forecast:
    """Return the forecast of stored votes by one leaderboard, its own effects of the model's covariates counted in."""
    return repeated(board, len(votes), None if effects is None else shift_of(effects, votes, board, by_people))


# The last fit.


def sample(votes: Votes, num_models: int, seed: int, *, newest: bool, rows: Ids | None = None) -> SomeVotes:
    """Choose the votes for the last fit: all, or where these are too many a random part of them, or the newest.

    `rows` are the ids of those to choose from.
    """
    ids = np.arange(len(votes)) if rows is None else rows
    count, most = len(ids), max(1, min(_MOST_FITTED_VOTES, _MOST_FITTED_COEFS // num_models))
    if count <= most:
        return SomeVotes(votes, ids)
    if newest:
        return SomeVotes(votes, ids[count - most :])
    return SomeVotes(votes, ids[np.sort(np.random.default_rng(seed).choice(count, most, replace=False))])


def estimate(
    effects: CovariateEffects,
    forecast: Forecast,
    votes: SomeVotes,
    values: Values,
    models: Sequence[str],
    likelihood: Likelihood,
    *,
    weights: Floats | None = None,
) -> Estimate:
    """Fit the effects to votes (n,), counted by `weights`, with the model's forecast of each held fixed.

    A term for each LLM is not.
    """
    rows = np.arange(len(votes))
    labels = votes.labels(rows).astype(np.int64)
    scaled = values(votes.ids).double().numpy()
    offsets = np.zeros((len(rows), 3))
    for side in (0, 1):
        # Under ba a leaderboard's gamma is zero: all is measured from it.
        coefs = forecast.coefs[rows, labels[:, side]].astype(np.float64)
        offsets[:, side] = coefs if forecast.gamma is None else coefs - forecast.gamma
    if forecast.eta is not None:
        offsets[:, 2] = forecast.eta
    prompts = [hash_turns(turns) for turns in votes.prompts(rows)]
    # A term for each LLM is fitted too, so that the intervals count the uncertainty about the LLMs.
    board = fit(
        labels[:, 0],
        labels[:, 1],
        np.array([0, 2, 3])[labels[:, 2]],
        models=models,
        likelihood=likelihood.name,
        weights=weights,
        clusters=np.unique(prompts, return_inverse=True)[1],
        covariates=effects.design.covariates(scaled),
        offsets=offsets,
        prior=Prior(sd=_PRIOR_SD, eta=0.0, broad=BROAD),
        start=np.zeros(len(models) + (forecast.eta is not None)),
        level=LEVEL,
    )
    keys = [(term.name, term.role) for term in effects.design.terms]
    rows_of = {(effect.name, effect.role): effect for effect in board.effects}
    unseen = (0.0, -BROAD, BROAD)  # of a covariate that is zero in all of these votes: the prior's
    table = [rows_of[key][2:] if key in rows_of else unseen for key in keys]
    sizes, lower, upper = (np.array(column) / effects.scales for column in zip(*table, strict=True))
    return Estimate(sizes, (upper - lower) / (2.0 * NormalDist().inv_cdf(0.5 + LEVEL / 2)), len(votes))


# Their worth on held-out votes.


@dataclass(frozen=True)
class Worth:
    """Losses of the same held-out votes: with the covariates left out, and counted."""

    votes: int
    without: float
    observed: float
    gain: Interval
    """Nats per vote, its interval clustered by prompt."""
    one_leaderboard: tuple[float, float] | None
    """The same two losses of the leaderboard of all prompts that was fitted with the covariates."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for eval_results.json."""
        gain = {name: float(getattr(self.gain, name)) for name in ("estimate", "lower", "upper")}
        losses = {"Loss": self.observed, "Loss without": self.without, "gain": gain}
        if self.one_leaderboard is not None:
            losses["one_leaderboard"] = dict(zip(("Loss without", "Loss"), self.one_leaderboard, strict=True))
        return losses


def worth(
    forecast: Forecast, votes: VoteStore, likelihood: Likelihood, one_leaderboard: Forecast | None = None
) -> Worth:
    """Compare losses on votes (N,) without the shift of their covariates and with it, also of one leaderboard."""
    labels = votes.labels()

    def losses(of: Forecast) -> tuple[Floats, Floats]:
        without, shifted = (
            ScoredVotes(likelihood, of.coefs, labels, of.eta, of.gamma, shift=added) for added in (None, of.shift)
        )
        return vote_values("Loss", without), vote_values("Loss", shifted)

    plain, observed = losses(forecast)
    counts = np.isfinite(plain)
    prompts = np.unique([hash_turns(turns) for turns in votes.prompts()], return_inverse=True)[1]
    gain = bootstrap_mean((plain - observed)[counts], clusters=prompts[counts])
    of_board = None
    if one_leaderboard is not None:
        board_without, board_observed = losses(one_leaderboard)
        of_board = float(board_without[counts].mean()), float(board_observed[counts].mean())
    return Worth(
        votes=int(counts.sum()),
        without=float(plain[counts].mean()),
        observed=float(observed[counts].mean()),
        gain=gain,
        one_leaderboard=of_board,
    )


def to_text(effects: CovariateEffects, gain: Worth | None) -> str:
    """Return the effects with their intervals, and their worth on held-out votes, for the terminal."""
    lines = ["", *table_text(effect_table(effects.table(), LEVEL))]
    lines += [f"note: {without_value(name, count)}" for name, count in effects.missing.items()]
    if gain is not None:
        ends = f"95 % interval {gain.gain.lower:.4f} to {gain.gain.upper:.4f}"
        rows = [("one leaderboard for all prompts", *gain.one_leaderboard)] if gain.one_leaderboard else []
        rows.append(("this model", gain.without, gain.observed))
        lines += [
            "",
            f"{f'{gain.votes:,} held-out votes; loss, covariates':<46} left out   counted",
            *(f"{name:<46} {without:.4f}     {observed:.4f}" for name, without, observed in rows),
            f"{'gain by counting them, in nats per vote':<46} {gain.gain.estimate:.4f}   ({ends})",
        ]
    return "\n".join(lines[1:])
