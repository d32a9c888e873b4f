"""The steps of a run and what happens between them: progress, checkpoints, validation, the finished model.

Offline and online training share the set-up too: device, tokenizer, model, windows of votes, run folder.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from p2l.common.errors import CheckpointError, ConfigError, P2LError
from p2l.common.files import atomic_path, write_json
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.pair_tables import check_number_of_models
from p2l.likelihood import Likelihood
from p2l.metrics import simple_metrics
from p2l.model import backbones
from p2l.model.checkpoint import check_can_push, push
from p2l.model.covariates import CovariateEffects
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import HeadStart
from p2l.model.model import P2LModel, to_dtype
from p2l.model.posterior import Posterior
from p2l.model.reader import keep_states
from p2l.people.runs import VoteAdjustments
from p2l.training import covariates as nuisance
from p2l.training.config import TrainConfig
from p2l.training.data import Votes, Windows
from p2l.training.deepspeed_config import (
    compile_backbone,
    find_deepspeed_file,
    has_cuda_compiler,
    resolve_deepspeed,
    set_total_steps,
)
from p2l.training.engine import (
    Engine,
    choose_device,
    local_size,
    make_scheduler,
    parameter_groups,
    peers,
    start_processes,
    world_size,
)
from p2l.training.facts import Forecast
from p2l.training.progress import RunProgress
from p2l.training.run_folder import (
    TrainerState,
    keep_newest,
    new_run_folder,
    newest_checkpoint,
    read_state,
    save_checkpoint,
    save_final,
)
from p2l.training.trainer import Schedule, StepResult, Trainer
from p2l.votes import VoteStore, open_votes_together

_ROWS = 1024  # votes predicted, and rows of the output file written, at a time
_FEW_WEIGHTS = 1_000_000
"""Dense weights of a model that one thread trains: those of the sizes reader and tiny, and of a bag of words."""

# Validation: coefficients for every validation vote, their metrics, the two result files.


def validate(engine: Engine, windows: Windows) -> Forecast | None:
    """Predict the prompt of every vote, on rank 0; None on the others (every rank must call this)."""
    ids, blocks = [], []
    count, num_models = len(windows.votes), len(engine.model.model_list)
    for rows, parts in windows.read_ahead(
        np.arange(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)
    ):
        for part in engine.even_out(parts, windows.filler):
            output = engine.predict(part.batch)
            columns = [
                column.cpu().numpy() for column in (output.coefs, output.eta, output.gamma) if column is not None
            ]
            ids.append(rows[part.votes])
            blocks.append(np.column_stack(columns)[part.prompt.numpy()])
    gathered = engine.gather((np.concatenate(ids), np.concatenate(blocks)))
    if gathered is None:
        return None
    all_ids, all_blocks = (np.concatenate(arrays) for arrays in zip(*gathered, strict=True))
    table = all_blocks[np.argsort(all_ids)]  # batches and ranks took the votes in an order of their own
    # They are the columns behind the coefficients, as far as the head has them.
    eta, gamma = [*table[:, num_models:].T, None, None][:2]
    return Forecast(table[:, :num_models], eta, gamma)


def summarise(predictions: Forecast, votes: VoteStore, likelihood: Likelihood) -> dict[str, float]:
    """Return the simple metrics of the predictions that are defined under this likelihood."""
    labels = votes.labels(np.arange(len(votes)))
    metrics = simple_metrics(predictions.coefs, labels, predictions.eta, predictions.gamma, likelihood=likelihood)
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def write_results(
    folder: Path,
    predictions: Forecast,
    votes: VoteStore,
    likelihood: Likelihood,
    effects: CovariateEffects | None = None,
    board: Leaderboard | None = None,
) -> nuisance.Worth | None:
    """Write `eval_results.json` (metrics) and `eval_output.jsonl` (validation rows with `betas`, `eta`, `gamma`).

    With `effects` of covariates, `shift` of a row is what they add to its vote, and their worth is returned, beside
    that of a leaderboard which was fitted with them.
    """
    worth = shift = None
    if effects is not None:
        shift, of_board = nuisance.shifts(effects, votes, board)
        beside = None if board is None or of_board is None else (board, of_board)
        worth = nuisance.worth(predictions, shift, votes, likelihood, beside)
    more = {} if worth is None else {"covariates": worth.to_dict()}
    metrics = summarise(predictions, votes, likelihood)
    write_json(folder / "eval_results.json", {"votes": len(votes), **metrics, **more}, indent=2)
    with atomic_path(folder / "eval_output.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
        for start in range(0, len(votes), _ROWS):
            ids = np.arange(start, min(start + _ROWS, len(votes)))
            for number, label, row in zip(ids, votes.labels(ids), votes.rows(ids), strict=True):
                row |= {"labels": label.tolist(), "betas": predictions.coefs[number].tolist()}
                for name, column in (("eta", predictions.eta), ("gamma", predictions.gamma)):
                    if column is not None:
                        row[name] = float(column[number])
                if shift is not None:
                    row["shift"] = shift[number].tolist()
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return worth


# Set-up.


@dataclass(frozen=True)
class Start:
    """Where the weights come from."""

    resume: Path | None
    """The trainer checkpoint to resume from."""
    weights: str | None
    """A trained model that provides weights and model list."""

    @property
    def model(self) -> str | None:
        """The folder or hub id of the trained model; None: the backbone gets a new head."""
        return str(self.resume) if self.resume else self.weights


class Hardware(NamedTuple):
    """The device of this process, the DeepSpeed settings and the precision of the run."""

    device: torch.device
    deepspeed: dict[str, Any]
    dtype: torch.dtype


def find_start(checkpoint: str | None) -> Start:
    """Decide whether `--checkpoint` names a run to resume, or plain weights; CheckpointError if it is neither."""
    if checkpoint is None:
        return Start(None, None)
    folder = Path(checkpoint).expanduser()
    resume = newest_checkpoint(folder)
    if resume is None and folder.is_dir() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{checkpoint}: holds no checkpoint and no model; restart a run that was stopped before its first "
            "checkpoint without --checkpoint"
        )
    return Start(resume, None) if resume else Start(None, checkpoint)


def find_hardware(config: TrainConfig, config_path: str) -> Hardware:
    """Choose device and DeepSpeed settings; ConfigError where they are absent or contradict the configuration."""
    device = choose_device(config.device)
    on_gpu = device.type == "cuda"
    deepspeed_config, precision = resolve_deepspeed(
        config,
        find_deepspeed_file(config, config_path),
        world_size=world_size(),
        on_gpu=on_gpu,
        gpu_has_bfloat16=on_gpu and torch.cuda.is_bf16_supported(),
        gpu_compiler=on_gpu and has_cuda_compiler(),
    )
    return Hardware(device, deepspeed_config, to_dtype(precision))


def check_options(config: TrainConfig, config_path: str, options: RunOptions) -> None:
    """Raise ConfigError or InputError if the configuration lacks what the options need."""
    if options.eval_steps is not None and config.val_data_path is None and not config.cross_fit:
        raise ConfigError(f"{config_path}: key 'val_data_path' is missing; add it, or train with --no-eval")
    if config.replaced_keys:
        note(f"warning: the 'optimizer' block replaces {', '.join(config.replaced_keys)}")
    if options.push_to_hf:
        check_can_push(config.repo_id)


def open_train_votes(config: TrainConfig, model_list: list[str] | None = None, *, spread: bool = False) -> VoteStore:
    """Open the votes to train on; InputError if they cannot be read or lack the weights that they need.

    With `spread` each of several nodes holds the prompts of its part of a lake.
    """
    votes = open_votes_together(
        config.train_data_path, model_list=model_list, from_disk=config.load_train_data_from_disk, spread=spread
    )
    check_number_of_models(len(votes.model_list), config.train_data_path)
    if config.weighted_loss and not votes.has_weights:
        raise ConfigError(f"{config.train_data_path}: weighted_loss needs a column 'weight'; add it or switch it off")
    return votes


def make_tokenizer(config: TrainConfig, start: Start) -> PromptTokenizer:
    """Load the tokenizer of the model that training starts from."""
    return PromptTokenizer.from_pretrained(
        start.model or config.pretrain_model_name,
        chat_template=config.chat_template,
        max_length=config.max_length,
        # A trained model has no rows for tokens that are new.
        cls_token_if_none=None if start.model else config.cls_token_if_none,
        pad_token_if_none=None if start.model else config.pad_token_if_none,
    )


def trained_model(config: TrainConfig, start: Start, tokenizer: PromptTokenizer, dtype: torch.dtype) -> P2LModel:
    """Load the trained model that `start` names; InputError if it is incomplete or contradicts the configuration."""
    weights = start.model
    assert weights is not None
    kept_loss = config.loss_type if start.resume else None
    kinds = {"model_type": config.model_type, "head_type": config.head_type}
    model = P2LModel.from_pretrained(weights, **kinds, loss_type=kept_loss, dtype=dtype)
    tokenizer.limit(model.num_embeddings, weights)
    model.retrain(loss_type=config.loss_type, max_length=tokenizer.max_length)
    if "pooling" in config.model_fields_set and config.pooling != model.record.pooling:
        raise ConfigError(f"{weights}: was trained with pooling {model.record.pooling!r}; remove that key")
    return model


def make_model(
    config: TrainConfig,
    tokenizer: PromptTokenizer,
    dtype: torch.dtype,
    model_list: list[str],
    *,
    head_start: HeadStart | None = None,
    linear_head_width: int | None = None,
) -> P2LModel:
    """Load the configuration's backbone and give it a new head."""
    return P2LModel.create(
        config.pretrain_model_name,
        model_type=config.model_type,
        head_type=config.head_type,
        loss_type=config.loss_type,
        model_list=model_list,
        tokenizer=tokenizer,
        init_type=config.init_type,
        head_start=head_start,
        linear_head_downsize_factor=config.linear_head_downsize_factor,
        linear_head_width=linear_head_width,
        head_config=config.head_config,
        pooling=config.pooling,
        dtype=dtype,
        seed=config.seed,
    )


