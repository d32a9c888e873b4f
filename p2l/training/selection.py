"""Choose the step of a run to save, and its shrinkage towards one leaderboard, by prompts that are not trained on.

A share of the training votes, whole prompts of them, is held out. At ten points of the run the model predicts them, and
the step with the lowest loss after shrinking (`p2l.training.forecasts`) is saved.

Where votes are few such a share is both a loss and too noisy. There the prompts are dealt into folds (`cross_fit`): a
model is trained on all folds but one, and predicts that one at the same points. All votes choose step and factor, then
all are trained on. The forecast of each fold, by a model that was trained on the other folds and stopped and shrunk as
they choose, gives the comparison with one leaderboard.

Shapes: N votes, M models, E points.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.cli import progress
from p2l.common.errors import CheckpointError, VoteError
from p2l.common.files import parse_json
from p2l.leaderboard import Leaderboard
from p2l.likelihood import get
from p2l.model.checkpoint import write_json
from p2l.model.covariates import CovariateEffects
from p2l.model.heads import HeadStart
from p2l.people import SourceFit
from p2l.people.runs import WorthOfJudges, board_of, has_sources, of_people, people_rows, refitted, sources_of, terms_of
from p2l.people.voters import by_people
from p2l.training import covariates as nuisance
from p2l.training.engine import Engine
from p2l.training.forecasts import (
    Forecast,
    Shrinkage,
    ValidationVotes,
    blend,
    check_counted,
    compare,
    marginal_board,
)
from p2l.training.run_records import HeldOutComparison
from p2l.training.train_config import TrainConfig
from p2l.training.trainer import Trainer
from p2l.votes import VoteStore
from p2l.votes.splitting import hash_prompts, split_by_prompt

POINTS = 10
MOST_CHOOSING_PROMPTS = 2_000
_LARGEST_CHOOSING_SHARE = 0.3  # of the votes; few prompts with many votes each could take more
BEST_FILE, CROSS_FIT_FILE = "best.safetensors", "cross_fit.json"


def points_of(total: int) -> list[int]:
    """Return the steps (E,) after which a run is looked at, the last one included; a short run repeats some."""
    return [math.ceil(total * point / POINTS) for point in range(1, POINTS + 1)]


def hold_out(votes: VoteStore, config: TrainConfig) -> tuple[VoteStore, VoteStore] | None:
    """Split training votes into those to train on and those to choose by; None where they cannot be split."""
    people = people_rows(votes, config)
    if not len(people) or not config.selection_share:
        return None
    hashes = hash_prompts(votes)
    votes_per_prompt = len(people) / len(np.unique(hashes[people]))
    # Forecasts err by the prompt, so that prompts are counted: fifty of them say little, with forty votes each or one.
    count = round(min(config.selection_share * len(people), MOST_CHOOSING_PROMPTS * votes_per_prompt))
    if not count:
        return None
    try:
        # Whole prompts are held out, and people alone choose: judges' verdicts on these prompts are used for nothing.
        chosen = people[split_by_prompt(of_people(votes, config), count, config.seed)]
        # Prompts may be too large to spare one; a single prompt, and parts without votes that count, raise VoteError.
        if len(chosen) > max(count, _LARGEST_CHOOSING_SHARE * len(people)):
            return None
        # The votes of a prompt follow each other, so that it is read once.
        order = np.argsort(hashes[chosen], kind="stable")
        parts = votes.subset(np.flatnonzero(~np.isin(hashes, hashes[chosen]))), votes.subset(chosen[order])
        for part in parts:
            check_counted(part, config.loss_type, weighted=config.weighted_loss)
    except VoteError:
        return None
    return parts


def one_leaderboard(votes: VoteStore, config: TrainConfig, effects: CovariateEffects | None = None) -> Leaderboard:
    """Return the leaderboard for all prompts that a run is shrunk towards, fitted with the model's covariates."""
    weighted, design = config.weighted_loss, None if effects is None else effects.design
    if has_sources(config):
        return board_of(votes, config, design)
    if design is not None:
        return nuisance.board_beside(design, votes, config.loss_type, weighted=weighted)
    return marginal_board(votes, config.loss_type, weighted=weighted)


