"""One category of one output, measured.

Shapes: N votes of the output, n of the category, M models, C metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from p2l.evaluation.results import CategoryResult, ModelScore, SubsetScore
from p2l.evaluation.subjects import Fixed, ModelAnswers, Subject
from p2l.leaderboard import Leaderboard
from p2l.metrics import (
    METRICS,
    Comparison,
    Interval,
    ScoredVotes,
    bootstrap_mean,
    bootstrap_skill,
    compare,
    evaluate,
    vote_values,
)

Ints = npt.NDArray[np.integer[Any]]
ADDED = ("Brier", "RPS", "ECE", "ECE-win", "ECE-tie", "ECE-bothbad")
_TOP = 10
_MODELS_AT_ONCE = 16


@dataclass(frozen=True)
class EvaluationJob:
    """An output and all that its categories are compared with."""

    output: EvaluatedOutput
    settings: EvaluationSettings
    train: TrainVotes | None = None
    arena: ArenaRatings | None = None


@dataclass(frozen=True)
class _Part:
    """The votes of one category: rows (n,) of the output, labels (n, 3), prompts (n,)."""

    category: Category
    rows: Ints
    labels: Ints
    prompts: Ints

    @property
    def sizes(self) -> dict[str, Any]:
        return {"votes": len(self.rows), "prompts": len(np.unique(self.prompts))}


def measure(job: EvaluationJob, category: Category, chosen: npt.NDArray[np.bool_], *, limit: int = 0) -> CategoryResult:
    """Everything about the rows of a category.

    Args:
        job: the output.
        category: whose rows `chosen` (N,) are.
        limit: take the marginal leaderboard of the first rows of the training votes alone.
    """
    rows = np.flatnonzero(chosen)
    part = _Part(category, rows, job.output.labels[rows], job.output.prompts[rows])
    try:
        truth = _truth(job, part)
        subject = _subject(job, part, limit)
    except (EmptyCategoryError, InputError) as error:
        return CategoryResult(category.text, **part.sizes, problem=str(error))
    return _measured(job, part, truth, subject, limit)


def _truth(job: EvaluationJob, part: _Part) -> Leaderboard:
    if job.settings.ground_truth == "arena":
        return _arena(job, part)
    return _fitted(job, part)


def _fitted(job: EvaluationJob, part: _Part) -> Leaderboard:
    settings = job.settings
    return board_of_labels(
        part.labels,
        job.output.models,
        settings.likelihood.name,
        clusters=part.prompts,
        intervals=settings.bootstrap > 0,
        level=settings.level,
    )


def _arena(job: EvaluationJob, part: _Part) -> Leaderboard:
    assert job.arena is not None
    return job.arena.board(part.category, job.output.models, job.settings.likelihood.name)


def _subject(job: EvaluationJob, part: _Part, limit: int) -> Subject:
    output, likelihood = job.output, job.settings.likelihood
    if limit or job.settings.model_type == "marginal":
        assert job.train is not None
        return Fixed(likelihood, output.models, job.train.board(part.category, likelihood.name, limit))
    if job.settings.model_type == "arena":
        return Fixed(likelihood, output.models, _arena(job, part))
    if job.settings.model_type == "marginal-gt":
        return Fixed(likelihood, output.models, _fitted(job, part))
    assert output.coefs is not None
    eta, gamma = (None if value is None else value[part.rows] for value in (output.eta, output.gamma))
    return ModelAnswers(likelihood, output.models, output.coefs[part.rows], eta, gamma)


def _measured(job: EvaluationJob, part: _Part, truth: Leaderboard, subject: Subject, limit: int) -> CategoryResult:
    settings, parts = job.settings, job.settings.parts
    scored = subject.scored(part.labels)
    board = subject.leaderboard(intervals=settings.bootstrap > 0, level=settings.level)
    skill, over = _skill(job, part, scored, limit)
    return CategoryResult(
        part.category.text,
        **part.sizes,
        notes=_notes(truth, board, settings),
        truth=truth,
        model=board,
        simple={name: evaluate(name, scored) for name in dict.fromkeys((*settings.simple, *ADDED))},
        intervals=_intervals(scored, part.prompts, settings),
        skill=skill,
        skill_over=over,
        reliability=scored.reliability,
        comparison=_comparison(job, part, truth, board) if "category" in parts else None,
        subsets=_subset_scores(job, part, subject, truth) if "random_subsets" in parts else (),
        scale=_scale_scores(job, part, subject, truth) if "aggr_scale" in parts else (),
        by_model=_by_model(job, part, scored, truth),
    )


def _notes(truth: Leaderboard, board: Leaderboard, settings: EvaluationSettings) -> tuple[str, ...]:
    """What a reader must know of both leaderboards."""
    notes = [f"Ground truth: {note}" for note in truth.notes] + [f"Model: {note}" for note in board.notes]
    shared = len(set(truth.models) & set(board.models))
    tops = any(name.startswith("Top-k") for name in settings.category)
    if shared < _TOP and tops and "category" in settings.parts:
        notes.append(f"Only {shared} models are on both leaderboards: for a larger k, top-k metrics take k = {shared}.")
    return tuple(dict.fromkeys(notes))


def _comparison(job: EvaluationJob, part: _Part, truth: Leaderboard, board: Leaderboard) -> dict[str, Any]:
    models = job.output.models
    sides = (standing(truth, models), standing(board, models))
    comparison = Comparison(job.settings.likelihood, *sides, models, part.labels)
    return {name: compare(name, comparison) for name in job.settings.category}


def _subset_scores(job: EvaluationJob, part: _Part, subject: Subject, truth: Leaderboard) -> tuple[SubsetScore, ...]:
    settings = job.settings
    draws = _draws(settings, part, settings.subset_sizes, settings.subset_samples, settings.subset)
    return tuple(random_subsets(subject, part.labels, truth, draws))


def _scale_scores(job: EvaluationJob, part: _Part, subject: Subject, truth: Leaderboard) -> tuple[SubsetScore, ...]:
    settings = job.settings
    draws = _draws(settings, part, settings.scale_sizes, settings.scale_samples, settings.scale)
    return tuple(aggregation_scale(subject, part.labels, standing(truth, job.output.models), draws))


def _draws(
    settings: EvaluationSettings, part: _Part, sizes: Sequence[int], samples: Sequence[int], metrics: Sequence[str]
) -> Draws:
    return Draws(sizes, samples, metrics, settings.seed, part.category.text, settings.level)


def _options(settings: EvaluationSettings) -> dict[str, Any]:
    return {"level": settings.level, "replicates": settings.bootstrap, "seed": settings.seed}


def _intervals(scored: ScoredVotes, prompts: Ints, settings: EvaluationSettings) -> dict[str, Interval]:
    """Intervals of the metrics that are means over votes."""
    if not settings.bootstrap:
        return {}
    values = dict(_vote_values(scored, dict.fromkeys((*settings.simple, *ADDED))))
    if not values:
        return {}
    intervals = bootstrap_mean(np.stack(list(values.values()), axis=1), clusters=prompts, **_options(settings))
    return dict(zip(values, _columns(intervals), strict=True))


def _vote_values(scored: ScoredVotes, names: Any) -> Iterator[tuple[str, Any]]:
    for name in names:
        metric = METRICS[name]
        if metric.per_vote is not None and metric.applies(scored.likelihood):
            values = vote_values(name, scored)
            if not np.isnan(values).all():
                yield name, values


def _columns(intervals: Interval) -> list[Interval]:
    return [Interval(*numbers) for numbers in np.stack(intervals).T.tolist()]


def _skill(job: EvaluationJob, part: _Part, scored: ScoredVotes, limit: int) -> tuple[Interval | None, str | None]:
    """Skill in log-loss over the marginal leaderboard, of training votes where there are any."""
    settings = job.settings
    if limit or settings.model_type == ("marginal" if job.train else "marginal-gt") or not settings.bootstrap:
        return None, None
    try:
        board, over = _reference(job, part)
        reference = Fixed(settings.likelihood, job.output.models, board).scored(part.labels)
        losses = (vote_values("Loss", scored), vote_values("Loss", reference))
        return bootstrap_skill(*losses, clusters=part.prompts, **_options(settings)), over
    except (EmptyCategoryError, ConfigError, InputError):
        return None, None


def _reference(job: EvaluationJob, part: _Part) -> tuple[Leaderboard, str]:
    """The marginal leaderboard that a model must beat, and which votes it is of."""
    if job.train is None:
        return _fitted(job, part), "validation"
    try:
        return job.train.board(part.category, job.settings.likelihood.name), "train"
    except EmptyCategoryError:
        return job.train.board(ALL, job.settings.likelihood.name), "train, all votes"


def _by_model(job: EvaluationJob, part: _Part, scored: ScoredVotes, truth: Leaderboard) -> tuple[ModelScore, ...]:
    """Loss and accuracy of the votes of each model, the best model of the ground truth first."""
    if not job.settings.bootstrap:
        return ()
    order = [truth.models[place] for place in np.argsort(-truth.coefs, kind="stable")]
    place = {name: code for code, name in enumerate(job.output.models)}
    values = {name: vote_values(name, scored) for name in ("Loss", "Accuracy")}
    codes = [place[name] for name in order if name in place]
    blocks = [codes[start : start + _MODELS_AT_ONCE] for start in range(0, len(codes), _MODELS_AT_ONCE)]
    return tuple(score for block in blocks for score in _model_scores(job, part, values, block))


def _model_scores(
    job: EvaluationJob, part: _Part, values: dict[str, Any], codes: Sequence[int]
) -> Iterator[ModelScore]:
    pairs = part.labels[:, :2]
    taking = np.stack([(pairs == code).any(axis=1) for code in codes], axis=1)
    intervals: dict[str, list[Interval | None]] = {}
    for name, column in values.items():
        table = np.where(taking, column[:, None], np.nan)
        counts = np.flatnonzero((~np.isnan(table)).any(axis=0)).tolist()
        drawn = bootstrap_mean(table[:, counts], clusters=part.prompts, **_options(job.settings)) if counts else None
        interval_of = dict(zip(counts, [] if drawn is None else _columns(drawn), strict=True))
        intervals[name] = [interval_of.get(place) for place in range(len(codes))]
    for place, code in enumerate(codes):
        votes = int(taking[:, place].sum())
        yield ModelScore(job.output.models[code], votes, intervals["Loss"][place], intervals["Accuracy"][place])
