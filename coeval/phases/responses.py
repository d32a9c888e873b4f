"""Phase 4: every student's answer to every item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coeval.judging.prompts import render
from coeval.phases.driving import ATTEMPTS, drive, each_model
from coeval.phases.items import index_of_items
from coeval.phases.question import Kind, Question
from coeval.phases.stage import Outcome, Stage
from coeval.schema import Model, Phase, Task
from coeval.storage.jsonl import RecordIndex, read_records
from coeval.storage.records import answer_mark, is_answer_to, is_failed, is_marked, now
from coeval.storage.run import Run

PHASE: Phase = "response_collection"


@dataclass
class _Left:
    """What is left of a student's work on a task."""

    items: list[str] = field(default_factory=list)
    """Those without an answer to their present prompt."""
    marked: Counter[str] = field(default_factory=Counter)
    """How often answers of an id were marked as failed."""


async def collect_responses(stage: Stage) -> Outcome:
    """Collect the answers that are missing."""
    kept = {task.name for task in stage.config.tasks if stage.modes[PHASE] == "Keep" and _has_any(stage, task.name)}
    tasks = [task for task in stage.config.tasks if task.name not in kept]
    items = {task.name: index_of_items(stage, task.name) for task in tasks}
    students = [model for model in stage.models("student") if not model.is_virtual]

    async def work(student: Model) -> Outcome:
        return await _of_student(stage, student, tasks, items)

    return await each_model(stage, PHASE, students, work)


def _has_any(stage: Stage, task: str) -> bool:
    return any(_is_answer(record) for path in stage.run.response_files(task) for record in read_records(path))


async def _of_student(stage: Stage, student: Model, tasks: list[Task], items: Mapping[str, RecordIndex]) -> Outcome:
    missing = {task.name: _missing(stage, task.name, student, items[task.name]) for task in tasks}
    expected = sum(len(left.items) for left in missing.values())
    stage.progress.expect(expected)
    failures = stage.store.failures(PHASE)

    def questions() -> Iterator[Question]:
        for task in tasks:
            left = missing[task.name]
            before = failures + left.marked
            for item in map(items[task.name].get, left.items):
                if item is not None:
                    yield _question(task, student, item, before)

    outcome = await drive(stage, PHASE, student, questions())
    outcome.expected = expected
    return outcome


def _missing(stage: Stage, task: str, student: Model, items: RecordIndex) -> _Left:
    """The items that the student has not answered as they are now."""
    done, left = set(), _Left()
    for path in stage.run.response_files(task):
        # A model's name may have dots, so the file's name only says who it may be; the record says who it is.
        if path.name.endswith(f".{student.name}.responses.jsonl"):
            for record in read_records(path, stage.warn_bad_line):
                if record.get("student_model_id") != student.name:
                    continue
                if _is_of(record, items):
                    done.add(record.get("datapoint_id"))
                elif is_marked(record):
                    left.marked[str(record.get("id"))] += 1
    if stage.modes[PHASE] != "Model" or not done:
        left.items = [item for item in items if item not in done]
    return left


def _is_answer(record: Mapping[str, Any]) -> bool:
    return not is_failed(record) and bool(record.get("response"))


def _is_of(record: Mapping[str, Any], items: RecordIndex) -> bool:
    """Whether a record is an answer to what its item says now, where the item is there."""
    item = items.notes.get(str(record.get("datapoint_id")))
    return _is_answer(record) and (item is None or is_answer_to(record, item))


def _question(task: Task, student: Model, item: Mapping[str, Any], failures: Mapping[str, int]) -> Question:
    identity = f"{item['id']}__{student.name}"
    context = {
        "id": identity,
        "datapoint_id": item["id"],
        "task_id": task.name,
        "teacher_model_id": item["teacher_model_id"],
        "student_model_id": student.name,
        "input": item["prompt"],
    }
    prompt = render(task, student.name, "test", input=item["prompt"])
    first = failures.get(identity, 0) * ATTEMPTS
    return Question("response", PHASE, "student", student.name, task.name, context, {"": prompt}, first)


def _record(context: Mapping[str, Any], values: Mapping[str, Any], failures: Mapping[str, str]) -> dict[str, Any]:
    text = values.get("", "")
    record = {**context, "response": text, "token_count": max(1, len(text) // 4), "generated_at": now()}
    return {**record, "status": "failed", "error": failures[""]} if failures else record


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.responses(context["task_id"], context["student_model_id"])


KINDS = {"response": Kind(lambda _context, _part, text: text, _record, _path)}


def index_of_responses(stage: Stage, task: str, items: RecordIndex) -> RecordIndex:
    """The answers to the items of a task as they are now, of the students that the configuration has."""
    students = {model.name for model in stage.config.with_role("student")}
    return RecordIndex(
        stage.run.response_files(task),
        lambda record: (
            _is_of(record, items) and record.get("task_id") == task and record.get("student_model_id") in students
        ),
        note=answer_mark,
    )
