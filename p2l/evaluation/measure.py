"""The measurements of one category of one output, and of leaderboards of subsets of its prompts.

Random subsets are drawn without replacement: the model's aggregate on them against a fit of their own votes, which a
weak prior holds (small subsets seldom have a best fit). For the aggregation scale, subsets are drawn with replacement:
the model's aggregate against the ground truth of the whole category. Draws depend on seed, category and size alone.

Shapes: N votes of the output, n of the category, M models, C metrics, S subsets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import ConfigError, InputError
from p2l.evaluation.categories import ALL, Category, EmptyCategoryError
from p2l.evaluation.inputs import EvaluationSettings
from p2l.evaluation.outputs import EvaluatedOutput
from p2l.evaluation.references import WINNERS_OF_TIES, ArenaRatings, TrainVotes, board_of_labels, standing
from p2l.evaluation.results import CategoryResult, ModelScore, SubsetScore
from p2l.evaluation.subjects import Fixed, ManyFits, ModelAnswers, Subject, as_standing, fit_many
from p2l.leaderboard import Leaderboard, Prior
from p2l.leaderboard.newton import has_eta, prior_terms, winner_targets
from p2l.likelihood import Likelihood
from p2l.metrics import (
    METRICS,
    Comparison,
    Interval,
    Reliability,
    ScoredVotes,
    Standing,
    bootstrap_mean,
    bootstrap_skill,
    compare,
    evaluate,
    joined_points,
    vote_values,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
_ALWAYS = ("Brier", "RPS", "ECE", "ECE-win", "ECE-tie", "ECE-bothbad")  # metrics beyond those asked for
_TOP_MODELS = 10  # the largest k of top-k metrics
_MODELS_PER_BLOCK = 16  # each is a column of all votes in memory
# Of one step of drawing subsets, whichever is reached first.
_SUBSETS_PER_STEP = 100
_ROWS_PER_STEP = 20_000


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
        self.job = job
        self.settings = job.settings
        self.category = category
        self.rows = rows
        self.limit = limit
        self.models, self.likelihood = job.output.models, job.settings.likelihood
        self.labels, self.prompts = job.output.labels[rows], job.output.prompts[rows]
        self.shift = None if job.output.shift is None else job.output.shift[rows]
        self.sizes: dict[str, Any] = {"votes": len(rows), "prompts": len(np.unique(self.prompts))}
        self.bootstrap: dict[str, Any] = {
            "clusters": self.prompts,
            "level": self.settings.level,
            "seed": self.settings.seed,
            "replicates": self.settings.bootstrap,
        }

    def fitted(self) -> Leaderboard:
        """Fit the marginal leaderboard of these very votes, what covariates add to each of them known."""
        return board_of_labels(
            self.labels,
            self.models,
            self.likelihood.name,
            clusters=self.prompts,
            shift=self.shift,
            intervals=self.settings.bootstrap > 0,
            level=self.settings.level,
        )

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
        if kind == "arena":
            return Fixed(self.likelihood, self.models, self.arena())
        if kind == "marginal-gt":
            return Fixed(self.likelihood, self.models, self.fitted(), self.shift)
        assert output.coefs is not None
        eta, gamma = (None if values is None else values[self.rows] for values in (output.eta, output.gamma))
        return ModelAnswers(self.likelihood, self.models, output.coefs[self.rows], eta, gamma, self.shift)

    def measured(self, truth: Leaderboard, subject: Subject) -> CategoryResult:
        """Measure the subject against the truth."""
        settings, blocks = self.settings, self.settings.metrics_to_inc
        # Every block below works on these two, so that votes are forecast and prompts aggregated once.
        scored = subject.scored(self.labels)
        board = subject.leaderboard(intervals=settings.bootstrap > 0, level=settings.level)
        true_standing = standing(truth, self.models)
        comparison = Comparison(self.likelihood, true_standing, standing(board, self.models), self.models, self.labels)
        metrics: dict[str, Any] | None = None
        subsets: tuple[SubsetScore, ...] = ()
        scale: tuple[SubsetScore, ...] = ()
        if "category" in blocks:
            metrics = {name: compare(name, comparison) for name in settings.category_metrics}
        if "random_subsets" in blocks:
            draws = self._draws(settings.rand_subset_sizes, settings.rand_num_samples, settings.rand_subset_metrics)
            subsets = tuple(random_subsets(subject, self.labels, truth, draws))
        if "aggr_scale" in blocks:
            sizes, samples = settings.aggr_scale_subset_sizes, settings.aggr_scale_num_samples
            draws = self._draws(sizes, samples, settings.aggr_scale_metrics)
            scale = tuple(aggregation_scale(subject, self.labels, true_standing, draws))
        notes = [f"Ground truth: {note}" for note in truth.notes] + [f"Model: {note}" for note in board.notes]
        skill, over = self._skill(scored)
        shared = len(set(truth.models) & set(board.models))
        asks_top_k = any(name.startswith("Top-k") for name in settings.category_metrics)
        return CategoryResult(
            self.category.text,
            **self.sizes,
            notes=tuple(dict.fromkeys(notes)),
            top_k=shared if shared < _TOP_MODELS and asks_top_k and "category" in blocks else None,
            truth=truth,
            model=board,
            simple={name: evaluate(name, scored) for name in dict.fromkeys((*settings.simple_metrics, *_ALWAYS))},
            intervals=self._intervals(scored),
            skill=skill,
            skill_over=over,
            reliability=self._reliability(scored),
            comparison=metrics,
            subsets=subsets,
            scale=scale,
            by_model=tuple(self._by_model(scored, truth)) if settings.bootstrap else (),
        )

    def _draws(self, sizes: Sequence[int], samples: Sequence[int], metrics: Sequence[str]) -> Draws:
        return Draws(
            sizes=sizes,
            samples=samples,
            metrics=metrics,
            seed=self.settings.seed,
            category=self.category.text,
            level=self.settings.level,
        )

    def _reliability(self, scored: ScoredVotes) -> Reliability | None:
        """Return the data of the reliability diagram with its points; None when no vote counts."""
        if scored.reliability is None:
            return None
        points = joined_points(
            scored.probs,
            scored.targets,
            scored.likelihood.outcomes,
            clusters=self.prompts,
            level=self.settings.level,
            weights=scored.known.astype(np.float64),
        )
        return replace(scored.reliability, points=points)

    def _intervals(self, scored: ScoredVotes) -> dict[str, Interval]:
        """Return intervals of the metrics that are means over votes."""
        if not self.settings.bootstrap:
            return {}
        values = {}
        for name in dict.fromkeys((*self.settings.simple_metrics, *_ALWAYS)):
            if METRICS[name].per_vote is not None and METRICS[name].applies(scored.likelihood):
                values[name] = vote_values(name, scored)
        # Where every vote of a category is a tie, some metrics count none of them, and there is nothing to draw.
        values = {name: column for name, column in values.items() if not np.isnan(column).all()}
        if not values:
            return {}
        intervals = bootstrap_mean(np.stack(list(values.values()), axis=1), **self.bootstrap)
        return dict(zip(values, _columns(intervals), strict=True))

    def _skill(self, scored: ScoredVotes) -> tuple[Interval | None, str | None]:
        """Return the skill in log-loss over the marginal leaderboard, of training votes where there are any.

        The text says which votes that leaderboard was fitted on.
        """
        train, likelihood = self.job.train, self.likelihood.name
        # A leaderboard has no skill over itself.
        is_reference = self.settings.model_type == ("marginal" if train else "marginal-gt")
        if self.limit or is_reference or not self.settings.bootstrap:
            return None, None
        try:
            if train is None:
                board, over = self.fitted(), "validation"
            else:
                try:
                    board, over = train.board(self.category, likelihood), "train"
                except EmptyCategoryError:
                    board, over = train.board(ALL, likelihood), "train, all votes"
            reference = Fixed(self.likelihood, self.models, board, self.shift).scored(self.labels)
            if train is not None and self.shift is not None:
                # That leaderboard was fitted without covariates, so that it is compared without them.
                scored, reference = (replace(votes, shift=None) for votes in (scored, reference))
            losses, reference_losses = vote_values("Loss", scored), vote_values("Loss", reference)
            return bootstrap_skill(losses, reference_losses, **self.bootstrap), over
        except (EmptyCategoryError, ConfigError, InputError):
            return None, None

    def _by_model(self, scored: ScoredVotes, truth: Leaderboard) -> Iterator[ModelScore]:
        """Yield loss and accuracy of the votes of each model, the best model of the ground truth first."""
        order = [truth.models[place] for place in np.argsort(-truth.coefs, kind="stable")]
        code_of = {name: code for code, name in enumerate(self.models)}
        codes = [code_of[name] for name in order if name in code_of]
        losses, right = vote_values("Loss", scored), vote_values("Accuracy", scored)
        pairs = self.labels[:, :2]
        for start in range(0, len(codes), _MODELS_PER_BLOCK):
            block = codes[start : start + _MODELS_PER_BLOCK]
            takes_part = np.stack([(pairs == code).any(axis=1) for code in block], axis=1)
            loss, accuracy = self._means(losses, takes_part), self._means(right, takes_part)
            for place, code in enumerate(block):
                votes = int(takes_part[:, place].sum())
                yield ModelScore(self.models[code], votes, loss.get(place), accuracy.get(place))

    def _means(self, values: Floats, takes_part: Any) -> dict[int, Interval]:
        """Return intervals of the mean of values (n,) over the votes of each column (n, m); without votes, none."""
        table = np.where(takes_part, values[:, None], np.nan)
        columns = np.flatnonzero((~np.isnan(table)).any(axis=0)).tolist()
        if not columns:
            return {}
        return dict(zip(columns, _columns(bootstrap_mean(table[:, columns], **self.bootstrap)), strict=True))


def _columns(intervals: Interval) -> list[Interval]:
    return [Interval(*numbers) for numbers in np.stack(intervals).T.tolist()]


@dataclass(frozen=True)
class Draws:
    """Sizes of subsets, how many of each size, and the metrics on them; the category's name joins the seed."""

    sizes: Sequence[int]
    samples: Sequence[int]
    metrics: Sequence[str]
    seed: int
    category: str
    level: float = 0.95

    def rows(self, number: int, size: int, samples: int, *, repeated: bool) -> Iterator[list[Ints]]:
        """Yield lists of subsets, each of positions below `number`."""
        # The draws of a size stay the same whatever other sizes and categories are asked for.
        rng = np.random.default_rng([self.seed, zlib.crc32(self.category.encode()), size, int(repeated)])
        step = max(1, min(_SUBSETS_PER_STEP, _ROWS_PER_STEP // size))
        for start in range(0, samples, step):
            yield [rng.choice(number, size, replace=repeated) for _ in range(min(step, samples - start))]


def random_subsets(subject: Subject, labels: Ints, truth: Leaderboard, draws: Draws) -> Iterator[SubsetScore]:
    """Yield scores by size; sizes beyond the number of votes have no samples."""
    fits = _VoteFits(subject.likelihood, truth, subject.models)
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        if size > len(labels):
            yield SubsetScore(size, 0, dict.fromkeys(draws.metrics), {})
            continue
        values = []
        for subsets in draws.rows(len(labels), size, samples, repeated=False):
            models = subject.aggregates(subsets)
            votes = [labels[rows] for rows in subsets]
            for model, fitted, subset in zip(models, fits.fit(votes), votes, strict=True):
                values.append(_compared(subject, fitted, model, subset, draws.metrics))
        yield _score(size, values, draws)


def aggregation_scale(subject: Subject, labels: Ints, truth: Standing, draws: Draws) -> Iterator[SubsetScore]:
    """Yield scores by size."""
    for size, samples in zip(draws.sizes, draws.samples, strict=True):
        values = []
        for subsets in draws.rows(len(labels), size, samples, repeated=True):
            references: dict[int, dict[str, Any]] = {}
            for model in subject.aggregates(subsets):  # one leaderboard is the same for all subsets
                if id(model) not in references:
                    references[id(model)] = _compared(subject, truth, model, labels, draws.metrics)
                values.append(references[id(model)])
        yield _score(size, values, draws)


def _compared(
    subject: Subject, truth: Standing, model: Standing, labels: Ints, metrics: Iterable[str]
) -> dict[str, Any]:
    if np.isnan(model.coefs).all() or np.isnan(truth.coefs).all():
        return dict.fromkeys(metrics)
    comparison = Comparison(subject.likelihood, truth, model, subject.models, labels)
    return {name: compare(name, comparison) for name in metrics}


def _score(size: int, values: Sequence[dict[str, Any]], draws: Draws) -> SubsetScore:
    means = {name: _mean([value[name] for value in values]) for name in draws.metrics}
    width = NormalDist().inv_cdf(0.5 + draws.level / 2)
    intervals = {}
    for name, mean in means.items():
        numbers = [value[name] for value in values if isinstance(value[name], float)]
        if len(numbers) > 1:
            error = float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5
            intervals[name] = Interval(mean, mean - width * error, mean + width * error, error)
    return SubsetScore(size, len(values), means, intervals)


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of dictionaries key by key, without those that do not apply."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    if isinstance(numbers[0], dict):
        return {key: _mean([value[key] for value in numbers]) for key in numbers[0]}
    return float(np.mean(numbers))


class _VoteFits:
    """Fits of small sets of votes, all from the same start."""

    def __init__(self, likelihood: Likelihood, truth: Leaderboard, models: Sequence[str]) -> None:
        num_models = len(models)
        self.mean, precision = prior_terms(Prior(), likelihood, num_models)
        self.fits = ManyFits(likelihood, num_models, precision, ridge=0.0)
        # From the truth a few Newton steps do; models without a vote there start in the middle.
        self.start = np.clip(np.nan_to_num(standing(truth, models).coefs), -5.0, 5.0).astype(np.float64)
        if has_eta(likelihood):
            eta = likelihood.eta_scale.start if truth.eta is None else truth.eta
            self.start = np.append(self.start, eta)
        self.outcomes = winner_targets(likelihood)
        self.pair = np.zeros((num_models, num_models), dtype=np.int64)
        self.pair[self.fits.first, self.fits.second] = np.arange(len(self.fits.first))

    def fit(self, votes: Sequence[Ints]) -> list[Standing]:
        """Fit a leaderboard to each set of labels; models without a vote that counts are NaN."""
        targets = np.stack([self._table(labels) for labels in votes])
        counts = targets.sum(axis=2)
        seen = counts @ self.fits.incidence[0] + counts @ self.fits.incidence[1] > 0
        mean, start = (np.tile(vector, (len(votes), 1)) for vector in (self.mean, self.start))
        standings = [as_standing(theta, self.fits.likelihood) for theta in fit_many(self.fits, targets, mean, start)]
        return [
            replace(board, coefs=np.where(has_votes, board.coefs, np.nan))
            for board, has_votes in zip(standings, seen, strict=True)
        ]

    def _table(self, labels: Ints) -> Floats:
        """Return outcome masses (P, K) of labels (n, 3)."""
        a, b, tie = labels.T.astype(np.int64)
        winner = WINNERS_OF_TIES[tie]
        column = np.where((a > b) & (winner == 0), 1, winner)
        pair = self.pair[np.minimum(a, b), np.maximum(a, b)]
        counts = np.bincount(pair * 4 + column, minlength=4 * len(self.fits.first)).reshape(-1, 4)
        return np.asarray(counts @ self.outcomes, dtype=np.float64)
