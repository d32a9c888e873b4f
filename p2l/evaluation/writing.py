"""Results as JSON: the published blocks under `models`, all that goes beyond them under `details`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p2l.command import atomic_path
from p2l.evaluation.results import CategoryResult, SubsetScore
from p2l.evaluation.settings import Settings
from p2l.leaderboard import Leaderboard, to_score
from p2l.metrics import Interval

__all__ = ["details_object", "published_object", "write_json_file"]

NOT_APPLICABLE = -1
_DIGITS = 4


def published_object(result: CategoryResult, settings: Settings) -> dict[str, Any]:
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


def _interval(found: Interval) -> dict[str, Any]:
    return {name: _number(getattr(found, name)) for name in ("estimate", "lower", "upper", "standard_error")}


def _maybe(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else _interval(found)


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return round(float(value), _DIGITS) if value is not None and math.isfinite(value) else None


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _reliability(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = {name: place for place, name in enumerate(found.outcomes)}
    return {
        "edges": _numbers(found.edges),
        "outcomes": {
            name: {part: _numbers(getattr(found, part)[place]) for part in ("predicted", "observed", "mass")}
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