def prepare(model: P2LModel, config: TrainConfig, device: torch.device) -> None:
    """Apply the configuration's freezing, gradient checkpointing and compilation, and switch to training mode."""
    if config.train_head_only:
        model.freeze_transformer()
    if config.shared_level:
        model.share_level()
    keep_states(model.model)
    recompute = config.gradient_checkpointing
    if recompute or (recompute is None and device.type == "cuda"):
        model.gradient_checkpointing_enable()
    if config.compile:
        compile_backbone(model.model, device)
    model.train()
    if device.type == "cpu":
        choose_threads(model)


def choose_threads(model: torch.nn.Module) -> None:
    """Train a small model on a CPU with one thread, unless OMP_NUM_THREADS says otherwise.

    The operations of its step are so short that threads wait for one another more than they compute, and they wait by
    spinning: where other work wants the cores, a step with two threads took ten times as long as with one.
    """
    several = backbones.all_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if _dense_weights(model) < _FEW_WEIGHTS else several)


def _dense_weights(model: torch.nn.Module) -> int:
    """Return how many weights each token is multiplied with in training: those of embeddings are looked up."""
    return sum(
        weights.numel() for name, weights in model.named_parameters() if weights.requires_grad and "embed" not in name
    )


def start_trainer(
    config: TrainConfig,
    hardware: Hardware,
    model: P2LModel,
    tokenizer: PromptTokenizer,
    votes: Votes,
    schedule: Schedule,
    *,
    ahead: bool = True,
    covariates: nuisance.Values | None = None,
    terms: VoteAdjustments | None = None,
) -> Trainer:
    """Join the process group and start DeepSpeed with this model; ConfigError for unusable settings."""
    total_steps = schedule.total_steps
    scheduler = None if "scheduler" in hardware.deepspeed else make_scheduler(config, total_steps)
    settings = set_total_steps(hardware.deepspeed, total_steps)
    start_processes(hardware.device)
    prepare(model, config, hardware.device)
    with peers():
        engine = Engine(model, settings, hardware.device, scheduler, parameter_groups(model, config))
    backbone = backbones.get(config.model_type)
    max_tokens = config.batch_size * config.max_length
    if engine.device.type == "cpu":
        max_tokens = min(max_tokens, backbone.cpu_micro_batch or max_tokens)
    windows = Windows(
        tokenizer=tokenizer,
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
        terms=terms,
    )


