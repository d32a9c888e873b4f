"""A run, offline or online: its set-up, its steps with what happens between them, and its finished model."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from p2l.common.errors import CheckpointError, ConfigError, P2LError
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.pair_tables import check_number_of_models
from p2l.model import backbones, heads
from p2l.model.checkpoint import check_can_push, push
from p2l.model.covariates import CovariateEffects
from p2l.model.encoding import PromptTokenizer
from p2l.model.model import P2LModel, to_dtype
from p2l.model.posterior import Posterior
from p2l.model.reader import keep_states
from p2l.model.tokenizer import load_tokenizer
from p2l.people.runs import VoteAdjuster, people_rows
from p2l.training import covariates as nuisance
from p2l.training.deepspeed_config import (
    compile_backbone,
    find_deepspeed_file,
    has_cuda_compiler,
    make_scheduler,
    parameter_groups,
    resolve_deepspeed,
    set_total_steps,
)
from p2l.training.engine import Engine, choose_device, local_size, peers, start_processes, world_size
from p2l.training.forecasts import Forecast, Votes
from p2l.training.run_folder import (
    TrainerState,
    check_same_configuration,
    keep_newest,
    new_run_folder,
    newest_checkpoint,
    read_state,
    save_checkpoint,
    summarise,
    write_model,
    write_results,
)
from p2l.training.train_config import TrainConfig
from p2l.training.trainer import Schedule, StepReport, StepResult, Trainer, Windows
from p2l.votes import VoteStore, open_votes_together

_SMALL_MODEL_WEIGHTS = 1_000_000
"""Dense weights of a model that one thread trains: those of the sizes reader and tiny, and of a bag of words."""


@dataclass(frozen=True)
class RunOptions:
    """The command-line options of a run, beside its configuration."""

    checkpoint: str | None = None
    push_to_hf: bool = False
    eval_steps: int | None = None
    """Steps between validations, besides the one at the end; None: never."""
    save_steps: int | None = None
    """Steps between checkpoints; None: none are written."""
    quiet: bool = False
    folder: Path | None = None
    """A folder made for this run; None: a new one with the configuration's run name."""
    silent: bool = False
    """Print no results."""
    keep_checkpoints: int | None = None
    """Number of newest checkpoints to keep; None: all."""


