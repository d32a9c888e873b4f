"""Offline training: from a configuration to a folder with a trained model.

All input is checked before the process group starts, and every rank reaches the same conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import HeadStart
from p2l.model.model import P2LModel
from p2l.training import loop
from p2l.training.config import TrainConfig, load_config
from p2l.training.data import OfflineSchedule
from p2l.training.engine import peers
from p2l.training.facts import check_counted, marginal_board
from p2l.training.loop import RunOptions, Start
from p2l.training.run_folder import check_same_configuration, check_shared
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.splitting import hash_prompts


@dataclass
class _OfflineRun(loop.Run):
    votes: VoteStore

    def votes_at(self, _step: int) -> tuple[int, str]:
        return len(self.votes), self.votes.fingerprint


def train(config_path: str, options: RunOptions) -> Path:
    """Train as `config_path` says and return the run's folder (every rank runs this); InputError for unusable input."""
    config = load_config(config_path)
    loop.check_options(config, config_path, options)
    hardware = loop.find_hardware(config, config_path)
    start = loop.find_start(options.checkpoint)
    if start.resume is not None:
        check_same_configuration(config, start.resume)
    tokenizer, model, votes = _load_parts(config, start, hardware.dtype)
    validation = _open_validation(config, votes, quiet=options.quiet) if options.eval_steps is not None else None
    schedule = OfflineSchedule(
        num_votes=len(votes),
        global_batch=loop.global_batch(config),
        epochs=config.num_train_epochs,
        shuffle=bool(config.shuffle),
        seed=config.seed,
        prompts=np.unique(hash_prompts(votes), return_inverse=True)[1] if config.shuffle == "by_prompt" else None,
    )
    trainer = loop.start_trainer(config, hardware, model, tokenizer, votes, schedule)
    with peers():
        folder = loop.run_folder(trainer.engine, config, options, start)
        if options.save_steps:
            check_shared(trainer.engine, folder)
        run = _OfflineRun(config, options, trainer, folder, validation, votes)
        run.train(run.resume(start.resume), len(votes) * config.num_train_epochs)
        run.finish()
    return folder


def _load_parts(config: TrainConfig, start: Start, dtype: torch.dtype) -> tuple[PromptTokenizer, P2LModel, VoteStore]:
    tokenizer = loop.make_tokenizer(config, start)
    if start.model:
        model = loop.trained_model(config, start, tokenizer, dtype)
        return tokenizer, model, _open_train(config, model.model_list)
    votes = _open_train(config, None)
    head_start = None
    if config.init_type == "marginal":  # the same on every process, because all count the same votes
        board = marginal_board(votes, config.loss_type, weighted=config.weighted_loss)
        head_start = HeadStart(board.coefs, board.eta, board.gamma)
    return tokenizer, loop.make_model(config, tokenizer, dtype, votes.model_list, head_start=head_start), votes


def _open_train(config: TrainConfig, model_list: list[str] | None) -> VoteStore:
    votes = loop.open_train_votes(config, model_list)
    if votes.is_time_sorted and not config.shuffle:
        loop.note(
            "warning: votes are sorted by time and used in that order; a model forgets its oldest votes this way "
            "(set 'shuffle: true', or train online)"
        )
    check_counted(votes, config.loss_type, weighted=config.weighted_loss)
    return votes


def _open_validation(config: TrainConfig, votes: VoteStore, *, quiet: bool) -> VoteStore:
    assert config.val_data_path is not None
    validation = open_votes_together(
        config.val_data_path,
        model_list=votes.model_list,
        drop_unknown=config.drop_unknown_models,
        from_disk=config.load_val_data_from_disk,
    )
    if config.val_data_path == config.train_data_path:
        loop.note("warning: validation votes are the training votes; see p2l votes split")
    if validation.dropped and not quiet:
        loop.note(f"{config.val_data_path}: dropped {validation.dropped} votes on models not trained on")
    check_counted(validation, config.loss_type)
    return validation
