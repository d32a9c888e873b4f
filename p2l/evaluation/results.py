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

from p2l.evaluation.inputs import EvaluationSettings
from p2l.leaderboard import Leaderboard, to_score
from p2l.metrics import Interval, Reliability

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

_NOT_APPLICABLE = -1
_DIGITS = 4


def published_object(result: CategoryResult, settings: EvaluationSettings) -> dict[str, Any]:
    """Return the published blocks that the settings ask for: 4 decimals, -1 where a metric does not apply."""
    blocks: dict[str, Any] = {}
    if "simple" in settings.metrics_to_inc:
        blocks["simple_metrics"] = {
            name: _rounded((result.simple or {})[name], _NOT_APPLICABLE) for name in settings.simple_metrics
        }
    if "category" in settings.metrics_to_inc:
        blocks["category_metrics"] = _rounded(result.comparison or {}, _NOT_APPLICABLE)
    for name, scores in (("random_subsets", result.subsets), ("aggr_scale", result.scale)):
        if name in settings.metrics_to_inc:
            blocks[name] = {str(score.size): _rounded(score.values, _NOT_APPLICABLE) for score in scores}
    return blocks


def details_object(result: CategoryResult) -> dict[str, Any]:
    """Return what goes beyond the published blocks."""
    sizes = {"votes": result.votes, "prompts": result.prompts}
    if result.problem is not None:
        return {**sizes, "problem": result.problem}
    return {
        **sizes,
        "notes": list(result.metric_notes),
        "metrics": _rounded(result.simple or {}, _NOT_APPLICABLE),
        "intervals": _rounded(result.intervals or {}),
        "skill": None if result.skill is None else {"over": result.skill_over, **_rounded(result.skill)},
        "reliability": _reliability(result.reliability),
        "leaderboards": {"ground-truth": _board(result.truth), "model-aggr": _board(result.model)},
        "random_subsets": _scores(result.subsets),
        "aggr_scale": _scores(result.scale),
        "by_model": [
            {"model": row.model, "votes": row.votes, "loss": _rounded(row.loss), "accuracy": _rounded(row.accuracy)}
            for row in result.by_model
        ],
    }


def _rounded(value: Any, missing: float | None = None) -> Any:
    """Round floats, whatever they lie in; `missing` for None and what is not finite, an object for an interval."""
    if isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _rounded(item, missing) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_rounded(item, missing) for item in value.tolist()]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return missing
    return round(float(value), _DIGITS) if isinstance(value, float) else value


def _reliability(bins: Reliability | None) -> dict[str, Any] | None:
    if bins is None:
        return None
    fields = ("predicted", "observed", "mass")
    outcomes = {name: {field: getattr(bins, field)[row] for field in fields} for row, name in enumerate(bins.outcomes)}
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
