"""A model made ready to be published: shrunk towards one leaderboard, and with what its votes leave open.

A run trains on without any of this; both are done to the folder of the candidate alone, before it is judged.

    coefs_f = f coefs + (1 - f) m,    eta and gamma likewise

with m the one leaderboard of the votes that have arrived. Of the factors f whose loss on the newest held-out votes
exceeds the least by no more than its standard error (`p2l.training.forecasts`), a run that began with nothing takes the
smallest; one that began with a finished model takes the largest, since that model was shrunk by its own validation
votes, and a few new ones must not undo what it knew. An LLM with few votes is held by the prior of m at its own mean
over the held-out prompts. The gate judges by the same votes: one parameter that is chosen by N of them makes a
candidate look better by 1 / (2 N) nats.

Shapes: n votes, M models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2l.inference import P2L
from p2l.leaderboard import Leaderboard, Prior
from p2l.likelihood import counted
from p2l.model.checkpoint import edit_weights
from p2l.model.covariates import CovariateEffects
from p2l.model.heads import HeadStart
from p2l.online_training.live_trust import LiveTrust
from p2l.online_training.live_votes import LineVotes
from p2l.online_training.stream import HeldOut
from p2l.training.forecasts import CATEGORY_SD, Forecast, ValidationVotes, Votes, marginal_board, repeated
from p2l.training.posterior import SAMPLE_PROMPTS_OF_TEXT_MODEL, fit_posterior
from p2l.training.trainer import distinct
from p2l.votes import translate_labels
from p2l.votes.schema import hash_turns

HeldVotes = HeldOut | LineVotes
FEWEST_HELD_OUT_PROMPTS = 20
"""Held-out prompts below which nothing is concluded from them."""
_FEWEST_VOTES_FOR_POSTERIOR = 200
"""Votes below which there is no posterior."""


@dataclass(frozen=True)
class HeldOutVotes:
    """n votes to judge by."""

    prompts: list[list[str]]
    labels: NDArray[np.int32]
    """(n, 3) positions in `model_list`."""
    model_list: list[str]
    rows: Sequence[Mapping[str, Any]] | None = None
    """All columns of each vote, where a model may have covariates."""
    is_swapped: NDArray[np.bool_] | None = None
    """(n,) whether model_b stands first in the label; beside `rows`."""

    def shift(self, effects: CovariateEffects | None, chosen: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return what a model's covariates add to chosen votes, as `Forecast.shift`; None without either."""
        if effects is None or self.rows is None or self.is_swapped is None:
            return None
        values = effects.design.read_rows([self.rows[vote] for vote in chosen], "held-out votes", {})
        return effects.shift(effects.scaled(values, self.is_swapped[chosen]))


