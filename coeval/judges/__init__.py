"""Judges that compute: metrics against the reference answer, and labels against the attributes of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coeval.config.schema import Model, Task
from coeval.errors import RunInputError
from coeval.judges.label import label_scores
from coeval.judges.metric import metric_scores

__all__ = ["scores_for"]

_Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def scores_for(judge: Model, task: Task, rubric: Mapping[str, Any], pairs: Sequence[_Pair]) -> list[dict[str, str]]:
    """What a computing judge says of answers: factor -> a number in [0, 1] as text, of four places at most.

    Args:
        judge: of interface `metric` (every factor of the rubric that is a metric) or `label` (every label attribute
            that the item was made with).
        task: of the items.
        rubric: of the task, as stored.
        pairs: of each answer its item and itself, as stored.

    Raises:
        RunInputError: a metric's package or model is not there, or the judge is none that computes.
    """
    texts = [str(response["response"]) for _, response in pairs]
    if judge.interface == "label":
        truths = [item.get("sampled_target_attributes") or {} for item, _ in pairs]
        found = [label_scores(task.label_attributes, truth, text) for truth, text in zip(truths, texts, strict=True)]
    elif judge.interface == "metric":
        found = metric_scores(rubric, [str(item.get("reference_response") or "") for item, _ in pairs], texts)
    else:
        raise RunInputError(f"{judge.name}: interface {judge.interface!r} is asked, it does not compute")
    return [{factor: str(round(min(max(value, 0.0), 1.0), 4)) for factor, value in scores.items()} for scores in found]
