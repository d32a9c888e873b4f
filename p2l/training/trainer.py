"""The one training loop.

The loss of a step is  sum_i w_i * loss_i / sum_i w_i  over the votes i of the step on all ranks (w = 1 without
weights), however they are split into micro-batches or ranks; votes that the likelihood leaves out (ties under `bt`)
count nowhere. `reweight_scale` multiplies the weights of the numerator only, or it would cancel. p2l.training.data
splits a step's votes into micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.errors import TrainingError
from p2l.likelihood import Likelihood, counted, vote_losses
from p2l.people.runs import VoteAdjustments
from p2l.training.data import MicroBatch, Votes, Windows
from p2l.training.engine import Engine

Ids = NDArray[np.int64]


class Schedule(Protocol):
    """Which votes each optimizer step takes."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run; None while unknown."""

    def steps(self, start: int = 0) -> Iterator[Ids]:
        """Return row ids of each step, from step `start` on; the same on every rank."""


class Published(Protocol):
    """Weights that folders and validation use instead of the newest ones; every rank calls each method."""

    def update(self) -> None:
        """Called after each step."""

    def weights(self) -> dict[str, Tensor]:
        """Return all weights on the CPU of rank 0; an empty dictionary elsewhere."""

    def in_place(self) -> AbstractContextManager[None]:
        """Make the engine's model answer with them until the block ends."""


@dataclass(frozen=True)
class StepResult:
    """The outcome of one optimizer step, over all ranks."""

    step: int
    """Steps done, this one included."""
    loss: float
    gradient_norm: float
    learning_rate: float
    votes: int
    tokens: int


@dataclass
class Trainer:
    """The parts of a training run; `steps` runs it."""

    engine: Engine
    windows: Windows
    schedule: Schedule
    likelihood: Likelihood
    weighted: bool = False
    reweight_scale: float = 1.0
    seed: int = 42
    before_step: Callable[[int], None] = lambda _: None
    """Called with the number of steps done, before the next."""
    after_update: Callable[[], None] = lambda: None
    """Called when a step has changed the weights, before anything reads them."""
    terms: VoteAdjustments | None = None
    """Of the votes, where they have sources; None: all are people's, and count as they are."""
    published: Published | None = None
    """None: the newest weights are."""

    @property
    def votes(self) -> Votes:
        """The votes to train on."""
        return self.windows.votes

    def steps(self, start: int = 0) -> Iterator[StepResult]:
        """Train step by step, from step `start` on; TrainingError if loss or gradient are not finite."""
        with closing(self.windows.read_ahead(self.schedule.steps(start))) as windows:
            for number, (ids, parts) in enumerate(windows, start=start):
                self.before_step(number)
                # Dropout depends on the step alone, so that a resumed run repeats an uninterrupted one.
                seeds = np.random.SeedSequence([self.seed, number, self.engine.rank])
                torch.manual_seed(int(seeds.generate_state(1)[0]))
                result = self._step(number, ids, self.engine.even_out(parts, self.windows.filler))
                self.after_update()
                if self.published is not None:
                    self.published.update()
                yield result

    def published_weights(self) -> dict[str, Tensor]:
        """Return the weights for folders on rank 0's CPU; an empty dictionary elsewhere (every rank calls this)."""
        return self.engine.state_dict() if self.published is None else self.published.weights()

    def as_published(self) -> AbstractContextManager[None]:
        """Make the engine's model answer as a published folder would, until the block ends."""
        return nullcontext() if self.published is None else self.published.in_place()

    def _step(self, number: int, ids: Ids, parts: Sequence[MicroBatch]) -> StepResult:
        labels = self.votes.labels(ids)
        weights = self.votes.weights(ids) if self.weighted else np.ones(len(ids))
        terms = None if self.terms is None else self.terms.take(ids)
        weights = weights if terms is None else weights * terms.weight
        learning_rate = self.engine.learning_rate
        denominator = float((weights * counted(self.likelihood, labels)).sum())
        if not denominator:
            self.engine.skip_step()
            return StepResult(number + 1, 0.0, 0.0, learning_rate, len(ids), 0)
        shares = weights * (self.reweight_scale / denominator)
        losses = [self._micro_step(part, labels, shares, terms, last=part is parts[-1]) for part in parts]
        # Read once a step: a GPU would have to finish each micro-batch before the next one is queued.
        loss, tokens = self.engine.sum_over_ranks(
            float(torch.stack(losses).double().sum()), sum(part.tokens for part in parts)
        )
        if not math.isfinite(loss):
            raise TrainingError(f"step {number + 1}: the loss is {loss}; train again with a lower 'learning_rate'")
        norm = self.engine.step()
        if not math.isfinite(norm):
            raise TrainingError(f"step {number + 1}: the gradient is {norm}; train again with a lower 'learning_rate'")
        return StepResult(number + 1, loss, norm, learning_rate, len(ids), int(tokens))

    def _micro_step(
        self,
        part: MicroBatch,
        labels: NDArray[np.int32],
        shares: NDArray[np.float64],
        terms: VoteAdjustments | None,
        *,
        last: bool,
    ) -> Tensor:
        """Run forward and backward for one micro-batch; return its share of the step's loss, on the device."""
        output = self.engine.forward(part.batch)
        assert output.coefs is not None
        device, members = self.engine.device, self.engine.model.members
        # Each member predicts each vote by itself, and counts alike.
        first_rows = torch.arange(members)[:, None] * (len(output.coefs) // members)
        chosen = (first_rows + part.prompt).flatten().to(device)
        coefs, eta, gamma = (
            None if values is None else values[chosen] for values in (output.coefs, output.eta, output.gamma)
        )
        of_votes = torch.as_tensor(labels[part.votes], device=device).repeat(members, 1)
        shift = None if output.shift is None else output.shift.repeat(members, 1)
        if terms is not None:
            own = terms.take(part.votes).repeated(members, device)
            assert coefs is not None
            coefs, shift = own.scaled(coefs, gamma), own.shift if shift is None else shift + own.shift
        losses = vote_losses(self.likelihood, coefs, of_votes, eta, gamma, shift)
        losses = losses.view(members, len(part.votes)).mean(0)
        loss: Tensor = (losses * torch.as_tensor(shares[part.votes], dtype=losses.dtype, device=device)).sum()
        self.engine.backward(loss, last=last)
        return loss.detach()
