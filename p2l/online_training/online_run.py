"""A whole online run: from a configuration and a stream of votes to checkpoints, each the newest model so far.

The trainer, its steps, packing and engine are those of offline training; what differs is where votes come from, that
models join on the way, and what a checkpoint holds besides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from p2l.checkpoint import MODEL_LIST_FILE
from p2l.claim import try_lock
from p2l.config import load_config_as
from p2l.deepspeed_config import set_total_steps
from p2l.engine import Engine, make_scheduler, peers, start_processes
from p2l.errors import CheckpointError, ConfigError, InputError, VoteError
from p2l.measure import check_counted
from p2l.model import P2LModel
from p2l.online_training.buffer import Buffer
from p2l.online_training.buffers import make_buffer
from p2l.online_training.config import OnlineConfig
from p2l.online_training.growth import Growth, room_for
from p2l.online_training.published_average import PublishedAverage
from p2l.online_training.schedule import OnlineSchedule, count_steps
from p2l.online_training.state import (
    STREAM_STATE,
    StreamFingerprint,
    read_counts,
    read_stream_state,
    write_stream_state,
)
from p2l.online_training.stream import Publisher, StaticStream, StopRequestedError, VoteStream, in_time_order
from p2l.parameter_groups import parameter_groups
from p2l.publish import check_can_push
from p2l.resuming import check_same_configuration
from p2l.run_folder import TrainerState, read_state
from p2l.run_loop import Hooks, RunOptions, finish_run, resume_run, run_loop, save_step, trainer_state
from p2l.run_setup import (
    Start,
    find_hardware,
    find_start,
    global_batch,
    make_model,
    make_tokenizer,
    make_windows,
    note,
    prepare,
    run_folder,
    trained_model,
)
from p2l.saving import check_shared
from p2l.tokenizer import PromptTokenizer
from p2l.trainer import StepResult, Trainer
from p2l.votes import VoteStore, open_votes_together

__all__ = ["Live", "OnlineOptions", "learned_votes", "open_data_set", "train_online"]


@dataclass(frozen=True)
class Live:
    """What a run that follows its votes does in its own way."""

    open_stream: Callable[[OnlineConfig, Sequence[str]], VoteStream]
    """The stream; its model list begins with the names given."""
    publisher: Callable[[OnlineConfig, Path], Publisher | None] = lambda _, __: None
    """What is done beside the steps, for a run with this folder."""
    values: Callable[[], Mapping[str, float]] = dict
    """What `metrics.jsonl` says of the stream besides."""


@dataclass(frozen=True)
class OnlineOptions:
    """The flags of an online run, beside its configuration."""

    run: RunOptions = field(default_factory=RunOptions)
    initial_counts: Path | None = None
    """How often each model of plain weights was seen before."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Keys of the configuration that a flag replaces."""
    live: Live | None = None
    """None: the votes are the data set `train_data_path`."""


@dataclass
class _Run:
    """The parts of a run, once they are there."""

    config: OnlineConfig
    options: OnlineOptions
    stream: VoteStream
    schedule: OnlineSchedule
    validation: VoteStore | None
    fingerprint: StreamFingerprint
    trainer: Trainer
    folder: Path
    average: PublishedAverage | None = None
    publisher: Publisher | None = None

    def hooks(self) -> Hooks:
        """What the common loop asks of an online run."""
        return Hooks(
            state=self.state,
            validation=self.votes_to_validate,
            files=self.write_files,
            values=self.values,
            after_step=self.after_step,
        )

    def state(self, step: int) -> TrainerState:
        """The state of the trainer; votes are those that had arrived."""
        arrived = int(self.schedule.state(step)["arrived"])
        return trainer_state(self.trainer, self.config, step, arrived, self.fingerprint.of_first(arrived))

    def write_files(self, step: int, folder: Path) -> None:
        """Write the state of the stream."""
        model = self.trainer.engine.model
        write_stream_state(folder, self.schedule.state(step), model.model_list, model.num_rows)
        if self.average is not None:
            self.average.save(folder)

    def votes_to_validate(self) -> VoteStore | None:
        """The validation votes between models that are known by now."""
        return None if self.validation is None else self.validation.among(self.trainer.engine.model.model_list)

    def values(self, result: StepResult) -> Mapping[str, float]:
        """What is logged of the stream at a step."""
        facts = self.schedule.facts(result.step)
        lag = {f"lag/{name}": value for name, value in facts.lag.items()}
        seen = {"arrived": facts.arrived, "waiting": facts.waiting, "models": facts.models, **lag}
        return seen if self.options.live is None else {**seen, **self.options.live.values()}

    def after_step(self, result: StepResult) -> None:
        """Hand the step to whoever publishes."""
        if self.publisher is not None:
            self.publisher.after_step(result, self.schedule.facts(result.step), self.trainer)


