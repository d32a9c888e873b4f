"""Rows of models that join a run: set from their first votes under a prior of the known ones, then left to gradients.

At its 1st, 2nd, 4th, ... vote, up to the 512th, a new model's row is set to the most probable one given its votes so
far (`p2l.newcomers.rows`): the steps of an optimizer would take thousands of votes to where some twenty say it
is. Between these votes, and after the last of them, the row trains like any other.

Known are the models that the run began with, and those with more votes than that. A run that began with fewer than
eight starts the rows at the mean, and with a replay buffer lets them take larger steps (`LargerSteps`): its own rows of
models with some hundred votes are too rough for a prior, and its forecasts of the next votes were worse with it
(benchmarks/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.newcomers.rows import fit_row_prior, fit_row_to_labels
from p2l.people.voters import organisation_of
from p2l.training.forecasts import SomeVotes
from p2l.training.trainer import Trainer

FEWEST_KNOWN = 8
"""Models below which there is no prior."""
_VOTES_UNTIL_KNOWN = 512
"""Votes from which on gradients alone move a row."""
_BACKGROUND_PROMPTS = 128  # newest prompts that the prior of known models' rows is fitted to, beside the votes'
_VOTES_PER_READ = 1 << 16
LARGEST_FACTOR = 3.0
"""Factor of a row's first steps, where no prior sets the row."""
YOUNG_STEPS = 120
"""Steps with votes on a model until its row moves as far as any other."""
_STEPS_PER_READ = 1 << 10  # steps of votes that are counted at a time
Ids = NDArray[np.int64]


@dataclass
class NewRows:
    """Sets the rows of new models as their votes come (every rank calls `update`)."""

    trainer: Trainer
    began_with: int
    """Models that the run knew before its first vote."""
    restart_average: Callable[[int], None] | None = None
    """Takes a row anew into the average of weights that is published."""
    _seen: int = 0
    _own: dict[int, list[int]] = field(default_factory=dict)
    """Votes of each model that is new, by its place in the list, up to _VOTES_UNTIL_KNOWN of them."""

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
            if before.get(model, 0).bit_length() < len(votes).bit_length() and before.get(model, 0) < _VOTES_UNTIL_KNOWN
        ]
        known = self._known()
        if len(known) < FEWEST_KNOWN:
            return []
        for model in due:
            self._set(model, known)
        return due

    def _known(self) -> list[int]:
        """Return the models that the run began with, and those with votes enough for gradients alone."""
        models = range(len(self.trainer.engine.model.model_list))
        return [
            model for model in models if model < self.began_with or len(self._own.get(model, ())) >= _VOTES_UNTIL_KNOWN
        ]

    def _count(self, arrived: int) -> None:
        for start in range(self._seen, arrived, _VOTES_PER_READ):
            ids = np.arange(start, min(start + _VOTES_PER_READ, arrived))
            labels = self.trainer.votes.labels(ids)
            for row, side in np.argwhere(labels[:, :2] >= self.began_with).tolist():
                votes = self._own.setdefault(int(labels[row, side]), [])
                if len(votes) < _VOTES_UNTIL_KNOWN:
                    votes.append(int(ids[row]))
        self._seen = max(self._seen, arrived)

    def _set(self, model: int, known: list[int]) -> None:
        """Set the row of a model to the most probable one."""
        engine = self.trainer.engine
        ids = np.array(self._own[model], dtype=np.int64)
        newest = np.arange(max(0, self._seen - _BACKGROUND_PROMPTS), self._seen)
        votes = SomeVotes(self.trainer.votes, np.concatenate([ids, newest]))
        covariates = self.trainer.windows.covariates
        forecast = self.trainer.forecast(
            votes, None if covariates is None else lambda rows: covariates(votes.ids[rows])
        )
        combination: tuple[list[float], float] | None = None
        if forecast is not None:  # on rank 0 alone
            names, count = engine.model.model_list, len(ids)
            coefs = forecast.coefs.astype(np.float64)
            organisations = [organisation_of(names[number]) for number in known]
            prior = fit_row_prior(coefs[:, known], organisations, organisation_of(names[model]))
            labels, likelihood = self.trainer.votes.labels(ids), self.trainer.likelihood
            # The votes on the model come first in the forecast, the background after them.
            of_votes = (forecast.eta, forecast.gamma, forecast.shift)
            eta, gamma, moved = (None if values is None else values[:count] for values in of_votes)
            row = fit_row_to_labels(
                prior,
                likelihood,
                labels,
                model=model,
                known=coefs[:count, known],
                coefs=coefs[:count],
                eta=eta,
                gamma=gamma,
                shift=moved,
            )
            weights_of_known, shift_of_bias = row.prior.combination(row.theta)
            combination = weights_of_known.tolist(), shift_of_bias
        combination = engine.broadcast(combination)
        if combination is None:
            return
        mixture, shift = torch.tensor(combination[0], dtype=torch.float32), float(combination[1])
        weight, bias = engine.model.row_names

        def combine(values: Tensor) -> None:
            values[model] = mixture.to(values.device, values.dtype) @ values[known]

        def move(values: Tensor) -> None:
            combine(values)
            values[model] += shift

        engine.edit(weight, combine)
        engine.edit(bias, move)
        if self.restart_average is not None:
            self.restart_average(model)


