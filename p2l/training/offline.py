"""Offline training: from a configuration to a folder with a trained model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from p2l.common.errors import ConfigError, InputError
from p2l.common.files import write_json
from p2l.leaderboard import Leaderboard
from p2l.model.covariates import CovariateEffects
from p2l.model.heads import HeadStart
from p2l.model.model import P2LModel
from p2l.people import SourceFit
from p2l.people.runs import board_of, has_sources, of_people, sources_of, terms_of, to_text, write_sources
from p2l.people.voters import by_people
from p2l.training import covariates as nuisance
from p2l.training.engine import choose_device, on_first, peers, start_processes, world_size
from p2l.training.forecasts import check_counted, compare
from p2l.training.loop import FinishedModel, Run, RunOptions, Setup, Start, note, open_train_votes
from p2l.training.posterior import write_posterior
from p2l.training.run_folder import TrainerState, alone_in, check_shared, newest_checkpoint, read_state, write_results
from p2l.training.run_records import COMPARISON_FILE, HeldOutComparison
from p2l.training.selection import POINTS, BestStep, CrossFit, cross_fit_sources, fold_in, hold_out, one_leaderboard
from p2l.training.train_config import TrainConfig, load_config
from p2l.training.trainer import OfflineSchedule, Trainer
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.splitting import hash_prompts


def train(config_path: str, options: RunOptions) -> Path:
    """Train as `config_path` says and return the run's folder (every rank runs this); InputError for unusable input."""
    run = prepare(config_path, options)
    with peers(), alone_in(run.folder, run.trainer.engine):
        last_step = run.train()
        factor = run.select(last_step)
        run.save(factor)
    return run.folder


@dataclass(frozen=True)
class _RunVotes:
    """The votes of a run by their purpose."""

    usable: VoteStore
    """Those that the run may learn from: votes to train on, and votes that choose the best step."""
    train: VoteStore
    choose: VoteStore | None
    """Held-out votes that choose the best step and the shrinkage; None: folds do, or nothing is chosen."""
    validation: VoteStore | None