def train_online(config_path: str, options: OnlineOptions) -> Path:
    """Train on a stream of votes and return the run's folder (every rank runs this).

    Raises:
        InputError: configuration, votes, model or checkpoint cannot be used; the message says what to change.
    """
    config = _load(config_path, options)
    hardware = find_hardware(config, config_path)
    start = find_online_start(options.run.checkpoint)
    if start.resume is not None:
        check_same_configuration(config, start.resume)
    tokenizer = make_tokenizer(config, start)
    model = _model(config, start, tokenizer, hardware.dtype)
    stream = _open_stream(config, options, model.model_list)
    schedule, rows = _schedule(config, options, start, stream, model)
    model.widen(room_for(len(model.model_list), rows))
    validation = _open_validation(config, stream) if options.run.eval_steps is not None else None
    scheduler = None if "scheduler" in hardware.deepspeed else make_scheduler(config, schedule.total_steps)
    settings = set_total_steps(hardware.deepspeed, schedule.total_steps)
    start_processes(hardware.device)
    prepare(model, config, hardware.device)
    with peers():
        engine = Engine(model, settings, hardware.device, scheduler, parameter_groups(model, config))
        folder = options.run.folder or run_folder(engine, config, start)
        check_shared(engine, folder)
        windows = make_windows(config, engine, tokenizer, stream, ahead=not stream.grows)
        trainer = Trainer.of(config, engine, windows, schedule)
        run = _Run(config, options, stream, schedule, validation, StreamFingerprint(stream), trainer, folder)
        if config.average_steps is not None:
            run.average = trainer.published = PublishedAverage(engine, config.average_steps)
        with _alone_in(folder, engine):
            _train(run, start)
    return folder


@contextmanager
def _alone_in(folder: Path, engine: Engine) -> Iterator[None]:
    """See to it that no other run writes into the folder until the block ends (every rank must call this)."""
    descriptor = os.open(folder, os.O_RDONLY) if engine.is_main else None
    try:
        if not engine.broadcast(descriptor is None or try_lock(descriptor)):
            raise InputError(f"{folder}: another process is training in it; stop that one first")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def find_online_start(checkpoint: str | None) -> Start:
    """As `find_start`; but a finished run of offline training is plain weights, whatever checkpoints lie in it."""
    start = find_start(checkpoint)
    if start.resume is None or checkpoint is None or (start.resume / STREAM_STATE).is_file():
        return start
    folder = Path(checkpoint).expanduser()
    finished = folder != start.resume and (folder / MODEL_LIST_FILE).is_file()
    return Start(None, checkpoint) if finished else start


def learned_votes(checkpoint: str | None) -> int:
    """How many votes of its stream the run that goes on has seen; 0 for a new one."""
    resume = find_online_start(checkpoint).resume
    return 0 if resume is None else read_state(resume).num_votes


def _load(config_path: str, options: OnlineOptions) -> OnlineConfig:
    config = load_config_as(OnlineConfig, config_path, options.changes)
    if options.run.eval_steps is not None and config.val_data_path is None:
        raise ConfigError(f"{config_path}: key 'val_data_path' is missing; add it, or train with --no-eval")
    if config.replaced_keys:
        note(f"warning: the 'optimizer' block replaces {', '.join(config.replaced_keys)}")
    if options.run.push_to_hf:
        check_can_push(config.repo_id)
    return config