@dataclass
class LargerSteps:
    """Makes the steps of young rows larger: `begin` before each step, `end` after it (every rank calls both).

        row <- row + f (row' - row),    f = LARGEST_FACTOR - (LARGEST_FACTOR - 1) min(1, u / YOUNG_STEPS)

    where the optimizer has moved a row to row', and its model had votes in u steps so far. At the rate of all weights a
    new row stays near the mean row for long; with a larger rate for all rows, for ever, the past is forgotten
    (benchmarks/LOG.md). While any row is young, the head is copied twice a step.

    Shapes: M models of the list.
    """

    trainer: Trainer
    began_with: int
    """Models that the run knew before its first vote."""
    votes_a_step: int
    """New votes that a step takes."""
    _seen: int = 0
    _steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(M,) steps that brought votes on each model, so far."""
    _rows: Tensor = field(default_factory=lambda: torch.zeros(0))
    _factors: Tensor = field(default_factory=lambda: torch.zeros(0))
    _before: dict[str, Tensor] = field(default_factory=dict)
    """Of models that have just joined: their rows, the factors of their steps, and their weights before the step."""

    def begin(self, arrived: int) -> None:
        """Count the votes that have arrived, and keep the rows of models that have just joined."""
        self._count(arrived)
        engine = self.trainer.engine
        models = np.arange(self.began_with, min(len(self._steps), len(engine.model.model_list)))
        young = models[self._steps[models] < YOUNG_STEPS]
        self._before = {}
        if len(young):
            share = torch.from_numpy(self._steps[young] / YOUNG_STEPS).float()
            self._factors = (LARGEST_FACTOR - (LARGEST_FACTOR - 1) * share).to(engine.device)
            self._rows = torch.from_numpy(young).to(engine.device)
            self._before = {name: engine.values(name)[self._rows] for name in engine.model.row_names}

    def end(self) -> None:
        """Make the step that was just done larger in these rows."""
        for name, before in self._before.items():

            def enlarge(values: Tensor, before: Tensor = before) -> None:
                factors = self._factors.view(-1, *[1] * (values.ndim - 1))
                values[self._rows] = before + factors * (values[self._rows] - before)

            self.trainer.engine.edit(name, enlarge)

    def _count(self, arrived: int) -> None:
        size = self.votes_a_step
        whole = arrived - arrived % size  # of a step that is not full yet, nothing is counted
        for start in range(self._seen, whole, _STEPS_PER_READ * size):
            ids = np.arange(start, min(start + _STEPS_PER_READ * size, whole))
            labels: NDArray[Any] = self.trainer.votes.labels(ids)[:, :2].astype(np.int64)
            pairs = np.unique(np.stack([np.repeat(ids // size, 2), labels.ravel()], axis=1), axis=0)
            counts = np.bincount(pairs[:, 1], minlength=len(self._steps))
            counts[: len(self._steps)] += self._steps
            self._steps = counts
        self._seen = max(self._seen, whole)