@dataclass
class _OfflineRun(Run):
    votes: _RunVotes
    sources: SourceFit | None
    """The terms of judges and the trust in voters, where the votes have sources."""
    crossed: CrossFit | None
    best: BestStep | None
    planned_steps: int
    """Steps of the whole run, before cross-fitting ended it earlier."""
    worth: nuisance.Worth | None = None
    """Of covariates in the forecasts of the folds."""

    def train(self) -> int:
        """Take the steps from the start, or from the checkpoint that the run resumes; return the steps done."""
        is_main = self.trainer.engine.is_main
        if self.crossed is not None:
            # The schedule of the rate stays that of the whole run.
            stop = -(-self.planned_steps * round(self.crossed.share * POINTS) // POINTS)
            self.trainer.schedule = replace(self._schedule, stop=stop)
            if is_main and self.crossed.forecast is not None:  # a resumed run has written it before
                self.crossed.save(self.folder)
                if self.validation is None:
                    votes, likelihood = of_people(self.votes.usable, self.config), self.trainer.likelihood
                    self.worth = write_results(
                        self.folder, self.crossed.forecast, votes, likelihood, self.crossed.board
                    )
        first, checkpoint = self.resume(), self.setup.start.resume
        if checkpoint is not None and self.best is not None:
            self.best.load(checkpoint, read_state(checkpoint).selection or {}, is_main=is_main)
        steps = self._schedule.total_steps
        num_votes = len(self.votes.train) * self.config.num_train_epochs * steps // self.planned_steps
        return self.take_steps(first, num_votes)

    def select(self, last_step: int) -> float | None:
        """Give the model the weights of the best step, shrunk; return the factor, None where nothing was chosen."""
        if self.best is not None:
            return self.best.settle(self.trainer, last_step, self._board())
        if self.crossed is not None:
            fold_in(self.trainer.engine, self._board(), self.crossed.factor)
            return self.crossed.factor
        return None

    def save(self, factor: float | None) -> None:
        """Write the model, its posterior and its results, and print how it compares with one leaderboard."""
        if self.sources is not None and self.trainer.engine.is_main:
            write_sources(self.folder, self.sources, None if self.crossed is None else self.crossed.worth)

        def write_beside(folder: Path) -> None:
            # Of people's votes alone: verdicts of judges on people do not make intervals narrower.
            votes = of_people(self.votes.usable, self.config)
            write_posterior(folder, votes, self.trainer.engine.device, weighted=self.config.weighted_loss)

        finished = self.save_model(write_beside=write_beside, board=self._board)
        comparison = self._compare(finished, factor)
        finished = replace(finished, worth=finished.worth or self.worth)
        closing_table = ""
        if comparison is not None:
            closing_table = f"\n{comparison.to_text()}\n"
            worth = None if self.crossed is None else self.crossed.worth
            if self.sources is not None and (text := to_text(self.sources, worth)):
                closing_table += f"\n{text}\n"
            closing_table += "\n"
        self.announce(finished, closing_table)

    @property
    def _schedule(self) -> OfflineSchedule:
        schedule = self.trainer.schedule
        assert isinstance(schedule, OfflineSchedule)
        return schedule

    def votes_at(self, _step: int) -> tuple[int, str]:
        return len(self.votes.train), self.votes.train.fingerprint

    def state(self, step: int) -> TrainerState:
        config, global_batch = self.config, self._schedule.global_batch
        return replace(
            super().state(step),
            selection=None if self.best is None else self.best.record(),
            global_batch=global_batch,
            processes=global_batch // (config.batch_size * config.gradient_accumulation_steps),
        )

    def write_files(self, _step: int, folder: Path) -> None:
        if self.best is not None:
            self.best.save(folder)
        if self.crossed is not None:
            self.crossed.save(folder)

    def look(self, step: int) -> Mapping[str, float]:
        return {} if self.best is None else self.best.look(self.trainer, step)

    def _board(self) -> Leaderboard:
        return one_leaderboard(self.votes.usable, self.config, self.trainer.engine.model.covariates)

    def _compare(self, finished: FinishedModel, factor: float | None) -> HeldOutComparison | None:
        """Write how the model compares with one leaderboard; None without votes to compare on, and on other ranks."""
        votes, forecast, comparison = finished.validation, finished.forecast, None
        if votes is not None and forecast is not None:
            comparison = compare(
                forecast,
                nuisance.forecast_by(self._board(), finished.effects, votes),
                votes.labels(),
                hash_prompts(votes),
                self.config.loss_type,
                factor=factor,
            )
        elif self.crossed is not None and self.validation is None and self.trainer.engine.is_main:
            comparison = self.crossed.comparison
        if comparison is not None:
            write_json(self.folder / COMPARISON_FILE, comparison.to_dict(), indent=2)
        return comparison


# Prepare: votes, model and trainer.


def prepare(config_path: str, options: RunOptions) -> _OfflineRun:
    """Check all input, choose the votes, cross-fit where the configuration says so, and start the trainer."""
    config, start = load_config(config_path), Start.of(options.checkpoint)
    setup = Setup.of(config, config_path, options, start)
    trained = setup.trained_model()
    votes, crossed = _choose_votes(setup, None if trained is None else trained.model_list)
    model = _with_covariates(setup, votes.train, trained)
    if votes.validation is not None:
        nuisance.check_columns(model.covariates, votes.validation)
    sources = None if crossed is None else crossed.sources
    if sources is None and has_sources(config):
        sources = sources_of(votes.train, config, None if model.covariates is None else model.covariates.design)
    trainer = _start_trainer(setup, votes.train, model, sources)
    steps = trainer.schedule.total_steps or 0
    best = None
    with peers():
        folder = setup.run_folder(trainer.engine)
        if options.save_steps:
            check_shared(trainer.engine, folder)
        if votes.choose is not None:
            board = one_leaderboard(votes.train, config, model.covariates)
            best = BestStep(config, votes.choose, board, steps, sources)
    return _OfflineRun(
        setup=setup,
        trainer=trainer,
        folder=folder,
        validation=votes.validation,
        votes=votes,
        sources=sources,
        crossed=crossed,
        best=best,
        planned_steps=steps,
    )


def _choose_votes(setup: Setup, model_list: list[str] | None) -> tuple[_RunVotes, CrossFit | None]:
    """Open the votes and hold some out, or cross-fit on all of them, to choose the best step by."""
    config, options, resume = setup.config, setup.options, setup.start.resume
    # Covariates, judges and voters are fitted to whole rows, and few votes are cross-fitted.
    needs_rows = config.covariates or has_sources(config) or config.cross_fit
    usable = open_train_votes(config, model_list, spread=not needs_rows)
    if usable.is_time_sorted and not config.shuffle:
        note(
            "warning: votes are sorted by time and used in that order; a model forgets its oldest votes this way "
            "(set 'shuffle: true', or train online)"
        )
    check_counted(usable, config.loss_type, weighted=config.weighted_loss)
    validation = _open_validation(config, usable, quiet=options.quiet) if options.eval_steps is not None else None
    selects = options.eval_steps is not None if resume is None else bool(read_state(resume).selection)
    crossed = None if resume is None else CrossFit.read(resume)
    if resume is None and selects and config.cross_fit:
        usable, crossed = cross_fit_sources(
            usable,
            config,
            lambda votes: _start_trainer(setup, votes, _with_covariates(setup, votes, setup.trained_model())),
            quiet=options.quiet,
        )
    elif crossed is not None and crossed.worth is not None and not crossed.worth.helps:
        usable = of_people(usable, config)
    parts = hold_out(usable, config) if selects and not config.cross_fit else None
    if parts is None and selects and config.selection_share and not config.cross_fit:
        note("too few prompts to hold some out: the last step is the result, and it is not shrunk")
    train, choose = parts or (usable, None)
    return _RunVotes(usable, train, choose, validation), crossed


def _open_validation(config: TrainConfig, votes: VoteStore, *, quiet: bool) -> VoteStore | None:
    if config.val_data_path is None:  # cross-fitting does without
        return None
    validation = open_votes_together(
        config.val_data_path,
        model_list=votes.model_list,
        drop_unknown=config.drop_unknown_models,
        from_disk=config.load_val_data_from_disk,
    )
    if has_sources(config):
        validation = of_people(validation, config)
    if config.val_data_path == config.train_data_path:
        note("warning: validation votes are the training votes; see p2l votes split")
    if validation.dropped and not quiet:
        note(f"{config.val_data_path}: dropped {validation.dropped} votes on models not trained on")
    check_counted(validation, config.loss_type)
    return validation


def _with_covariates(setup: Setup, votes: VoteStore, trained: P2LModel | None) -> P2LModel:
    """Return the trained model, or one with a new head, with the covariates of some votes."""
    config = setup.config
    if trained is not None and nuisance.continues(trained, config.covariates):
        return trained
    effects: CovariateEffects | None = None
    board: Leaderboard | None = None
    if config.covariates:
        effects, board = nuisance.begin(
            config.covariates,
            of_people(votes, config),
            config.loss_type,
            weighted=config.weighted_loss,
            board=board_of(votes, config) if has_sources(config) else None,
        )
    model = trained
    if model is None:
        head_start = None
        if config.init_type == "marginal":  # the same on every process, because all count the same votes
            board = board or one_leaderboard(votes, config)
            head_start = HeadStart(board.coefs, board.eta, board.gamma)
        model = setup.new_model(votes.model_list, head_start)
    model.covariates = effects
    return model


def _start_trainer(setup: Setup, votes: VoteStore, model: P2LModel, sources: SourceFit | None = None) -> Trainer:
    """Start DeepSpeed for some votes and a model; `sources` are by default what one leaderboard says of them."""
    config = setup.config
    schedule = OfflineSchedule(
        num_votes=len(votes),
        global_batch=setup.global_batch,
        epochs=config.num_train_epochs,
        shuffle=bool(config.shuffle),
        seed=config.seed,
        prompts=np.unique(hash_prompts(votes), return_inverse=True)[1] if config.shuffle == "by_prompt" else None,
    )
    values = design = None
    if model.covariates is not None:
        design = model.covariates.design
        values = nuisance.values_of_store(model.covariates, votes, by_people(votes, config.people))
    if sources is None and has_sources(config):
        sources = sources_of(votes, config, design)
    adjustments = terms_of(votes, config, sources)
    return setup.start_trainer(model, votes, schedule, covariates=values, adjustments=adjustments)


def take_up(config: TrainConfig, *, validate: bool) -> tuple[Path, str | None] | None:
    """Return the folder of a configuration's run and its newest checkpoint, None before the first; None if it ended."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("TORCHELASTIC_MAX_RESTARTS") != "0":
        # The store of torchrun still has the addresses of the processes before, and those after would call them.
        raise ConfigError("set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, or it cannot start processes again")
    folder = config.output_dir / config.run_name

    def look() -> tuple[Path, str | None] | None:
        if (folder / (COMPARISON_FILE if validate else "config.json")).exists():
            print(f"{folder}: is trained; another proj_name starts a new run", file=sys.stderr)
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made: {error.strerror}; change 'output_dir'") from error
        newest = newest_checkpoint(folder)
        return folder, str(newest) if newest else None

    if world_size() == 1:
        return look()
    # Every process calls this, and the first one looks, so that all go on from the same checkpoint.
    start_processes(choose_device(config.device))
    return on_first(look)
