"""Averaged weights in a run: what it publishes, saves and validates is the mean over its recent steps.

Training itself goes on from the newest weights, which are in the engine's own state.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from p2l.engine import Engine
from p2l.errors import CheckpointError, ConfigError
from p2l.online_training.averaging import AveragedWeights

__all__ = ["AVERAGE_STATE", "PublishedAverage"]

AVERAGE_STATE = "averaged_weights.npz"


class PublishedAverage:
    """The `Published` of a trainer: a running mean of its trainable weights, on every process."""

    def __init__(self, engine: Engine, horizon: int) -> None:
        """Start empty; until the first step the newest weights are published.

        Raises:
            ConfigError: `horizon` is below 1, or no process holds whole weights (ZeRO 3).
        """
        if engine.zero_stage == 3:
            raise ConfigError(
                "key 'average_steps': ZeRO 3 leaves no process with whole weights to average; "
                "take stage 0, 1 or 2, or remove the key"
            )
        self._engine = engine
        self._average = AveragedWeights(horizon, engine.model.row_names)

    def update(self) -> None:
        """Take in the weights after a step."""
        self._average.update(self._trained(), len(self._engine.model.model_list))

    def weights(self) -> dict[str, Tensor]:
        """The whole model's weights, averaged, on the CPU of rank 0; an empty one elsewhere."""
        state = self._engine.state_dict()
        means = self._average.means.items() if state else ()
        return state | {name: mean.to("cpu", state[name].dtype, copy=True) for name, mean in means}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model answers with averaged weights until the block ends."""
        newest = {name: weight.detach().clone() for name, weight in self._trained().items()}
        try:
            self._put(self._average.means)
            yield
        finally:
            self._put(newest)

    def save(self, folder: Path) -> None:
        """Write what the next means depend on."""
        with (folder / AVERAGE_STATE).open("wb") as file:
            np.savez(file, **self._average.state_dict())

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote.

        Raises:
            CheckpointError: it is missing, damaged, or of another horizon.
        """
        path = folder / AVERAGE_STATE
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                self._average.load_state_dict({name: file[name] for name in file.files})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{path}: missing, damaged or cut short ({error}); copy the checkpoint again"
            ) from error
        means = self._average.means
        means |= {name: mean.to(self._engine.device) for name, mean in means.items()}

    def _trained(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self._engine.model.named_parameters() if weight.requires_grad}

    def _put(self, values: dict[str, Tensor]) -> None:
        weights = self._trained()
        with torch.no_grad():
            for name, value in values.items():
                weights[name][: len(value)].copy_(value)