def _model(config: OnlineConfig, start: Start, tokenizer: PromptTokenizer, dtype: torch.dtype) -> P2LModel:
    """The model as it is at the start, with the models that it knows by then: none, for a new head."""
    if start.model:
        return trained_model(config, start, tokenizer, dtype)
    factor = config.linear_head_downsize_factor
    width = None if factor is None else max(1, config.model_capacity // factor)
    return make_model(config, tokenizer, dtype, [], linear_head_width=width)


def _open_stream(config: OnlineConfig, options: OnlineOptions, known_models: Sequence[str]) -> VoteStream:
    if options.live is not None:
        return options.live.open_stream(config, known_models)
    return open_data_set(config, known_models)


def open_data_set(config: OnlineConfig, known_models: Sequence[str]) -> StaticStream:
    """The data set of the configuration as a stream.

    Raises:
        InputError: it cannot be trained on, or is not in the order that the configuration asks for.
    """
    votes = open_votes_together(config.train_data_path, from_disk=config.load_train_data_from_disk)
    if config.weighted_loss and not votes.has_weights:
        raise ConfigError(f"{config.train_data_path}: weighted_loss needs a column 'weight'; add it or switch it off")
    stream = in_time_order(votes, config.vote_order, known_models)
    check_counted(votes, config.loss_type, weighted=config.weighted_loss)
    return stream


def _schedule(
    config: OnlineConfig, options: OnlineOptions, start: Start, stream: VoteStream, model: P2LModel
) -> tuple[OnlineSchedule, int]:
    """The schedule, where the run stands in it, and the rows of the head."""
    counts, rows, state = _initial_counts(options, start, model), config.model_capacity, None
    if start.resume is not None:
        state, rows = read_stream_state(start.resume, model.model_list)
        _check_same_stream(start.resume, stream, read_state(start.resume))
    every = options.run.save_steps
    try:
        schedule = OnlineSchedule(
            stream,
            _buffer(config, counts),
            known_models=len(model.model_list),
            total_steps=None if stream.grows else count_steps(stream, _buffer(config, counts), state),
            is_saved=lambda step: bool(every) and step % (every or 1) == 0,
        )
        if state is not None:
            schedule.load_state(state)
    except CheckpointError as error:
        raise CheckpointError(f"{start.resume}: {error}") from error
    return schedule, rows


def _initial_counts(options: OnlineOptions, start: Start, model: P2LModel) -> dict[int, int]:
    if options.initial_counts is None:
        return {}
    if start.weights is None:
        raise InputError(
            f"{options.initial_counts}: --initial-counts goes with --checkpoint and plain weights; "
            "a run that goes on has its own counts, and a new one begins without any model"
        )
    return read_counts(options.initial_counts, model.model_list)


def _buffer(config: OnlineConfig, counts: Mapping[int, int]) -> Buffer:
    return make_buffer(config.buffer_settings, global_batch(config), config.seed, counts)


def _check_same_stream(checkpoint: Path, stream: VoteStream, state: TrainerState) -> None:
    """Refuse votes that do not begin with those that the checkpoint was trained on."""
    there = stream.wait_for(state.num_votes)
    if there < state.num_votes:
        raise CheckpointError(
            f"{checkpoint}: was trained on {state.num_votes} votes, {stream.name} holds {there}; "
            "go on with the same votes, followed by newer ones"
        )
    if StreamFingerprint(stream).of_first(state.num_votes) != state.votes:
        raise CheckpointError(
            f"{checkpoint}: was trained on other votes than the first {state.num_votes} of {stream.name}; "
            "go on with the same ones (and the same --gate, which holds some out), or start a new run"
        )


def _open_validation(config: OnlineConfig, stream: VoteStream) -> VoteStore:
    assert config.val_data_path is not None
    votes = open_votes_together(config.val_data_path, from_disk=config.load_val_data_from_disk)
    unknown = sorted(set(votes.model_list) - set(stream.model_list))
    if unknown and not (config.drop_unknown_models or stream.grows):
        raise VoteError(
            f"{config.val_data_path}: model {unknown[0]!r} never comes in the votes that are trained on "
            f"({len(unknown)} do not); drop such votes (drop_unknown_models: true)"
        )
    check_counted(votes, config.loss_type)
    return votes


def _train(run: _Run, start: Start) -> None:
    config, options, hooks = run.config, run.options.run, run.hooks()
    growth = Growth(config, run.trainer, run.folder)
    growth.clear()
    run.trainer.before_step = lambda step: growth.meet(run.stream.model_list[: run.schedule.facts(step + 1).models])
    if run.options.live is not None:
        run.publisher = run.options.live.publisher(config, run.folder)
    first = resume_run(run.trainer, hooks, start.resume, quiet=options.quiet) if start.resume else 0
    if start.resume is not None and run.average is not None:
        run.average.load(start.resume)
    if run.publisher is not None:
        run.publisher.begin(first, run.schedule.arrived, run.trainer)
    try:
        done = run_loop(config, options, run.trainer, run.folder, hooks, first=first, num_votes=_total_votes(run))
    except StopRequestedError:
        _stop(run, hooks)
        return
    if done > first and not (options.save_steps and done % options.save_steps == 0):
        save_step(config, options, run.trainer, run.folder, hooks, done)
    if run.publisher is not None:
        run.publisher.finish(run.trainer)
    finish_run(config, options, run.trainer, run.folder, run.votes_to_validate())


def _stop(run: _Run, hooks: Hooks) -> None:
    """Save where the run stands, unless it is saved already."""
    step = run.schedule.done
    if step and not (run.folder / f"checkpoint-{step}").exists():
        save_step(run.config, run.options.run, run.trainer, run.folder, hooks, step)
    if not run.options.run.quiet:
        note(f"stopped after step {step}; go on with --checkpoint {run.folder}")


def _total_votes(run: _Run) -> int | None:
    """Votes of all steps together, as far as that can be known; replayed ones count."""
    total: Any = run.schedule.total_steps
    return None if total is None else total * run.schedule.buffer.full_size
