"""Offline training: from a configuration to a folder with a trained model.

All input is checked before the process group starts, and every rank reaches the same conclusions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from p2l.common.errors import ConfigError
from p2l.model.checkpoint import check_can_push
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import HeadStart
from p2l.model.model import P2LModel
from p2l.training import loop
from p2l.training.config import TrainConfig, load_config
from p2l.training.data import OfflineSchedule
from p2l.training.deepspeed_config import set_total_steps
from p2l.training.engine import Engine, make_scheduler, parameter_groups, peers, start_processes
from p2l.training.facts import check_counted, marginal_board
from p2l.training.loop import Hooks, RunOptions, Start
from p2l.training.run_folder import check_same_configuration, check_shared
from p2l.training.trainer import Trainer
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.splitting import hash_prompts


def train(config_path: str, options: RunOptions) -> Path:
    """Train as `config_path` says and return the run's folder (every rank runs this); InputError for unusable input."""
    config = load_config(config_path)
    if options.eval_steps is not None and config.val_data_path is None:
        raise ConfigError(f"{config_path}: key 'val_data_path' is missing; add it, or train with --no-eval")
    if config.replaced_keys:
        loop.note(f"warning: the 'optimizer' block replaces {', '.join(config.replaced_keys)}")
    hardware = loop.find_hardware(config, config_path)
    if options.push_to_hf:
        check_can_push(config.repo_id)
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
    scheduler = None if "scheduler" in hardware.deepspeed else make_scheduler(config, schedule.total_steps)
    start_processes(hardware.device)
    loop.prepare(model, config, hardware.device)
    with peers():
        settings = set_total_steps(hardware.deepspeed, schedule.total_steps)
        engine = Engine(model, settings, hardware.device, scheduler, parameter_groups(model, config))
        trainer = Trainer.of(config, engine, loop.make_windows(config, engine, tokenizer, votes), schedule)
        folder = options.folder or loop.run_folder(engine, config, start)
        if options.save_steps:
            check_shared(engine, folder)
        hooks = Hooks(
            state=lambda step: loop.trainer_state(trainer, config, step, len(votes), votes.fingerprint),
            validation=lambda: validation,
        )
        first = loop.resume_run(trainer, hooks, start.resume, quiet=options.quiet) if start.resume else 0
        seen = len(votes) * config.num_train_epochs
        loop.run_loop(config, options, trainer, folder, hooks, first=first, num_votes=seen)
        loop.finish_run(config, options, trainer, folder, validation)
    return folder


def _load_parts(config: TrainConfig, start: Start, dtype: torch.dtype) -> tuple[PromptTokenizer, P2LModel, VoteStore]:
    tokenizer = loop.make_tokenizer(config, start)
    if start.model:
        model = loop.trained_model(config, start, tokenizer, dtype)
        return tokenizer, model, _open_train(config, model.model_list)
    votes = _open_train(config, None)
    head_start = _head_start(votes, config) if config.init_type == "marginal" else None
    return tokenizer, loop.make_model(config, tokenizer, dtype, votes.model_list, head_start=head_start), votes


def _head_start(votes: VoteStore, config: TrainConfig) -> HeadStart:
    """Fit the leaderboard that the head starts from; the same on every process, because all count the same votes."""
    board = marginal_board(votes, config.loss_type, weighted=config.weighted_loss)
    return HeadStart(board.coefs, board.eta, board.gamma)


def _open_train(config: TrainConfig, model_list: list[str] | None) -> VoteStore:
    votes = open_votes_together(
        config.train_data_path, model_list=model_list, from_disk=config.load_train_data_from_disk
    )
    if config.weighted_loss and not votes.has_weights:
        raise ConfigError(f"{config.train_data_path}: weighted_loss needs a column 'weight'; add it or switch it off")
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