def note(text: str) -> None:
    """Print a line to stderr, on the first process alone."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)


# Set-up: all input is checked before the process group starts, and every rank reaches the same conclusions.


@dataclass(frozen=True)
class Start:
    """The source of the weights that training starts from."""

    resume: Path | None
    """The trainer checkpoint to resume from."""
    weights: str | None
    """A trained model that provides weights and model list."""

    @classmethod
    def of(cls, checkpoint: str | None) -> Start:
        """Decide whether `--checkpoint` names a run to resume, or plain weights; CheckpointError if it is neither."""
        if checkpoint is None:
            return cls(None, None)
        folder = Path(checkpoint).expanduser()
        resume = newest_checkpoint(folder)
        if resume is None and folder.is_dir() and not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{checkpoint}: holds no checkpoint and no model; restart a run that was stopped before its first "
                "checkpoint without --checkpoint"
            )
        return cls(resume, None if resume else checkpoint)

    @property
    def model(self) -> str | None:
        """The folder or hub id of the trained model; None: the backbone gets a new head."""
        return str(self.resume) if self.resume else self.weights


def open_train_votes(config: TrainConfig, model_list: list[str] | None = None, *, spread: bool = False) -> VoteStore:
    """Open the votes to train on, with `spread` a part of a lake on each node; InputError if they cannot be used."""
    votes = open_votes_together(
        config.train_data_path, model_list=model_list, from_disk=config.load_train_data_from_disk, spread=spread
    )
    check_number_of_models(len(votes.model_list), config.train_data_path)
    if config.weighted_loss and not votes.has_weights:
        raise ConfigError(f"{config.train_data_path}: weighted_loss needs a column 'weight'; add it or switch it off")
    return votes


def choose_threads(model: torch.nn.Module) -> None:
    """Train a small model on a CPU with one thread, unless OMP_NUM_THREADS says otherwise."""
    several = backbones.all_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        # Embeddings are looked up, so that only other weights are multiplied with each token.
        dense_weights = sum(
            weights.numel()
            for name, weights in model.named_parameters()
            if weights.requires_grad and "embed" not in name
        )
        # Its operations are so short that threads wait for one another more than they compute, and they wait by
        # spinning: beside other work a step with two threads took ten times as long as with one.
        torch.set_num_threads(1 if dense_weights < _SMALL_MODEL_WEIGHTS else several)


@dataclass(frozen=True)
class Setup:
    """The checked input of a run beside its votes; makes models and trainers."""

    config: TrainConfig
    options: RunOptions
    start: Start
    device: torch.device
    deepspeed: dict[str, Any]
    dtype: torch.dtype
    tokenizer: PromptTokenizer

    @classmethod
    def of(cls, config: TrainConfig, config_path: str, options: RunOptions, start: Start) -> Setup:
        """Check configuration, options and checkpoint; ConfigError, InputError or CheckpointError for unusable ones."""
        if options.eval_steps is not None and config.val_data_path is None and not config.cross_fit:
            raise ConfigError(f"{config_path}: key 'val_data_path' is missing; add it, or train with --no-eval")
        if config.replaced_keys:
            note(f"warning: the 'optimizer' block replaces {', '.join(config.replaced_keys)}")
        if options.push_to_hf:
            check_can_push(config.repo_id)
        device = choose_device(config.device)
        on_gpu = device.type == "cuda"
        deepspeed, precision = resolve_deepspeed(
            config,
            find_deepspeed_file(config, config_path),
            world_size=world_size(),
            on_gpu=on_gpu,
            gpu_has_bfloat16=on_gpu and torch.cuda.is_bf16_supported(),
            gpu_compiler=on_gpu and has_cuda_compiler(),
        )
        if start.resume is not None:
            check_same_configuration(config, start.resume)
        tokenizer = starting_tokenizer(config, start)
        return cls(config, options, start, device, deepspeed, to_dtype(precision), tokenizer)

    def trained_model(self) -> P2LModel | None:
        """Load the model that training starts from; None where the head is new."""
        return None if self.start.model is None else load_trained(self.config, self.start, self.tokenizer, self.dtype)

    def new_model(
        self, model_list: list[str], head_start: heads.HeadStart | None = None, linear_head_width: int | None = None
    ) -> P2LModel:
        """Load the configuration's backbone and give it a new head."""
        config = self.config
        return P2LModel.create(
            config.pretrain_model_name,
            model_type=config.model_type,
            head_type=config.head_type,
            loss_type=config.loss_type,
            model_list=model_list,
            tokenizer=self.tokenizer,
            init_type=config.init_type,
            head_start=head_start,
            linear_head_downsize_factor=config.linear_head_downsize_factor,
            linear_head_width=linear_head_width,
            head_config=config.head_config,
            pooling=config.pooling,
            dtype=self.dtype,
            seed=config.seed,
        )

    @property
    def global_batch(self) -> int:
        """Votes of one optimizer step over all processes: of a run to resume, over those that it began with."""
        processes = world_size()
        if self.start.resume is not None:
            processes = read_state(self.start.resume).processes or processes
        return votes_per_step(self.config, processes)

    def start_trainer(
        self,
        model: P2LModel,
        votes: Votes,
        schedule: Schedule,
        *,
        tokenizer: PromptTokenizer | None = None,
        ahead: bool = True,
        covariates: nuisance.Values | None = None,
        adjustments: VoteAdjuster | None = None,
    ) -> Trainer:
        """Join the process group and start DeepSpeed with a model; `tokenizer` is of one that replaces the first."""
        config = self.config
        total_steps = schedule.total_steps
        scheduler = None if "scheduler" in self.deepspeed else make_scheduler(config, total_steps)
        settings = set_total_steps(self.deepspeed, total_steps)
        start_processes(self.device)
        ready_for_training(model, config, self.device)
        with peers():
            engine = Engine(model, settings, self.device, scheduler, parameter_groups(model, config))
        backbone = backbones.get(config.model_type)
        max_tokens = config.batch_size * config.max_length
        if engine.device.type == "cpu":
            max_tokens = min(max_tokens, backbone.cpu_micro_batch or max_tokens)
        windows = Windows(
            tokenizer=tokenizer or self.tokenizer,
            votes=votes,
            packed=config.packing and backbone.packs,
            max_tokens=config.micro_batch_tokens or max_tokens,
            rank=engine.rank,
            world_size=engine.world_size,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_size=local_size(),
            ahead=ahead,
            covariates=covariates,
        )
        return Trainer(
            engine=engine,
            windows=windows,
            schedule=schedule,
            likelihood=engine.model.likelihood,
            weighted=config.weighted_loss,
            reweight_scale=config.reweight_scale,
            seed=config.seed,
            adjustments=adjustments,
        )

    def run_folder(self, engine: Engine) -> Path:
        """Return the folder of the options or the resumed run, or make a new one (every rank must call this)."""
        if self.options.folder is not None:
            return self.options.folder
        if self.start.resume is not None:
            return self.start.resume.parent
        folder = new_run_folder(self.config.output_dir, self.config.run_name) if engine.is_main else None
        return Path(engine.broadcast(folder))


