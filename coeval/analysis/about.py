"""What a run says of itself: its tasks, rubrics, attributes and models, from whatever of its files can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coeval.errors import RunInputError
from coeval.grading.reply import grading_said
from coeval.grading.weights import weights_in
from coeval.phases.factors import LABEL_PREFIX, is_metric
from coeval.storage.jsonl import read_json
from coeval.storage.layout import Run
from coeval.storage.snapshot import entries_of, stored_config

__all__ = ["About", "TaskAbout", "read_about"]


@dataclass(frozen=True)
class TaskAbout:
    """A task, as far as the run tells."""

    description: str = ""
    rubric: Mapping[str, str] | None = None
    """Factor -> description; None where no rubric is known, so that no score can be found to be missing."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Factors that are computed -> the metric."""
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drawn: tuple[int, int] | None = None
    """How many of its attributes an item is drawn with; None where the run does not tell."""
    label_attributes: tuple[str, ...] = ()
    is_configured: bool = False
    """Whether the run's configuration has it."""
    is_pairwise: bool = False
    """Whether models compare answers, and score none."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Factor -> what it counts, of those that count for more or less than 1."""
    grading: str = ""
    """How judges grade, where it is not by levels alone."""


@dataclass(frozen=True)
class About:
    """A run, as far as it tells."""

    experiment_id: str
    status: str
    created_at: str
    meta: Mapping[str, Any]
    tasks: Mapping[str, TaskAbout]
    interfaces: Mapping[str, str]
    """Model -> interface."""
    model_ids: Mapping[str, str]
    """Model -> what its provider calls it, where no role says otherwise."""
    role_models: Mapping[tuple[str, str], str]
    """(model, role) -> what its provider calls it in this role, where that is another."""
    roles: Mapping[str, tuple[str, ...]]
    """Role -> models, as configured."""
    own_metrics: Mapping[str, str] = field(default_factory=dict)
    """Metric judge -> the one metric that it computes, where it does not compute all."""

    def model_id(self, model: str, role: str) -> str:
        """What a model's provider calls it in a role; its own name where the run does not tell."""
        return self.role_models.get((model, role)) or self.model_ids.get(model, model)

    def kind(self, judge: str, task: str, factors: Iterable[str]) -> str:
        """Whether a judge is a model, a metric or the label judge; told by its factors where it is not configured."""
        interface = self.interfaces.get(judge)
        if interface is not None:
            return interface if interface in ("metric", "label") else "model"
        names = set(factors)
        if names and all(name.startswith(LABEL_PREFIX) for name in names):
            return "label"
        return "metric" if names and names <= set(self.tasks.get(task, TaskAbout()).metrics) else "model"

    def required(self, kind: str, task: str, judge: str = "") -> tuple[str, ...] | None:
        """The factors that a judge of a kind has to score; None where the run does not tell."""
        about = self.tasks.get(task, TaskAbout())
        if kind == "label":
            return tuple(f"{LABEL_PREFIX}{name}" for name in about.label_attributes) or None
        if about.rubric is None:
            return None
        if kind == "metric":
            own = self.own_metrics.get(judge)
            return tuple(name for name, metric in about.metrics.items() if own in (None, metric))
        return tuple(name for name in about.rubric if name not in about.metrics)

    def owes(self, judge: str, kind: str, task: str) -> bool:
        """Whether a judge has anything to score in a task."""
        about = self.tasks.get(task, TaskAbout())
        if kind == "label":
            return bool(about.label_attributes) or not about.is_configured
        required = self.required(kind, task, judge)
        return not (about.is_pairwise and kind == "model") and (required is None or len(required) > 0)