def to_choose_by(votes: VoteStore, config: TrainConfig, sources: SourceFit | None = None) -> ValidationVotes:
    """Return labels, prompts and weights of votes that step and factor are chosen by; `sources` weigh their voters."""
    prompts = np.unique(hash_prompts(votes), return_inverse=True)[1]
    weights = votes.weights() if config.weighted_loss else np.ones(len(votes))
    adjustments = None if sources is None else terms_of(votes, config, sources)
    weights = weights if adjustments is None else weights * adjustments.weight
    return ValidationVotes(get(config.loss_type), votes.labels(), prompts, weights)


def fold_in(engine: Engine, board: Leaderboard, factor: float) -> None:
    """Shrink the head's predictions towards a leaderboard, in its weights (every rank must call this)."""
    if factor < 1:
        start = HeadStart(board.coefs, board.eta, board.gamma)
        for name, change in engine.model.changes_towards(start, factor).items():
            engine.edit(name, change)


@dataclass
class BestStep:
    """The best step so far of a run, by votes that it is not trained on."""

    config: TrainConfig
    votes: VoteStore
    board: Leaderboard
    """The one leaderboard of the votes that are trained on."""
    total_steps: int
    sources: SourceFit | None = None
    """Fit of judges and voters to the votes that are trained on."""
    step: int = 0
    """0: none has been looked at."""
    loss: float = math.inf
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Weights of the best step, of the parameters that are trained (on rank 0)."""
    _labelled: ValidationVotes | None = None
    _covariates: nuisance.Values | None = None
    """Those of the votes; made at the first point of the run, as the next two are."""
    _beside: Forecast | None = None
    """By the one leaderboard."""

    def look(self, trainer: Trainer, step: int) -> dict[str, float]:
        """Compare the model with the best one so far, at the points of the run; return columns for metrics.jsonl."""
        if step not in points_of(self.total_steps):
            return {}
        shrinkage = self._choose(trainer)
        if shrinkage.loss < self.loss:
            self.step, self.loss = step, shrinkage.loss
            trained, state = set(_trained(trainer.engine)), trainer.engine.state_dict()
            self.weights = {name: weight for name, weight in state.items() if name in trained}
        return {"selection/Loss": shrinkage.loss, "selection/factor": shrinkage.factor}

    def settle(self, trainer: Trainer, last: int, board: Leaderboard) -> float:
        """Put the best step's weights into the engine, shrunk towards `board`; return the factor (collective)."""
        engine = trainer.engine
        for name in _trained(engine) if 0 < self.step < last else []:
            best = self.weights.get(name)
            best = best if engine.world_size == 1 else engine.broadcast(best)
            engine.edit(name, lambda values, best=best: values.copy_(best))  # type: ignore[misc]
        factor = self._choose(trainer).factor
        fold_in(engine, board, factor)
        return factor

    def record(self) -> dict[str, float | None]:
        """Return the part of a checkpoint's state that `load` continues from."""
        return {"votes": len(self.votes), "step": self.step, "loss": self.loss if self.step else None}

    def save(self, folder: Path) -> None:
        """Write the best step's weights into a checkpoint."""
        from safetensors.torch import save_file

        if self.step:
            save_file({name: weight.contiguous() for name, weight in self.weights.items()}, folder / BEST_FILE)

    def load(self, folder: Path, record: dict[str, Any], *, is_main: bool) -> None:
        """Continue from what `record` and `save` kept; CheckpointError if the weights are missing or damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if record.get("step"):
            self.step, self.loss = int(record["step"]), float(record["loss"])
            if not is_main:
                return
            try:
                self.weights = load_file(folder / BEST_FILE)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{folder / BEST_FILE}: missing or damaged ({error}); copy the checkpoint again"
                ) from error

    def _choose(self, trainer: Trainer) -> Shrinkage:
        effects = trainer.engine.model.covariates
        if effects is not None and self._covariates is None:
            self._covariates = nuisance.values_of_store(effects, self.votes)
        model = trainer.forecast(self.votes, self._covariates)
        shrinkage = None
        if model is not None:  # on rank 0 alone
            if self._labelled is None or self._beside is None:
                self._labelled = to_choose_by(self.votes, self.config, self.sources)
                self._beside = nuisance.forecast_by(self.board, effects, self.votes)
            shrinkage = self._labelled.choose([self._labelled.losses(model, self._beside)])
        chosen: Shrinkage = trainer.engine.broadcast(shrinkage)
        return chosen


def _trained(engine: Engine) -> list[str]:
    return [name for name, weight in engine.model.named_parameters() if weight.requires_grad]


@dataclass(frozen=True)
class CrossFit:
    """The outcome of cross-fitting, by which the model is then trained on all votes."""

    share: float
    """Share of the steps of a run after which it ends."""
    factor: float
    comparison: HeldOutComparison
    sources: SourceFit | None = None
    """By the forecasts of the folds, where votes have sources."""
    worth: WorthOfJudges | None = None
    """None where there are no judges."""
    forecast: Forecast | None = None
    """Forecast of people's votes, each by a model that was not trained on its prompt (on rank 0, not in the file)."""
    board: Forecast | None = None
    """The same by one leaderboard."""

    def save(self, folder: Path) -> None:
        """Write everything but the forecasts."""
        content: dict[str, Any] = {"share": self.share, "factor": self.factor, "comparison": self.comparison.to_dict()}
        if self.sources is not None:
            content |= {"sources": self.sources.to_dict(), "worth": self.worth and asdict(self.worth)}
        write_json(folder / CROSS_FIT_FILE, content)

    @classmethod
    def read(cls, folder: Path) -> CrossFit | None:
        """Read what `save` wrote, None if nothing is there; CheckpointError if it is damaged."""
        file = folder / CROSS_FIT_FILE
        if not file.is_file():
            return None
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
            sources, worth = content.get("sources"), content.get("worth")
            return cls(
                share=content["share"],
                factor=content["factor"],
                comparison=HeldOutComparison.from_dict(content["comparison"]),
                sources=sources and SourceFit.from_dict(sources),
                worth=worth and WorthOfJudges(**worth),
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}; start a new run") from error


