"""Averaged weights: what is published is the mean of the weights over the recent steps, not those of the last one.

    mean_t = mean_{t-1} + (w_t - mean_{t-1}) / min(horizon, 1 + b + t / 10)

With a constant learning rate the weights never settle: they circle around an optimum that moves with the newest votes.
Their mean lies nearer to it, and it forgets more slowly than they do. Training itself does not see the mean. It costs
one more copy of the weights and one pass over them a step.

Shapes: M rows, one for each model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from p2l.common.errors import CheckpointError, ConfigError
from p2l.online_training.buffer import saved_arrays, with_prefix, without_prefix
from p2l.training.engine import Engine

# In the first steps the mean looks back on the latest tenth of them, since the weights before were worse. A model's row
# of the head counts its own steps, from the first with a vote on it, and looks back on a twentieth of them, or a new
# model would drag its start along: with a fifth, forecasts for new models were worse than without a mean.
_STEPS_PER_HORIZON_STEP = 10.0
_ROW_STEPS_PER_HORIZON_STEP = 20.0
# b in a run that begins with a trained model, for the body and the rows that it has: the mean begins with its weights,
# which are better than those of the first steps after them. Else b is 0.
_STEPS_OF_A_TRAINED_MODEL = 100.0


class AveragedWeights:
    """The running mean of named weights; `update` after each step."""

    def __init__(self, horizon: int, rows: Collection[str] = ()) -> None:
        """Start empty: the first `update` copies the weights; ConfigError if `horizon` is below 1.

        The mean looks back on `horizon` steps; `rows` are the names of the weights that have a row for each model.
        """
        if horizon < 1:
            raise ConfigError(f"horizon: must be at least 1 step, got {horizon}")
        self.horizon = horizon
        self.means: dict[str, Tensor] = {}
        """The means by name, float32, with the rows of the last `update`."""
        self._row_names = frozenset(rows)
        self._steps = 0
        self._before = 0.0
        self._born = torch.zeros(0)  # (M,) steps before the first one of each row
        self._rows_before = torch.zeros(0)  # (M,)

    def begin(self, weights: Mapping[str, Tensor], models: int) -> None:
        """Begin with the weights of a trained model that knows this many models."""
        with torch.no_grad():
            self._meet(weights, models)
        self._before = _STEPS_OF_A_TRAINED_MODEL
        self._rows_before[:models] = _STEPS_OF_A_TRAINED_MODEL

    def update(self, weights: Mapping[str, Tensor], models: int | None = None) -> None:
        """Add the weights after a step; `models` of the M rows are in use (None: all), and rows are only added."""
        with torch.no_grad():
            self._meet(weights, models)
            self._steps += 1
            share = self._share(torch.tensor(float(self._steps)), _STEPS_PER_HORIZON_STEP, torch.tensor(self._before))
            row_share = self._share(self._steps - self._born, _ROW_STEPS_PER_HORIZON_STEP, self._rows_before)
            for name, value in weights.items():
                mean = self.means[name]
                if name in self._row_names:
                    used = len(row_share)
                    shares = row_share.to(mean.device).view(-1, *[1] * (mean.ndim - 1))
                    mean[:used].lerp_(value[:used].to(mean.dtype), shares.to(mean.dtype))
                else:
                    mean.lerp_(value.to(mean.dtype), float(share))

    def restart(self, row: int, weights: Mapping[str, Tensor]) -> None:
        """Begin the mean of a model's row anew, with its present weights."""
        if row >= len(self._born):
            return  # it will begin with the next step
        self._born[row] = float(self._steps)
        self._rows_before[row] = 0.0
        for name in self._row_names & weights.keys():
            self.means[name][row] = weights[name][row].detach().float()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next means depend on, as arrays and numbers for `np.savez`."""
        return {
            **with_prefix("mean.", {name: mean.cpu().numpy().copy() for name, mean in self.means.items()}),
            "horizon": self.horizon,
            "steps": self._steps,
            "before": self._before,
            "born": self._born.numpy().copy(),
            "rows_before": self._rows_before.numpy().copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; CheckpointError if the state has another horizon."""
        if int(state["horizon"]) != self.horizon:
            raise CheckpointError(f"the averaged weights look back {int(state['horizon'])} steps, not {self.horizon}")
        self._steps = int(state["steps"])
        self._before = float(state["before"])
        self._born = torch.from_numpy(np.array(state["born"], dtype=np.float32))
        self._rows_before = torch.from_numpy(np.array(state["rows_before"], dtype=np.float32))
        self.means = {name: torch.from_numpy(np.array(mean)) for name, mean in without_prefix("mean.", state).items()}

    def _share(self, steps: Tensor, latest: float, before: Tensor) -> Tensor:
        """Return the weight of the newest of this many steps, after a start that counts as `before` steps."""
        return 1 / (1 + before + (steps - 1) / latest).clamp(max=self.horizon)

    def _meet(self, weights: Mapping[str, Tensor], models: int | None) -> None:
        """Add weights and rows that are new, as they are."""
        for name, value in weights.items():
            old = self.means.get(name)
            if old is None or len(old) < len(value):
                grown = value.detach().float().clone()
                if old is not None:
                    grown[: len(old)] = old
                self.means[name] = grown
        rows = [len(weights[name]) for name in self._row_names if name in weights]
        used = models if models is not None else max(rows, default=0)
        if used > len(self._born):
            for name in self._row_names & weights.keys():
                self.means[name][len(self._born) : used] = weights[name][len(self._born) : used].float()
            new = torch.full((used - len(self._born),), float(self._steps))
            self._born = torch.cat([self._born, new])
            self._rows_before = torch.cat([self._rows_before, torch.zeros(len(new))])


