"""Gaps of a run: records that its configuration and the records of earlier phases call for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coeval.interfaces import VIRTUAL
from coeval.judging.factors import LABEL_PREFIX, factors_for
from coeval.judging.grading import is_score
from coeval.phases.pair_schedule import Schedule, current_verdicts, meetings, read_verdicts
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.records import (
    AnswerMark,
    ItemMark,
    answer_mark,
    is_answer_to,
    is_failed,
    is_judgement_of,
    item_mark,
)
from coeval.storage.run import RECORD_FOLDERS, Run, entries_of, stored_config


@dataclass(frozen=True)
class Gap:
    """Missing records of a model."""

    kind: str
    """Kind of record; see `coeval.storage.run.RECORD_FOLDERS`."""
    task: str
    model: str
    missing: int


@dataclass(frozen=True)
class _StoredConfig:
    """The stored configuration, as far as it can be read."""

    tasks: Sequence[Mapping[str, Any]]
    models: Sequence[Mapping[str, Any]]

    def names(self, role: str) -> list[tuple[str, str, Any]]:
        """Return (name, interface, metric) of the models in a role."""
        models = [model for model in self.models if role in (model.get("roles") or ())]
        parameters = [one if isinstance(one := model.get("parameters"), dict) else {} for model in models]
        return [
            (str(model.get("name")), str(model.get("interface")), own.get("metric"))
            for model, own in zip(models, parameters, strict=True)
        ]

    def judges(self, task: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
        """Return the judges of a task, as `coeval.judging.factors.judges_of` does for a loaded configuration."""
        judges = self.names("judge")
        has_label = any(interface == "label" for _, interface, _ in judges)
        return judges if has_label or not task.get("label_attributes") else [*judges, ("label", "label", None)]


@dataclass(frozen=True)
class _Present:
    """The items and answers that exist, by id."""

    items: Mapping[str, ItemMark]
    answers: Mapping[str, AnswerMark]
    """Those of the configured students."""

    def has(self, record: Mapping[str, Any]) -> bool:
        """Whether a judge's record is about an existing answer."""
        item, answer = self._pair(str(record.get("response_id")))
        return answer is not None and (item is None or is_judgement_of(record, item, [answer]))

    def required(self, response: str, factors: set[str]) -> set[str]:
        """Return the factors that an answer needs scores for: labels only where its item has them."""
        item, _ = self._pair(response)
        names = () if item is None else item.attributes
        return {one for one in factors if not one.startswith(LABEL_PREFIX) or one.removeprefix(LABEL_PREFIX) in names}

    def _pair(self, response: str) -> tuple[ItemMark | None, AnswerMark | None]:
        return self.items.get(response.rpartition("__")[0]), self.answers.get(response)


def find_gaps(run: Run, kinds: Collection[str] = tuple(RECORD_FOLDERS)) -> Iterator[Gap]:
    """Yield the gaps in these kinds of records; none if the stored configuration cannot be read."""
    raw = stored_config(run)
    config = _StoredConfig(entries_of(raw, "tasks"), entries_of(raw, "models"))
    for task in config.tasks:
        name = str(task.get("name"))
        items, item_marks = _items_of(run, name)
        if "data_generation" in kinds:
            yield from _items(config, task, items)
        answers = _answers_of(run, name, item_marks) if set(kinds) - {"data_generation"} else {}
        if "response_collection" in kinds:
            yield from _answers(config, task, items, answers)
        students = {student for student, *_ in config.names("student")}
        every_answer = {one: mark for name in students for one, mark in answers.get(name, {}).items()}
        if "evaluation" in kinds:
            yield from _scores(run, config, task, _Present(item_marks, every_answer))
        if "pairwise" in kinds and task.get("evaluation_mode") == "pairwise":
            yield from _pairs(run, config, task, items, _Present(item_marks, every_answer))


def _items_of(run: Run, task: str) -> tuple[dict[str, set[str]], dict[str, ItemMark]]:
    """Return teacher -> ids of its items, and id -> mark."""
    items, marks = dict[str, set[str]](), dict[str, ItemMark]()
    for record in _valid(run, "data_generation", task, "prompt"):
        items.setdefault(str(record.get("teacher_model_id")), set()).add(str(record.get("id")))
        marks[str(record.get("id"))] = item_mark(record)
    return items, marks


