"""Judges that compute: metrics against the reference answer, and labels against the attributes of an item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coeval.config.schema import Model, Task
from coeval.errors import RunInputError
from coeval.judges.label import label_scores
from coeval.judges.metric import metric_scores

__all__ = ["scores_for"]


def scores_for(
    judge: Model,
    task: Task,
    rubric: Mapping[str, Any],
    datapoint: Mapping[str, Any],
    response: Mapping[str, Any],
) -> dict[str, str]:
    """What a computing judge says of one answer: factor -> a number in [0, 1] as text, of four places at most.

    Args:
        judge: of interface `metric` (every factor of the rubric that is a metric) or `label` (every label attribute
            that the item was made with).
        task: of the item.
        rubric: of the task, as stored.
        datapoint: the item.
        response: the answer.

    Raises:
        RunInputError: a metric's package is not there, or the judge is none that computes.
    """
    text = str(response["response"])
    if judge.interface == "label":
        truth = datapoint.get("sampled_target_attributes") or {}
        found = label_scores(task.label_attributes, truth, text)
    elif judge.interface == "metric":
        found = metric_scores(rubric, str(datapoint.get("reference_response") or ""), text)
    else:
        raise RunInputError(f"{judge.name}: interface {judge.interface!r} is asked, it does not compute")
    return {factor: str(round(min(max(value, 0.0), 1.0), 4)) for factor, value in found.items()}
