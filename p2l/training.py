"""A whole offline training run: from a configuration to a folder with a trained model.

Everything that can be wrong is looked at before the first process group starts; every rank comes to the same answers.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from p2l import backbones
from p2l.baselines import marginal_board
from p2l.compilers import has_cuda_compiler
from p2l.compiling import compile_backbone
from p2l.config import TrainConfig, load_config
from p2l.deepspeed_config import find_deepspeed_file, resolve_deepspeed, set_total_steps
from p2l.engine import Engine, choose_device, make_scheduler, peers, start_processes, world_size
from p2l.errors import ConfigError
from p2l.heads import HeadStart
from p2l.measure import check_counted
from p2l.model import P2LModel
from p2l.parameter_groups import parameter_groups
from p2l.publish import check_can_push, push
from p2l.resuming import check_same_configuration
from p2l.run_folder import TrainerState, keep_newest, new_run_folder, newest_checkpoint, read_state
from p2l.run_progress import RunProgress
from p2l.saving import check_shared, save_checkpoint, save_final
from p2l.schedule import OfflineSchedule
from p2l.tokenizer import PromptTokenizer
from p2l.trainer import Trainer
from p2l.validation import summarise, validate, write_results
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.splitting import hash_prompts
from p2l.windows import Windows

__all__ = ["RunOptions", "train"]


@dataclass(frozen=True)
class RunOptions:
    """The flags of a run, beside its configuration."""

    checkpoint: str | None = None
    push_to_hf: bool = False
    eval_steps: int | None = None
    """Validate after every so many steps and at the end; None: never."""
    save_steps: int | None = None
    """Save after every so many steps; None: only at the end."""
    quiet: bool = False
    folder: Path | None = None
    """A folder made for this run; None: a new one, named as the configuration says."""
    keep_checkpoints: int | None = None
    """The newest so many stay, earlier ones are removed; None: all stay."""


@dataclass(frozen=True)
class _Start:
    """Where the weights come from."""

    resume: Path | None
    """A checkpoint of the trainer that goes on."""
    weights: str | None
    """A model whose weights and model list are taken over."""


def train(config_path: str, options: RunOptions) -> Path:
    """Train as `config_path` says and return the run's folder (every rank runs this).

    Raises:
        InputError: configuration, votes, model or checkpoint cannot be used; the message says what to change.
    """
    config = load_config(config_path)
    if options.eval_steps is not None and config.val_data_path is None:
        raise ConfigError(f"{config_path}: key 'val_data_path' is missing; add it, or train with --no-eval")
    if config.replaced_keys:
        _note(f"warning: the 'optimizer' block replaces {', '.join(config.replaced_keys)}")
    device = choose_device(config.device)
    deepspeed_config, precision = resolve_deepspeed(
        config,
        find_deepspeed_file(config, config_path),
        world_size=world_size(),
        on_gpu=device.type == "cuda",
        gpu_has_bfloat16=device.type == "cuda" and torch.cuda.is_bf16_supported(),
        gpu_compiler=device.type == "cuda" and has_cuda_compiler(),
    )
    if options.push_to_hf:
        check_can_push(config.repo_id)
    start = _find_start(options.checkpoint)
    if start.resume is not None:
        check_same_configuration(config, start.resume)
    tokenizer, model, votes = _load_parts(config, start, getattr(torch, precision))
    validation = _open_validation(config, votes, quiet=options.quiet) if options.eval_steps is not None else None
    schedule = _schedule(config, votes)
    scheduler = None if "scheduler" in deepspeed_config else make_scheduler(config, schedule.total_steps)
    start_processes(device)
    _prepare(model, config, device)
    with peers():
        settings = set_total_steps(deepspeed_config, schedule.total_steps)
        engine = Engine(model, settings, device, scheduler, parameter_groups(model, config))
        trainer = _trainer(config, engine, tokenizer, votes, schedule)
        folder = options.folder or _run_folder(engine, config, start)
        if options.save_steps:
            check_shared(engine, folder)
        _loop(config, options, trainer, folder, start, validation)
        _finish(config, options, trainer, folder, validation)
    return folder


def _find_start(checkpoint: str | None) -> _Start:
    if checkpoint is None:
        return _Start(None, None)
    resume = newest_checkpoint(Path(checkpoint).expanduser())
    return _Start(resume, None) if resume else _Start(None, checkpoint)


def _load_parts(config: TrainConfig, start: _Start, dtype: torch.dtype) -> tuple[PromptTokenizer, P2LModel, VoteStore]:
    weights = str(start.resume) if start.resume else start.weights
    tokenizer = PromptTokenizer.from_pretrained(
        weights or config.pretrain_model_name,
        chat_template=config.chat_template,
        max_length=config.max_length,
        # A trained model has no rows for tokens that are new.
        cls_token_if_none=None if weights else config.cls_token_if_none,
        pad_token_if_none=None if weights else config.pad_token_if_none,
    )
    kinds = {"model_type": config.model_type, "head_type": config.head_type}
    if weights:
        kept_loss = config.loss_type if start.resume else None
        model = P2LModel.from_pretrained(weights, **kinds, loss_type=kept_loss, dtype=dtype)
        model.retrain(loss_type=config.loss_type, max_length=tokenizer.max_length)
        if "pooling" in config.model_fields_set and config.pooling != model.record.pooling:
            raise ConfigError(f"{weights}: was trained with pooling {model.record.pooling!r}; remove that key")
        return tokenizer, model, _open_train(config, model.model_list)
    votes = _open_train(config, None)
    model = P2LModel.create(
        config.pretrain_model_name,
        **kinds,
        loss_type=config.loss_type,
        model_list=votes.model_list,
        tokenizer=tokenizer,
        init_type=config.init_type,
        head_start=_head_start(votes, config) if config.init_type == "marginal" else None,
        linear_head_downsize_factor=config.linear_head_downsize_factor,
        head_config=config.head_config,
        pooling=config.pooling,
        dtype=dtype,
        seed=config.seed,
    )
    return tokenizer, model, votes


def _head_start(votes: VoteStore, config: TrainConfig) -> HeadStart:
    """The same on every process, as all count the same votes."""
    board = marginal_board(votes, config.loss_type, weighted=config.weighted_loss)
    return HeadStart(board.coefs, board.eta, board.gamma)


def _open_train(config: TrainConfig, model_list: list[str] | None) -> VoteStore:
    votes = open_votes_together(
        config.train_data_path, model_list=model_list, from_disk=config.load_train_data_from_disk
    )
    if config.weighted_loss and not votes.has_weights:
        raise ConfigError(f"{config.train_data_path}: weighted_loss needs a column 'weight'; add it or switch it off")
    if votes.is_time_sorted and not config.shuffle:
        _note(
            "warning: votes are sorted by time and used in that order; this is how a model forgets its oldest votes "
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
        _note("warning: validation votes are the training votes; see p2l votes split")
    if validation.dropped and not quiet:
        _note(f"{config.val_data_path}: dropped {validation.dropped} votes on models not trained on")
    check_counted(validation, config.loss_type)
    return validation


def _schedule(config: TrainConfig, votes: VoteStore) -> OfflineSchedule:
    return OfflineSchedule(
        num_votes=len(votes),
        global_batch=config.batch_size * config.gradient_accumulation_steps * world_size(),
        epochs=config.num_train_epochs,
        shuffle=bool(config.shuffle),
        seed=config.seed,
        prompts=np.unique(hash_prompts(votes), return_inverse=True)[1] if config.shuffle == "by_prompt" else None,
    )


def _prepare(model: P2LModel, config: TrainConfig, device: torch.device) -> None:
    if config.train_head_only:
        model.freeze_transformer()
    wanted = config.gradient_checkpointing
    if wanted or (wanted is None and device.type == "cuda"):
        model.gradient_checkpointing_enable()
    if config.compile:
        compile_backbone(model.model, device)
    model.train()


def _trainer(
    config: TrainConfig, engine: Engine, tokenizer: PromptTokenizer, votes: VoteStore, schedule: OfflineSchedule
) -> Trainer:
    return Trainer(
        engine=engine,
        windows=_windows(config, engine, tokenizer, votes),
        schedule=schedule,
        likelihood=engine.model.likelihood,
        weighted=config.weighted_loss,
        reweight_scale=config.reweight_scale,
        seed=config.seed,
    )


def _windows(config: TrainConfig, engine: Engine, tokenizer: PromptTokenizer, votes: VoteStore) -> Windows:
    backbone = backbones.get(config.model_type)
    padded_size = config.batch_size * config.max_length
    usual = min(padded_size, backbone.cpu_micro_batch or padded_size) if engine.device.type == "cpu" else padded_size
    return Windows(
        tokenizer=tokenizer,
        votes=votes,
        packed=config.packing and backbone.packs,
        max_tokens=config.micro_batch_tokens or usual,
        rank=engine.rank,
        world_size=engine.world_size,
    )


def _run_folder(engine: Engine, config: TrainConfig, start: _Start) -> Path:
    if start.resume is not None:
        return start.resume.parent
    folder = new_run_folder(config.output_dir, config.run_name) if engine.is_main else None
    return Path(engine.broadcast(folder))


def _state(trainer: Trainer, config: TrainConfig, step: int) -> TrainerState:
    return TrainerState(
        step=step,
        num_votes=len(trainer.votes),
        votes=trainer.votes.fingerprint,
        global_batch=config.batch_size * config.gradient_accumulation_steps * trainer.engine.world_size,
        zero_stage=trainer.engine.zero_stage,
        precision=trainer.engine.precision,
        update_rule=trainer.engine.update_rule,
        world_size=trainer.engine.world_size,
        shuffle=config.shuffle,
        seed=config.seed,
    )


def _loop(
    config: TrainConfig,
    options: RunOptions,
    trainer: Trainer,
    folder: Path,
    start: _Start,
    validation: VoteStore | None,
) -> None:
    first = _resume(trainer, config, start.resume, quiet=options.quiet) if start.resume else 0
    total = trainer.schedule.total_steps
    shown = RunProgress.start(
        config,
        folder,
        total=total,
        first=first,
        num_votes=len(trainer.votes) * config.num_train_epochs,
        quiet=options.quiet,
        is_main=trainer.engine.is_main,
    )
    before = time.monotonic()
    for result in trainer.steps(first):
        shown.step(result, time.monotonic() - before)
        done = result.step
        if options.save_steps and done % options.save_steps == 0:
            save_checkpoint(trainer, config, folder / f"checkpoint-{done}", _state(trainer, config, done))
            if options.keep_checkpoints and trainer.engine.is_main:
                keep_newest(folder, options.keep_checkpoints)
        if validation is not None and options.eval_steps and done % options.eval_steps == 0 and done < total:
            predictions = validate(trainer.engine, replace(trainer.windows, votes=validation))
            if predictions is not None:
                shown.evaluation(done, summarise(predictions, validation, trainer.likelihood))
        before = time.monotonic()
    shown.close()


def _resume(trainer: Trainer, config: TrainConfig, checkpoint: Path, *, quiet: bool) -> int:
    state = read_state(checkpoint)
    state.check_continues(_state(trainer, config, state.step), checkpoint)
    trainer.engine.load(checkpoint)
    if not quiet:
        _note(f"resuming from {checkpoint} after step {state.step}")
    return state.step


def _note(text: str) -> None:
    """Say something once, however many processes run."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)


def _finish(
    config: TrainConfig, options: RunOptions, trainer: Trainer, folder: Path, validation: VoteStore | None
) -> None:
    save_final(trainer, config, folder)
    if validation is not None:
        predictions = validate(trainer.engine, replace(trainer.windows, votes=validation))
        if predictions is not None:
            write_results(folder, predictions, validation, trainer.likelihood)
    if trainer.engine.is_main:
        print(f"trained model: {folder}")
        if options.push_to_hf:
            push(folder, config.repo_id)
    trainer.engine.barrier()
