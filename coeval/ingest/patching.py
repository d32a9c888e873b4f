"""The configuration that a run holds, with a benchmark's teacher, task and judge added."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.benchmark import Benchmark
from coeval.storage.layout import Run
from p2l.command import atomic_path

__all__ = ["is_ours", "patched", "read_configuration", "write_configuration"]


def read_configuration(run: Run) -> dict[str, Any]:
    """The `config.yaml` of a run.

    Raises:
        RunInputError: it cannot be read.
    """
    import yaml

    try:
        found = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "no YAML"
        raise RunInputError(f"{run.config}: cannot be read: {why}") from error
    if not isinstance(found, dict):
        raise RunInputError(f"{run.config}: is no configuration")
    return found


def patched(configuration: Mapping[str, Any], benchmark: Benchmark, run: Run) -> dict[str, Any]:
    """The configuration with what the benchmark needs; what is there stays as it is.

    Raises:
        RunInputError: the teacher's name belongs to a model that is asked, or the task is there and would not be scored
            as the benchmark asks.
    """
    changed = copy.deepcopy(dict(configuration))
    models, tasks = changed.setdefault("models", []), changed.setdefault("tasks", [])
    _add_model(models, benchmark.name, "benchmark", "teacher", {}, run)
    if benchmark.metric is not None:
        parameters = {"metric": benchmark.metric}
        _add_model(models, f"metric-{benchmark.metric}", "metric", "judge", parameters, run)
    there = next((task for task in tasks if task.get("name") == benchmark.task), None)
    if there is None:
        tasks.append(_task(benchmark))
    else:
        _check_fits(there, benchmark, run)
        _extend_values(there, benchmark)
    return changed


def is_ours(configuration: Mapping[str, Any], name: str) -> bool:
    """Whether a task is one that came with a benchmark, or will."""
    there = next((task for task in configuration.get("tasks") or () if task.get("name") == name), None)
    return there is None or there.get("category") == "benchmark"


def _check_fits(task: Mapping[str, Any], benchmark: Benchmark, run: Run) -> None:
    """A task that is there keeps its description, labels and factors: those that are asked for must be among them."""
    name, rubric = benchmark.task, task.get("rubric")
    metrics = (
        [one.get("metric") for one in rubric.values() if isinstance(one, dict)] if isinstance(rubric, dict) else []
    )
    lacks = [f"label attribute {label!r}" for label in benchmark.label_attributes if label not in _labels(task)]
    lacks += [f"factor with metric {benchmark.metric!r}"] * (benchmark.metric not in (None, *metrics))
    lacks += ["such description"] * (benchmark.described and task.get("description") != benchmark.description)
    if lacks:
        raise RunInputError(
            f"{run.config}: task {name!r} is there already and has no {' and no '.join(lacks)}; "
            f"add what it lacks there, or take another task"
        )


def _labels(task: Mapping[str, Any]) -> Sequence[str]:
    return task.get("label_attributes") or ()


def _add_model(
    models: list[dict[str, Any]], name: str, interface: str, role: str, parameters: Mapping[str, Any], run: Run
) -> None:
    there = next((model for model in models if model.get("name") == name), None)
    if there is None:
        models.append({"name": name, "interface": interface, "roles": [role], "parameters": dict(parameters)})
    elif there.get("interface") != interface:
        raise RunInputError(
            f"{run.config}: {name!r} is a model of interface {there.get('interface')!r}; use another --teacher-id"
        )


def _task(benchmark: Benchmark) -> dict[str, Any]:
    drawn = 1 if benchmark.attributes else 0
    return {
        "name": benchmark.task,
        "description": benchmark.description,
        "output_description": benchmark.output_description,
        "target_attributes": {name: list(values) for name, values in benchmark.attributes.items()},
        "nuanced_attributes": {},
        "sampling": {"target": [drawn, drawn], "nuance": [0, 0], "total": 0},
        "rubric": {name: value if isinstance(value, str) else dict(value) for name, value in benchmark.rubric.items()},
        "label_attributes": list(benchmark.label_attributes),
        "category": "benchmark",
    }


def _extend_values(task: dict[str, Any], benchmark: Benchmark) -> None:
    """Values that a task of ours lacks; a task that the user wrote is left alone."""
    target = task.get("target_attributes")
    if task.get("category") == "benchmark" and isinstance(target, dict):
        for name, values in benchmark.attributes.items():
            target[name] = list(dict.fromkeys([*target.get(name, ()), *values]))


def write_configuration(run: Run, configuration: Mapping[str, Any]) -> None:
    """Replace the `config.yaml` of a run."""
    import yaml

    with atomic_path(run.config) as temporary:
        text = yaml.safe_dump(dict(configuration), sort_keys=True, allow_unicode=True, width=120)
        temporary.write_text(text, encoding="utf-8")
