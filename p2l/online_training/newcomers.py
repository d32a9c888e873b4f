"""Rows of models that join a run: set from their first votes under a prior of the known ones, then left to gradients.

At its 1st, 2nd, 4th, ... vote, up to the 512th, a new model's row is set to the most probable one given its votes so
far (`p2l.leaderboard.newcomers`): the steps of an optimizer would take thousands of votes to where some twenty say it
is. Between these votes, and after the last of them, the row trains like any other.

Known are the models that the run began with, and those with more votes than that. A run that began with fewer than
eight leaves the rows at the mean: its own rows of models with some hundred votes are too rough for a prior, and its
forecasts of the next votes were worse with it (docs/experiments.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.leaderboard.newcomers import NewRow, RowPrior, fit_row, fit_row_prior, organisation_of, votes_on_new
from p2l.likelihood import Likelihood
from p2l.online_training.averaging import PublishedAverage
from p2l.training.facts import Forecast
from p2l.training.loop import validate
from p2l.training.trainer import Trainer

FEWEST_KNOWN = 8
"""Models below which there is no prior."""
OWN_VOTES = 512
"""Votes from which on gradients alone move a row."""
_BACKGROUND = 128  # newest prompts that say what the known models' rows are like
_CHUNK = 1 << 16
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _SomeVotes:
    """A few votes of a stream."""

    votes: Any
    ids: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def prompts(self, rows: Ids) -> list[list[str]]:
        """Return the user's turns of each vote."""
        prompts: list[list[str]] = self.votes.prompts(self.ids[rows])
        return prompts

    def labels(self, rows: Ids) -> NDArray[Any]:
        """(n, 3) int32 `[winner, loser, tie]`."""
        labels: NDArray[Any] = self.votes.labels(self.ids[rows])
        return labels

    def weights(self, rows: Ids) -> NDArray[np.float64]:
        """(n,) weights."""
        weights: NDArray[np.float64] = self.votes.weights(self.ids[rows])
        return weights


@dataclass
class NewRows:
    """Sets the rows of new models as their votes come (every rank calls `update`)."""

    trainer: Trainer
    began_with: int
    """Models that the run knew before its first vote."""
    average: PublishedAverage | None = None
    _seen: int = 0
    _own: dict[int, list[int]] = field(default_factory=dict)
    """Votes of each model that is new, by its place in the list, up to OWN_VOTES of them."""

    def resume(self, arrived: int) -> None:
        """Count the votes that had arrived before this process."""
        self._count(arrived)

    def renew(self) -> None:
        """Set the rows of all models with too few votes for gradients, in a model that was trained anew."""
        known = self._known()
        if len(known) >= FEWEST_KNOWN:
            for model in sorted(set(self._own) - set(known)):
                self._set(model, known)

    def update(self, arrived: int) -> list[int]:
        """Take over the votes that have arrived; set and return the rows of models that reached a power of two."""
        before = {model: len(votes) for model, votes in self._own.items()}
        self._count(arrived)
        due = [
            model
            for model, votes in sorted(self._own.items())
            if before.get(model, 0).bit_length() < len(votes).bit_length() and before.get(model, 0) < OWN_VOTES
        ]
        known = self._known()
        if len(known) < FEWEST_KNOWN:
            return []
        for model in due:
            self._set(model, known)
        return due

    def _known(self) -> list[int]:
        return [model for model in range(len(self.trainer.engine.model.model_list)) if self._is_known(model)]

    def _is_known(self, model: int) -> bool:
        return model < self.began_with or len(self._own.get(model, ())) >= OWN_VOTES

    def _count(self, arrived: int) -> None:
        for start in range(self._seen, arrived, _CHUNK):
            ids = np.arange(start, min(start + _CHUNK, arrived))
            labels = self.trainer.votes.labels(ids)
            for row, side in np.argwhere(labels[:, :2] >= self.began_with).tolist():
                own = self._own.setdefault(int(labels[row, side]), [])
                if len(own) < OWN_VOTES:
                    own.append(int(ids[row]))
        self._seen = max(self._seen, arrived)

    def _set(self, model: int, known: list[int]) -> None:
        """Set the row of a model to the most probable one."""
        engine = self.trainer.engine
        ids = np.array(self._own[model], dtype=np.int64)
        newest = np.arange(max(0, self._seen - _BACKGROUND), self._seen)
        votes = _SomeVotes(self.trainer.votes, np.concatenate([ids, newest]))
        forecast = validate(engine, replace(self.trainer.windows, votes=votes, ahead=True, covariates=None))
        row = None if forecast is None else self._fit(model, known, forecast, ids)
        row = engine.broadcast(row)
        if row is None:
            return
        mixture, shift = torch.tensor(row[0], dtype=torch.float32), float(row[1])
        weight, bias = engine.model.row_names

        def combine(values: Tensor) -> None:
            values[model] = mixture.to(values.device, values.dtype) @ values[known]

        def move(values: Tensor) -> None:
            combine(values)
            values[model] += shift

        engine.edit(weight, combine)
        engine.edit(bias, move)
        if self.average is not None:
            self.average.restart(model)

    def _fit(self, model: int, known: list[int], forecast: Forecast, ids: Ids) -> tuple[list[float], float]:
        """Return the weights of the known rows, and the shift of the bias."""
        names, likelihood = self.trainer.engine.model.model_list, self.trainer.likelihood
        coefs = forecast.coefs.astype(np.float64)
        prior = fit_row_prior(
            coefs[:, known], [organisation_of(names[one]) for one in known], organisation_of(names[model])
        )
        row = _row_of(prior, forecast, self.trainer.votes.labels(ids), model, known, likelihood)
        mixture, shift = row.prior.combination(row.theta)
        return mixture.tolist(), shift


def _row_of(
    prior: RowPrior, forecast: Forecast, labels: NDArray[Any], model: int, known: list[int], likelihood: Likelihood
) -> NewRow:
    """Return the row of a model, given labels (n, 3) of its votes and the forecast for their prompts, and more."""
    count = len(labels)
    coefs = forecast.coefs[:count].astype(np.float64)
    is_first = labels[:, 0] == model
    others = coefs[np.arange(count), np.where(is_first, labels[:, 1], labels[:, 0])]
    eta, gamma = (
        None if values is None else values[:count].astype(np.float64) for values in (forecast.eta, forecast.gamma)
    )
    return fit_row(prior, coefs[:, known], votes_on_new(likelihood, others, is_first, labels[:, 2], eta, gamma))
