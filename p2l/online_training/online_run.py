"""A whole online run: from a configuration and a stream of votes to checkpoints, each the newest model so far.

The trainer, its steps, packing and engine are those of offline training; what differs is where votes come from, that
models join on the way, and what a checkpoint holds besides.

The head holds more rows than there are models. When a model's first vote arrives its row is set; from then on it trains
like any other. When the rows run out, weights and optimizer state are written out uncut, a model with twice the rows is
built, and the engine starts again with it. Nothing else changes, so a run that had to grow ends where one with more
room does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from p2l.common.errors import CheckpointError, InputError, VoteError
from p2l.model.checkpoint import MODEL_LIST_FILE
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import last_layer, new_rows
from p2l.model.model import P2LModel, to_dtype
from p2l.newcomers.online import FEWEST_KNOWN, LargerSteps, NewRows
from p2l.online_training.averaging import PublishedAverage
from p2l.online_training.buffer import Buffer
from p2l.online_training.buffers import make_buffer
from p2l.online_training.live_run import LiveRun, open_data_set
from p2l.online_training.live_votes import StopRequestedError
from p2l.online_training.online_config import OnlineConfig
from p2l.online_training.publishing import FolderPublisher, only_publisher
from p2l.online_training.retraining import Retraining, arrange
from p2l.online_training.schedule import (
    STREAM_STATE,
    OnlineSchedule,
    StreamFingerprint,
    count_steps,
    read_counts,
    read_stream_state,
    write_stream_state,
)
from p2l.online_training.stream import StreamWithPast, VoteStream, open_past, published_order
from p2l.training import covariates as nuisance
from p2l.training import loop
from p2l.training.deepspeed_config import parameter_groups
from p2l.training.engine import Engine, peers, world_size
from p2l.training.forecasts import check_counted
from p2l.training.loop import Run, RunOptions, Setup, Start
from p2l.training.run_folder import TrainerState, alone_in, check_shared, read_state, whole_or_absent
from p2l.training.train_config import load_config_as
from p2l.training.trainer import StepResult, Trainer
from p2l.votes import VoteStore, open_votes_together


def _room_for(models: int, capacity: int) -> int:
    """Return the rows of a head for this many models: `capacity`, doubled as often as needed."""
    while capacity < models:
        capacity *= 2
    return capacity


@dataclass(frozen=True)
class _Growth:
    """Keeps the model list of a run in step with its stream."""

    config: OnlineConfig
    trainer: Trainer
    folder: Path
    """A folder to write the model into while it grows, which all processes share."""

    def clear(self) -> None:
        """Remove what growing, or a kill in the middle of it, left behind."""
        if self.trainer.engine.is_main:
            shutil.rmtree(self.folder, ignore_errors=True)

    def meet(self, names: list[str]) -> None:
        """Let these be the models of the head (every rank must call this)."""
        engine = self.trainer.engine
        if len(names) <= len(engine.model.model_list):
            return
        if len(names) > engine.model.num_rows:
            self._grow(_room_for(len(names), engine.model.num_rows))
        _welcome(engine, names, self.config)

    def _grow(self, rows: int) -> None:
        """Replace the model by a copy of itself with more rows, through a folder: the engine may hold it in parts."""
        engine, folder = self.trainer.engine, self.folder
        names, precision = list(engine.model.model_list), engine.precision
        with whole_or_absent(folder, clean=False):
            if engine.is_main:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            engine.barrier()
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
            model.widen(rows)
            loop.ready_for_training(model, self.config, engine.device)
            blank = self.trainer.windows.filler().batch
            engine.rebuild(model, parameter_groups(model, self.config), folder, blank)
            engine.barrier()
        self.clear()


def _welcome(engine: Engine, names: list[str], config: OnlineConfig) -> None:
    """Set the rows of the models that the list lacks, and add their names."""
    model = engine.model
    first, last = len(model.model_list), len(names)

    if first and config.new_models != "random":

        def set_mean(values: Tensor) -> None:
            values[first:last] = values[:first].mean(dim=0)

        for name in model.row_names:
            engine.edit(name, set_mean)
    else:
        with torch.random.fork_rng(devices=[]):
            # The same rows whenever and with whatever room they are drawn.
            torch.manual_seed(int(np.random.SeedSequence([config.seed, first]).generate_state(1)[0]))
            drawn = new_rows(last_layer(model.head).in_features, last - first, config.init_type)
        for name, rows in zip(model.row_names, drawn, strict=True):
            engine.edit(name, lambda values, rows=rows: values[first:last].copy_(rows))  # type: ignore[misc]
    model.model_list = list(names)


@dataclass(frozen=True)
class OnlineOptions:
    """The flags of an online run, in addition to its configuration."""

    run: RunOptions
    initial_counts: Path | None
    """File with the number of votes that each model of plain weights had before."""
    changes: Mapping[str, object]
    """Keys of the configuration that a flag replaces."""
    live: LiveRun | None
    """None: the votes are the data set `train_data_path`."""


class _BetterModelError(Exception):
    """Raised with the folder of a model that was trained anew, where the run is to go on with that one."""


@dataclass
class _OnlineRun(Run):
    """A run with its stream, model and folder."""

    live: LiveRun | None
    stream: VoteStream
    schedule: OnlineSchedule
    fingerprint: StreamFingerprint
    new_trainer: Callable[[P2LModel, PromptTokenizer | None], Trainer]
    """Starts DeepSpeed with another model, for the same votes and schedule."""
    average: PublishedAverage | None = None
    publisher: FolderPublisher | None = None
    retraining: Retraining | None = None
    unsaved: bool = False
    """Whether a model was taken over since the last checkpoint."""
    is_stream: ClassVar[bool] = True

    @property
    def config(self) -> OnlineConfig:
        """The configuration of the run."""
        assert isinstance(self.setup.config, OnlineConfig)
        return self.setup.config

    def votes_at(self, step: int) -> tuple[int, str]:
        """Return number and fingerprint of the votes that had arrived."""
        arrived = int(self.schedule.state(step)["arrived"])
        return arrived, self.fingerprint.of_first(arrived)

    def write_files(self, step: int, folder: Path) -> None:
        model = self.trainer.engine.model
        write_stream_state(folder, self.schedule.state(step), model.model_list, model.num_rows)
        if self.average is not None:
            self.average.save(folder)
        if self.retraining is not None:
            self.retraining.save(folder)

    def votes_to_validate(self) -> VoteStore | None:
        """Return the validation votes between models that are known by now."""
        return None if self.validation is None else self.validation.among(self.trainer.engine.model.model_list)

    def step_columns(self, result: StepResult) -> Mapping[str, float]:
        """Return the columns of `metrics.jsonl` about the stream."""
        facts = self.schedule.facts(result.step)
        lag = {f"lag/{name}": value for name, value in facts.lag.items()}
        live = {} if self.live is None else self.live.columns()
        return {"arrived": facts.arrived, "waiting": facts.waiting, "models": facts.models, **lag, **live}

    def after_step(self, result: StepResult) -> None:
        facts = self.schedule.facts(result.step)
        if self.unsaved:  # or a kill would lose the model that was taken over
            self.unsaved = False
            self.save_checkpoint(result.step)
        if self.publisher is not None:
            self.publisher.after_step(result, facts, self.trainer)
        if self.retraining is not None:
            model = self.retraining.after_step(result.votes, result.step, facts.arrived, self.trainer)
            if model is not None:
                raise _BetterModelError(model)


def train_online(config_path: str, options: OnlineOptions) -> Path:
    """Train on a stream of votes and return the run's folder (every rank runs this); InputError for unusable input."""
    config = load_config_as(OnlineConfig, config_path, options.changes)
    if config.shuffle:
        loop.note("note: shuffle is of offline training and left out here: votes are taken in the order they came in")
        config = config.model_copy(update={"shuffle": False})
    start = _find_start(options.run.checkpoint)
    setup = Setup.of(config, config_path, options.run, start)
    model = setup.trained_model()
    if model is None:  # a new head, which knows no models yet
        factor = config.linear_head_downsize_factor
        width = None if factor is None else max(1, config.model_capacity // factor)
        model = setup.new_model([], linear_head_width=width)
    open_stream = open_data_set if options.live is None else options.live.open_stream
    stream = open_stream(config, model.model_list)
    past = None
    if config.past_data_path is not None:
        began_with = len(model.model_list)
        if start.resume is not None:
            began_with = int(read_stream_state(start.resume, model.model_list)[0]["began_with"])
        past = open_past(config.past_data_path, model.model_list[:began_with])
    schedule, rows = _schedule(config, options, start, stream, model, 0 if past is None else len(past))
    # Spare rows are zero and stay so: no vote gives them a gradient, and decay of zero is zero.
    model.widen(_room_for(len(model.model_list), rows))
    votes: Any = stream if past is None else StreamWithPast(past, stream)
    values = _covariates(config, model, stream, past)
    validation = _open_validation(config, stream, model) if options.run.eval_steps is not None else None

    def new_trainer(model: P2LModel, tokenizer: PromptTokenizer | None) -> Trainer:
        trust = None if options.live is None else options.live.trust
        return setup.start_trainer(
            model, votes, schedule, tokenizer=tokenizer, ahead=not stream.grows, covariates=values, adjustments=trust
        )

    trainer = new_trainer(model, None)
    engine = trainer.engine
    with peers():
        folder = setup.run_folder(engine)
        check_shared(engine, folder)
        run = _OnlineRun(
            setup=setup,
            trainer=trainer,
            folder=folder,
            validation=validation,
            live=options.live,
            stream=stream,
            schedule=schedule,
            fingerprint=StreamFingerprint(stream),
            new_trainer=new_trainer,
        )
        if config.average_steps is not None:
            run.average = trainer.published = PublishedAverage(engine, config.average_steps)
        with alone_in(folder, engine):
            _train(run)
    return folder


def _find_start(checkpoint: str | None) -> Start:
    """Find the start of a run; a finished run of offline training is plain weights, whatever checkpoints it holds."""
    start = Start.of(checkpoint)
    if start.resume is None or checkpoint is None or (start.resume / STREAM_STATE).is_file():
        return start
    folder = Path(checkpoint).expanduser()
    is_finished = folder != start.resume and (folder / MODEL_LIST_FILE).is_file()
    return Start(None, checkpoint) if is_finished else start


def learned_votes(checkpoint: str | None) -> int:
    """Return the number of votes that a resumed run has seen; 0 for a new run."""
    resume = _find_start(checkpoint).resume
    return 0 if resume is None else read_state(resume).num_votes


def _covariates(
    config: OnlineConfig, model: P2LModel, stream: VoteStream, past: VoteStore | None
) -> nuisance.Values | None:
    """Give the model the covariates of the configuration, and return their values; VoteError if votes lack a column."""
    if not nuisance.continues(model, config.covariates):
        names, loss_type = config.covariates, config.loss_type
        model.covariates = nuisance.begin_stream(names, stream, loss_type) if names else None
    if model.covariates is None:
        return None
    of_stream = (
        nuisance.values_of_store(model.covariates, stream)
        if isinstance(stream, VoteStore)
        else nuisance.values_of_rows(model.covariates, stream)
    )
    if past is None:
        return of_stream
    whole, of_past = StreamWithPast(past, stream), nuisance.values_of_store(model.covariates, past)
    return lambda ids: torch.stack(whole.gathered(ids, of_past, of_stream))


def _schedule(
    config: OnlineConfig, options: OnlineOptions, start: Start, stream: VoteStream, model: P2LModel, past: int
) -> tuple[OnlineSchedule, int]:
    """Return the schedule, at the step where the run stands, and the rows of the head; `past` votes can be replayed."""
    counts: dict[int, int] = {}
    if options.initial_counts is not None:
        if start.weights is None:
            raise InputError(
                f"{options.initial_counts}: --initial-counts goes with --checkpoint and plain weights; "
                "a run that goes on has its own counts, and a new one begins without any model"
            )
        counts = read_counts(options.initial_counts, model.model_list)
    rows, state = config.model_capacity, None
    if start.resume is not None:
        state, rows = read_stream_state(start.resume, model.model_list)
        _check_same_stream(start.resume, stream, read_state(start.resume))
    every = options.run.save_steps

    def new_buffer() -> Buffer:
        buffer = make_buffer(config.buffer_settings, loop.votes_per_step(config, world_size()), config.seed, counts)
        if past:
            buffer.remember(np.arange(-past, 0))
        return buffer

    try:
        schedule = OnlineSchedule(
            stream,
            new_buffer(),
            known_models=len(model.model_list),
            # Counting runs all votes through a buffer of its own.
            total_steps=None if stream.grows else count_steps(stream, new_buffer(), state),
            is_saved=lambda step: bool(every) and step % (every or 1) == 0,
        )
        if state is not None:
            pool = np.asarray(state.get("buffer.pool", ()), dtype=np.int64)
            if pool.min(initial=0) < -past:  # past votes have ids below zero
                source = config.past_data_path or "it now has no past"
                raise CheckpointError(f"votes that it was to replay are gone ({source}); go on with the same --past")
            schedule.load_state(state)
    except CheckpointError as error:
        raise CheckpointError(f"{start.resume}: {error}") from error
    return schedule, rows


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
            "go on with the same ones (and the same --hold-out or --gate, which keep some back), or start a new run"
        )