@dataclass(frozen=True)
class ArrivedVotes:
    """The first `count` votes of a stream, and the models known by then."""

    stream: Votes
    count: int
    stream_models: list[str]
    """Names that the stream's labels number."""
    model_list: list[str]
    """Names in the order of the model's rows."""
    trust: LiveTrust | None = None
    """What votes of each voter weigh; None: all alike."""
    is_weighted: bool = True
    """Whether the stream's own weights count."""

    def __len__(self) -> int:
        return self.count

    def prompts(self, ids: NDArray[np.int64]) -> list[list[str]]:
        """Return the user's turns of each vote."""
        return self.stream.prompts(ids)

    def labels(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""
        return translate_labels(self.stream.labels(ids), self.stream_models, self.model_list)

    def weights(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) weights."""
        weights = self.stream.weights(ids) if self.is_weighted else np.ones(len(ids))
        return weights if self.trust is None else weights * self.trust.weights(ids)


def recent(
    held: HeldVotes, place: int, count: int, trust: LiveTrust | None = None, *, with_rows: bool = False
) -> HeldOutVotes:
    """Return the newest `count` votes that had come when the run had `place` votes to train on.

    With `trust`, of voters who were trusted before alone; `with_rows`, with what covariates are read from.
    """
    end = held.up_to(place)
    ids = np.arange(end)
    if trust is not None and isinstance(held, LineVotes):
        ids = ids[trust.trusted(held, ids)]
    ids = ids[-count:]
    votes = held.votes if isinstance(held, HeldOut) else held
    labels = votes.labels(ids)
    recent_votes = HeldOutVotes(votes.prompts(ids), labels, votes.model_list)
    if not with_rows:
        return recent_votes
    return replace(recent_votes, rows=votes.rows(ids), is_swapped=labels[:, 0] != votes.pairs(ids)[:, 0])


def complete(
    folder: Path,
    arrived: ArrivedVotes,
    held: HeldOutVotes | None,
    device: torch.device,
    *,
    weighted: bool = False,
    is_new: bool = True,
) -> dict[str, float | int]:
    """Shrink the model in `folder` and give it a posterior; return what was done, for the log.

    Without `held`, or with too few prompts there, nothing is shrunk. A model that is not `is_new` knows more than the
    votes of its stream: its posterior rests on these alone and shrinks no prompt for being unlike them.
    """
    facts: dict[str, float | int] = {}
    if held is not None and len(arrived):
        facts = shrink(folder, arrived, held, device, weighted=weighted, is_new=is_new)
    if len(arrived) >= _FEWEST_VOTES_FOR_POSTERIOR:
        model = P2L.from_pretrained(folder, device=device, dtype=torch.float32)
        fitted = fit_posterior(
            model.model, model.tokenizer, arrived, weighted=weighted, most_prompts=SAMPLE_PROMPTS_OF_TEXT_MODEL
        )
        if not is_new:
            fitted = fitted._replace(posterior=fitted.posterior.without_shrinking())
        fitted.save(folder)
    return facts


def shrink(
    folder: Path, arrived: ArrivedVotes, held: HeldOutVotes, device: torch.device, *, weighted: bool, is_new: bool
) -> dict[str, float | int]:
    """Shrink the model in `folder` by held-out votes; return the factor, and the votes that chose it.

    `is_new` is whether the run began with nothing, rather than with a finished model.
    """
    model = P2L.from_pretrained(folder, device=device)
    labels = translate_labels(held.labels, held.model_list, model.model_list)
    kept = np.flatnonzero((labels[:, :2] >= 0).all(axis=1) & (counted(model.likelihood, held.labels) > 0))
    prompts = [held.prompts[row] for row in kept]
    codes = np.unique([hash_turns(prompt) for prompt in prompts], return_inverse=True)[1].astype(np.int64)
    if not len(kept) or codes.max() + 1 < FEWEST_HELD_OUT_PROMPTS:
        return {"factor": 1.0, "factor_votes": len(kept)}
    shift = held.shift(model.model.covariates, kept)
    forecast = forecast_of(model, prompts, shift)
    board = one_leaderboard(arrived, forecast, model.likelihood.name, weighted=weighted)
    votes = ValidationVotes(model.likelihood, labels[kept], codes, np.ones(len(kept)))
    # The effects of covariates are no part of what is shrunk: they count in both alike.
    losses = votes.losses(forecast, repeated(board, len(kept), shift))
    factor = votes.choose([losses], near=0.0 if is_new else 1.0).factor
    if factor < 1.0:
        start = HeadStart(board.coefs, board.eta, board.gamma)
        edit_weights(folder, model.model.changes_towards(start, factor))
    return {"factor": factor, "factor_votes": len(kept)}


def forecast_of(model: P2L, prompts: list[list[str]], shift: NDArray[np.float64] | None = None) -> Forecast:
    """Predict the prompts (n,) of votes, each different one once; `shift` (n, 3) is that of their covariates."""
    different, about = distinct(prompts)
    prediction = model.predict([list(prompt) for prompt in different])
    coefs, eta, gamma = (
        None if values is None else values[about].astype(np.float64)
        for values in (prediction.coefs, prediction.eta, prediction.gamma)
    )
    assert coefs is not None
    return Forecast(coefs, eta, gamma, shift)


def one_leaderboard(arrived: ArrivedVotes, forecast: Forecast, likelihood: str, *, weighted: bool) -> Leaderboard:
    """Return the leaderboard of the votes that have arrived, its prior at the mean of a forecast (n, M)."""
    # Under ba a leaderboard's gamma is zero: all is measured from it.
    grounded = forecast.coefs if forecast.gamma is None else forecast.coefs - forecast.gamma[:, None]
    eta = None if forecast.eta is None else float(forecast.eta.mean())
    # An LLM with few votes stays near its own mean forecast, rather than near zero.
    prior = Prior(sd=CATEGORY_SD, coefs=grounded.mean(axis=0), eta=eta)
    return marginal_board(arrived, likelihood, weighted=weighted, prior=prior)
