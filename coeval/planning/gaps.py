"""Gaps of a run: records that its configuration and the records of earlier phases call for."""

from __future__ import annotations

from collections import defaultdict
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
    """The items and answers of a task that exist, by id."""

    run: Run
    task: Mapping[str, Any]
    items: Mapping[str, ItemMark]
    by_teacher: Mapping[str, Collection[str]]
    """Teacher -> ids of its items."""
    by_student: Mapping[str, Mapping[str, AnswerMark]]
    """Student -> its answers to the current items."""
    answers: Mapping[str, AnswerMark]
    """Those of the configured students."""

    @property
    def name(self) -> str:
        """The name of the task."""
        return str(self.task.get("name"))

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
        # The id of an answer is that of its item and the student's name, which holds no `__`.
        return self.items.get(response.rpartition("__")[0]), self.answers.get(response)


def find_gaps(run: Run, kinds: Collection[str] = tuple(RECORD_FOLDERS)) -> Iterator[Gap]:
    """Yield the gaps in these kinds of records; none if the stored configuration cannot be read."""
    raw = stored_config(run)
    config = _StoredConfig(entries_of(raw, "tasks"), entries_of(raw, "models"))
    for task in config.tasks:
        present = _present(run, config, task, with_answers=bool(set(kinds) - {"data_generation"}))
        for kind, missing_by_model in _MISSING.items():
            for model, missing in missing_by_model(config, present) if kind in kinds else ():
                if missing > 0:
                    yield Gap(kind, present.name, model, missing)


WORDS = {
    "data_generation": "items",
    "response_collection": "responses",
    "evaluation": "evaluations",
    "pairwise": "pairs",
}
"""Kind of record -> what it is called in messages."""