def _open_validation(config: OnlineConfig, stream: VoteStream, model: P2LModel) -> VoteStore:
    assert config.val_data_path is not None
    votes = open_votes_together(config.val_data_path, from_disk=config.load_val_data_from_disk)
    nuisance.check_columns(model.covariates, votes)
    unknown = sorted(set(votes.model_list) - set(stream.model_list))
    if unknown and not (config.drop_unknown_models or stream.grows):
        raise VoteError(
            f"{config.val_data_path}: model {unknown[0]!r} is in none of the votes to train on ({len(unknown)} models "
            "are not); drop such votes (drop_unknown_models: true)"
        )
    check_counted(votes, config.loss_type)
    return votes


def _train(run: _OnlineRun) -> None:
    start, began_with = run.setup.start, run.schedule.began_with
    if run.live is not None:
        run.publisher = run.live.publisher(run.config, run.folder)
        run.retraining = run.live.retraining(run.config, run.folder, start, began_with)
    folder = None if run.publisher is None or not run.trainer.engine.is_main else run.publisher.folder
    with nullcontext() if folder is None else only_publisher(folder):
        _learn(run)


def _learn(run: _OnlineRun) -> None:
    start, began_with = run.setup.start, run.schedule.began_with
    rows = _follow_models(run)
    first = run.resume()
    if start.resume is not None and run.average is not None:
        run.average.load(start.resume)
    if rows is not None:
        rows.resume(run.schedule.arrived)
    if run.publisher is not None:
        run.publisher.begin(first, run.schedule.arrived, run.trainer, began_with=began_with)
    with closing(run.retraining) if run.retraining is not None else nullcontext():
        try:
            done = _train_to_the_end(run, first)
        except StopRequestedError:
            step = run.schedule.done
            if step and not (run.folder / f"checkpoint-{step}").exists():
                run.save_checkpoint(step)
            if not run.options.quiet:
                loop.note(f"stopped after step {step}; go on with --checkpoint {run.folder}")
            return
    if done > first and not (run.options.save_steps and done % run.options.save_steps == 0):
        run.save_checkpoint(done)
    if run.publisher is not None:
        run.publisher.finish(run.trainer)
    names = published_order(run.trainer.engine.model.model_list, run.schedule.began_with)
    run.announce(run.save_model(names))


