"""What a training run writes: checkpoints that training can go on from, and the finished model."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from p2l.command import sync_path, sync_tree
from p2l.config import TrainConfig
from p2l.engine import Engine, peers
from p2l.errors import ConfigError
from p2l.run_folder import TrainerState, finish_checkpoint, unfinished_name, whole_or_absent
from p2l.trainer import Trainer

__all__ = ["check_shared", "save_checkpoint", "save_final", "write_model"]

_PATIENCE = 20.0  # seconds, more than network file systems take to show what another node has made


def check_shared(engine: Engine, folder: Path) -> None:
    """See to it that every process can write below rank 0's `folder` (every rank must call this).

    Raises:
        ConfigError: on another node there is no such folder; checkpoints would lack that node's part.
    """
    blind = None if _appears(folder) else socket.gethostname()
    hosts = engine.broadcast([host for host in engine.gather(blind) or [] if host])
    if hosts:
        raise ConfigError(
            f"{folder}: is not there on node {hosts[0]}; key 'output_dir' must name a folder that all nodes share"
        )


def _appears(folder: Path) -> bool:
    end = time.monotonic() + _PATIENCE
    while not folder.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def save_checkpoint(
    trainer: Trainer,
    config: TrainConfig,
    target: Path,
    state: TrainerState,
    more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write `target`: the model as a Hugging Face folder, and the training state (every rank must call this).

    On the main process `more` writes further files into the folder that becomes it.

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
        weights = trainer.published_weights()
        if engine.is_main:
            _write_model(trainer, config, unfinished, weights)
            more(unfinished)
            finish_checkpoint(target, state)
        engine.barrier()


def save_final(trainer: Trainer, config: TrainConfig, folder: Path) -> None:
    """Write the trained model into the run's folder itself (every rank must call this).

    Raises:
        InputError: it cannot be written; checkpoints are whole.
    """
    weights = trainer.published_weights()
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


def write_model(trainer: Trainer, config: TrainConfig, target: Path) -> None:
    """Write the model as it is now into a new folder, whole or not at all (every rank must call this).

    Raises:
        InputError: it cannot be written.
    """
    weights = trainer.published_weights()
    if trainer.engine.is_main:
        with whole_or_absent(target):
            unfinished = unfinished_name(target)
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            _write_model(trainer, config, unfinished, weights)
            sync_tree(unfinished)
            unfinished.rename(target)
            sync_path(target.parent)
    trainer.engine.barrier()


def _write_model(trainer: Trainer, config: TrainConfig, folder: Path, weights: dict[str, Tensor]) -> None:
    trainer.engine.model.save_pretrained(folder, state_dict=weights)
    trainer.windows.tokenizer.save_pretrained(folder)
    (folder / "training_config.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