def deal_prompts(votes: VoteStore, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold (N,) of each vote's prompt; fewer folds where there are fewer prompts."""
    number = np.unique(hash_prompts(votes, seed), return_inverse=True)[1]
    return np.asarray(number % min(folds, int(number.max()) + 1), dtype=np.int64)


def cross_fit(votes: VoteStore, config: TrainConfig, start: Callable[[VoteStore], Trainer], *, quiet: bool) -> CrossFit:
    """Train without each fold in turn, and choose step and factor by all of them (every rank must call this).

    `start` returns a trainer of some votes. VoteError for votes on a single prompt.
    """
    assert config.cross_fit is not None
    fold = deal_prompts(votes, config.cross_fit, config.seed)
    folds = int(fold.max()) + 1
    if folds < 2:
        raise VoteError(f"{votes.name}: all votes share one prompt, which cannot be dealt into folds; use --no-eval")
    tables = _FoldForecasts(len(votes))
    for number in progress(range(folds), description="cross-fit", unit="fold", quiet=quiet):
        inside, out = (votes.subset(np.flatnonzero(side)) for side in (fold != number, fold == number))
        trainer = start(inside)
        engine, effects, of_people_alone = (
            trainer.engine,
            trainer.engine.model.covariates,
            by_people(out, config.people),
        )
        board = one_leaderboard(inside, config, effects)
        values = None if effects is None else nuisance.values_of_store(effects, out, of_people_alone)
        rows = np.flatnonzero(fold == number)
        tables.put(rows, None, nuisance.forecast_by(board, effects, out, of_people_alone))
        points = points_of(trainer.schedule.total_steps or 0)
        for result in trainer.steps():
            if result.step in points:
                model = trainer.forecast(out, values)
                for point in np.flatnonzero(np.array(points) == result.step) if model is not None else []:
                    tables.put(rows, int(point), model)
        del trainer
        gc.collect()  # DeepSpeed's engines refer to themselves
    fitted = _chosen(votes, config, tables, fold) if engine.is_main else None
    shared: CrossFit = engine.broadcast(None if fitted is None else replace(fitted, forecast=None, board=None))
    return shared if fitted is None else fitted


def cross_fit_sources(
    votes: VoteStore, config: TrainConfig, start: Callable[[VoteStore], Trainer], *, quiet: bool
) -> tuple[VoteStore, CrossFit]:
    """Cross-fit with judges and without; return the votes to train on, those of people alone if that is better."""
    crossed, people = cross_fit(votes, config, start, quiet=quiet), of_people(votes, config)
    if people is votes:
        return votes, crossed
    alone = cross_fit(people, config, start, quiet=quiet)
    worth = WorthOfJudges(alone.comparison.model["Loss"], crossed.comparison.model["Loss"])
    return (votes, replace(crossed, worth=worth)) if worth.helps else (people, replace(alone, worth=worth))


class _FoldForecasts:
    """Forecasts of N votes at each point of the runs, and by one leaderboard, filled fold by fold."""

    def __init__(self, votes: int) -> None:
        self.num_votes = votes
        self.forecasts: dict[int | None, Forecast] = {}

    def put(self, rows: NDArray[np.int64], point: int | None, forecast: Forecast | None) -> None:
        """Set the forecast of some votes at a point; None is the leaderboard."""
        assert forecast is not None
        if point not in self.forecasts:
            self.forecasts[point] = Forecast(
                coefs=np.zeros((self.num_votes, forecast.coefs.shape[1]), forecast.coefs.dtype),
                eta=None if forecast.eta is None else np.zeros(self.num_votes),
                gamma=None if forecast.gamma is None else np.zeros(self.num_votes),
                shift=None if forecast.shift is None else np.zeros((self.num_votes, 3)),
            )
        table = self.forecasts[point]
        table.coefs[rows] = forecast.coefs
        if table.eta is not None:
            table.eta[rows] = forecast.eta
        if table.gamma is not None:
            table.gamma[rows] = forecast.gamma
        if table.shift is not None:
            table.shift[rows] = forecast.shift

    @property
    def points(self) -> list[Forecast]:
        """The forecasts of the E points, in order."""
        return [self.forecasts[point] for point in range(POINTS)]


def _chosen(votes: VoteStore, config: TrainConfig, tables: _FoldForecasts, fold: NDArray[np.int64]) -> CrossFit:
    """Choose by all folds, and compare each fold as the others would choose; votes of people decide."""
    people = people_rows(votes, config)
    sources = sources_of(votes, config) if has_sources(config) else None
    to_choose = to_choose_by(votes.subset(people), config, sources)
    board = tables.forecasts[None]
    losses = [to_choose.losses(model.take(people), board.take(people)) for model in tables.points]
    whole = to_choose.choose(losses)
    for number in range(int(fold.max()) + 1):
        choice, rows = to_choose.choose(losses, fold[people] != number), np.flatnonzero(fold == number)
        mixed = blend(tables.points[choice.point].take(rows), board.take(rows), choice.factor)
        tables.put(rows, POINTS, mixed)
    result = tables.forecasts[POINTS]
    of_people_alone, board_of_people = result.take(people), board.take(people)
    comparison = compare(
        of_people_alone,
        board_of_people,
        to_choose.labels,
        to_choose.prompts,
        config.loss_type,
        factor=whole.factor,
        folds=int(fold.max()) + 1,
    )
    sources = None if sources is None else refitted(votes, config, result)
    return CrossFit(
        share=(whole.point + 1) / POINTS,
        factor=whole.factor,
        comparison=comparison,
        sources=sources,
        forecast=of_people_alone,
        board=board_of_people,
    )