def _answers_of(run: Run, task: str, items: Mapping[str, ItemMark]) -> dict[str, dict[str, AnswerMark]]:
    """Return student -> id -> mark of its answers to the current items."""
    answers: dict[str, dict[str, AnswerMark]] = {}
    for record in _valid(run, "response_collection", task, "response"):
        item = items.get(str(record.get("datapoint_id")))
        if item is None or is_answer_to(record, item):
            answers.setdefault(str(record.get("student_model_id")), {})[str(record.get("id"))] = answer_mark(record)
    return answers


def _valid(run: Run, kind: str, task: str, needed: str) -> Iterator[dict[str, Any]]:
    for path in run.record_files(kind, task):
        yield from (record for record in read_records(path) if not is_failed(record) and record.get(needed))


def _items(config: _StoredConfig, task: Mapping[str, Any], items: Mapping[str, set[str]]) -> Iterator[Gap]:
    sampling = task.get("sampling")
    total = int(sampling.get("total") or 0) if isinstance(sampling, dict) else 0
    for teacher, interface, _ in config.names("teacher"):
        missing = total - len(items.get(teacher, ()))
        if interface != "benchmark" and missing > 0:
            yield Gap("data_generation", str(task.get("name")), teacher, missing)


def _answers(
    config: _StoredConfig,
    task: Mapping[str, Any],
    items: Mapping[str, set[str]],
    answers: Mapping[str, Collection[str]],
) -> Iterator[Gap]:
    every_item = set().union(*items.values())
    for student, *_ in config.names("student"):
        missing = len(every_item - {one.rpartition("__")[0] for one in answers.get(student, ())})
        if missing:
            yield Gap("response_collection", str(task.get("name")), student, missing)


def _scores(run: Run, config: _StoredConfig, task: Mapping[str, Any], present: _Present) -> Iterator[Gap]:
    name = str(task.get("name"))
    rubric = read_json(run.rubric(name))
    for judge, interface, metric in config.judges(task):
        if task.get("evaluation_mode") == "pairwise" and interface not in VIRTUAL:
            continue
        labels, definitions = task.get("label_attributes") or (), rubric if isinstance(rubric, dict) else {}
        factors = factors_for(interface, metric, labels, definitions)
        missing = _unscored(run, name, judge, set(factors), present) if factors else 0
        if missing:
            yield Gap("evaluation", name, judge, missing)


def _pairs(
    run: Run, config: _StoredConfig, task: Mapping[str, Any], items: Mapping[str, set[str]], present: _Present
) -> Iterator[Gap]:
    """Yield the gaps in verdicts: all pairs of answers to an item are due, or as many as the schedule has."""
    name, pairwise = str(task.get("name")), task.get("pairwise")
    limit = pairwise.get("pairs") if isinstance(pairwise, dict) else None
    answered: dict[str, list[str]] = {}
    for datapoint, _, student in (identity.rpartition("__") for identity in present.answers):
        answered.setdefault(datapoint, []).append(student)
    possible = [meetings({one: answered.get(one, []) for one in ids}) for ids in items.values()]
    for judge, interface, _ in config.judges(task):
        if interface not in VIRTUAL:
            is_current = current_verdicts(present.items, present.answers)
            verdicts = read_verdicts(run.record_files("pairwise", name, judge), judge, is_current).winners
            most = limit if isinstance(limit, int) else None
            missing = sum(Schedule(part, verdicts, most, seed=0).left for part in possible)
            if missing:
                yield Gap("pairwise", name, judge, missing)


def _unscored(run: Run, task: str, judge: str, factors: set[str], present: _Present) -> int:
    """Return how many answers lack a score of a judge for one of these factors."""
    left = {response: present.required(response, factors) for response in present.answers}
    for path in run.record_files("evaluation", task, judge):
        for record in read_records(path):
            if record.get("judge_model_id") == judge and not is_failed(record) and present.has(record):
                scores = record.get("scores")
                factor_scores = scores.items() if isinstance(scores, dict) else ()
                left[record["response_id"]] -= {factor for factor, score in factor_scores if is_score(score)}
    return sum(map(bool, left.values()))
