"""New models: their rows in the head, and a larger head when the rows run out.

The head holds more rows than there are models. A spare row is zero and stays zero: no vote gives it a gradient, and
decay of zero is zero. When a model's first vote arrives its row is set; from then on it trains like any other.

When the rows run out, weights and optimizer state are written out uncut, a model with twice the rows is built, and the
engine starts again with it. Nothing else changes, so a run that had to grow ends where one with more room does.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from p2l.engine import Engine
from p2l.heads import last_layer, new_rows
from p2l.model import P2LModel
from p2l.online_training.config import OnlineConfig
from p2l.parameter_groups import parameter_groups
from p2l.run_folder import whole_or_absent
from p2l.run_setup import prepare
from p2l.trainer import Trainer

__all__ = ["Growth", "room_for"]


def room_for(models: int, capacity: int) -> int:
    """Rows for so many models: `capacity`, doubled as often as needed."""
    while capacity < models:
        capacity *= 2
    return capacity


@dataclass(frozen=True)
class Growth:
    """Keeps the model list of a run in step with its stream."""

    config: OnlineConfig
    trainer: Trainer
    folder: Path
    """The run's folder, which all processes share."""

    def clear(self) -> None:
        """Remove what a kill in the middle of growing left behind."""
        if self.trainer.engine.is_main:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return self.folder / ".growing"

    def meet(self, names: list[str]) -> None:
        """See to it that these are the models of the head (every rank must call this)."""
        engine = self.trainer.engine
        if len(names) <= len(engine.model.model_list):
            return
        if len(names) > engine.model.num_rows:
            self._grow(room_for(len(names), engine.model.num_rows))
        _welcome(engine, names, self.config)

    def _grow(self, rows: int) -> None:
        engine, folder = self.trainer.engine, self._folder
        with whole_or_absent(folder, clean=False):
            if engine.is_main:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            engine.barrier()
            model = _copied(engine, folder)
            model.widen(rows)
            prepare(model, self.config, engine.device)
            blank = self.trainer.windows.filler().batch
            engine.rebuild(model, parameter_groups(model, self.config), folder, blank)
            engine.barrier()
        self.clear()


def _copied(engine: Engine, folder: Path) -> P2LModel:
    """The engine's model once more, without spare rows, through a folder that holds the state of training too."""
    names, precision = list(engine.model.model_list), engine.precision
    engine.save_whole(folder)
    weights = engine.state_dict()
    if engine.is_main:
        # A model folder needs a name; before the first vote this is a spare row.
        engine.model.model_list = names or ["-"]
        engine.model.save_pretrained(folder / "model", weights)
        engine.model.model_list = names
    engine.barrier()
    model = P2LModel.from_pretrained(folder / "model", dtype=precision)
    model.model_list = names
    return model


def _welcome(engine: Engine, names: list[str], config: OnlineConfig) -> None:
    """Set the rows of the models that the list lacks, and add their names."""
    model = engine.model
    first, last = len(model.model_list), len(names)

    def mean(values: Tensor) -> None:
        values[first:last] = values[:first].mean(dim=0)

    if first and config.new_models == "mean":
        for name in model.row_names:
            engine.edit(name, mean)
    else:
        for name, rows in zip(model.row_names, _drawn_rows(model, first, last, config), strict=True):
            engine.edit(name, lambda values, rows=rows: values[first:last].copy_(rows))  # type: ignore[misc]
    model.model_list = list(names)


def _drawn_rows(model: P2LModel, first: int, last: int, config: OnlineConfig) -> tuple[Tensor, Tensor]:
    """Rows at random, the same whenever and with whatever room they are drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence([config.seed, first]).generate_state(1)[0]))
        return new_rows(last_layer(model.head).in_features, last - first, config.init_type)
