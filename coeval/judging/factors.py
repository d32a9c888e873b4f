"""The factors of a rubric: what each says, how much it counts, and which judge scores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from coeval.schema import Config, Model, Rubric, Task

LABEL_PREFIX = "label:"
_LABEL_JUDGE = Model(name="label", interface="label", roles=("judge",))


def judges_of(config: Config, task: Task) -> tuple[Model, ...]:
    """Return the judges of a task; a task with labels gets a label judge if the configuration has none."""
    judges = config.with_role("judge")
    if task.label_attributes and all(judge.interface != "label" for judge in judges):
        return (*judges, _LABEL_JUDGE)
    return judges


def required_factors(judge: Model, task: Task, rubric: Rubric) -> tuple[str, ...]:
    """Return the factors that a judge has to score."""
    return factors_for(judge.interface, judge.parameters.get("metric"), task.label_attributes, rubric)


def factors_for(
    interface: str, metric: object, label_attributes: Sequence[str], rubric: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the factors that a judge scores: metrics (only its own if it has one), labels, or else all others."""
    if interface == "label":
        return tuple(f"{LABEL_PREFIX}{name}" for name in label_attributes)
    metrics = {name: metric_of(definition) for name, definition in rubric.items()}
    if interface == "metric":
        return tuple(name for name, own in metrics.items() if own is not None and metric in (None, own))
    return tuple(name for name, own in metrics.items() if own is None)


def metric_of(definition: object) -> str | None:
    """Return the metric that computes a factor of a rubric, or None if a judge is asked."""
    return str(definition["metric"]) if isinstance(definition, Mapping) and "metric" in definition else None


def description_of(definition: object) -> str:
    """Return the text that tells a good answer from a bad one by a factor."""
    return str(definition.get("description") or "") if isinstance(definition, Mapping) else str(definition)


def weight_of(definition: object) -> float:
    """Return the weight of a factor; 1 where the rubric has none."""
    weight = definition.get("weight") if isinstance(definition, Mapping) else None
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return float(weight) if is_number and isfinite(weight) and weight > 0 else 1.0  # type: ignore[arg-type, operator]


def weights_in(rubric: Mapping[str, Any]) -> dict[str, float]:
    """Return factor -> weight for the weights other than 1."""
    weights = {factor: weight_of(definition) for factor, definition in rubric.items()}
    return {factor: weight for factor, weight in weights.items() if weight != 1.0}
