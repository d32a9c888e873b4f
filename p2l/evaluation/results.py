"""The results of `p2l auto-evals`, from which every report is made without looking at votes again.

Shapes: N votes, M models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.text_table import text_table
from p2l.evaluation.inputs import EvaluationSettings
from p2l.leaderboard import Leaderboard, to_score
from p2l.metrics import Interval, Reliability, about

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SubsetScore:
    """Leaderboard metrics averaged over `samples` random subsets of `size` prompts (or votes).

    `values` are means: a dictionary by k for top-k metrics, by side for two-sided ones, None where a metric does not
    apply. `intervals` are normal ones of means of single numbers; with fewer than two samples there are none.
    """

    size: int
    samples: int
    values: Mapping[str, Any]
    intervals: Mapping[str, Interval]

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that are single numbers, which apply."""
        return {name: float(value) for name, value in self.values.items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class ModelScore:
    """Loss and accuracy of the votes that one model took part in, with intervals over prompts; None without any."""

    model: str
    votes: int
    loss: Interval | None
    accuracy: Interval | None


@dataclass(frozen=True)
class CategoryResult:
    """One category of one output.

    Attributes:
        name: as the user wrote it, `language=Chinese`.
        problem: why nothing could be measured (no vote of this category, say); all that follows is then empty.
        notes: sentences for the reader (models left out).
        top_k: the largest k of the top-k metrics, where fewer models than the usual ten are on both leaderboards.
        truth: leaderboard of the ground truth, of the models with a vote here.
        model: leaderboard of the evaluated model on these prompts.
        simple: simple metrics, None where they do not apply.
        intervals: of the simple metrics that are means over votes, clustered by prompt.
        skill: 1 - loss / loss of the marginal leaderboard.
        skill_over: votes that the marginal leaderboard was fitted on: `train`, training votes of the category; `train,
            all votes`, where none is known to be of it; `validation`, the very votes that are forecast.
        comparison: leaderboard metrics of `model` against `truth`.
        subsets: comparison on random subsets against a fit of the same votes, by size.
        scale: comparison of subsets of prompts against the whole truth, by size.
        by_model: in the order of the ground truth, the best first.
    """

    name: str
    votes: int
    prompts: int
    problem: str | None = None
    notes: tuple[str, ...] = ()
    top_k: int | None = None
    truth: Leaderboard | None = None
    model: Leaderboard | None = None
    simple: Mapping[str, float | None] | None = None
    intervals: Mapping[str, Interval] | None = None
    skill: Interval | None = None
    skill_over: str | None = None
    reliability: Reliability | None = None
    comparison: Mapping[str, Any] | None = None
    subsets: tuple[SubsetScore, ...] = ()
    scale: tuple[SubsetScore, ...] = ()
    by_model: tuple[ModelScore, ...] = ()

    @property
    def metric_notes(self) -> tuple[str, ...]:
        """The notes, and where top-k metrics have a smaller k, that."""
        if self.top_k is None:
            return self.notes
        count = f"Only {self.top_k} models are on both leaderboards"
        return (*self.notes, f"{count}: for a larger k, top-k metrics take k = {self.top_k}.")


@dataclass(frozen=True)
class OutputResult:
    """One evaluated output: a checkpoint's predictions, or a leaderboard in their place.

    Attributes:
        models: M names, in the order of coefficients.
        coefs: (N, M), None for one leaderboard; with eta and gamma (N,) for strengths and weaknesses.
        texts: the N prompts as lists of turns, or None where the file has none.
        level: coverage of all intervals.
        notes: sentences for the reader (votes left out).
        default_categories: whether the categories are those of the default list, which the votes need not have.
        model: what forecast the votes, for the title of a report; data: the votes. Empty where nothing says so.
    """

    name: str
    source: str
    model_type: str
    likelihood: str
    ground_truth: str
    models: tuple[str, ...]
    votes: int
    prompts: int
    categories: tuple[CategoryResult, ...]
    coefs: Floats | None = None
    eta: Floats | None = None
    gamma: Floats | None = None
    texts: Sequence[Sequence[str]] | None = None
    level: float = 0.95
    notes: tuple[str, ...] = ()
    default_categories: bool = False
    model: str = ""
    data: str = ""


# Results as JSON: the published blocks under `models`, everything else under `details`.

NOT_APPLICABLE = -1
_DIGITS = 4


def published_object(result: CategoryResult, settings: EvaluationSettings) -> dict[str, Any]:
    """Return the published blocks that the settings ask for: 4 decimals, -1 where a metric does not apply."""
    blocks: dict[str, Any] = {}
    if "simple" in settings.metrics_to_inc:
        blocks["simple_metrics"] = {
            name: _rounded((result.simple or {})[name], NOT_APPLICABLE) for name in settings.simple_metrics
        }
    if "category" in settings.metrics_to_inc:
        blocks["category_metrics"] = _rounded(result.comparison or {}, NOT_APPLICABLE)
    for name, scores in (("random_subsets", result.subsets), ("aggr_scale", result.scale)):
        if name in settings.metrics_to_inc:
            blocks[name] = {str(score.size): _rounded(score.values, NOT_APPLICABLE) for score in scores}
    return blocks


def details_object(result: CategoryResult) -> dict[str, Any]:
    """Return what goes beyond the published blocks."""
    about = {"votes": result.votes, "prompts": result.prompts}
    if result.problem is not None:
        return {**about, "problem": result.problem}
    return {
        **about,
        "notes": list(result.metric_notes),
        "metrics": _rounded(result.simple or {}, NOT_APPLICABLE),
        "intervals": _rounded(result.intervals or {}),
        "skill": None if result.skill is None else {"over": result.skill_over, **_rounded(result.skill)},
        "reliability": _reliability(result.reliability),
        "leaderboards": {"ground-truth": _board(result.truth), "model-aggr": _board(result.model)},
        "random_subsets": _scores(result.subsets),
        "aggr_scale": _scores(result.scale),
        "by_model": [
            {"model": one.model, "votes": one.votes, "loss": _rounded(one.loss), "accuracy": _rounded(one.accuracy)}
            for one in result.by_model
        ],
    }


def _rounded(value: Any, missing: float | None = None) -> Any:
    """Round floats, whatever they lie in; `missing` for None and what is not finite, an object for an interval."""
    if isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _rounded(one, missing) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return [_rounded(one, missing) for one in value.tolist()]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return missing
    return round(float(value), _DIGITS) if isinstance(value, float) else value


def _reliability(bins: Reliability | None) -> dict[str, Any] | None:
    if bins is None:
        return None
    parts = ("predicted", "observed", "mass")
    outcomes = {name: {part: getattr(bins, part)[row] for part in parts} for row, name in enumerate(bins.outcomes)}
    return {"edges": _rounded(np.asarray(bins.edges)), "outcomes": _rounded(outcomes)}


def _board(board: Leaderboard | None) -> dict[str, Any] | None:
    if board is None:
        return None
    order = np.argsort(-board.coefs, kind="stable")
    columns = {"score": board.coefs, "lower": board.lower, "upper": board.upper}
    points = {name: np.round(to_score(values), 1) for name, values in columns.items()}
    points |= {"coef": board.coefs, "coef_lower": board.lower, "coef_upper": board.upper}
    models = [
        {"model": board.models[place]} | {name: _rounded(values[place]) for name, values in points.items()}
        for place in order.tolist()
    ]
    return {"eta": _rounded(board.eta), "models": models}


def _scores(scores: Sequence[SubsetScore]) -> dict[str, Any]:
    return {str(score.size): {"samples": score.samples, "intervals": _rounded(score.intervals)} for score in scores}


# What `p2l auto-evals` prints: one row a category.

_HEADER = ("category", "votes", "loss", "accuracy", "skill over marginal")
# What the leaderboards are compared with: a fit of the votes themselves is no truth.
_DISTANCES = {"arena": "L1 to the arena's leaderboard", "marginal-gt": "L1 to the votes' leaderboard"}
_COMPARED = ("L1-Dist-Prob", "Spearman-lbs")


def render(result: OutputResult, *, most: int | None = None) -> str:
    """Return a table of the categories, the first `most` of them, and the notes below it."""
    header = (*_HEADER, _DISTANCES.get(result.ground_truth, f"L1 to {result.ground_truth}"), "Spearman")
    lines = text_table(header, [_cells(one) for one in result.categories if one.problem is None], most=most)
    heading = f"{result.name}: {result.votes:,} votes on {result.prompts:,} prompts, {len(result.models)} models, "
    heading += f"{result.model_type}, likelihood {result.likelihood}, "
    heading += f"{result.level:.0%} intervals" if any(one.intervals for one in result.categories) else "no intervals"
    return "\n".join([heading, "", *lines, *_notes(result)])


def _cells(one: CategoryResult) -> tuple[str, ...]:
    intervals, simple, comparison = one.intervals or {}, one.simple or {}, one.comparison or {}
    values = [_with_interval(name, intervals.get(name), simple.get(name)) for name in ("Loss", "Accuracy")]
    compared = ["" if comparison.get(name) is None else about(name).text(comparison[name]) for name in _COMPARED]
    return (one.name, f"{one.votes:,}", *values, _with_interval("Skill", one.skill, None), *compared)


def _with_interval(name: str, score: Interval | None, value: float | None) -> str:
    text = about(name).text
    if score is not None:
        return f"{text(score.estimate)} ({text(score.lower)} to {text(score.upper)})"
    return "" if value is None else text(value)


def _notes(result: OutputResult) -> list[str]:
    notes = list(result.notes)
    for one in result.categories:
        if not one.problem:
            notes += [f"{one.name}: {note}" for note in one.notes]
        elif not (result.default_categories and one.votes == 0):  # the default asks for all that an arena may have
            notes.append(f"{one.name} left out: {one.problem}")
    return [f"note: {note}" for note in notes]