def _follow_models(run: _OnlineRun) -> NewRows | None:
    """Let the head grow with the models of the stream; return what sets their rows."""
    growth = _Growth(run.config, run.trainer, run.folder / ".growing")
    growth.clear()
    began_with, by_votes = run.schedule.began_with, run.config.new_models == "prior"
    is_known = began_with >= FEWEST_KNOWN
    restart = run.average.restart if run.average is not None else None
    rows = NewRows(run.trainer, began_with, restart) if by_votes and is_known else None
    # Where no batch holds the past, larger steps forget it; the older form of replay trains as it was published.
    buffer, size = run.config.buffer_settings, loop.votes_per_step(run.config, world_size())
    is_larger = by_votes and not is_known and buffer.type == "replay" and not buffer.keep_size
    steps = LargerSteps(run.trainer, began_with, size) if is_larger else None

    trust = None if run.live is None else run.live.trust

    def meet(step: int) -> None:
        facts = run.schedule.facts(step + 1)
        if trust is not None:
            trust.update(facts.arrived)
        growth.meet(run.stream.model_list[: facts.models])
        if rows is not None:
            rows.update(facts.arrived)
        if steps is not None:
            steps.begin(facts.arrived)

    run.trainer.before_step = meet
    if steps is not None:
        run.trainer.after_update = steps.end
    return rows


