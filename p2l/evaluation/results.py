"""What `p2l auto-evals` finds, as objects: all that a report shows, with nothing left to compute from votes.

Shapes: N votes, M models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.files import atomic_path
from p2l.common.text_table import text_table
from p2l.evaluation.inputs import EvaluationSettings
from p2l.leaderboard import Leaderboard, to_score
from p2l.metrics import Interval, Reliability

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SubsetScore:
    """Leaderboard metrics averaged over random subsets of one size.

    Attributes:
        size: prompts (votes) of each subset.
        samples: how many subsets were drawn.
        values: mean of each metric; a dictionary by k for top-k metrics, a dictionary by side for two-sided ones; None
            where it does not apply.
        intervals: of the means, for metrics that are one number: normal, over the subsets drawn; absent with fewer than
            two samples.
    """

    size: int
    samples: int
    values: Mapping[str, Any]
    intervals: Mapping[str, Interval]


@dataclass(frozen=True)
class ModelScore:
    """How well the votes of one model were forecast.

    Attributes:
        model: its name.
        votes: of the category, that it took part in.
        loss, accuracy: of those votes, with intervals clustered by prompt; None where no vote counts.
    """

    model: str
    votes: int
    loss: Interval | None
    accuracy: Interval | None


@dataclass(frozen=True)
class CategoryResult:
    """One category of one output.

    Attributes:
        name: as the user wrote it, `language=Chinese`.
        votes, prompts: how many there are; prompts are counted once.
        problem: why there is nothing here (no vote of this category, say), else None; then the rest is empty.
        notes: sentences a reader needs (a smaller k, models left out).
        truth: leaderboard of the ground truth, of the models that it knows (those with a vote here).
        model: leaderboard of the evaluated model on these prompts.
        simple: simple metrics, None where they do not apply.
        intervals: of the simple metrics that are means over votes, clustered by prompt.
        skill: 1 - loss / loss of the marginal leaderboard, or None; `skill_over` names the reference.
        skill_over: what the marginal leaderboard was fitted on: `train`, training votes of the category; `train, all
            votes`, where none is known to be of it; `validation`, these very votes (which it then knows); or None.
        reliability: data of the reliability diagram.
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