def votes_per_step(config: TrainConfig, processes: int) -> int:
    """Return the votes of one optimizer step over this many processes."""
    return config.batch_size * config.gradient_accumulation_steps * processes


def starting_tokenizer(config: TrainConfig, start: Start) -> PromptTokenizer:
    """Load the tokenizer of the model that training starts from."""
    return load_tokenizer(
        start.model or config.pretrain_model_name,
        chat_template=config.chat_template,
        max_length=config.max_length,
        # A trained model has no rows for tokens that are new.
        cls_token_if_none=None if start.model else config.cls_token_if_none,
        pad_token_if_none=None if start.model else config.pad_token_if_none,
    )


def load_trained(config: TrainConfig, start: Start, tokenizer: PromptTokenizer, dtype: torch.dtype) -> P2LModel:
    """Load the trained model that `start` names; InputError if it is incomplete or contradicts the configuration."""
    assert start.model is not None
    model = P2LModel.from_pretrained(
        start.model,
        model_type=config.model_type,
        head_type=config.head_type,
        loss_type=config.loss_type if start.resume else None,
        dtype=dtype,
    )
    tokenizer.limit(model.num_embeddings, start.model)
    model.retrain(loss_type=config.loss_type, max_length=tokenizer.max_length)
    if "pooling" in config.model_fields_set and config.pooling != model.record.pooling:
        raise ConfigError(f"{start.model}: was trained with pooling {model.record.pooling!r}; remove that key")
    return model


def ready_for_training(model: P2LModel, config: TrainConfig, device: torch.device) -> None:
    """Apply the configuration's freezing, gradient checkpointing and compilation, and switch to training mode."""
    if config.train_head_only:
        model.model.requires_grad_(False)
    if config.shared_level:
        heads.share_level(model.head)
    keep_states(model.model)
    recompute = config.gradient_checkpointing
    if recompute or (recompute is None and device.type == "cuda"):
        model.gradient_checkpointing_enable()
    if config.compile:
        compile_backbone(model.model, device)
    model.train()
    if device.type == "cpu":
        choose_threads(model)


# The steps, and the finished model.