def run_folder(engine: Engine, config: TrainConfig, options: RunOptions, start: Start) -> Path:
    """Return the folder of the options or the resumed run, or make a new one (every rank must call this)."""
    if options.folder is not None:
        return options.folder
    if start.resume is not None:
        return start.resume.parent
    folder = new_run_folder(config.output_dir, config.run_name) if engine.is_main else None
    return Path(engine.broadcast(folder))


def global_batch(config: TrainConfig, resume: Path | None = None) -> int:
    """Return the votes of one optimizer step over all processes; of a run to resume, over those that it began with."""
    processes = world_size()
    if resume is not None:
        state = read_state(resume)
        processes = state.processes or processes
    return config.batch_size * config.gradient_accumulation_steps * processes


def note(text: str) -> None:
    """Print a line to stderr, on the first process alone."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)


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


@dataclass
class Run(ABC):
    """A run and what happens around its steps, which the number of steps done identifies (every rank calls all)."""

    config: TrainConfig
    options: RunOptions
    trainer: Trainer
    folder: Path
    validation: VoteStore | None
    """None: the run does not validate."""
    is_stream: ClassVar[bool] = False
    """Whether votes come in time, so that the newest ones count."""

    @abstractmethod
    def votes_at(self, step: int) -> tuple[int, str]:
        """Return number and fingerprint of the votes that the run had at a step."""

    def votes_to_validate(self) -> VoteStore | None:
        """Return the votes to validate on now; None: none."""
        return self.validation

    def controlled_board(self) -> Leaderboard | None:
        """Return the leaderboard of all training votes that is fitted with their covariates; None: there is none."""
        return None

    def write_files(self, step: int, folder: Path) -> None:  # noqa: B027 - offline runs have no more
        """Write further files into the folder of a checkpoint (on the main process alone)."""

    def values(self, _result: StepResult) -> Mapping[str, float]:
        """Return further values of a step for `metrics.jsonl`."""
        return {}

    def after_step(self, result: StepResult) -> None:  # noqa: B027 - offline runs do nothing
        """Act after a step and its checkpoint."""

    def state(self, step: int) -> TrainerState:
        """Return what a checkpoint records, which must stay the same for the run to be resumed."""
        num_votes, fingerprint = self.votes_at(step)
        engine = self.trainer.engine
        return TrainerState(
            step=step,
            num_votes=num_votes,
            votes=fingerprint,
            global_batch=global_batch(self.config),
            zero_stage=engine.zero_stage,
            precision=engine.precision,
            update_rule=engine.update_rule,
            world_size=engine.world_size,
            shuffle=self.config.shuffle,
            seed=self.config.seed,
        )

    def resume(self, checkpoint: Path | None) -> int:
        """Restore a checkpoint, if there is one, and return its step; CheckpointError if it does not fit this run."""
        if checkpoint is None:
            return 0
        state = read_state(checkpoint)
        state.check_continues(self.state(state.step), checkpoint)
        self.trainer.engine.load(checkpoint)
        if not self.options.quiet:
            note(f"resuming from {checkpoint} after step {state.step}")
        return state.step

    def train(self, first: int, num_votes: int | None) -> int:
        """Train from step `first` on, return the steps done; `num_votes` counts the whole run, None if unknown."""
        options, total, done = self.options, self.trainer.schedule.total_steps, first
        is_silent, is_main = options.quiet, self.trainer.engine.is_main
        report = RunProgress(
            self.config, self.folder, total=total, first=first, num_votes=num_votes, quiet=is_silent, is_main=is_main
        )
        before = time.monotonic()
        for result in self.trainer.steps(first):
            report.step(result, time.monotonic() - before, self.values(result))
            done = result.step
            if columns := self.look(done):  # before the checkpoint, which holds the best step
                report.columns(done, columns)
            if options.save_steps and done % options.save_steps == 0:
                self.save(done)
            if options.eval_steps and done % options.eval_steps == 0 and done != total:
                validation = self.votes_to_validate()
                if validation is not None and (predictions := self._predict(validation)):
                    report.evaluation(done, summarise(predictions, validation, self.trainer.likelihood))
            self.after_step(result)
            before = time.monotonic()
        report.close()
        return done

    def save(self, step: int) -> None:
        """Write `checkpoint-<step>` and remove surplus older ones."""
        target = self.folder / f"checkpoint-{step}"
        save_checkpoint(self.trainer, self.config, target, self.state(step), partial(self.write_files, step))
        if self.options.keep_checkpoints and self.trainer.engine.is_main:
            keep_newest(self.folder, self.options.keep_checkpoints)

    def published_models(self) -> list[str]:
        """Return the models in the order of the finished model's rows."""
        return list(self.trainer.engine.model.model_list)

    def write_beside(self, folder: Path) -> None:  # noqa: B027 - online runs have no more
        """Write further files of the finished model into its folder (on the main process alone)."""

    def look(self, _step: int) -> Mapping[str, float]:
        """Look at the model after a step, and return columns for `metrics.jsonl`."""
        return {}

    def evaluate(self) -> nuisance.Worth | None:
        """Predict the validation votes with the finished model, write the results; return what covariates are worth."""
        validation, worth = self.votes_to_validate(), None
        if validation is not None and (predictions := self._predict(validation)):
            validation, predictions = self._as_published(validation, predictions)
            effects = self.trainer.engine.model.covariates
            parts = (effects, None if effects is None else self.controlled_board())
            worth = write_results(self.folder, predictions, validation, self.trainer.likelihood, *parts)
            self.compare(validation, predictions)
        return worth

    def compare(self, validation: VoteStore, predictions: Forecast) -> None:  # noqa: B027 - online runs do not
        """Compare the finished model's predictions with what it has to beat (on the main process alone)."""

    def closing_table(self) -> str:
        """Return lines to print about the finished model."""
        return ""

    def finish(self) -> None:
        """Write the trained model and its validation results, print where it is, and push it if requested."""
        self._estimate_effects()
        engine = self.trainer.engine
        save_final(self.trainer, self.config, self.folder, self.write_beside, self.published_models())
        engine.model.posterior = Posterior.load(self.folder, len(engine.model.model_list))
        worth = self.evaluate()
        if self.trainer.engine.is_main:
            if not self.options.silent:
                if (effects := self.trainer.engine.model.covariates) is not None:
                    print(f"{nuisance.to_text(effects, worth)}\n")
                print(f"{self.closing_table()}trained model: {self.folder}")
            if self.options.push_to_hf:
                push(self.folder, self.config.repo_id)
        self.trainer.engine.barrier()

    def _as_published(self, votes: VoteStore, forecast: Forecast) -> tuple[VoteStore, Forecast]:
        """Return votes and forecast with models in the order of the finished model's rows."""
        trained, names = self.trainer.engine.model.model_list, self.published_models()
        if names == trained:
            return votes, forecast
        order = [trained.index(name) for name in names]
        same_votes = votes.among(names)
        assert same_votes is not None  # they are between these models already
        return same_votes, replace(forecast, coefs=forecast.coefs[:, order])

    def _predict(self, votes: Votes) -> Forecast | None:
        windows = replace(self.trainer.windows, votes=votes, ahead=True, covariates=None)
        with self.trainer.as_published():
            return validate(self.trainer.engine, windows)

    def _estimate_effects(self) -> None:
        """Fit the effects of covariates to the finished model, with intervals (every rank must call this)."""
        engine, values = self.trainer.engine, self.trainer.windows.covariates
        effects = engine.model.covariates
        if effects is None or values is None:
            return
        names = engine.model.model_list
        votes = nuisance.sample(self.trainer.votes, len(names), self.config.seed, newest=self.is_stream)
        forecast, estimate = self._predict(votes), None
        if forecast is not None:
            options = {"weighted": self.config.weighted_loss}
            try:
                estimate = nuisance.estimate(
                    effects, forecast, votes, values, names, self.trainer.likelihood, **options
                )
            except P2LError as error:  # hours of training are not lost for it
                note(f"warning: effects of covariates have no intervals: {error}")
        effects.estimate = engine.broadcast(estimate)