def _train_to_the_end(run: _OnlineRun, first: int) -> int:
    """Train until the stream ends, taking over what was trained anew; return the steps done."""
    steps = run.schedule.total_steps
    num_votes = None if steps is None else steps * run.schedule.buffer.full_size  # with replayed ones
    while True:
        try:
            first = run.take_steps(first, num_votes)
            model = None
            if run.retraining is not None:
                model = run.retraining.finish(first, run.schedule.arrived, run.trainer)
            if model is None:
                return first
        except _BetterModelError as better:
            model = better.args[0]
        first = run.schedule.done
        _take_over(run, model)


def _take_over(run: _OnlineRun, folder: Path) -> None:
    """Go on with the weights of a model that was trained anew; the votes that it has not seen come next."""
    retraining, old = run.retraining, run.trainer
    assert retraining is not None
    start = Start(None, str(folder))
    tokenizer = loop.starting_tokenizer(run.config, start)
    model = loop.load_trained(run.config, start, tokenizer, to_dtype(old.engine.precision))
    names = old.engine.model.model_list
    unknown = [row for row, name in enumerate(names) if name not in model.model_list]
    arrange(model, names, old.engine.model.num_rows)
    run.trainer = run.new_trainer(model, tokenizer)
    if run.average is not None:
        run.average = run.trainer.published = PublishedAverage(run.trainer.engine, run.average.horizon)
        for row in unknown:  # at the mean row, which a mean should leave as fast as training does
            run.average.restart(row)
    rows = _follow_models(run)
    if rows is not None:
        rows.resume(run.schedule.arrived)
        rows.renew()
    # The new model was trained on the first `tried` votes.
    run.schedule.repeat(np.arange(retraining.state.tried, run.schedule.arrived))
    run.unsaved = True
    if run.publisher is not None:
        run.publisher.publish(run.schedule.done, run.schedule.arrived, run.trainer)
