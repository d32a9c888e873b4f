"""What a training run writes: checkpoints that training can go on from, and the finished model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torch import Tensor

from p2l.command import sync_path, sync_tree
from p2l.config import TrainConfig
from p2l.engine import peers
from p2l.run_folder import TrainerState, finish_checkpoint, unfinished_name, whole_or_absent
from p2l.trainer import Trainer

__all__ = ["save_checkpoint", "save_final"]


def save_checkpoint(trainer: Trainer, config: TrainConfig, target: Path, state: TrainerState) -> None:
    """Write `target`: the model as a Hugging Face folder, and the training state (every rank must call this).

    Raises:
        InputError: it cannot be written, because the disk is full, say; earlier checkpoints are whole.
    """
    engine, unfinished = trainer.engine, unfinished_name(target)
    # Only one process removes what is unfinished, or the others would stumble over its absence and say so.
    with whole_or_absent(target, clean=engine.is_main), peers():
        if engine.is_main:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
        engine.barrier()
        engine.save(unfinished)
        weights = engine.state_dict()
        if engine.is_main:
            _write_model(trainer, config, unfinished, weights)
            finish_checkpoint(target, state)
        engine.barrier()


def save_final(trainer: Trainer, config: TrainConfig, folder: Path) -> None:
    """Write the trained model into the run's folder itself (every rank must call this).

    Raises:
        InputError: it cannot be written; checkpoints are whole.
    """
    weights = trainer.engine.state_dict()
    if trainer.engine.is_main:
        target = folder / "model"
        with whole_or_absent(target):
            unfinished = unfinished_name(target)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _write_model(trainer, config, unfinished, weights)
            sync_tree(unfinished)
            # Without its config.json a folder is no model: a kill in between leaves none, rather than half of one.
            for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "config.json"):
                os.replace(file, folder / file.name)
            unfinished.rmdir()
            sync_path(folder)
    trainer.engine.barrier()


def _write_model(trainer: Trainer, config: TrainConfig, folder: Path, weights: dict[str, Tensor]) -> None:
    trainer.engine.model.save_pretrained(folder, state_dict=weights)
    trainer.windows.tokenizer.save_pretrained(folder)
    (folder / "training_config.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
