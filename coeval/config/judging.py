"""Whether judges have something to score, and whatever is to be scored has a judge, as far as a configuration tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coeval.config.interfaces import VIRTUAL
from coeval.config.problems import Problems
from coeval.config.schema import Model, Rubric, Task

__all__ = ["check_judges"]


def check_judges(models: Sequence[Model], tasks: Sequence[Task], problems: Problems) -> None:
    """Metrics without a judge that computes them, judges of metrics without any, tasks in which nobody scores anything.

    Rubrics that teachers write, or that come from an earlier run, are not known yet: nothing is said of them.
    """
    judges = [model for model in models if "judge" in model.roles]
    if not judges:
        return
    for number, task in enumerate(tasks):
        rubric = _rubric(task)
        if rubric is not None and not problems.at("tasks", number) and not problems.within("tasks", number, "rubric"):
            _check_task(number, task, rubric, judges, problems)
    _check_metric_judges(models, tasks, problems)


def _rubric(task: Task) -> Rubric | None:
    return None if isinstance(task.rubric, str) or not task.rubric else task.rubric


def _check_task(number: int, task: Task, rubric: Rubric, judges: Sequence[Model], problems: Problems) -> None:
    where = ("tasks", number, "rubric")
    for factor, metric in _metrics(rubric).items():
        if not any(_computes(judge, metric) for judge in judges):
            message = (
                f"nobody computes {metric}; add a judge with `interface: metric` (a `metric` among its parameters is "
                "the only one that it computes), or remove the factor"
            )
            problems.add((*where, factor), message, "V-18")
    reads = any(judge.interface not in VIRTUAL for judge in judges)
    if not reads and not _metrics(rubric) and not task.label_attributes and task.evaluation_mode != "pairwise":
        problems.add(where, "no judge reads answers, and nothing of them is computed; add a judge that is a model")


def _check_metric_judges(models: Sequence[Model], tasks: Sequence[Task], problems: Problems) -> None:
    rubrics = [_rubric(task) for task in tasks]
    metrics = {metric for rubric in rubrics if rubric is not None for metric in _metrics(rubric).values()}
    if not rubrics or None in rubrics or any(problems.within("tasks", n, "rubric") for n in range(len(tasks))):
        return
    for number, model in enumerate(models):
        if model.interface == "metric" and not any(_computes(model, metric) for metric in metrics):
            own = model.parameters.get("metric") or "a metric"
            message = f"no rubric has {own} for it to compute; add a factor such as `NAME: {{metric: {_example(own)}}}`"
            problems.add(("models", number, "interface"), f"{message}, or remove this model", "V-18")


def _metrics(rubric: Rubric) -> dict[str, str]:
    """Factor -> metric, of those that are computed."""
    return {
        factor: str(definition["metric"])
        for factor, definition in rubric.items()
        if isinstance(definition, Mapping) and "metric" in definition
    }


def _computes(judge: Model, metric: str) -> bool:
    return judge.interface == "metric" and judge.parameters.get("metric") in (None, metric)


def _example(metric: object) -> str:
    return "bleu" if metric == "a metric" else str(metric)
