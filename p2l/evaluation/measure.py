"""The measurements of one category of one output.

Shapes: N votes of the output, n of the category, M models, C metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConfigError, InputError
from p2l.evaluation.boards import board_of_labels, standing
from p2l.evaluation.categories import ALL, Category, EmptyCategoryError
from p2l.evaluation.curves import Draws, aggregation_scale, random_subsets
from p2l.evaluation.inputs import EvaluationSettings
from p2l.evaluation.outputs import EvaluatedOutput
from p2l.evaluation.references import ArenaRatings, TrainVotes
from p2l.evaluation.results import CategoryResult, ModelScore
from p2l.evaluation.subjects import Fixed, ModelAnswers, Subject
from p2l.leaderboard import Leaderboard
from p2l.metrics import (
    METRICS,
    Comparison,
    Interval,
    Reliability,
    ScoredVotes,
    bootstrap_mean,
    bootstrap_skill,
    compare,
    evaluate,
    joined_points,
    vote_values,
)

Ints = npt.NDArray[np.integer[Any]]
ADDED = ("Brier", "RPS", "ECE", "ECE-win", "ECE-tie", "ECE-bothbad")
_TOP = 10
_MODELS_AT_ONCE = 16  # each is a column of all votes in memory


@dataclass(frozen=True)
class EvaluationJob:
    """An output and what its categories are compared with."""

    output: EvaluatedOutput
    settings: EvaluationSettings
    train: TrainVotes | None = None
    arena: ArenaRatings | None = None


def measure(job: EvaluationJob, category: Category, chosen: npt.NDArray[np.bool_], *, limit: int = 0) -> CategoryResult:
    """Measure the rows `chosen` (N,) of a category.

    With `limit`, the marginal leaderboard of the first rows of the training votes is evaluated.
    """
    evaluation = _CategoryEvaluation(job, category, np.flatnonzero(chosen), limit)
    try:
        truth = evaluation.arena() if job.settings.ground_truth == "arena" else evaluation.fitted()
        subject = evaluation.subject()
    except (EmptyCategoryError, InputError) as error:
        return CategoryResult(category.text, **evaluation.sizes, problem=str(error))
    return evaluation.measured(truth, subject)


class _CategoryEvaluation:
    """The evaluation of one category: rows (n,) of the output, labels (n, 3), prompts (n,)."""

    def __init__(self, job: EvaluationJob, category: Category, rows: Ints, limit: int) -> None:
        self.job, self.category, self.rows, self.limit = job, category, rows, limit
        self.settings, self.models, self.likelihood = job.settings, job.output.models, job.settings.likelihood
        self.labels, self.prompts = job.output.labels[rows], job.output.prompts[rows]
        self.sizes: dict[str, Any] = {"votes": len(rows), "prompts": len(np.unique(self.prompts))}
        level, seed = self.settings.level, self.settings.seed
        self.bootstrap: dict[str, Any] = {"clusters": self.prompts, "level": level, "seed": seed}
        self.bootstrap["replicates"] = self.settings.bootstrap

    def fitted(self) -> Leaderboard:
        """Fit the marginal leaderboard of these very votes."""
        options: dict[str, Any] = {"intervals": self.settings.bootstrap > 0, "level": self.settings.level}
        return board_of_labels(self.labels, self.models, self.likelihood.name, clusters=self.prompts, **options)

    def arena(self) -> Leaderboard:
        """Return the arena's ratings in this category."""
        assert self.job.arena is not None
        return self.job.arena.board(self.category, self.models, self.likelihood.name)

    def subject(self) -> Subject:
        """Return what is evaluated."""
        output, kind = self.job.output, self.settings.model_type
        if self.limit or kind == "marginal":
            assert self.job.train is not None
            board = self.job.train.board(self.category, self.likelihood.name, self.limit)
            return Fixed(self.likelihood, self.models, board)
        if kind in ("arena", "marginal-gt"):
            return Fixed(self.likelihood, self.models, self.arena() if kind == "arena" else self.fitted())
        assert output.coefs is not None
        eta, gamma = (None if values is None else values[self.rows] for values in (output.eta, output.gamma))
        return ModelAnswers(self.likelihood, self.models, output.coefs[self.rows], eta, gamma)

    def measured(self, truth: Leaderboard, subject: Subject) -> CategoryResult:
        """Measure the subject against the truth."""
        settings, parts = self.settings, self.settings.metrics_to_inc
        scored = subject.scored(self.labels)
        board = subject.leaderboard(intervals=settings.bootstrap > 0, level=settings.level)
        sides = standing(truth, self.models), standing(board, self.models)
        comparison = Comparison(self.likelihood, *sides, self.models, self.labels)
        draws = partial(Draws, seed=settings.seed, what=self.category.text, level=settings.level)
        subsets = draws(settings.rand_subset_sizes, settings.rand_num_samples, settings.rand_subset_metrics)
        scale = draws(settings.aggr_scale_subset_sizes, settings.aggr_scale_num_samples, settings.aggr_scale_metrics)
        skill, over = self._skill(scored)
        return CategoryResult(
            self.category.text,
            **self.sizes,
            notes=_notes(truth, board),
            top_k=_top_k(truth, board, settings),
            truth=truth,
            model=board,
            simple={name: evaluate(name, scored) for name in dict.fromkeys((*settings.simple_metrics, *ADDED))},
            intervals=self._intervals(scored),
            skill=skill,
            skill_over=over,
            reliability=self._reliability(scored),
            comparison=(
                {name: compare(name, comparison) for name in settings.category_metrics} if "category" in parts else None
            ),
            subsets=(tuple(random_subsets(subject, self.labels, truth, subsets)) if "random_subsets" in parts else ()),
            scale=tuple(aggregation_scale(subject, self.labels, sides[0], scale)) if "aggr_scale" in parts else (),
            by_model=tuple(self._by_model(scored, truth)) if settings.bootstrap else (),
        )

    def _reliability(self, scored: ScoredVotes) -> Reliability | None:
        """Return the data of the reliability diagram with its points; None when no vote counts."""
        if scored.reliability is None:
            return None
        options: dict[str, Any] = {"clusters": self.prompts, "level": self.settings.level}
        options["weights"] = scored.known.astype(np.float64)
        points = joined_points(scored.probs, scored.targets, scored.likelihood.outcomes, **options)
        return replace(scored.reliability, points=points)

    def _intervals(self, scored: ScoredVotes) -> dict[str, Interval]:
        """Return intervals of the metrics that are means over votes."""
        if not self.settings.bootstrap:
            return {}
        values = {}
        for name in dict.fromkeys((*self.settings.simple_metrics, *ADDED)):
            if METRICS[name].per_vote is not None and METRICS[name].applies(scored.likelihood):
                values[name] = vote_values(name, scored)
        # Where every vote of a category is a tie, some metrics count none of them, and there is nothing to draw.
        values = {name: column for name, column in values.items() if not np.isnan(column).all()}
        if not values:
            return {}
        intervals = bootstrap_mean(np.stack(list(values.values()), axis=1), **self.bootstrap)
        return dict(zip(values, _columns(intervals), strict=True))

    def _skill(self, scored: ScoredVotes) -> tuple[Interval | None, str | None]:
        """Return the skill in log-loss over the marginal leaderboard, of training votes where there are any."""
        is_reference = self.settings.model_type == ("marginal" if self.job.train else "marginal-gt")
        if self.limit or is_reference or not self.settings.bootstrap:
            return None, None
        try:
            board, over = self._reference()
            reference = Fixed(self.likelihood, self.models, board).scored(self.labels)
            losses = vote_values("Loss", scored), vote_values("Loss", reference)
            return bootstrap_skill(*losses, **self.bootstrap), over
        except (EmptyCategoryError, ConfigError, InputError):
            return None, None

    def _reference(self) -> tuple[Leaderboard, str]:
        """Return the marginal leaderboard that a model must beat, and which votes it was fitted on."""
        if self.job.train is None:
            return self.fitted(), "validation"
        try:
            return self.job.train.board(self.category, self.likelihood.name), "train"
        except EmptyCategoryError:
            return self.job.train.board(ALL, self.likelihood.name), "train, all votes"

    def _by_model(self, scored: ScoredVotes, truth: Leaderboard) -> Iterator[ModelScore]:
        """Yield loss and accuracy of the votes of each model, the best model of the ground truth first."""
        order = [truth.models[place] for place in np.argsort(-truth.coefs, kind="stable")]
        place = {name: code for code, name in enumerate(self.models)}
        values = {name: vote_values(name, scored) for name in ("Loss", "Accuracy")}
        codes = [place[name] for name in order if name in place]
        for start in range(0, len(codes), _MODELS_AT_ONCE):
            yield from self._model_scores(values, codes[start : start + _MODELS_AT_ONCE])

    def _model_scores(self, values: dict[str, Any], codes: Sequence[int]) -> Iterator[ModelScore]:
        pairs = self.labels[:, :2]
        taking = np.stack([(pairs == code).any(axis=1) for code in codes], axis=1)
        intervals: list[dict[int, Interval]] = []
        for column in values.values():
            table = np.where(taking, column[:, None], np.nan)
            counts = np.flatnonzero((~np.isnan(table)).any(axis=0)).tolist()
            drawn = _columns(bootstrap_mean(table[:, counts], **self.bootstrap)) if counts else []
            intervals.append(dict(zip(counts, drawn, strict=True)))
        for place, code in enumerate(codes):
            yield ModelScore(self.models[code], int(taking[:, place].sum()), *(one.get(place) for one in intervals))


def _notes(truth: Leaderboard, board: Leaderboard) -> tuple[str, ...]:
    """Return what a reader must know of both leaderboards."""
    notes = [f"Ground truth: {note}" for note in truth.notes] + [f"Model: {note}" for note in board.notes]
    return tuple(dict.fromkeys(notes))


def _top_k(truth: Leaderboard, board: Leaderboard, settings: EvaluationSettings) -> int | None:
    """Return the number of models on both leaderboards, where top-k metrics are asked for and it limits their k."""
    shared = len(set(truth.models) & set(board.models))
    tops = any(name.startswith("Top-k") for name in settings.category_metrics)
    return shared if shared < _TOP and tops and "category" in settings.metrics_to_inc else None


def _columns(intervals: Interval) -> list[Interval]:
    return [Interval(*numbers) for numbers in np.stack(intervals).T.tolist()]
