"""What a run lacks: records that its configuration and what is stored before them call for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coeval.pairs.schedule import Schedule, meetings
from coeval.pairs.seen import files_of, read_seen
from coeval.phases.factors import LABEL_PREFIX, is_metric
from coeval.phases.scoring import is_score
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.layout import Run
from coeval.storage.records import is_failed

__all__ = ["Gap", "find_gaps"]

_VIRTUAL = ("metric", "label")


@dataclass(frozen=True)
class Gap:
    """Records that are not there."""

    kind: str
    """Of record; see `coeval.storage.layout.RECORD_FOLDERS`."""
    task: str
    model: str
    missing: int


@dataclass(frozen=True)
class _Said:
    """What the stored configuration says, as far as it can be read."""

    tasks: Sequence[Mapping[str, Any]]
    models: Sequence[Mapping[str, Any]]

    def names(self, role: str) -> list[tuple[str, str]]:
        """(name, interface) of the models in a role."""
        found = [model for model in self.models if role in (model.get("roles") or ())]
        return [(str(model.get("name")), str(model.get("interface"))) for model in found]

    def judges(self, task: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The judges of a task; as `coeval.phases.factors.judges_of`, of what is stored."""
        found = self.names("judge")
        has_label = any(interface == "label" for _, interface in found)
        return found if has_label or not task.get("label_attributes") else [*found, ("label", "label")]


def find_gaps(run: Run) -> Iterator[Gap]:
    """The gaps of phases 3 to 5; where the configuration cannot be read there are none to tell."""
    said = _read(run)
    for task in said.tasks:
        name = str(task.get("name"))
        items = _ids(run, "data_generation", name, "teacher_model_id")
        yield from _items(said, task, items)
        every_item = set().union(*items.values())
        answers = _ids(run, "response_collection", name, "student_model_id")
        for student, _ in said.names("student"):
            missing = len(every_item - {one.rpartition("__")[0] for one in answers.get(student, ())})
            if missing:
                yield Gap("response_collection", name, student, missing)
        students = {student for student, _ in said.names("student")}
        every_answer = set().union(*(ids for student, ids in answers.items() if student in students))
        yield from _scores(run, said, task, every_answer)
        if task.get("evaluation_mode") == "pairwise":
            yield from _pairs(run, said, task, items, every_answer)


def _read(run: Run) -> _Said:
    import yaml

    try:
        raw = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        raw = None
    raw = raw if isinstance(raw, dict) else {}
    tasks, models = ([one for one in raw.get(key) or () if isinstance(one, dict)] for key in ("tasks", "models"))
    return _Said(tasks, models)


def _ids(run: Run, kind: str, task: str, model_key: str) -> dict[str, set[str]]:
    """Model -> ids of its valid records."""
    found: dict[str, set[str]] = {}
    for path in run.record_files(kind, task):
        for record in read_records(path):
            if not is_failed(record) and record.get("prompt" if kind == "data_generation" else "response"):
                found.setdefault(str(record.get(model_key)), set()).add(str(record.get("id")))
    return found


def _items(said: _Said, task: Mapping[str, Any], items: Mapping[str, set[str]]) -> Iterator[Gap]:
    sampling = task.get("sampling")
    total = int(sampling.get("total") or 0) if isinstance(sampling, dict) else 0
    for teacher, interface in said.names("teacher"):
        missing = total - len(items.get(teacher, ()))
        if interface != "benchmark" and missing > 0:
            yield Gap("data_generation", str(task.get("name")), teacher, missing)


def _scores(run: Run, said: _Said, task: Mapping[str, Any], answers: set[str]) -> Iterator[Gap]:
    name = str(task.get("name"))
    rubric = read_json(run.rubric(name))
    for judge, interface in said.judges(task):
        if task.get("evaluation_mode") == "pairwise" and interface not in _VIRTUAL:
            continue
        factors = _factors(interface, task, rubric if isinstance(rubric, dict) else {})
        missing = len(answers - _scored(run, name, judge, factors)) if factors else 0
        if missing:
            yield Gap("evaluation", name, judge, missing)


def _factors(interface: str, task: Mapping[str, Any], rubric: Mapping[str, Any]) -> set[str]:
    """What a judge of this interface scores; as `coeval.phases.factors.required_factors`, of what is stored."""
    if interface == "label":
        return {f"{LABEL_PREFIX}{name}" for name in task.get("label_attributes") or ()}
    return {factor for factor, definition in rubric.items() if is_metric(definition) == (interface == "metric")}


def _pairs(
    run: Run, said: _Said, task: Mapping[str, Any], items: Mapping[str, set[str]], answers: set[str]
) -> Iterator[Gap]:
    """Verdicts that judges owe: all pairs of answers to an item, or as many as the schedule has."""
    name, pairwise = str(task.get("name")), task.get("pairwise")
    limit = pairwise.get("pairs") if isinstance(pairwise, dict) else None
    answered: dict[str, list[str]] = {}
    for datapoint, _, student in (identity.rpartition("__") for identity in answers):
        answered.setdefault(datapoint, []).append(student)
    possible = [meetings({one: answered.get(one, []) for one in found}) for found in items.values()]
    for judge, interface in said.judges(task):
        if interface not in _VIRTUAL:
            known = read_seen(files_of(run, name, judge), judge).verdicts
            most = limit if isinstance(limit, int) else None
            missing = sum(Schedule(part, known, most, seed=0).left for part in possible)
            if missing:
                yield Gap("pairwise", name, judge, missing)


def _scored(run: Run, task: str, judge: str, factors: set[str]) -> set[str]:
    """Answers of which this judge has scored all these factors, in one record or several."""
    left: dict[str, set[str]] = {}
    for path in run.evaluation_files(task):
        for record in read_records(path) if path.name.endswith(f".{judge}.evaluations.jsonl") else ():
            if record.get("judge_model_id") == judge and not is_failed(record):
                scores = record.get("scores") or {}
                lacking = left.setdefault(str(record.get("response_id")), set(factors))
                lacking.difference_update(factor for factor, score in scores.items() if is_score(score))
    return {response for response, lacking in left.items() if not lacking}