@dataclass(frozen=True)
class OutputResult:
    """One evaluated output (a checkpoint's answers, or a leaderboard in the place of one).

    Attributes:
        name: of the output file.
        source: the file or repository it was read from.
        model_type: p2l, marginal, marginal-gt or arena.
        likelihood: canonical name.
        ground_truth: marginal-gt or arena.
        models: M names, in the order of coefficients.
        votes, prompts: how many there are.
        categories: in the order asked for.
        coefs: (N, M), or (1, M) for one leaderboard; eta and gamma (N,) or None: what strengths and weaknesses need.
        texts: the N prompts as lists of turns, or None where the file has none.
        level: coverage of all intervals.
        notes: sentences a reader needs (votes left out).
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
    coefs: Floats
    eta: Floats | None = None
    gamma: Floats | None = None
    texts: Sequence[Sequence[str]] | None = None
    level: float = 0.95
    notes: tuple[str, ...] = ()


# Results as JSON: the published blocks under `models`, all that goes beyond them under `details`.

NOT_APPLICABLE = -1
_DIGITS = 4


def published_object(result: CategoryResult, settings: EvaluationSettings) -> dict[str, Any]:
    """The blocks that were asked for, as published: 4 decimals, -1 where a metric does not apply."""
    blocks: dict[str, Any] = {}
    if "simple" in settings.parts:
        blocks["simple_metrics"] = {name: _plain((result.simple or {})[name]) for name in settings.simple}
    if "category" in settings.parts:
        blocks["category_metrics"] = _plain(result.comparison or {})
    for name, part, scores in (
        ("random_subsets", "random_subsets", result.subsets),
        ("aggr_scale", "aggr_scale", result.scale),
    ):
        if part in settings.parts:
            blocks[name] = {str(score.size): _plain(score.values) for score in scores}
    return blocks


def details_object(result: CategoryResult) -> dict[str, Any]:
    """What goes beyond the published blocks."""
    about = {"votes": result.votes, "prompts": result.prompts}
    if result.problem is not None:
        return {**about, "problem": result.problem}
    return {
        **about,
        "notes": list(result.notes),
        "metrics": _plain(result.simple or {}),
        "intervals": {name: _interval(one) for name, one in (result.intervals or {}).items()},
        "skill": None if result.skill is None else {"over": result.skill_over, **_interval(result.skill)},
        "reliability": _reliability(result.reliability),
        "leaderboards": {"ground-truth": _board(result.truth), "model-aggr": _board(result.model)},
        "random_subsets": _scores(result.subsets),
        "aggr_scale": _scores(result.scale),
        "by_model": [
            {"model": one.model, "votes": one.votes, "loss": _maybe(one.loss), "accuracy": _maybe(one.accuracy)}
            for one in result.by_model
        ],
    }


def write_json_file(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Rounded numbers; -1 for what does not apply."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOT_APPLICABLE
    return round(float(value), _DIGITS) if isinstance(value, float) else value


def _interval(interval: Interval) -> dict[str, Any]:
    return {name: _number(getattr(interval, name)) for name in ("estimate", "lower", "upper", "standard_error")}


def _maybe(number: Interval | None) -> dict[str, Any] | None:
    return None if number is None else _interval(number)


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return round(float(value), _DIGITS) if value is not None and math.isfinite(value) else None


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _reliability(bins: Any) -> dict[str, Any] | None:
    if bins is None:
        return None
    rows = {name: place for place, name in enumerate(bins.outcomes)}
    return {
        "edges": _numbers(bins.edges),
        "outcomes": {
            name: {part: _numbers(getattr(bins, part)[place]) for part in ("predicted", "observed", "mass")}
            for name, place in rows.items()
        },
    }


def _board(board: Leaderboard | None) -> dict[str, Any] | None:
    if board is None:
        return None
    order = np.argsort(-board.coefs, kind="stable")
    columns = {name: getattr(board, name)[order] for name in ("coefs", "lower", "upper")}
    rows = zip(order, *columns.values(), to_score(columns["coefs"]), strict=True)
    return {
        "eta": _number(board.eta),
        "models": [
            {
                "model": board.models[place],
                "coef": _number(coef),
                "lower": _number(lower),
                "upper": _number(upper),
                "score": round(float(score), 1),
            }
            for place, coef, lower, upper, score in rows
        ],
    }


def _scores(scores: Sequence[SubsetScore]) -> dict[str, Any]:
    return {
        str(score.size): {
            "samples": score.samples,
            "intervals": {name: _interval(one) for name, one in score.intervals.items()},
        }
        for score in scores
    }


# What `p2l auto-evals` prints: one line a category.

_HEADER = ("category", "votes", "loss", "accuracy", "skill over marginal", "L1 to truth", "Spearman")
_COMPARED = ("L1-Dist-Prob", "Spearman-lbs")


def render(result: OutputResult) -> str:
    """A table of the categories, then what a reader must know."""
    lines = text_table(_HEADER, [_cells(one) for one in result.categories if one.problem is None])
    heading = f"{result.name}: {result.votes:,} votes on {result.prompts:,} prompts, {len(result.models)} models, "
    heading += f"{result.model_type}, likelihood {result.likelihood}, {result.level:.0%} intervals"
    return "\n".join([heading, "", *lines, *_notes(result)])


def _cells(one: CategoryResult) -> tuple[str, ...]:
    intervals, simple, comparison = one.intervals or {}, one.simple or {}, one.comparison or {}
    values = [_with_interval(intervals.get(name), simple.get(name)) for name in ("Loss", "Accuracy")]
    compared = ["" if comparison.get(name) is None else f"{comparison[name]:.4f}" for name in _COMPARED]
    return (one.name, f"{one.votes:,}", *values, _with_interval(one.skill, None), *compared)


def _with_interval(score: Interval | None, value: float | None) -> str:
    if score is not None:
        return f"{score.estimate:.4f} ({score.lower:.4f} to {score.upper:.4f})"
    return "" if value is None else f"{value:.4f}"


def _notes(result: OutputResult) -> list[str]:
    notes = list(result.notes)
    for one in result.categories:
        notes += [f"{one.name} left out: {one.problem}"] if one.problem else [f"{one.name}: {n}" for n in one.notes]
    return [f"note: {note}" for note in notes]
