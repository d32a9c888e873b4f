"""Which judge scores which factors of a task."""

from __future__ import annotations

from collections.abc import Mapping

from coeval.schema import Config, Model, Rubric, Task

LABEL_PREFIX = "label:"
_LABEL_JUDGE = Model(name="label", interface="label", roles=("judge",))


def judges_of(config: Config, task: Task) -> tuple[Model, ...]:
    """Return the judges of a task; where it has labels and no judge is there for them, one that compares them."""
    judges = config.with_role("judge")
    if task.label_attributes and all(judge.interface != "label" for judge in judges):
        return (*judges, _LABEL_JUDGE)
    return judges


def required_factors(judge: Model, task: Task, rubric: Rubric) -> tuple[str, ...]:
    """What a judge has to score: metrics by metric judges, labels by the label judge, all else by language models.

    A metric judge with a `metric` of its own scores the factors of that one alone.
    """
    if judge.interface == "label":
        return tuple(f"{LABEL_PREFIX}{name}" for name in task.label_attributes)
    metrics = tuple(name for name, definition in rubric.items() if is_metric(definition))
    if judge.interface == "metric":
        own = judge.parameters.get("metric")
        return tuple(name for name in metrics if own in (None, metric_of(rubric[name])))
    return tuple(name for name in rubric if name not in metrics)


def metric_of(definition: object) -> str | None:
    """Return the metric that a factor of a rubric is; None where it is a question."""
    return str(definition["metric"]) if isinstance(definition, Mapping) and "metric" in definition else None


def is_metric(definition: object) -> bool:
    """Whether a factor of a rubric is computed."""
    return metric_of(definition) is not None