_STATE_FILE = "averaged_weights.npz"


class PublishedAverage:
    """The `Published` of a trainer: a running mean of its trainable weights but those of words, on every process.

    A run publishes, saves and validates the mean; training goes on from the newest weights, in the engine's own state.
    """

    def __init__(self, engine: Engine, horizon: int) -> None:
        """Start with the weights of a model that knows others, or empty: the first step's are then taken as they are.

        Raise ConfigError if `horizon` is below 1, or no process holds whole weights (ZeRO 3).
        """
        if engine.zero_stage == 3:
            raise ConfigError(
                "key 'average_steps': ZeRO 3 leaves no process with whole weights to average; "
                "use stage 0, 1 or 2, or remove the key"
            )
        self._engine = engine
        self.horizon = horizon
        self._average = AveragedWeights(horizon, engine.model.row_names)
        if engine.model.model_list:
            self._average.begin(self._averaged(), len(engine.model.model_list))

    def update(self) -> None:
        """Add the weights after a step."""
        self._average.update(self._averaged(), len(self._engine.model.model_list))

    def restart(self, row: int) -> None:
        """Begin the mean of a model's row anew, with its present weights."""
        self._average.restart(row, self._averaged())

    def weights(self) -> dict[str, Tensor]:
        """Return the whole model's weights, averaged, on the CPU of rank 0; nothing on other ranks."""
        state = self._engine.state_dict()
        means = self._average.means.items() if state else ()
        return state | {name: mean.to("cpu", state[name].dtype, copy=True) for name, mean in means}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model predict with averaged weights until the block ends."""
        newest = {name: weight.detach().clone() for name, weight in self._averaged().items()}
        try:
            self._put(self._average.means)
            yield
        finally:
            self._put(newest)

    def save(self, folder: Path) -> None:
        """Write everything that the next means depend on."""
        with (folder / _STATE_FILE).open("wb") as file:
            np.savez(file, **self._average.state_dict())

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote; CheckpointError if the file is missing, damaged, or of another horizon."""
        with saved_arrays(folder / _STATE_FILE) as state:
            self._average.load_state_dict(state)
        means = self._average.means
        means |= {name: mean.to(self._engine.device) for name, mean in means.items()}

    def _averaged(self) -> dict[str, Tensor]:
        model = self._engine.model
        # Weights with a row for each word are published as they are: the row of a rare word moves in few and large
        # steps, and a mean trails so far behind that votes on new subjects were forecast worse.
        words = model.word_names
        return {name: weight for name, weight in model.named_parameters() if weight.requires_grad and name not in words}

    def _put(self, values: dict[str, Tensor]) -> None:
        weights = self._averaged()
        with torch.no_grad():
            for name, value in values.items():
                weights[name][: len(value)].copy_(value)
