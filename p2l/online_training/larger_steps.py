"""Larger steps for the rows of models that have just joined, in a run whose known rows are too rough for a prior.

    row <- row + f (row' - row),    f = LARGEST - (LARGEST - 1) min(1, u / STEPS)

row' is where the optimizer has moved the row of a model whose votes came in u steps so far. At the rate of all weights
a new row stays near the mean row for long, and its votes are forecast worse for it; with a larger rate for all rows,
for ever, the past is forgotten (docs/experiments.md). Costs a copy of such rows a step.

Shapes: M models of the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.training.trainer import Trainer

LARGEST = 3.0
STEPS = 120
_CHUNK = 1 << 10  # steps whose votes are counted at once


@dataclass
class LargerSteps:
    """Makes the steps of young rows larger: `begin` before each step, `end` after it (every rank calls both)."""

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
    """The rows of models that have just joined, how many times larger their steps are, and where they were."""

    def begin(self, arrived: int) -> None:
        """Count the votes that have arrived, and keep the rows of models that have just joined."""
        self._count(arrived)
        engine = self.trainer.engine
        models = np.arange(self.began_with, min(len(self._steps), len(engine.model.model_list)))
        young = models[self._steps[models] < STEPS]
        self._before = {}
        if len(young):
            share = torch.from_numpy(self._steps[young] / STEPS).float()
            self._factors = (LARGEST - (LARGEST - 1) * share).to(engine.device)
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
        for start in range(self._seen, whole, _CHUNK * size):
            ids = np.arange(start, min(start + _CHUNK * size, whole))
            labels: NDArray[Any] = self.trainer.votes.labels(ids)[:, :2].astype(np.int64)
            pairs = np.unique(np.stack([np.repeat(ids // size, 2), labels.ravel()], axis=1), axis=0)
            counts = np.bincount(pairs[:, 1], minlength=len(self._steps))
            counts[: len(self._steps)] += self._steps
            self._steps = counts
        self._seen = max(self._seen, whole)