@dataclass
class Run(ABC):
    """A run and what happens around its steps, which the number of steps done identifies (every rank calls all)."""

    setup: Setup
    trainer: Trainer
    folder: Path
    validation: VoteStore | None
    """None: the run does not validate."""
    is_stream: ClassVar[bool] = False
    """Whether votes come in time, so that the newest ones count."""

    @property
    def config(self) -> TrainConfig:
        """The configuration of the run."""
        return self.setup.config

    @property
    def options(self) -> RunOptions:
        """The command-line options of the run."""
        return self.setup.options

    @abstractmethod
    def votes_at(self, step: int) -> tuple[int, str]:
        """Return number and fingerprint of the votes that the run had at a step."""

    def votes_to_validate(self) -> VoteStore | None:
        """Return the votes to validate on now; None: none."""
        return self.validation

    def write_files(self, step: int, folder: Path) -> None:  # noqa: B027 - a run may have no more
        """Write further files into the folder of a checkpoint (on the main process alone)."""

    def step_columns(self, _result: StepResult) -> Mapping[str, float]:
        """Return further columns of a step for `metrics.jsonl`."""
        return {}

    def look(self, _step: int) -> Mapping[str, float]:
        """Look at the model after a step, and return the columns of a further line of `metrics.jsonl`."""
        return {}

    def after_step(self, result: StepResult) -> None:  # noqa: B027 - offline runs do nothing
        """Act after a step and its checkpoint."""

    def state(self, step: int) -> TrainerState:
        """Return the record of a checkpoint, most of which must stay the same for the run to be resumed."""
        num_votes, fingerprint = self.votes_at(step)
        engine = self.trainer.engine
        return TrainerState(
            step=step,
            num_votes=num_votes,
            votes=fingerprint,
            global_batch=votes_per_step(self.config, world_size()),
            zero_stage=engine.zero_stage,
            precision=engine.precision,
            update_rule=engine.update_rule,
            world_size=engine.world_size,
            shuffle=self.config.shuffle,
            seed=self.config.seed,
        )

    def resume(self) -> int:
        """Restore the checkpoint that the run resumes from, and return its step, else 0; CheckpointError if unfit."""
        checkpoint = self.setup.start.resume
        if checkpoint is None:
            return 0
        state = read_state(checkpoint)
        state.check_continues(self.state(state.step), checkpoint)
        self.trainer.engine.load(checkpoint)
        if not self.options.quiet:
            note(f"resuming from {checkpoint} after step {state.step}")
        return state.step

    def take_steps(self, first: int, num_votes: int | None) -> int:
        """Train from step `first` on, return the steps done; `num_votes` counts the whole run, None if unknown."""
        options, total, done = self.options, self.trainer.schedule.total_steps, first
        report = StepReport(
            self.config,
            self.folder,
            total=total,
            first=first,
            num_votes=num_votes,
            quiet=options.quiet,
            is_main=self.trainer.engine.is_main,
        )
        before = time.monotonic()
        for result in self.trainer.steps(first):
            report.step(result, time.monotonic() - before, self.step_columns(result))
            done = result.step
            # Before the checkpoint, which holds the best step.
            if columns := self.look(done):
                report.columns(done, columns)
            if options.save_steps and done % options.save_steps == 0:
                self.save_checkpoint(done)
            if options.eval_steps and done % options.eval_steps == 0 and done != total:
                validation = self.votes_to_validate()
                if validation is not None and (forecast := self._forecast_as_cast(validation)):
                    report.evaluation(done, summarise(forecast, validation, self.trainer.likelihood))
            self.after_step(result)
            before = time.monotonic()
        report.close()
        return done

    def save_checkpoint(self, step: int) -> None:
        """Write `checkpoint-<step>` and remove surplus older ones."""
        target = self.folder / f"checkpoint-{step}"
        save_checkpoint(self.trainer, self.config, target, self.state(step), partial(self.write_files, step))
        if self.options.keep_checkpoints and self.trainer.engine.is_main:
            keep_newest(self.folder, self.options.keep_checkpoints)

    def published_forecast(self, votes: Votes, covariates: nuisance.Values | None = None) -> Forecast | None:
        """Predict votes with the weights that folders hold, on rank 0; None on the others."""
        published = self.trainer.published
        with nullcontext() if published is None else published.in_place():
            return self.trainer.forecast(votes, covariates)

    def _forecast_as_cast(self, votes: VoteStore) -> Forecast | None:
        """Predict votes with the covariates that they were cast with."""
        effects = self.trainer.engine.model.covariates
        return self.published_forecast(votes, None if effects is None else nuisance.values_of_store(effects, votes))

    def save_model(
        self,
        model_list: Sequence[str] | None = None,
        write_beside: Callable[[Path], None] = lambda _: None,
        board: Callable[[], Leaderboard] | None = None,
    ) -> FinishedModel:
        """Write the trained model with rows in the order of `model_list`, and its forecast of the validation votes.

        On the main process `write_beside` adds files. `board` fits the leaderboard of all training votes.
        """
        engine, model = self.trainer.engine, self.trainer.engine.model
        effects = model.covariates
        self._estimate_effects()
        write_model(
            self.trainer, self.config, self.folder / "model", unpack=True, more=write_beside, model_list=model_list
        )
        model.posterior = Posterior.load(self.folder, len(model.model_list))
        validation = self.votes_to_validate()
        forecast = None if validation is None else self.published_forecast(validation)
        if validation is None or forecast is None:
            return FinishedModel(self.folder, effects)
        if model_list is not None and list(model_list) != model.model_list:
            order = [model.model_list.index(name) for name in model_list]
            validation = validation.among(list(model_list))
            assert validation is not None  # they are between these models already
            forecast = replace(forecast, coefs=forecast.coefs[:, order])
        beside = None
        if effects is not None:
            # By the effects of the last fit, which the folder has.
            forecast = replace(forecast, shift=nuisance.shift_of(effects, validation))
            beside = None if board is None else nuisance.forecast_by(board(), effects, validation)
        worth = write_results(self.folder, forecast, validation, engine.model.likelihood, beside)
        return FinishedModel(self.folder, effects, worth, validation, forecast)

    def announce(self, finished: FinishedModel, closing_table: str = "") -> None:
        """Print the folder of the finished model with its covariates and comparison, and push it if requested."""
        if self.trainer.engine.is_main:
            if not self.options.silent:
                if finished.effects is not None:
                    print(f"{nuisance.to_text(finished.effects, finished.worth)}\n")
                print(f"{closing_table}trained model: {self.folder}")
            if self.options.push_to_hf:
                push(self.folder, self.config.repo_id)
        self.trainer.engine.barrier()

    def _estimate_effects(self) -> None:
        """Fit the effects of covariates to the finished model, with intervals (every rank must call this)."""
        engine, values = self.trainer.engine, self.trainer.windows.covariates
        effects, names = engine.model.covariates, engine.model.model_list
        if effects is None or values is None:
            return
        of_run, config, adjustments = self.trainer.votes, self.config, self.trainer.adjustments
        rows = people_rows(of_run, config) if isinstance(of_run, VoteStore) and config.people is not None else None
        votes = nuisance.sample(of_run, len(names), config.seed, newest=self.is_stream, rows=rows)
        weights = of_run.weights(votes.ids) if config.weighted_loss else None
        if adjustments is not None:  # of the voters
            weights = adjustments.take(votes.ids).weight * (1.0 if weights is None else weights)
        forecast, estimate = self.published_forecast(votes), None
        if forecast is not None:
            try:
                likelihood = self.trainer.likelihood
                estimate = nuisance.estimate(effects, forecast, votes, values, names, likelihood, weights=weights)
            except P2LError as error:  # hours of training are not lost for it
                note(f"warning: effects of covariates have no intervals: {error}")
        effects.estimate = engine.broadcast(estimate)


@dataclass(frozen=True)
class FinishedModel:
    """A trained model in its folder; the last three are known on the main process of a run that validates."""

    folder: Path
    effects: CovariateEffects | None
    """The effects of covariates that were trained with the model."""
    worth: nuisance.Worth | None = None
    """The gain in the forecast of validation votes by the covariates."""
    validation: VoteStore | None = None
    forecast: Forecast | None = None
    """Forecast of the validation votes."""
