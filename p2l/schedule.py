"""Which votes make up each optimizer step of offline training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["OfflineSchedule"]


@dataclass(frozen=True)
class OfflineSchedule:
    """Votes in the order given (or shuffled, seeded by epoch), in steps of `global_batch`, `epochs` times over.

    With `prompts` a shuffle moves whole prompts: the votes on one prompt follow each other, so nearly all of them fall
    into one step, which encodes the prompt once. The last step of an epoch takes what is left. Step `s` depends on
    nothing but these fields, so that a resumed run needs no more than the number of the step.
    """

    num_votes: int
    global_batch: int
    epochs: int = 1
    shuffle: bool = False
    seed: int = 42
    prompts: NDArray[np.int64] | None = field(default=None, compare=False)
    """(num_votes,) the number of each vote's prompt, from 0; None: a shuffle moves single votes."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per pass over the votes."""
        return -(-self.num_votes // self.global_batch)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps_per_epoch * self.epochs

    def steps(self, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Row ids of each step, from step `start` on."""
        for epoch in range(start // self.steps_per_epoch, self.epochs):
            order = self._order(epoch)
            first = start - epoch * self.steps_per_epoch if epoch * self.steps_per_epoch < start else 0
            for step in range(first, self.steps_per_epoch):
                begin = step * self.global_batch
                end = min(begin + self.global_batch, self.num_votes)
                yield np.arange(begin, end) if order is None else order[begin:end].astype(np.int64)

    def _order(self, epoch: int) -> NDArray[np.int64] | None:
        if not self.shuffle:
            return None
        rng = np.random.default_rng([self.seed, epoch])
        votes = rng.permutation(self.num_votes)
        if self.prompts is None:
            return votes
        places = rng.permutation(int(self.prompts.max()) + 1)
        return votes[np.argsort(places[self.prompts[votes]], kind="stable")]
