"""Offline training: from a configuration to a folder with a trained model.

All input is checked before the process group starts, and every rank reaches the same conclusions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from p2l.common.files import write_json
from p2l.leaderboard import Leaderboard
from p2l.model.covariates import CovariateEffects
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import HeadStart
from p2l.model.model import P2LModel
from p2l.people import SourceFit
from p2l.people.runs import WorthOfJudges, has_sources, of_people, sources_of, terms_of, to_text, write_sources
from p2l.training import covariates as nuisance
from p2l.training import loop
from p2l.training.comparison import COMPARISON_FILE, HeldOutComparison
from p2l.training.config import TrainConfig, load_config
from p2l.training.data import OfflineSchedule
from p2l.training.engine import peers
from p2l.training.facts import Forecast, check_counted, compare
from p2l.training.loop import Hardware, RunOptions, Start
from p2l.training.posterior import write_posterior
from p2l.training.run_folder import TrainerState, alone_in, check_same_configuration, check_shared, read_state
from p2l.training.selection import POINTS, BestStep, CrossFit, cross_fit_sources, fold_in, hold_out, one_leaderboard
from p2l.training.trainer import Trainer
from p2l.votes import VoteStore, open_votes_together
from p2l.votes.splitting import hash_prompts


@dataclass
class _OfflineRun(loop.Run):
    all_votes: VoteStore
    """Those that are trained on, and those that choose the best step."""
    votes: VoteStore
    best: BestStep | None = None
    crossed: CrossFit | None = None
    sources: SourceFit | None = None
    """What judges and voters are made of, where the votes have sources."""
    factor: float | None = None
    """How far the finished model is shrunk towards one leaderboard."""
    comparison: HeldOutComparison | None = None

    @property
    def worth_of_judges(self) -> WorthOfJudges | None:
        """What cross-fitting says of the judges; None where there are none, or nothing was cross-fitted."""
        return None if self.crossed is None else self.crossed.worth

    def votes_at(self, _step: int) -> tuple[int, str]:
        return len(self.votes), self.votes.fingerprint

    def controlled_board(self) -> Leaderboard | None:
        return self.board()

    def write_beside(self, folder: Path) -> None:
        # Of people's votes alone: intervals do not become narrower by what judges say of people.
        write_posterior(
            folder,
            of_people(self.all_votes, self.config),
            self.trainer.engine.device,
            weighted=self.config.weighted_loss,
        )

    def state(self, step: int) -> TrainerState:
        schedule, config = self.trainer.schedule, self.config
        assert isinstance(schedule, OfflineSchedule)
        return replace(
            super().state(step),
            selection=None if self.best is None else self.best.record(),
            global_batch=schedule.global_batch,
            processes=schedule.global_batch // (config.batch_size * config.gradient_accumulation_steps),
        )

    def resume(self, checkpoint: Path | None) -> int:
        step = super().resume(checkpoint)
        if checkpoint is not None and self.best is not None:
            self.best.load(checkpoint, read_state(checkpoint).selection or {}, is_main=self.trainer.engine.is_main)
        return step

    def write_files(self, _step: int, folder: Path) -> None:
        if self.best is not None:
            self.best.save(folder)
        if self.crossed is not None:
            self.crossed.save(folder)

    def look(self, step: int) -> Mapping[str, float]:
        return {} if self.best is None else self.best.look(self.trainer, step)

    def settle(self, last: int) -> None:
        if self.sources is not None and self.trainer.engine.is_main:
            write_sources(self.folder, self.sources, self.worth_of_judges)
        if self.best is not None:
            self.factor = self.best.settle(self.trainer, last, self.board())
        elif self.crossed is not None:
            self.factor = self.crossed.factor
            fold_in(self.trainer.engine, self.board(), self.factor)

    def board(self) -> Leaderboard:
        """Return the one leaderboard of all votes that the run may learn from."""
        return one_leaderboard(self.all_votes, self.config)

    def evaluate(self) -> nuisance.Worth | None:
        worth = super().evaluate()
        if self.crossed is not None and self.validation is None and self.trainer.engine.is_main:
            self.report(self.crossed.comparison)
        return worth

    def compare(self, validation: VoteStore, predictions: Forecast) -> None:
        board = self.board()
        theirs = Forecast(board.coefs, *(None if x is None else np.array(x) for x in (board.eta, board.gamma)))
        prompts, labels = hash_prompts(validation), validation.labels()
        self.report(compare(predictions, theirs, labels, prompts, self.config.loss_type, factor=self.factor))

    def report(self, comparison: HeldOutComparison) -> None:
        """Write how the model compares with one leaderboard, and keep it for the closing table."""
        write_json(self.folder / COMPARISON_FILE, comparison.to_dict(), indent=2)
        self.comparison = comparison

    def closing_table(self) -> str:
        if self.comparison is None:
            return ""
        lines = [self.comparison.to_text()]
        if self.sources is not None and (text := to_text(self.sources, self.worth_of_judges)):
            lines.append(f"\n{text}")
        return "\n{}\n\n".format("\n".join(lines))


@dataclass(frozen=True)
class _Setup:
    """What all trainers of a run share."""

    config: TrainConfig
    hardware: Hardware
    start: Start
    tokenizer: PromptTokenizer

    def trained_model(self) -> P2LModel | None:
        """Return the model that training starts from; None for a new head."""
        if not self.start.model:
            return None
        return loop.trained_model(self.config, self.start, self.tokenizer, self.hardware.dtype)

    def model(self, votes: VoteStore, trained: P2LModel | None) -> P2LModel:
        """Return a model to train on some votes, with their covariates: the trained one, or one with a new head."""
        config = self.config
        if trained is not None:
            if not nuisance.continues(trained, config.covariates):
                trained.covariates = _begin_covariates(config, votes)[0]
            return trained
        effects, board = _begin_covariates(config, votes)
        start = None
        if config.init_type == "marginal":  # the same on every process, because all count the same votes
            board = board or one_leaderboard(votes, config)
            start = HeadStart(board.coefs, board.eta, board.gamma)
        model = loop.make_model(config, self.tokenizer, self.hardware.dtype, votes.model_list, head_start=start)
        model.covariates = effects
        return model

    def new_trainer(self, votes: VoteStore) -> Trainer:
        """Start DeepSpeed anew for some votes."""
        return self.trainer(votes, self.model(votes, self.trained_model()))

    def trainer(self, votes: VoteStore, model: P2LModel, sources: SourceFit | None = None) -> Trainer:
        """Start DeepSpeed for some votes and a model; `sources` are by default what one leaderboard says of them."""
        config = self.config
        schedule = OfflineSchedule(
            num_votes=len(votes),
            global_batch=loop.global_batch(config, self.start.resume),
            epochs=config.num_train_epochs,
            shuffle=bool(config.shuffle),
            seed=config.seed,
            prompts=np.unique(hash_prompts(votes), return_inverse=True)[1] if config.shuffle == "by_prompt" else None,
        )
        values = None if model.covariates is None else nuisance.values_of_store(model.covariates, votes)
        more: dict[str, Any] = {"covariates": values, "terms": terms_of(votes, config, sources)}
        return loop.start_trainer(config, self.hardware, model, self.tokenizer, votes, schedule, **more)


def train(config_path: str, options: RunOptions) -> Path:
    """Train as `config_path` says and return the run's folder (every rank runs this); InputError for unusable input."""
    config = load_config(config_path)
    loop.check_options(config, config_path, options)
    hardware = loop.find_hardware(config, config_path)
    start = loop.find_start(options.checkpoint)
    if start.resume is not None:
        check_same_configuration(config, start.resume)
    setup = _Setup(config, hardware, start, loop.make_tokenizer(config, start))
    model = setup.trained_model()
    all_votes = _open_train(config, None if model is None else model.model_list)
    validation = _open_validation(config, all_votes, quiet=options.quiet) if options.eval_steps is not None else None
    selects = options.eval_steps is not None if start.resume is None else bool(read_state(start.resume).selection)
    parts = hold_out(all_votes, config) if selects and not config.cross_fit else None
    if parts is None and selects and config.selection_share and not config.cross_fit:
        loop.note("too few prompts to hold some out: the last step is the result, and it is not shrunk")
    crossed = None if start.resume is None else CrossFit.read(start.resume)
    if start.resume is None and selects and config.cross_fit:
        all_votes, crossed = cross_fit_sources(all_votes, config, setup.new_trainer, quiet=options.quiet)
    elif crossed is not None and crossed.worth is not None and not crossed.worth.helps:
        all_votes = of_people(all_votes, config)
    votes = all_votes if parts is None else parts[0]
    model = setup.model(votes, model)
    if validation is not None:
        nuisance.check_columns(model.covariates, validation)
    sources = None if crossed is None else crossed.sources
    if sources is None and has_sources(config):
        sources = sources_of(votes, config)
    trainer = setup.trainer(votes, model, sources)
    whole = trainer.schedule.total_steps or 0
    with peers():
        folder = loop.run_folder(trainer.engine, config, options, start)
        if options.save_steps:
            check_shared(trainer.engine, folder)
        more: dict[str, Any] = {"crossed": crossed, "sources": sources}
        run = _OfflineRun(config, options, trainer, folder, validation, all_votes, votes, **more)
        if parts is not None:
            run.best = BestStep(config, parts[1], one_leaderboard(votes, config), whole, sources)
        with alone_in(folder, trainer.engine):
            if crossed is not None:
                _stop_at(trainer, crossed)
                _write_cross_fit(run, crossed)
            first, steps = run.resume(start.resume), trainer.schedule.total_steps or 0
            run.settle(run.train(first, len(votes) * config.num_train_epochs * steps // whole))
            run.finish()
    return folder


def _begin_covariates(
    config: TrainConfig, votes: VoteStore
) -> tuple[CovariateEffects, Leaderboard] | tuple[None, None]:
    """Return the covariates of the configuration and the leaderboard that was fitted with them; None without any."""
    if not config.covariates:
        return None, None
    return nuisance.begin(config.covariates, votes, config.loss_type, weighted=config.weighted_loss)


def _stop_at(trainer: Trainer, crossed: CrossFit) -> None:
    """End training where cross-fitting says; the schedule of the rate stays that of the whole run."""
    assert isinstance(trainer.schedule, OfflineSchedule)
    stop = -(-trainer.schedule.total_steps * round(crossed.share * POINTS) // POINTS)
    trainer.schedule = replace(trainer.schedule, stop=stop)


def _write_cross_fit(run: _OfflineRun, crossed: CrossFit) -> None:
    """Write what cross-fitting found, unless a run that is resumed has done so."""
    if run.trainer.engine.is_main and crossed.forecast is not None:
        crossed.save(run.folder)
        if run.validation is None:
            votes = of_people(run.all_votes, run.config)
            loop.write_results(run.folder, crossed.forecast, votes, run.trainer.likelihood)


def _open_train(config: TrainConfig, model_list: list[str] | None) -> VoteStore:
    # What covariates, judges and voters are fitted by is in the rows, and few votes are cross-fitted.
    needs_rows = config.covariates or has_sources(config) or config.cross_fit
    votes = loop.open_train_votes(config, model_list, spread=not needs_rows)
    if votes.is_time_sorted and not config.shuffle:
        loop.note(
            "warning: votes are sorted by time and used in that order; a model forgets its oldest votes this way "
            "(set 'shuffle: true', or train online)"
        )
    check_counted(votes, config.loss_type, weighted=config.weighted_loss)
    return votes


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
        loop.note("warning: validation votes are the training votes; see p2l votes split")
    if validation.dropped and not quiet:
        loop.note(f"{config.val_data_path}: dropped {validation.dropped} votes on models not trained on")
    check_counted(validation, config.loss_type)
    return validation