def read_about(run: Run) -> About:
    """Read meta, configuration, attributes and rubrics.

    Raises:
        RunInputError: the folder holds no run.
    """
    if not run.meta.is_file() and not (run.folder / "phase5_evaluations").is_dir() and not run.pair_files():
        raise RunInputError(
            f"{run.folder} holds no run: neither meta.json nor phase5_evaluations is there; check --run"
        )
    meta, config = _map(read_json(run.meta)), stored_config(run)
    models = [model for model in entries_of(config, "models") if isinstance(model.get("name"), str)]
    configured = {task["name"]: task for task in entries_of(config, "tasks") if isinstance(task.get("name"), str)}
    stored = {path.name.split(".")[0] for path in (run.folder / "phase2_rubric").glob("[!.]*.rubric.json")}
    return About(
        str(meta.get("experiment_id") or _map(config.get("experiment")).get("id") or run.folder.name),
        str(meta.get("status") or "unknown"),
        str(meta.get("created_at") or ""),
        meta,
        {name: _task(run, name, configured.get(name, {})) for name in sorted({*configured, *stored})},
        {model["name"]: _interface(model) for model in models},
        {model["name"]: str(_map(model.get("parameters")).get("model") or model["name"]) for model in models},
        _role_models(models),
        {role: _with_role(models, role) for role in ("teacher", "student", "judge")},
        _own_metrics(models),
    )


def _own_metrics(models: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    judges = [model for model in models if _interface(model) == "metric"]
    named = {model["name"]: _map(model.get("parameters")).get("metric") for model in judges}
    return {name: str(metric) for name, metric in named.items() if metric}


def _role_models(models: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    return {
        (model["name"], str(role)): str(parameters["model"])
        for model in models
        for role, parameters in _map(model.get("role_parameters")).items()
        if _map(parameters).get("model")
    }


def _interface(model: Mapping[str, Any]) -> str:
    resolved = _map(model.get("resolved")).get("interface")
    return str(resolved or model.get("interface") or "")


def _with_role(models: Iterable[Mapping[str, Any]], role: str) -> tuple[str, ...]:
    return tuple(model["name"] for model in models if role in (model.get("roles") or ()))


def _task(run: Run, name: str, configured: Mapping[str, Any]) -> TaskAbout:
    rubric = _rubric(run, name, configured)
    path = run.find_attributes(name, "target")
    attributes = _map(read_json(path)) if path is not None else {}
    attributes = attributes or _map(configured.get("target_attributes"))
    found = {key: tuple(map(str, values)) for key, values in attributes.items() if isinstance(values, list)}
    return TaskAbout(
        str(configured.get("description") or ""),
        None if rubric is None else {factor: _description(value) for factor, value in rubric.items()},
        {
            factor: str(value["metric"])
            for factor, value in (rubric or {}).items()
            if isinstance(value, Mapping) and is_metric(value)
        },
        found,
        _drawn(_map(configured.get("sampling")).get("target"), len(found)),
        tuple(map(str, configured.get("label_attributes") or ())),
        is_configured=bool(configured),
        is_pairwise=configured.get("evaluation_mode") == "pairwise",
        weights=_weights(rubric, configured.get("rubric")),
        grading=grading_said(configured),
    )


def _drawn(target: object, declared: int) -> tuple[int, int] | None:
    """How many attributes `sampling.target` has items drawn with."""
    if target == "all":
        return declared, declared
    bounds = target if isinstance(target, list) else [target]
    if not bounds or not all(isinstance(bound, int) for bound in bounds):
        return None
    return min(min(bounds), declared), min(max(bounds), declared)


def _rubric(run: Run, name: str, configured: Mapping[str, Any]) -> Mapping[str, Any] | None:
    path = run.find_rubric(name)
    stored = read_json(path) if path is not None else None
    for rubric in (stored, configured.get("rubric")):
        if isinstance(rubric, Mapping) and rubric:
            return rubric
    return None


def _weights(rubric: Mapping[str, Any] | None, configured: object) -> dict[str, float]:
    """As the configuration says now; as stored, of factors that it does not name."""
    now = {factor: value for factor, value in _map(configured).items() if factor in (rubric or {})}
    return weights_in({**(rubric or {}), **now})


def _description(value: object) -> str:
    return str(value.get("description") or value.get("metric") or "") if isinstance(value, Mapping) else str(value)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