def missing_text(run: Run) -> str:
    """Return what a run lacks, by kind of record and model; empty if nothing is missing."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for gap in find_gaps(run):
        counts[gap.kind, gap.model] += gap.missing
    return ", ".join(f"{count} {WORDS[kind]} of {model}" for (kind, model), count in counts.items())


def expected_missing(run: Run) -> dict[str, int]:
    """Return how many records of each kind a run lacks, those of items included that are still to be written."""
    missing: dict[str, int] = defaultdict(int)
    items: dict[str, int] = defaultdict(int)
    for gap in find_gaps(run):
        missing[gap.kind] += gap.missing
        if gap.kind == "data_generation":
            items[gap.task] += gap.missing
    raw = stored_config(run)
    config = _StoredConfig(entries_of(raw, "tasks"), entries_of(raw, "models"))
    students = sum(interface != "answers" for _, interface, _ in config.names("student"))
    for task in config.tasks:
        answers = items[str(task.get("name"))] * students
        missing["response_collection"] += answers
        for _, interface, metric in config.judges(task):
            if task.get("evaluation_mode") == "pairwise" and interface not in VIRTUAL:
                missing["pairwise"] += answers * (students - 1) // 2
            elif _factors_of(run, task, interface, metric):
                missing["evaluation"] += answers
    return dict(missing)


def _factors_of(run: Run, task: Mapping[str, Any], interface: str, metric: Any) -> Collection[str]:
    """Return the factors that a judge scores; one unknown, where the rubric is not written yet."""
    rubric = read_json(run.rubric(str(task.get("name"))))
    definitions = rubric if isinstance(rubric, dict) else task.get("rubric")
    if not isinstance(definitions, dict):
        return () if interface in VIRTUAL else ("",)
    return factors_for(interface, metric, task.get("label_attributes") or (), definitions)


def _present(run: Run, config: _StoredConfig, task: Mapping[str, Any], *, with_answers: bool) -> _Present:
    items, by_teacher = dict[str, ItemMark](), defaultdict[str, set[str]](set)
    for record in _valid(run, "data_generation", task, "prompt"):
        by_teacher[str(record.get("teacher_model_id"))].add(str(record.get("id")))
        items[str(record.get("id"))] = item_mark(record)
    by_student = defaultdict[str, dict[str, AnswerMark]](dict)
    for record in _valid(run, "response_collection", task, "response") if with_answers else ():
        item = items.get(str(record.get("datapoint_id")))
        if item is None or is_answer_to(record, item):
            by_student[str(record.get("student_model_id"))][str(record.get("id"))] = answer_mark(record)
    students = {student for student, *_ in config.names("student")}
    answers = {one: mark for name in students for one, mark in by_student[name].items()}
    return _Present(run, task, items, by_teacher, by_student, answers)


def _valid(run: Run, kind: str, task: Mapping[str, Any], needed: str) -> Iterator[dict[str, Any]]:
    for path in run.record_files(kind, str(task.get("name"))):
        yield from (record for record in read_records(path) if not is_failed(record) and record.get(needed))


def _items(config: _StoredConfig, present: _Present) -> Iterator[tuple[str, int]]:
    sampling = present.task.get("sampling")
    total = int(sampling.get("total") or 0) if isinstance(sampling, dict) else 0
    for teacher, interface, _ in config.names("teacher"):
        if interface != "benchmark":
            yield teacher, total - len(present.by_teacher.get(teacher, ()))


def _answers(config: _StoredConfig, present: _Present) -> Iterator[tuple[str, int]]:
    for student, interface, _ in config.names("student"):
        if interface == "answers":  # there is what was ingested
            continue
        answered = {one.rpartition("__")[0] for one in present.by_student.get(student, ())}
        yield student, len(present.items.keys() - answered)


def _scores(config: _StoredConfig, present: _Present) -> Iterator[tuple[str, int]]:
    rubric = read_json(present.run.rubric(present.name))
    definitions, labels = rubric if isinstance(rubric, dict) else {}, present.task.get("label_attributes") or ()
    for judge, interface, metric in config.judges(present.task):
        if present.task.get("evaluation_mode") != "pairwise" or interface in VIRTUAL:
            factors = factors_for(interface, metric, labels, definitions)
            yield judge, _unscored(judge, set(factors), present) if factors else 0


def _pairs(config: _StoredConfig, present: _Present) -> Iterator[tuple[str, int]]:
    """Yield the gaps in verdicts: all pairs of answers to an item are due, or as many as the schedule has."""
    if present.task.get("evaluation_mode") != "pairwise":
        return
    pairwise = present.task.get("pairwise")
    limit = pairwise.get("pairs") if isinstance(pairwise, dict) else None
    most = limit if isinstance(limit, int) else None
    answered: dict[str, list[str]] = {}
    for datapoint, _, student in (identity.rpartition("__") for identity in present.answers):
        answered.setdefault(datapoint, []).append(student)
    possible = [meetings({one: answered.get(one, []) for one in ids}) for ids in present.by_teacher.values()]
    is_current = current_verdicts(present.items, present.answers)
    for judge, interface, _ in config.judges(present.task):
        if interface not in VIRTUAL:
            files = present.run.record_files("pairwise", present.name, judge)
            verdicts = read_verdicts(files, judge, is_current).winners
            yield judge, sum(Schedule(part, verdicts, most, seed=0).left for part in possible)


def _unscored(judge: str, factors: set[str], present: _Present) -> int:
    """Return how many answers lack a score of a judge for one of these factors."""
    left = {response: present.required(response, factors) for response in present.answers}
    for path in present.run.record_files("evaluation", present.name, judge):
        for record in read_records(path):
            if record.get("judge_model_id") == judge and not is_failed(record) and present.has(record):
                scores = record.get("scores")
                factor_scores = scores.items() if isinstance(scores, dict) else ()
                left[record["response_id"]] -= {factor for factor, score in factor_scores if is_score(score)}
    return sum(map(bool, left.values()))


_MISSING = {"data_generation": _items, "response_collection": _answers, "evaluation": _scores, "pairwise": _pairs}
"""Kind of record -> function that yields models and how many records they lack."""
