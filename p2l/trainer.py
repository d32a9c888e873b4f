"""The one training loop.

The loss of a step is  sum_i w_i * loss_i / sum_i w_i  over the votes i of the step on all ranks (w = 1 without
weights), however they are split into micro-batches or ranks; votes that the likelihood leaves out (ties under `bt`)
count nowhere. `reweight_scale` multiplies the weights above the line only, or it would cancel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from p2l.batching import collate
from p2l.engine import Engine
from p2l.errors import TrainingError
from p2l.likelihood import Likelihood, counted, vote_losses
from p2l.schedule import micro_batches
from p2l.tokenizer import PromptTokenizer
from p2l.votes import VoteStore

__all__ = ["Schedule", "StepResult", "Trainer"]

Ids = NDArray[np.int64]


class Schedule(Protocol):
    """Which votes each optimizer step takes."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    def steps(self, start: int = 0) -> Iterator[Ids]:
        """Row ids of each step, from step `start` on; the same on every rank."""
        ...


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step saw, over all ranks."""

    step: int
    """Steps done, this one included."""
    loss: float
    gradient_norm: float
    learning_rate: float
    votes: int
    tokens: int


@dataclass(frozen=True)
class Trainer:
    """The parts of a training run; `steps` runs it."""

    engine: Engine
    tokenizer: PromptTokenizer
    votes: VoteStore
    schedule: Schedule
    likelihood: Likelihood
    batch_size: int
    """Votes per micro-batch and rank."""
    weighted: bool = False
    reweight_scale: float = 1.0
    seed: int = 42

    def steps(self, start: int = 0) -> Iterator[StepResult]:
        """Train step by step, from step `start` on.

        Raises:
            TrainingError: loss or gradient are no finite numbers.
        """
        for number, ids in enumerate(self.schedule.steps(start), start=start):
            # Dropout depends on the step alone, so that a resumed run repeats what an unbroken one does.
            torch.manual_seed(_step_seed(self.seed, number, self.engine.rank))
            yield self._step(number, ids)

    def _step(self, number: int, ids: Ids) -> StepResult:
        labels = self.votes.labels(ids)
        weights = self.votes.weights(ids) if self.weighted else np.ones(len(ids))
        denominator = float((weights * counted(self.likelihood, labels)).sum()) or 1.0
        parts = micro_batches(len(ids), self.batch_size, self.engine.rank, self.engine.world_size)
        learning_rate = self.engine.learning_rate
        loss_sum, tokens = 0.0, 0
        for index, part in enumerate(parts):
            loss, num_tokens = self._micro_step(
                ids, part, labels, weights * (self.reweight_scale / denominator), last=index == len(parts) - 1
            )
            loss_sum += loss
            tokens += num_tokens
        loss, total_tokens = self.engine.sum_over_ranks(loss_sum, tokens)
        if not math.isfinite(loss):
            raise TrainingError(f"step {number + 1}: the loss is {loss}; train again with a lower 'learning_rate'")
        norm = self.engine.step()
        if not math.isfinite(norm):
            raise TrainingError(f"step {number + 1}: the gradient is {norm}; train again with a lower 'learning_rate'")
        return StepResult(number + 1, loss, norm, learning_rate, len(ids), int(total_tokens))

    def _micro_step(
        self, ids: Ids, part: Ids, labels: NDArray[np.int32], weights: NDArray[np.float64], *, last: bool
    ) -> tuple[float, int]:
        """Forward and backward for the votes at the positions `part` of the step; an empty part weighs nothing."""
        share = weights[part]
        if len(part) == 0:
            part, share = np.zeros(1, dtype=np.int64), np.zeros(1)
        encodings = self.tokenizer.encode(self.votes.prompts(ids[part]))
        output = self.engine.forward(collate(encodings, self.tokenizer.pad_token_id))
        device = self.engine.device
        picked = torch.as_tensor(labels[part], device=device)
        losses = vote_losses(self.likelihood, output.coefs, picked, output.eta, output.gamma)
        loss = (losses * torch.as_tensor(share, dtype=losses.dtype, device=device)).sum()
        self.engine.backward(loss, last=last)
        return loss.item(), sum(len(encoding.ids) for encoding in encodings) if share.any() else 0


def _step_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
