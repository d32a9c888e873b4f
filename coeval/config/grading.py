"""How judges of a task grade: `scale`, `rationale`, `expected_scores`, and the weights in its rubric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coeval.config.interfaces import tells_logprobs
from coeval.config.problems import Problems
from coeval.config.reading import Fields, shown
from coeval.config.schema import Experiment, Model, Task
from coeval.grading.expected import clashing
from coeval.grading.scale import DEFAULT, WANTED, Scale, scale_of
from p2l.command import nearest

__all__ = ["GRADING_KEYS", "check_expected", "check_weighted", "is_weighted", "read_grading"]

GRADING_KEYS = ("scale", "rationale", "expected_scores")


def read_grading(fields: Fields, mode: str) -> dict[str, Any]:
    """The three keys, as arguments of `Task`."""
    found = {
        "scale": _scale(fields),
        "rationale": fields.truth("rationale", False),
        "expected_scores": fields.truth("expected_scores", False),
    }
    if fields.is_unclear("evaluation_mode"):
        return found
    if fields.has("scale") and mode == "pairwise":
        fields.wrong("scale", "has no use where answers are compared in pairs; remove it, or write another mode")
    if found["expected_scores"]:
        _check_alone(fields, mode, found)
    return found


def _scale(fields: Fields) -> Scale:
    given = fields.values.get("scale")
    if given is None:
        return DEFAULT
    try:
        return scale_of(given)
    except (ValueError, TypeError) as error:
        hint = nearest(given, ("levels",)) if isinstance(given, str) else ""
        why = str(error) if isinstance(error, ValueError) else f"must be {WANTED}"
        fields.wrong("scale", f"{why}, and is {shown(given)}{hint}" if why.startswith("must be") else why)
        return DEFAULT


def _check_alone(fields: Fields, mode: str, found: Mapping[str, Any]) -> None:
    """Whether the first token of an answer is the grade of one factor, and tells it from all others."""
    key, clash = "expected_scores", clashing(found["scale"])
    if mode != "per_factor":
        fields.wrong(key, "looks at the first token of an answer; write `evaluation_mode: per_factor`, or remove it")
    if found["rationale"]:
        fields.wrong(key, "looks at the first token of an answer, which `rationale` makes another; remove one of them")
    if clash is not None:
        one, other = clash
        fields.wrong(key, f"needs grades of which each begins with another token, not {one!r} and {other!r}; use `0-9`")


def check_expected(models: tuple[Model, ...], tasks: tuple[Task, ...], run: Experiment, problems: Problems) -> None:
    """Whether somebody tells the probabilities that expected scores take."""
    judges = [model for model in models if "judge" in model.roles and not model.is_virtual]
    for number, task in enumerate(tasks):
        where = ("tasks", number, "expected_scores")
        if not task.expected_scores or not judges:
            continue
        batched = [model.name for model in judges if _is_batched(model, run)]
        if batched:
            message = f"cannot be had from batch jobs, and {batched[0]} judges in batches; turn one of them off"
            problems.add(where, message)
        if not any(tells_logprobs(model.interface) for model in judges):
            problems.add(where, "no judge's interface tells log-probabilities; add one that does, or remove it")


def _is_batched(model: Model, run: Experiment) -> bool:
    asked = bool(run.batch.get(model.interface, {}).get("evaluation", False))
    return asked if model.batch_enabled is None else model.batch_enabled


def is_weighted(definition: Mapping[str, Any]) -> bool:
    """Whether a factor's map is a description with a weight, and no metric."""
    return "metric" not in definition and ("weight" in definition or "description" in definition)


def check_weighted(inner: Fields, factor: str) -> None:
    """Check `{description, weight}`, and the weight of a metric."""
    given = inner.values[factor]
    if "metric" in given:
        given = {"weight": given.get("weight")}
    else:
        fields = inner.fields(factor, ("description", "weight"))
        fields.text("description", needed="what tells a good answer from a bad one")
    Fields(given, (*inner.where, factor), inner.problems, None).above_zero("weight")
